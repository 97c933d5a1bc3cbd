#include "engine/parameter/paged.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::parameter {
namespace {

// Without a trace a page is dropped after this many operators that used other watched pages only:
// an attention's slices of one weight are a few operators apart.
constexpr int64_t kIdleOperators = 4;

}  // namespace

Pages::Pages(const Context& context)
    : context_(context),
      table_(context),
      pages_(table_.pages()),
      leaves_(context.leaves, table_.page_of(), pages_.size()) {
  const autograd::Silence silence;
  std::vector<int64_t> numel_by_page;
  std::vector<bool> always;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const auto& page = pages_[i];
    numel_by_page.push_back(page.tensor.numel());
    always.push_back(page.persistent);
    // What is always here needs no watching, unless others come with it.
    tensors.push_back(page.persistent && !leaves_.leaf_of(i) ? at::Tensor() : page.tensor);
  }
  trace_.emplace(std::move(numel_by_page), always, context_.zero.stage3_max_live_parameters);
  context_.participant.serve(
      [this](const std::vector<std::size_t>& pages) { start_gathers(pages); });
  publish();
  observation_ = std::make_unique<autograd::Observation>(*this, tensors);
}

void Pages::publish() {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  release_all();
  table_.refresh();
  std::vector<std::size_t> all(pages_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  renew(all);
}

void Pages::publish(std::size_t parameter, const at::Tensor& slice) {
  const auto at = context_.plan.slot_of(parameter);
  if (!at) return;
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  const auto& slot = context_.plan.slot(*at);
  const auto begin = context_.plan.buckets()[at->bucket].offset + slot.offset;
  // A gather ahead of its operator may read the shard, which may be the master itself.
  pages_[*table_.page_of(parameter)].arrive(context_.ledger);
  if (slice.defined()) context_.masters.narrow(0, begin, slot.shard_numel).copy_(slice);
  table_.refresh(begin, slot.shard_numel);
  renew({*table_.page_of(parameter)});
}

// Drops old values; those that stay whole all the time are gathered again.
void Pages::renew(const std::vector<std::size_t>& pages) {
  std::vector<std::size_t> persistent;
  for (const auto i : pages) {
    auto& page = pages_[i];
    // As after any update in place: a graph that was recorded before it must not be used with the
    // new values.
    page.tensor.unsafeGetTensorImpl()->bump_version();
    page.arrive(context_.ledger);
    if (page.state == Page::State::Live && page.pins == 0) release(page);
    if (page.persistent) persistent.push_back(i);
  }
  try {
    start_gathers(persistent);
    for (const auto i : persistent) pages_[i].arrive(context_.ledger);
  } catch (...) {
    spoil(persistent);
    throw;
  }
}

at::Tensor Pages::whole(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  const at::NoGradGuard no_grad;
  const auto& tensor = context_.tensors[parameter];
  if (!table_.page_of(parameter)) return tensor.detach().clone();
  auto& page = pages_[*table_.page_of(parameter)];
  if (page.state == Page::State::Released) context_.participant.want({*table_.page_of(parameter)});
  page.arrive(context_.ledger);
  auto copy = tensor.detach().clone();
  if (page.may_drop()) release(page);
  return copy;
}

void Pages::pin(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  at::Tensor before;  // of a page that nobody watches; another one's shard says what it was
  if (const auto i = table_.page_of(parameter)) {
    auto& page = pages_[*i];
    if (page.state == Page::State::Released) context_.participant.want({*i});
    page.arrive(context_.ledger);
    ++page.pins;
    if (page.persistent) before = page.tensor.detach().clone();
  }
  if (before.defined())
    context_.ledger.charge(memory::Category::Gathered, static_cast<int64_t>(before.nbytes()));
  pinned_[parameter] = std::move(before);
}

void Pages::unpin(std::size_t parameter, bool keep) {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  const auto before = pinned_.extract(parameter).mapped();
  const auto i = table_.page_of(parameter);
  if (!i) return;
  auto& page = pages_[*i];
  --page.pins;
  if (keep && !context_.plan.slot_of(parameter)) table_.keep(context_, parameter);
  if (page.may_drop()) release(page);
  if (!before.defined()) return;
  context_.ledger.credit(memory::Category::Gathered, static_cast<int64_t>(before.nbytes()));
  if (!keep) page.tensor.variable_data().copy_(before);  // a write was counted when it happened
}

// A gather ahead of its operator may read the shard, which may be the master itself.
void Pages::settle() {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  for (auto& page : pages_) page.arrive(context_.ledger);
}

Traffic Pages::end_of_pass() noexcept {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    try {
      pages_[i].arrive(context_.ledger);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
      spoil({i});
    }
  }
  release_all();
  leaves_.end_cycle();
  trace_->end_cycle();
  return {std::exchange(gathered_numel_, 0), trace_->plan().gathered_numel,
          trace_->plan().least_numel};
}

void Pages::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// At once: a program that ends behind what it read makes no next call.
void Pages::say_failure() const {
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    std::fprintf(stderr,
                 "equigrad: a parameter was read that could not be gathered, and reads as NaN; the "
                 "engine's next call throws this: %s\n"
                 "At stage 3 every rank reads together: engine.gather(), module_state_dict() and "
                 "save_16bit_model() are for that.\n",
                 error.what());
  } catch (...) {
    std::fputs("equigrad: a parameter was read that could not be gathered: it is NaN\n", stderr);
  }
}

void Pages::before(const std::vector<std::size_t>& read) noexcept {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  const auto pages = leaves_.whole(read);
  for (const auto page : pages) ++pages_[page].pins;
  try {
    // After a failure nobody answers: the rest of the pass is not real, and says nothing more.
    if (failure_) throw Error("pages", "an earlier gather failed");
    use(pages);
  } catch (...) {
    // The operator runs in any case. It must not read a null pointer: it reads NaN, and the next
    // call of the engine throws.
    if (!failure_) {
      failure_ = std::current_exception();
      say_failure();
    }
    spoil(pages);
  }
}

void Pages::spoil(const std::vector<std::size_t>& pages) {
  for (const auto page : pages) {
    if (pages_[page].state == Page::State::Released) live_numel_ += pages_[page].tensor.numel();
    pages_[page].poison(context_.ledger);
  }
}

void Pages::after(const std::vector<std::size_t>& read) noexcept {
  const std::lock_guard lock(mutex_);
  const autograd::Silence silence;
  for (const auto i : leaves_.whole(read)) {
    --pages_[i].pins;
    // The next operator may read it again: uses in a row are one.
    if (!leaves_.leaf_of(i) && trace_->current() != i) release_far(i);
  }
}

// Drops a page that the plan does not keep, or whose next use is too far away.
void Pages::release_far(std::size_t i) {
  auto& page = pages_[i];
  if (!failure_ && trace_->in_step() && page.may_drop() && !should_stay(i)) release(page);
}

void Pages::use(const std::vector<std::size_t>& pages) {
  const at::NoGradGuard no_grad;
  ++clock_;
  std::vector<std::size_t> missing;
  const auto next = leaves_.next(pages);
  const auto before = trace_->current();
  for (const auto page : next.uses) trace_->use(page);
  if (before && trace_->current() != before && !leaves_.leaf_of(*before)) release_far(*before);
  for (const auto page : next.left) release_far(page);
  for (const auto page : pages) {
    pages_[page].last_use = clock_;
    if (pages_[page].state == Page::State::Released) missing.push_back(page);
  }
  release_idle();
  // A round of gathers costs a message: it starts for a page that is needed now, or when half the
  // budget is free.
  const int64_t budget_numel = context_.zero.stage3_prefetch_bucket_size;
  auto ahead = lookahead(budget_numel);
  int64_t ahead_numel = 0;
  for (const auto page : ahead) ahead_numel += pages_[page].tensor.numel();
  if (!missing.empty() || 2 * ahead_numel > budget_numel) {
    missing.insert(missing.end(), ahead.begin(), ahead.end());
    context_.participant.want(missing);
  }
  for (const auto page : pages) pages_[page].arrive(context_.ledger);
}

// In step with the trace.
bool Pages::should_stay(std::size_t page) const {
  return trace_->stays(page) &&
         trace_->reuse_distance_numel(page) <= context_.zero.stage3_max_reuse_distance;
}

// The next pages by the trace that are neither here nor on their way, as far as the budgets reach.
std::vector<std::size_t> Pages::lookahead(int64_t budget_numel) const {
  std::vector<std::size_t> ahead;
  if (!trace_->in_step()) return ahead;
  const int64_t room_numel = context_.zero.stage3_max_live_parameters - live_numel_;
  for (const auto page : leaves_.whole(trace_->next_pages(std::min(budget_numel, room_numel))))
    if (pages_[page].absent()) ahead.push_back(page);
  return ahead;
}

// All pages of the round, on every rank: a rank that has a page already only serves its shard.
// Small ones go together, and first: nobody waits long for them.
void Pages::start_gathers(const std::vector<std::size_t>& pages) {
  std::map<at::ScalarType, std::vector<std::size_t>> together;
  std::vector<std::size_t> alone;
  for (const auto page : pages) {
    auto& group = pages_[page].is_small() ? together[pages_[page].shard.scalar_type()] : alone;
    group.push_back(page);
  }
  for (const auto& [dtype, small] : together) start_gather(small);
  for (const auto page : alone) start_gather({page});
}

void Pages::start_gather(const std::vector<std::size_t>& pages) {
  RECORD_USER_SCOPE("parameter.gather");
  std::vector<at::Tensor> shards;
  for (const auto page : pages) shards.push_back(pages_[page].shard);
  auto gather = std::make_shared<PageGather>(shards, context_.communicator, context_.ledger);
  int64_t offset = 0;
  for (const auto i : pages) {
    auto& page = pages_[i];
    if (page.state == Page::State::Released) {
      page.state = Page::State::Arriving;
      page.last_use = clock_;
      page.gather = gather;
      page.offset = offset;
      live_numel_ += page.tensor.numel();
      if (!page.persistent) gathered_numel_ += page.tensor.numel();
    }
    offset += page.shard.numel();
  }
  // Served only: nobody here will wait for it.
  if (gather.use_count() == 1 || !context_.zero.overlap_comm) gather->wait();
}

void Pages::release(Page& page) {
  page.drop(context_.ledger);
  live_numel_ -= page.tensor.numel();
}

// Without a trace: what has not been used for a few operators. Over the limit of live parameters:
// the longest unused.
void Pages::release_idle() {
  if (!trace_->in_step()) {
    for (auto& page : pages_) {
      if (page.may_drop() && clock_ - page.last_use >= kIdleOperators) release(page);
    }
  }
  while (live_numel_ > context_.zero.stage3_max_live_parameters) {
    Page* oldest = nullptr;
    for (auto& page : pages_) {
      if (page.may_drop() && (oldest == nullptr || page.last_use < oldest->last_use)) {
        oldest = &page;
      }
    }
    if (oldest == nullptr) return;
    for (const auto i : leaves_.whole({static_cast<std::size_t>(oldest - pages_.data())}))
      if (pages_[i].may_drop()) release(pages_[i]);
  }
}

void Pages::release_all() {
  for (auto& page : pages_) {
    page.arrive(context_.ledger);
    if (page.may_drop()) release(page);
  }
}

std::unique_ptr<Parameters> make_pages(const Context& context) {
  return std::make_unique<Pages>(context);
}

}  // namespace equigrad::parameter
