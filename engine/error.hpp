// Error: what every part of Equigrad throws for bad input or a failed run.
//
// The text is "[where] expected X, got Y. Remedy."; `where` names the call the user made.
// Depends on: the C++ standard library only.
#pragma once

#include <stdexcept>
#include <string>

namespace equigrad {

class Error : public std::runtime_error {
 public:
  Error(const std::string& where, const std::string& what)
      : std::runtime_error("[" + where + "] " + what) {}
};

}  // namespace equigrad
