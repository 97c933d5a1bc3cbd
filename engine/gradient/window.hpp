// Window: the gradients of one accumulation window, from autograd's leaves to the average that the
// optimizer sees.
//
//   stages 0, 1   pass -> bucket buffers (a local sum) ...... step(): reduce -> average
//                 where one pass is the window: bucket -> reduce .. step(): average
//   stages 2, 3   pass -> bucket -> reduce -> this rank's shard, added up .. step(): average
//
// A backward pass is a transaction: it counts when it ends; one that throws leaves the window as it
// was before. So a pass may be run again, or left out, after an error.
// What is reduced in a pass of stages 0, 1 is a guess that no other pass follows: the local sums
// stay, and are what step() reduces if a pass did follow, or a value was assigned, or a rank's
// pass threw. So the guess changes no bit, and a pass that throws is still its rank's own affair;
// but a rank waits, for an answer, until the others have filled as much, or their pass has ended.
//
// Invariants: a contribution is what one graph task delivers to a leaf; every one is added, in the
// order of arrival. A parameter counts as used if any rank's pass reached it, so all ranks update
// the same parameters; identity is by parameter, never by arrival. What was assigned stands for
// the window so far; later passes add to it. In the exact order a contribution is multiplied by its
// weight before it is sent, at every stage.
// Shapes: averages are of average_dtype, flat over the shard space [plan.shard_numel()], or one
// parameter's slice of it.
// Errors: equigrad::Error when ranks ran different numbers of passes, and those of the
// communicator.
// Depends on: bucket, gradient/accumulator, layout, agreement, config, memory/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/agreement/coordinator.hpp"
#include "engine/bucket/bucket_queue.hpp"
#include "engine/config/config.hpp"
#include "engine/gradient/accumulator.hpp"
#include "engine/layout/bucket_plan.hpp"

namespace equigrad::gradient {

struct WindowOptions {
  at::ScalarType param_dtype;       // of the gradients
  at::ScalarType accumulate_dtype;  // of sums over passes
  bool reduce_every_pass;
  ReductionOrder order;
  at::ScalarType average_dtype = at::kFloat;
  std::array<std::optional<at::ScalarType>, 2> communication_dtypes = {};  // by lower_precision
  double before_sum = 1.0;
  bool expects_one_pass = true;  // of a window; false: it has several, or nobody knows
  bool overlaps = true;          // reductions and what else a pass does
  bool eager = false;  // a pass that expects a step begins reductions; stages 0, 1, pinned
};

// What this rank has given to a window.
struct WindowProgress {
  int64_t passes = 0;
  std::vector<bool> used;  // by parameter: a pass reached it, or it was assigned
};

enum class WindowPart {
  Pass,  // under way: the window is as it was before
  All,
};

class Window final : private bucket::SumSink {
 public:
  Window(const layout::BucketPlan& plan, std::size_t parameters,
         agreement::Participant& participant, const WindowOptions& options, memory::Ledger& ledger);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // A pass; every contribution counts `weight` times. `expects_step`: it may be the window's only
  // one, so reduction may begin in it.
  void begin(double weight, bool expects_step);
  // While it is empty: whether the next windows are expected to have one pass each.
  void expect_one_pass(bool expects);
  void ready(std::size_t parameter, at::Tensor gradient);
  void end();
  // Forgets what was given.
  void abandon(WindowPart part) noexcept;
  const WindowProgress& progress() const { return progress_; }

  // At the boundary. Marks: by parameter, whether any rank used it; flags, 0 or 1, as given.
  // Collective.
  agreement::Agreement agree(bool is_observed);
  // The average over passes and ranks; the window is empty afterwards. Collective.
  at::Tensor take_averaged(double factor);
  // The same of one parameter so far, its padding included; the window stays. Collective.
  at::Tensor averaged_slice(std::size_t parameter, double factor);
  // This rank's slice of the average so far, from now on.
  void assign(std::size_t parameter, const at::Tensor& slice);

 private:
  struct Staged {
    std::size_t parameter;
    at::Tensor gradient;
  };
  struct Pass {
    double weight = 1.0;
    std::vector<bool> used;
    std::vector<Staged> staged;  // stages 0, 1: of a pass that is not the window's first
  };
  at::Tensor block(std::size_t bucket) override { return sums_.block(bucket); }
  void add(std::size_t bucket, at::Tensor sum) override;
  void count(std::size_t parameter);
  void abandon_pass() noexcept;
  void clear() noexcept;
  void forget_guess();
  bool is_exact() const { return options_.order == ReductionOrder::Exact; }
  at::TensorOptions on_device(at::ScalarType dtype) const;
  bucket::QueueOptions queue_options() const;

  const layout::BucketPlan& plan_;
  agreement::Participant& participant_;
  WindowOptions options_;
  memory::Ledger& ledger_;
  Accumulator sums_;
  bucket::BucketQueue queue_;
  WindowProgress progress_;
  Pass pass_;  // under way
  std::map<std::size_t, at::Tensor> assigned_;
  std::vector<int64_t> contributions_;  // by parameter, of this rank, in this window
  bool guesses_ = true;                 // no pass of this rank threw since the last step
};

}  // namespace equigrad::gradient
