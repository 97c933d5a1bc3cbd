// Flops profiler: what one forward and backward pass of an unmodified module costs, and where.
//
// LibTorch's modules have no forward hooks. Every operator passes a RecordFunction callback, which
// lives only while a profiler runs:
//   cost     the outermost operator that has a formula (flop_formulas.hpp) counts, nothing inside
//            of it; composite operators (linear, matmul) count as what they run;
//   phase    backward is what runs in a node of autograd's graph, checkpointed forwards included;
//   module   an operator belongs to the module of a parameter that it reads, views included; in
//            backward, else to that of the forward operator which made its node; else to the
//            deepest module that contains those of the operators before and after it. A tensor
//            under two names belongs to the first; what comes before the first module or after the
//            last, such as the loss, to the model itself.
//
// Invariants: every operator counts once, in one module, so the modules' own counts add up to the
// total; counts do not depend on the ZeRO stage. Neither the engine's operators (Silence, hooks of
// gradients, the end of a pass) nor autograd's accumulation into .grad count. Forward counts on the
// thread that called start() only. An operator that has no formula and is no composite is listed as
// unknown. Nothing is computed or changed; on other devices than the CPU every operator is waited
// for.
// Units: floating-point operations, multiply-accumulates, ns, elements.
// Errors: equigrad::Error for start() while it runs, stop() while it does not.
// Depends on: profile/session, flops_report; in the source ATen's RecordFunction and
// autograd/operator_observer's Silence.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/autograd/shared_callback.hpp"
#include "engine/profile/flops_report.hpp"
#include "engine/profile/session.hpp"

namespace torch::nn {
class Module;
}

namespace equigrad::profile {

// The model and all its submodules, parents first.
std::vector<layout::ModuleEntry> modules_of(const torch::nn::Module& model);

class FlopsProfiler {
 public:
  // `parameters`: those that the modules list, in any order.
  FlopsProfiler(std::vector<layout::ModuleEntry> modules,
                const std::vector<at::Tensor>& parameters);
  explicit FlopsProfiler(const torch::nn::Module& model);
  ~FlopsProfiler();
  FlopsProfiler(const FlopsProfiler&) = delete;
  FlopsProfiler& operator=(const FlopsProfiler&) = delete;

  // What came before is forgotten.
  void start();
  void stop();
  bool running() const { return running_.has_value(); }
  // Of what has been counted since start().
  FlopsReport report() const;

 private:
  std::shared_ptr<Session> session_;
  std::optional<autograd::SharedCallback::Use> running_;
};

}  // namespace equigrad::profile
