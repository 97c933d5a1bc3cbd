// Session: what one profile has seen, in order, and the module to which each operator belongs
// (flops_profiler.hpp has the rules).
//
// Invariants: add() is called in the order in which operators of a phase end; resolve gives every
// operator one module.
// Units: ns.
// Errors: none.
// Depends on: profile/flop_formulas, flops_report, layout/module_tree.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/layout/module_tree.hpp"
#include "engine/profile/flop_formulas.hpp"
#include "engine/profile/flops_report.hpp"

namespace equigrad::profile {

constexpr int64_t kNone = -1;

struct Operator {
  bool backward = false;
  int64_t module = kNone;    // by its parameters
  int64_t sequence = kNone;  // forward: of the node it makes; backward: of the node it runs in
  Cost cost;
  int64_t time_ns = 0;
};

class Session {
 public:
  // `parameters`: those that the modules list, in any order.
  Session(std::vector<layout::ModuleEntry> modules, const std::vector<at::Tensor>& parameters);

  // From nothing, on this thread.
  void begin();
  std::thread::id thread() const { return thread_; }
  // The first module of which an operator reads a parameter.
  int64_t module_of(c10::ArrayRef<c10::IValue> inputs) const;
  // Until the device has done what it was told; on the CPU it has.
  void wait() const;

  void add(const Operator& made, int64_t begin_ns, int64_t end_ns);
  void add_unknown(const std::string& name);
  FlopsReport report() const;

 private:
  int64_t owner_of(const at::Tensor& tensor) const;
  int64_t common(int64_t a, int64_t b) const;
  void close_span();
  void resolve_phase(bool backward, const std::unordered_map<int64_t, int64_t>& made_by,
                     std::vector<int64_t>& resolved) const;
  std::vector<int64_t> resolve() const;
  void describe_modules(FlopsReport& report) const;

  std::vector<layout::ModuleEntry> modules_;
  std::unordered_map<const void*, at::Tensor> parameters_;  // by identity
  std::vector<int64_t> parents_;                            // kNone for the model
  std::unordered_map<const c10::StorageImpl*, int64_t> owners_;
  std::optional<c10::Device> device_;  // to wait for
  std::thread::id thread_;

  mutable std::mutex mutex_;
  std::vector<Operator> operators_;
  std::map<std::string, int64_t> unknown_;
  // From the first operator of a phase to its last: forward, backward.
  int64_t span_ns_[2] = {0, 0};
  int64_t span_begin_ns_ = kNone, span_end_ns_ = 0;
  bool span_backward_ = false;
};

}  // namespace equigrad::profile
