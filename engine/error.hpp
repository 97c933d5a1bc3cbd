// Error: what every part of Equigrad throws for bad input or a failed run; and EQUIGRAD_CHECK, for
// what can only be wrong by a mistake of Equigrad's own.
//
//   EQUIGRAD_CHECK(run.end <= shard_numel, "optimizer.update", "a run ends within the shard");
//
// The text is "[where] expected X, got Y. Remedy."; `where` names the call the user made. Of a
// check it is "[where] broken invariant: WHAT. ...".
//
// Invariants: a check is made with NDEBUG too; its condition is evaluated once.
// Errors: a check that does not hold throws Error.
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

[[noreturn]] inline void throw_broken_invariant(const char* where, const char* what) {
  throw Error(where, std::string("broken invariant: ") + what +
                         ". This is a mistake in Equigrad: report it, with the configuration.");
}

}  // namespace equigrad

#define EQUIGRAD_CHECK(condition, where, what) \
  static_cast<void>((condition) || (::equigrad::throw_broken_invariant(where, what), false))
