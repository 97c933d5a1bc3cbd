// Station: the function that a row of seams.def names, chosen among its overloads by the row's
// signature.
//
// Invariants: Station<Signature>::of(&f) compiles for exactly one f: a function with this
// signature, or a member function of the class that the first parameter refers to (const where that
// is). An unknown name, another result or parameter, and two that fit are errors of the compiler.
// Errors: none at run time.   Depends on: the C++ standard library only.
#pragma once

#include <type_traits>

namespace equigrad::conformance::faults {

template <class Signature>
struct Station;

template <class Result, class... Parameters>
struct Station<Result(Parameters...)> {
  static constexpr auto of(Result (*function)(Parameters...)) { return function; }
};

template <class Result, class Self, class... Parameters>
requires std::is_class_v<Self>
struct Station<Result(Self&, Parameters...)> {
  static constexpr auto of(Result (*function)(Self&, Parameters...)) { return function; }
  static constexpr auto of(Result (Self::*member)(Parameters...)) { return member; }
};

template <class Result, class Self, class... Parameters>
requires std::is_class_v<Self>
struct Station<Result(const Self&, Parameters...)> {
  static constexpr auto of(Result (*function)(const Self&, Parameters...)) { return function; }
  static constexpr auto of(Result (Self::*member)(Parameters...) const) { return member; }
};

}  // namespace equigrad::conformance::faults
