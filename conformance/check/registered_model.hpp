// RegisteredModel: a model in a shared library, for `equigrad run --model libmine.so`.
//
//   EQUIGRAD_MODEL([] { return std::make_shared<MyModel>(); },
//                  loss_of)
//
// stands once in the library, at namespace scope. Its two arguments are those of equigrad::check.
//
// Invariants: the library needs torch and nothing of Equigrad's but this header. What it was built
// with is read before anything else of it is used.
// Units: none.
// Errors: load_model() refuses with CheckRefused what is no such library, or one of another torch
// or another Equigrad.
// Depends on: user_model.hpp, torch/version.h; EQUIGRAD_VERSION is defined by the target
// equigrad::model.
#pragma once

#include <torch/version.h>

#include <string>

#include "conformance/check/user_model.hpp"

#ifndef EQUIGRAD_VERSION
#error "expected EQUIGRAD_VERSION to be defined. Link the CMake target equigrad::model."
#endif

// Some classes of torch have another layout where NDEBUG is not defined.
#ifdef NDEBUG
#define EQUIGRAD_MODEL_ASSERTIONS "NDEBUG"
#else
#define EQUIGRAD_MODEL_ASSERTIONS "no NDEBUG"
#endif
#define EQUIGRAD_MODEL_STAMP \
  "equigrad " EQUIGRAD_VERSION ", torch " TORCH_VERSION ", " EQUIGRAD_MODEL_ASSERTIONS

namespace equigrad::conformance {

// Plain, so that `stamp` can be read whatever the rest was built with.
struct RegisteredModel {
  const char* stamp;
  void (*get)(UserModel& model);
};

inline constexpr const char* kRegisteredModel = "equigrad_registered_model";
// Of the library at `path`, which stays loaded.
UserModel load_model(const std::string& path);
// libmine.so -> mine; a name that cases can have.
std::string model_name(const std::string& path);

}  // namespace equigrad::conformance

#define EQUIGRAD_MODEL(...)                                                   \
  extern "C" __attribute__((visibility("default")))                           \
  const ::equigrad::conformance::RegisteredModel*                             \
  equigrad_registered_model() {                                               \
    static const ::equigrad::conformance::RegisteredModel registered{         \
        EQUIGRAD_MODEL_STAMP, [](::equigrad::conformance::UserModel& model) { \
          model = ::equigrad::conformance::user_model(__VA_ARGS__);           \
        }};                                                                   \
    return &registered;                                                       \
  }
