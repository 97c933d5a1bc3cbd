#include "conformance/on_rank/caller_state.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstring>
#include <mutex>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace equigrad::conformance {
namespace {

using Words = std::string (*)(int64_t value);

std::string on_off(int64_t value) { return value != 0 ? "on" : "off"; }
std::string number(int64_t value) { return std::to_string(value); }
std::string type_name(int64_t value) { return c10::toString(static_cast<at::ScalarType>(value)); }
std::string hexadecimal(int64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}
std::string direction(int64_t value) {
  switch (value) {
    case FE_TONEAREST:
      return "to nearest";
    case FE_UPWARD:
      return "upward";
    case FE_DOWNWARD:
      return "downward";
    case FE_TOWARDZERO:
      return "toward zero";
    default:
      return number(value);
  }
}

const at::Context& context() { return at::globalContext(); }
c10::AutogradState& autograd_state() { return c10::AutogradState::get_tls_state(); }

// Rounding, denormals and masked exceptions, without the flags that operations raise.
int64_t floating_point_control() {
#if defined(__SSE2__)
  return _mm_getcsr() & ~0x3Fu;
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return static_cast<int64_t>(control);
#else
  return 0;
#endif
}

// Only a change tells how deep it is.
int64_t autocast_nesting() {
  const int inside = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return inside - 1;
}

// Of the process and of this thread, by all that they are called for.
int64_t callbacks() {
  int64_t count = 0;
  for (int scope = 0; scope < static_cast<int>(at::RecordScope::NUM_SCOPES); ++scope) {
    const auto called = at::getStepCallbacksUnlessEmpty(static_cast<at::RecordScope>(scope));
    if (called) count += static_cast<int64_t>(called->callbacks_.size());
  }
  return count;
}

struct Row {
  const char* name;
  Share share;
  int64_t (*read)();
  Words words;
};

constexpr auto kCpu = at::kCPU, kCuda = at::kCUDA;

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      // of the thread
      {"gradient mode", Share::Setting, [] { return int64_t{autograd_state().get_grad_mode()}; },
       on_off},
      {"inference mode", Share::Setting,
       [] { return int64_t{autograd_state().get_inference_mode()}; }, on_off},
      {"forward gradient mode", Share::Setting,
       [] { return int64_t{autograd_state().get_fw_grad_mode()}; }, on_off},
      {"multithreading of autograd", Share::Setting,
       [] { return int64_t{autograd_state().get_multithreading_enabled()}; }, on_off},
      {"view replay", Share::Setting,
       [] { return int64_t{autograd_state().get_view_replay_enabled()}; }, on_off},
      {"saved-tensor hooks", Share::Setting,
       [] { return int64_t{at::SavedTensorDefaultHooks::is_enabled()}; }, on_off},
      {"number of default saved-tensor hooks", Share::Setting,
       [] {
         return static_cast<int64_t>(at::SavedTensorDefaultHooks::get_tls_state().stack.size());
       },
       number},
      {"rounding mode", Share::Setting, [] { return int64_t{std::fegetround()}; }, direction},
      {"floating point control word", Share::Setting, floating_point_control, hexadecimal},
      {"record functions", Share::Setting, [] { return int64_t{at::isRecordFunctionEnabled()}; },
       on_off},
      // of the process
      {"number of threads", Share::Setting, [] { return int64_t{at::get_num_threads()}; }, number},
      {"default dtype", Share::Setting,
       [] { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); }, type_name},
      {"deterministic algorithms", Share::Setting,
       [] { return int64_t{context().deterministicAlgorithms()}; }, on_off},
      {"warning alone of deterministic algorithms", Share::Setting,
       [] { return int64_t{context().deterministicAlgorithmsWarnOnly()}; }, on_off},
      {"filling of uninitialized memory", Share::Setting,
       [] { return int64_t{context().deterministicFillUninitializedMemory()}; }, on_off},
      {"oneDNN", Share::Setting, [] { return int64_t{context().userEnabledMkldnn()}; }, on_off},
      // of autocast
      {"autocast on CPU", Share::Autocast,
       [] { return int64_t{at::autocast::is_autocast_enabled(kCpu)}; }, on_off},
      {"autocast type on CPU", Share::Autocast,
       [] { return static_cast<int64_t>(at::autocast::get_autocast_dtype(kCpu)); }, type_name},
      {"autocast on CUDA", Share::Autocast,
       [] { return int64_t{at::autocast::is_autocast_enabled(kCuda)}; }, on_off},
      {"autocast type on CUDA", Share::Autocast,
       [] { return static_cast<int64_t>(at::autocast::get_autocast_dtype(kCuda)); }, type_name},
      {"autocast cache", Share::Autocast,
       [] { return int64_t{at::autocast::is_autocast_cache_enabled()}; }, on_off},
      {"nesting of autocast", Share::Autocast, autocast_nesting, number},
      {"included dispatch keys", Share::Autocast,
       [] {
         return static_cast<int64_t>(c10::impl::tls_local_dispatch_key_set().included_.raw_repr());
       },
       hexadecimal},
      {"excluded dispatch keys", Share::Autocast,
       [] {
         return static_cast<int64_t>(c10::impl::tls_local_dispatch_key_set().excluded_.raw_repr());
       },
       hexadecimal},
      // of whoever observes operators
      {"number of callbacks of operators", Share::Callback, callbacks, number},
      {"number of callbacks of this thread's operators", Share::Callback,
       [] {
         return static_cast<int64_t>(at::get_record_function_tls_().sorted_tls_callbacks_.size());
       },
       number},
  };
  return all;
}

at::Tensor generator_bytes() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

CallerState::CallerState() : generator_(generator_bytes()) {
  values_.reserve(rows().size());
  for (const auto& row : rows()) values_.push_back(row.read());
}

std::string CallerState::changes(const CallerState& before, Shares may_change) const {
  const auto is_judged = [&](Share share) {
    return std::find(may_change.begin(), may_change.end(), share) == may_change.end();
  };
  std::string text;
  const auto tell = [&text](const std::string& one) { text += (text.empty() ? "" : "; ") + one; };
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const auto& row = rows()[i];
    if (values_[i] == before.values_[i] || !is_judged(row.share)) continue;
    tell(std::string("the ") + row.name + " was " + row.words(before.values_[i]) + ", is " +
         row.words(values_[i]));
  }
  const bool is_equal = generator_.nbytes() == before.generator_.nbytes() &&
                        std::memcmp(generator_.const_data_ptr(), before.generator_.const_data_ptr(),
                                    generator_.nbytes()) == 0;
  if (!is_equal && is_judged(Share::Generator)) tell("torch's CPU generator is in another state");
  return text;
}

void CallerWatch::enter(int step, int micro_batch) {
  step_ = step;
  micro_batch_ = micro_batch;
}

void CallerWatch::judge(const std::string& what, const CallerState& before, Shares may_change) {
  ++calls_;
  const auto changes = CallerState().changes(before, may_change);
  if (changes.empty()) return exact_.add_held(1);
  std::string where = "caller after " + what;
  if (step_ >= 0) where = "step " + std::to_string(step_ + 1) + " " + where;
  if (micro_batch_ >= 0) where += " of micro-batch " + std::to_string(micro_batch_ + 1);
  exact_.add_finding(where, changes);
}

}  // namespace equigrad::conformance
