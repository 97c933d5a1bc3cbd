#include "engine/gradient/window.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/kernels/exact_sum.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad {
namespace {

at::ScalarType type_of_window(const WindowOptions& options) {
  const bool holds_sums = options.reduce_every_pass && options.order == ReductionOrder::Exact;
  return holds_sums ? kernels::kExactSum : options.accumulate_dtype;
}

}  // namespace

// At the boundary the window's local sums are sent; after every pass the gradients themselves are.
bucket::QueueOptions Window::queue_options(const at::TensorOptions& options) const {
  const bool each = options_.reduce_every_pass;
  return {options.dtype(each || is_exact() ? options_.param_dtype : options_.accumulate_dtype),
          each && !is_exact() ? at::kFloat : type_of_window(options_),
          options_.order,
          each,
          options_.communication_dtypes,
          options_.before_sum,
          !each && is_exact() && options_.expected_passes > 1,
          options_.overlaps};
}

Window::Window(const layout::BucketPlan& plan, std::size_t parameters,
               comm::Communicator& communicator, agreement::Participant& participant,
               const WindowOptions& options, trace::Ledger& ledger)
    : plan_(plan),
      communicator_(communicator),
      participant_(participant),
      options_(options),
      ledger_(ledger),
      sums_(plan, at::TensorOptions().dtype(type_of_window(options)).device(communicator.device()),
            ledger),
      queue_(
          plan, communicator, queue_options(at::TensorOptions().device(communicator.device())),
          ledger,
          [this](std::size_t bucket, at::Tensor sum) {
            const bool was_weighed = !options_.reduce_every_pass || is_exact();
            sums_.add(bucket, std::move(sum), was_weighed ? 1.0 : weight_);
          },
          [this](std::size_t bucket, int64_t rounds) -> agreement::Agreement {
            const bool agreed = !is_exact() || options_.expected_passes > 1;
            if (!options_.reduce_every_pass && agreed && rounds != 0)
              return {true, rounds, rounds, {}};
            return participant_.meet(agreement::LaunchBucket{.bucket = bucket, .rounds = rounds});
          },
          [this](std::size_t bucket) { return sums_.block(bucket); },
          {[this](std::size_t bucket, const std::function<void(bool)>& then) {
             participant_.announce(
                 agreement::LaunchBucket{.bucket = bucket},
                 [then](const agreement::Agreement& agreement) { then(agreement.together); });
           },
           [this] { participant_.settle(); }}),
      used_(parameters, false),
      used_by_pass_(parameters, false),
      contributions_(parameters, 0) {}

void Window::begin(double weight) {
  weight_ = weight;
  std::fill(used_by_pass_.begin(), used_by_pass_.end(), false);
  queue_.send_eagerly(false);
}

void Window::expect_passes(int64_t passes) {
  options_.expected_passes = passes;
  queue_.expect_sums(
      queue_options(at::TensorOptions().device(communicator_.device())).expects_sums);
}

void Window::expect_step() { queue_.send_eagerly(options_.eager && passes_ == 0 && guesses_); }

// Others may wait to hear of a group that is full there and will not be here: this place is none of
// theirs, so they are postponed. Nobody waits for the answer.
void Window::say_no_more() noexcept {
  try {
    queue_.settle();
    if (queue_.owes_word())
      participant_.announce(agreement::NoFullBucket{}, [](const agreement::Agreement&) {});
  } catch (...) {
    // A peer is lost, or all know that a pass threw: this one ends, and the next synchronisation
    // point tells.
  }
  queue_.send_eagerly(false);
}

void Window::ready(std::size_t parameter, at::Tensor gradient) {
  used_by_pass_[parameter] = true;
  count(parameter);
  if (options_.reduce_every_pass)
    return queue_.copy_in(parameter, std::move(gradient), is_exact() ? weight_ : 1.0);
  if (passes_ == 0) return queue_.copy_in(parameter, std::move(gradient), weight_);
  ledger_.charge(trace::Category::Gradients, static_cast<int64_t>(gradient.nbytes()));
  staged_.push_back({parameter, std::move(gradient)});
}

void Window::count(std::size_t parameter) {
  const int64_t most = kernels::kMostExactTerms / communicator_.world_size();
  if (!is_exact() || ++contributions_[parameter] <= most) return;
  throw Error("backward", "expected at most " + std::to_string(most) +
                              " gradients of a parameter between two steps with \"reduction\": "
                              "\"exact\" on " +
                              std::to_string(communicator_.world_size()) +
                              " ranks, got more. Call step() before, or use \"pinned\".");
}

void Window::end() {
  if (options_.reduce_every_pass) {
    queue_.flush();
    sums_.commit();
  }
  for (auto& staged : staged_) {
    queue_.copy_in(staged.parameter, staged.gradient, weight_);
    ledger_.credit(trace::Category::Gradients, static_cast<int64_t>(staged.gradient.nbytes()));
    staged.gradient.reset();
  }
  staged_.clear();
  queue_.settle();
  say_no_more();
  if (!options_.reduce_every_pass && queue_.eagerly_sent() == 0) sums_.clear();  // taken back
  for (std::size_t i = 0; i < used_.size(); ++i) used_[i] = used_[i] || used_by_pass_[i];
  ++passes_;
}

void Window::abandon() noexcept {
  if (!options_.reduce_every_pass) {
    say_no_more();
    guesses_ = false;
  }
  if (options_.reduce_every_pass || passes_ == 0) queue_.discard();
  if (options_.reduce_every_pass || passes_ == 0) sums_.rollback();
  for (const auto& staged : staged_) {
    if (!staged.gradient.defined()) continue;  // end() threw midway
    ledger_.credit(trace::Category::Gradients, static_cast<int64_t>(staged.gradient.nbytes()));
  }
  staged_.clear();
}

void Window::forget_guess() {
  queue_.take_back();
  sums_.clear();
}

// The buckets that have been sent eagerly must be the same on every rank.
agreement::Agreement Window::agree(int64_t flag) {
  const auto left = 2 * static_cast<int64_t>(queue_.eagerly_sent());
  auto agreement =
      participant_.meet(agreement::Step{.passes = passes_, .flag = left + flag}, used_);
  if (agreement.least_flag / 2 != agreement.greatest_flag / 2) {
    forget_guess();
    agreement = participant_.meet(agreement::Step{.passes = passes_, .flag = flag}, used_);
  }
  agreement.least_flag %= 2;
  agreement.greatest_flag %= 2;
  return agreement;
}

at::Tensor Window::take_averaged(double factor) {
  if (!options_.reduce_every_pass) {
    queue_.flush();
    sums_.commit();
  }
  auto average = sums_.take_averaged(factor, options_.average_dtype);
  for (const auto& [parameter, slice] : assigned_) {
    const auto at = *plan_.slot_of(parameter);
    average.narrow(0, plan_.buckets()[at.bucket].offset + plan_.slot(at).offset, slice.numel())
        .add_(slice);
  }
  clear();
  guesses_ = true;
  return average;
}

at::Tensor Window::averaged_slice(std::size_t parameter, double factor) {
  const auto at = *plan_.slot_of(parameter);
  const auto& slot = plan_.slot(at);
  at::Tensor sum;
  if (options_.reduce_every_pass) {
    sum = sums_.slice(plan_.buckets()[at.bucket].offset + slot.offset, slot.shard_numel);
  } else {
    // An all-reduce cuts its buffer into W slices.
    const int64_t numel = plan_.shards() * slot.shard_numel;
    const int64_t world = communicator_.world_size();
    const bool lower = plan_.buckets()[at.bucket].lower_precision;
    auto type = options_.accumulate_dtype;
    if (is_exact()) type = queue_.type_of_waiting(lower, queue_.agree_on_sums(parameter));
    const auto buffer = at::zeros({(numel + world - 1) / world * world},
                                  at::TensorOptions().dtype(type).device(communicator_.device()));
    auto columns = queue_.columns_of(parameter);
    if (columns.defined() && type == kernels::kExactSum && columns.scalar_type() != type)
      columns = kernels::exact_of(columns);
    if (columns.defined()) buffer.narrow(0, 0, numel).view({plan_.shards(), -1}).copy_(columns);
    const auto reduce = plan_.shards() == 1 ? &comm::Reduction::all_reduce_sum
                                            : &comm::Reduction::reduce_scatter_sum;
    sum = reduce(communicator_, options_.order, queue_.as_sent(buffer, lower),
                 options_.accumulate_dtype)
              .finish();
    sum = sum.narrow(0, 0, slot.shard_numel);
  }
  auto average = gradient::multiplied(sum.clone(), factor, options_.average_dtype);
  const auto assigned = assigned_.find(parameter);
  if (assigned != assigned_.end()) average.add_(assigned->second);
  return average;
}

void Window::assign(std::size_t parameter, const at::Tensor& slice) {
  const auto at = *plan_.slot_of(parameter);
  const auto& slot = plan_.slot(at);
  if (options_.reduce_every_pass) {
    sums_.forget(plan_.buckets()[at.bucket].offset + slot.offset, slot.shard_numel);
  } else {
    forget_guess();
    const auto columns = queue_.columns_of(parameter);
    if (columns.defined()) columns.zero_();
  }
  assigned_[parameter] = slice.to(options_.average_dtype, false, /*copy=*/true);
  used_[parameter] = true;
}

void Window::clear() {
  const bool guesses = guesses_;
  abandon();
  guesses_ = guesses;
  queue_.discard();
  sums_.clear();
  assigned_.clear();
  std::fill(used_.begin(), used_.end(), false);
  std::fill(contributions_.begin(), contributions_.end(), 0);
  passes_ = 0;
}

}  // namespace equigrad
