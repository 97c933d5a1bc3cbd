#include "engine/gradient/window.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/kernels/exact_sum.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::gradient {
namespace {

at::ScalarType type_of_window(const WindowOptions& options) {
  const bool holds_sums = options.reduce_every_pass && options.order == ReductionOrder::Exact;
  return holds_sums ? kernels::kExactSum : options.accumulate_dtype;
}

}  // namespace

at::TensorOptions Window::on_device(at::ScalarType dtype) const {
  return at::TensorOptions().dtype(dtype).device(participant_.communicator().device());
}

// At the boundary the window's local sums are sent; after every pass the gradients themselves are.
bucket::QueueOptions Window::queue_options() const {
  const bool each = options_.reduce_every_pass;
  return {
      .buffer = on_device(each || is_exact() ? options_.param_dtype : options_.accumulate_dtype),
      .result_dtype = each && !is_exact() ? at::kFloat : type_of_window(options_),
      .order = options_.order,
      .launch_when_full = each,
      .communication_dtypes = options_.communication_dtypes,
      .before_sum = options_.before_sum,
      .expects_sums = !each && is_exact() && !options_.expects_one_pass,
      .overlaps = options_.overlaps};
}

Window::Window(const layout::BucketPlan& plan, std::size_t parameters,
               agreement::Participant& participant, const WindowOptions& options,
               memory::Ledger& ledger)
    : plan_(plan),
      participant_(participant),
      options_(options),
      ledger_(ledger),
      sums_(plan, on_device(type_of_window(options)), ledger),
      queue_(plan, participant, queue_options(), ledger, *this),
      progress_{0, std::vector<bool>(parameters, false)},
      pass_{1.0, std::vector<bool>(parameters, false), {}},
      contributions_(parameters, 0) {}

void Window::add(std::size_t bucket, at::Tensor sum) {
  const bool was_weighed = !options_.reduce_every_pass || is_exact();
  sums_.add(bucket, std::move(sum), was_weighed ? 1.0 : pass_.weight);
}

void Window::begin(double weight, bool expects_step) {
  pass_.weight = weight;
  std::fill(pass_.used.begin(), pass_.used.end(), false);
  queue_.launch_eagerly(expects_step && options_.eager && progress_.passes == 0 && guesses_);
}

void Window::expect_one_pass(bool expects) {
  options_.expects_one_pass = expects;
  queue_.expect_sums(queue_options().expects_sums);
}

void Window::ready(std::size_t parameter, at::Tensor gradient) {
  pass_.used[parameter] = true;
  count(parameter);
  if (options_.reduce_every_pass)
    return queue_.copy_in(parameter, std::move(gradient), is_exact() ? pass_.weight : 1.0);
  if (progress_.passes == 0) return queue_.copy_in(parameter, std::move(gradient), pass_.weight);
  ledger_.charge(memory::Category::Gradients, static_cast<int64_t>(gradient.nbytes()));
  pass_.staged.push_back({parameter, std::move(gradient)});
}

void Window::count(std::size_t parameter) {
  const int world = participant_.communicator().world_size();
  const int64_t most = kernels::kMostExactTerms / world;
  if (!is_exact() || ++contributions_[parameter] <= most) return;
  throw Error("backward", "expected at most " + std::to_string(most) +
                              " gradients of a parameter between two steps with \"reduction\": "
                              "\"exact\" on " +
                              std::to_string(world) +
                              " ranks, got more. Call step() before, or use \"pinned\".");
}

void Window::end() {
  if (options_.reduce_every_pass) {
    queue_.flush();
    sums_.commit();
  }
  for (auto& staged : pass_.staged) {
    queue_.copy_in(staged.parameter, staged.gradient, pass_.weight);
    ledger_.credit(memory::Category::Gradients, static_cast<int64_t>(staged.gradient.nbytes()));
    staged.gradient.reset();
  }
  pass_.staged.clear();
  queue_.end_eager_launches();
  if (!options_.reduce_every_pass && queue_.left_eagerly() == 0) sums_.clear();  // taken back
  for (std::size_t i = 0; i < pass_.used.size(); ++i)
    progress_.used[i] = progress_.used[i] || pass_.used[i];
  ++progress_.passes;
}

void Window::abandon(WindowPart part) noexcept {
  part == WindowPart::Pass ? abandon_pass() : clear();
}

void Window::abandon_pass() noexcept {
  if (!options_.reduce_every_pass) {
    try {
      queue_.end_eager_launches();
    } catch (...) {
      // Another rank's pass threw as well.
    }
    guesses_ = false;
  }
  if (options_.reduce_every_pass || progress_.passes == 0) queue_.discard();
  if (options_.reduce_every_pass || progress_.passes == 0) sums_.rollback();
  for (const auto& staged : pass_.staged) {
    if (!staged.gradient.defined()) continue;  // end() threw midway
    ledger_.credit(memory::Category::Gradients, static_cast<int64_t>(staged.gradient.nbytes()));
  }
  pass_.staged.clear();
}

void Window::forget_guess() {
  queue_.take_back();
  sums_.clear();
}

// The buckets that have left eagerly must be the same on every rank.
agreement::Agreement Window::agree(bool is_observed) {
  agreement::Step step{.passes = progress_.passes,
                       .eager_buckets = queue_.left_eagerly(),
                       .is_observed = is_observed};
  auto agreement = participant_.meet(step, progress_.used);
  if (agreement.least_flag / 2 != agreement.greatest_flag / 2) {
    forget_guess();
    step.eager_buckets = 0;
    agreement = participant_.meet(step, progress_.used);
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
  const auto sum =
      options_.reduce_every_pass
          ? sums_.slice(plan_.buckets()[at.bucket].offset + slot.offset, slot.shard_numel)
          : queue_.sum_of_waiting(parameter);
  auto average = multiplied(sum.clone(), factor, options_.average_dtype);
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
    queue_.forget(parameter);
  }
  assigned_[parameter] = slice.to(options_.average_dtype, false, /*copy=*/true);
  progress_.used[parameter] = true;
}

void Window::clear() noexcept {
  const bool guesses = guesses_;
  abandon_pass();
  guesses_ = guesses;
  queue_.discard();
  sums_.clear();
  assigned_.clear();
  std::fill(contributions_.begin(), contributions_.end(), 0);
  std::fill(progress_.used.begin(), progress_.used.end(), false);
  progress_.passes = 0;
}

}  // namespace equigrad::gradient
