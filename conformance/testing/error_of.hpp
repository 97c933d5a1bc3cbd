// ErrorOf: the words of an error, for tests of what is refused.
//
// Errors: what is no equigrad::Error comes out as it was thrown.
// Depends on: engine/error.hpp. No torch.
#pragma once

#include <string>

#include "engine/error.hpp"

namespace equigrad::conformance {

// The text of the equigrad::Error that `call` throws; empty if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace equigrad::conformance
