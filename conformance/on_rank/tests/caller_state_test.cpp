// Every setting that an engine could leave changed is seen, and named, and nothing else is.
#include "conformance/on_rank/caller_state.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <cfenv>
#include <functional>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Change {
  std::string named;
  std::function<void()> make, undo;
};

at::CallbackHandle callback = 0;
std::unique_ptr<c10::InferenceMode> inference;

std::vector<Change> changes() {
  auto& context = at::globalContext();
  const auto threads = at::get_num_threads();
  return {
      {"the gradient mode was on, is off", [] { at::GradMode::set_enabled(false); },
       [] { at::GradMode::set_enabled(true); }},
      {"the inference mode was off, is on",
       [] { inference = std::make_unique<c10::InferenceMode>(); }, [] { inference.reset(); }},
      {"the saved-tensor hooks was on, is off",
       [] { at::SavedTensorDefaultHooks::disable("a test"); },
       [] { at::SavedTensorDefaultHooks::enable(); }},
      {"the rounding mode was to nearest, is upward", [] { std::fesetround(FE_UPWARD); },
       [] { std::fesetround(FE_TONEAREST); }},
      {"the floating point control word", [&context] { context.setFlushDenormal(true); },
       [&context] { context.setFlushDenormal(false); }},
      {"the record functions was on, is off", [] { at::enableRecordFunction(false); },
       [] { at::enableRecordFunction(true); }},
      {"the number of threads was", [threads] { at::set_num_threads(threads + 1); },
       [threads] { at::set_num_threads(threads); }},
      {"the default dtype was Float, is Double",
       [] { c10::set_default_dtype(caffe2::TypeMeta::Make<double>()); },
       [] { c10::set_default_dtype(caffe2::TypeMeta::Make<float>()); }},
      {"the deterministic algorithms was off, is on",
       [&context] { context.setDeterministicAlgorithms(true, false); },
       [&context] { context.setDeterministicAlgorithms(false, false); }},
      {"the autocast on CPU was off, is on",
       [] { at::autocast::set_autocast_enabled(at::kCPU, true); },
       [] { at::autocast::set_autocast_enabled(at::kCPU, false); }},
      {"the autocast type on CPU was BFloat16, is Half",
       [] { at::autocast::set_autocast_dtype(at::kCPU, at::kHalf); },
       [] { at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16); }},
      {"the autocast cache was on, is off", [] { at::autocast::set_autocast_cache_enabled(false); },
       [] { at::autocast::set_autocast_cache_enabled(true); }},
      {"the nesting of autocast was 0, is 1", [] { at::autocast::increment_nesting(); },
       [] { at::autocast::decrement_nesting(); }},
      {"the number of callbacks of operators",
       [] {
         callback = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                            return std::unique_ptr<at::ObserverContext>();
                                          }).scopes({at::RecordScope::FUNCTION}));
       },
       [] { at::removeCallback(callback); }},
      {"the number of callbacks of this thread's operators was 0, is 1",
       [] {
         callback = at::addThreadLocalCallback(at::RecordFunctionCallback(
             [](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); }));
       },
       [] { at::removeCallback(callback); }},
      {"torch's CPU generator is in another state", [] { at::rand({1}); }, [] {}},
  };
}

std::string first_of(const LaneTally& tally) { return tally.to_json().at("first"); }

TEST(CallerState, EveryChangeIsAFindingThatNamesItAndTheCall) {
  for (const auto& change : changes()) {
    LaneTally exact;
    CallerWatch caller(exact);
    caller.enter(0, 1);
    caller.around("step()", {}, change.make);
    change.undo();
    EXPECT_THAT(first_of(exact), StartsWith("step 1 caller after step() of micro-batch 2: "));
    EXPECT_THAT(first_of(exact), HasSubstr(change.named));
    EXPECT_EQ(exact.to_json().at("checks").at(0).at("kind"), "caller");
  }
}

TEST(CallerState, WhatChangesNothingHoldsAndCounts) {
  LaneTally exact;
  CallerWatch caller(exact);
  const int three = caller.around("initialize()", {}, [] { return 3; });
  EXPECT_EQ(three, 3);
  caller.around("step()", {}, [] { at::ones({2}).add_(1); });
  for (const auto& change : changes()) {
    if (change.named.find("generator") != std::string::npos) continue;
    caller.around("a change and back", {}, [&] {
      change.make();
      change.undo();
    });
  }
  EXPECT_EQ(first_of(exact), "");
  EXPECT_EQ(exact.to_json().at("compared"), caller.calls());
}

TEST(CallerState, ACallThatThrowsIsJudgedToo) {
  LaneTally exact;
  CallerWatch caller(exact);
  EXPECT_THROW(caller.around("initialize()", {},
                             [] {
                               at::GradMode::set_enabled(false);
                               throw Error("test", "no");
                             }),
               Error);
  at::GradMode::set_enabled(true);
  EXPECT_THAT(first_of(exact), StartsWith("caller after initialize(): the gradient mode"));
}

TEST(CallerState, WhatACallIsThereForIsNotJudged) {
  LaneTally exact;
  CallerWatch caller(exact);
  caller.around("autocast()", {Share::Autocast},
                [] { at::autocast::set_autocast_enabled(at::kCPU, true); });
  caller.around("its end", {Share::Autocast},
                [] { at::autocast::set_autocast_enabled(at::kCPU, false); });
  caller.around("a forward pass", {Share::Generator}, [] { at::rand({3}); });
  EXPECT_EQ(first_of(exact), "");
  caller.around("a forward pass", {Share::Autocast}, [] { at::rand({3}); });
  EXPECT_THAT(first_of(exact), HasSubstr("generator"));
}

}  // namespace
}  // namespace equigrad::conformance
