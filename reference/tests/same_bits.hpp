// same_bits: two tensors of one dtype and shape, equal in every bit (+0 and -0 identified).
//
// Errors: none; NaN equals nothing.   Depends on: ATen, GoogleTest.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace equigrad::conformance {

inline testing::AssertionResult same_bits(const at::Tensor& got, const at::Tensor& want) {
  if (!got.defined() || !want.defined()) return testing::AssertionFailure() << "undefined tensor";
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) {
    return testing::AssertionFailure()
           << got.scalar_type() << got.sizes() << " against " << want.scalar_type() << want.sizes();
  }
  if (at::equal(got, want)) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << at::ne(got, want).sum().item<int64_t>() << " of " << got.numel() << " elements differ";
}

// Same names, same bits, and something to compare.
inline testing::AssertionResult same_bits(const std::map<std::string, at::Tensor>& got,
                                          const std::map<std::string, at::Tensor>& want) {
  if (want.empty() || got.size() != want.size()) {
    return testing::AssertionFailure() << got.size() << " against " << want.size() << " tensors";
  }
  for (const auto& [name, tensor] : want) {
    if (got.count(name) == 0) return testing::AssertionFailure() << "no " << name;
    const testing::AssertionResult result = same_bits(got.at(name), tensor);
    if (!result) return testing::AssertionFailure() << name << ": " << result.message();
  }
  return testing::AssertionSuccess();
}

}  // namespace equigrad::conformance
