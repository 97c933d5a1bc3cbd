#include "conformance/check/operators.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "conformance/oracle/digest.hpp"

namespace equigrad::conformance {
namespace {

// The trace that is being made on this thread; a callback of RecordFunction holds no state.
thread_local std::vector<OperatorTrace::Result>* trace = nullptr;

bool writes_its_result(std::string_view name) {
  constexpr std::array kOthers = {"aten::empty",        "aten::empty_like",  "aten::empty_strided",
                                  "aten::new_empty",    "aten::resize_",     "aten::resize_as_",
                                  "aten::as_strided",   "aten::view",        "aten::_unsafe_view",
                                  "aten::slice",        "aten::select",      "aten::narrow",
                                  "aten::detach",       "aten::detach_",     "aten::set_",
                                  "aten::transpose",    "aten::permute",     "aten::expand",
                                  "aten::unsqueeze",    "aten::squeeze",     "aten::t",
                                  "aten::split",        "aten::chunk",       "aten::_reshape_alias",
                                  "aten::alias",        "aten::unbind",      "aten::numpy_T",
                                  "aten::resolve_conj", "aten::resolve_neg", "aten::copy_",
                                  "aten::to",           "aten::_to_copy",    "aten::clone",
                                  "aten::contiguous",   "aten::lift_fresh"};
  return name.starts_with("aten::") &&
         std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end();
}

void add(uint64_t& digest, const c10::IValue& value) {
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) add(digest, tensor);
    return;
  }
  if (!value.isTensor()) return;
  const auto tensor = value.toTensor();
  if (!tensor.defined() || tensor.layout() != at::kStrided) return;
  const auto real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  digest = digest * 31 + oracle::digest("result", 0, 0, real.detach().cpu());
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction&) { return nullptr; }

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (trace == nullptr || !writes_its_result(function.name())) return;
  const at::RecordFunctionGuard nothing(/*is_enabled=*/false);
  const at::NoGradGuard no_grad;
  OperatorTrace::Result result{.name = function.name()};
  for (const auto& output : function.outputs()) add(result.digest, output);
  trace->push_back(std::move(result));
}

}  // namespace

OperatorTrace::OperatorTrace(const std::function<void()>& run) {
  struct Watch {
    explicit Watch(std::vector<Result>* results)
        : handle(at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                                .needsOutputs(true)
                                                .scopes({at::RecordScope::FUNCTION}))) {
      trace = results;
    }
    ~Watch() {
      at::removeCallback(handle);
      trace = nullptr;
    }
    at::CallbackHandle handle;
  };
  const Watch watch(&results_);
  run();
}

std::string first_difference(const OperatorTrace& first, const OperatorTrace& second) {
  const auto &a = first.results(), &b = second.results();
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at != a.end()) return at->name;
  return other == b.end() ? "" : other->name;
}

}  // namespace equigrad::conformance
