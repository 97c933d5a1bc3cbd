// 16. Its parts: what a gradient's way holds and adds up, whole numbers that no order changes.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/parts/stations.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/bucket/bucket.hpp"
#include "engine/gradient/accumulator.hpp"
#include "engine/gradient/micro_batches.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance::contract {
namespace {

using bucket::Bucket;
using gradient::Accumulator;
using gradient::MicroBatches;
using kernels::kExactSum;
using layout::BucketPlan;
using memory::Category;

constexpr int64_t kFew = 16384;  // as many are copied by hand

std::vector<double> rounded(const at::Tensor& values) {
  const auto all =
      (values.scalar_type() == kExactSum ? kernels::exact_rounded(values.contiguous()) : values)
          .to(at::kDouble)
          .contiguous();
  const auto* begin = all.const_data_ptr<double>();
  return {begin, begin + all.numel()};
}

// ---- buckets ----

// One bucket of a few parameters, and what must be in it.
struct Filled {
  layout::ParameterTable table;
  BucketPlan plan;
  const layout::Bucket& place;
  Bucket it;
  std::vector<double> want;
  std::vector<bool> has;

  Filled(const std::vector<int64_t>& numels, int shards, int multiple, at::ScalarType type)
      : table(table_of(numels)),
        plan(table, shards, int64_t{1} << 40),
        place(plan.buckets().front()),
        it(place, shards, multiple, at::TensorOptions().dtype(type)),
        has(numels.size()) {
    std::size_t numel = 0;
    while (numel < static_cast<std::size_t>(shards * place.shard_numel) ||
           numel % static_cast<std::size_t>(multiple) != 0)
      ++numel;
    want.resize(numel);
  }
  std::size_t index(const layout::Slot& slot, int64_t element) const {
    return static_cast<std::size_t>(element / slot.shard_numel * place.shard_numel + slot.offset +
                                    element % slot.shard_numel);
  }
  void add(std::size_t which, at::Tensor gradient, double weight) {
    const auto& slot = place.slots[which];
    const auto values = rounded(gradient);
    for (int64_t i = 0; i < slot.numel; ++i)
      want[index(slot, i)] += weight * values[static_cast<std::size_t>(i)];
    has[which] = true;
    it.copy_in(which, std::move(gradient), weight);
  }
  bool counts() const {
    bool holds = it.full() == (std::count(has.begin(), has.end(), false) == 0);
    for (std::size_t which = 0; which < has.size(); ++which)
      holds = holds && it.holds(which) == has[which];
    return holds;
  }
  // Padding included.
  bool has_columns(std::size_t which) {
    const auto& slot = place.slots[which];
    const auto got = it.columns_of(which);
    bool holds = got.size(0) == plan.shards() && got.size(1) == slot.shard_numel;
    std::vector<double> all;
    for (int row = 0; row < plan.shards(); ++row)
      for (int64_t column = 0; column < slot.shard_numel; ++column)
        all.push_back(
            want[static_cast<std::size_t>(row * place.shard_numel + slot.offset + column)]);
    return holds && rounded(got) == all;
  }
  bool is_as_wanted() { return rounded(it.buffer()) == want && it.bytes() == held_bytes(); }
  int64_t held_bytes() { return static_cast<int64_t>(it.buffer().nbytes()); }
};

// Every second one lies the other way round, or is of another type.
at::Tensor any_gradient(Drawn& drawn, int64_t numel, at::ScalarType type) {
  auto values = whole_numbers(drawn, numel);
  if (numel % 2 == 0 && drawn.one_in(3)) values = values.view({2, numel / 2}).t();
  return drawn.one_in(3) || type == kExactSum ? values : values.to(type);
}

void check_bucket(Play& play, Drawn& drawn, std::vector<int64_t> numels) {
  const auto type = drawn.of(std::vector<at::ScalarType>{at::kFloat, at::kBFloat16, kExactSum});
  const int shards = 1 + static_cast<int>(drawn.below(4)),
            multiple = 1 + static_cast<int>(drawn.below(5));
  Filled filled(numels, shards, multiple, type);
  bool holds = filled.it.holds_exact_sums() == (type == kExactSum) && filled.counts();
  for (int64_t left = drawn.below(7); left > 0; --left) {
    const auto which = static_cast<std::size_t>(drawn.below(static_cast<int64_t>(numels.size())));
    const double weight = drawn.of(std::vector<double>{1, 1, 2, 0.5});
    if (drawn.one_in(5)) holds = holds && filled.has_columns(which);
    filled.add(which, any_gradient(drawn, filled.place.slots[which].numel, type), weight);
    holds = holds && filled.counts();
    if (type == kExactSum || !drawn.one_in(8)) continue;
    filled.it.to_exact_sums();
    holds = holds && filled.it.holds_exact_sums();
    for (std::size_t slot = 0; slot < numels.size(); ++slot)
      holds = holds && filled.has_columns(slot);
  }
  play.check(std::to_string(numels.size()) + " parameters of " + std::to_string(numels[0]) +
                 " elements and others on " + std::to_string(shards) + " shards, of type " +
                 c10::toString(type) + ", are what came into their bucket, and zeros",
             holds && filled.is_as_wanted() && filled.counts());
}

// Whether a bucket of one parameter, [3, 4] on 3 shards, is the memory that it was given.
void check_taken(Play& play) {
  const auto taken = [&](const std::string& what, at::Tensor gradient, bool want, double weight = 1,
                         int multiple = 4, int64_t numel = 12) {
    Filled filled({numel}, 3, multiple, at::kFloat);
    const auto* begin = gradient.const_data_ptr();
    const auto values = rounded(gradient.detach());
    filled.add(0, std::move(gradient), weight);
    const bool is_taken = filled.it.buffer().const_data_ptr() == begin;
    filled.add(0, at::ones({numel}), 1);
    play.check("a gradient " + what + (want ? " becomes" : " does not become") + " the bucket",
               is_taken == want && filled.is_as_wanted());
  };
  Drawn drawn(play, 4);
  const auto some = [&](int64_t numel = 12) { return whole_numbers(drawn, numel); };
  taken("that nobody else has", some(), true);
  taken("with a shape", some().view({3, 4}), true);
  const auto held = some();
  const auto before = held.clone();
  taken("that somebody else has", held, false);
  auto source = some();
  const auto alias = source.detach();
  taken("whose storage autograd has", std::move(source), true);
  auto shared = some();
  const auto one = shared.detach(), other = shared.detach();
  taken("whose storage two others have", std::move(shared), false);
  taken("that is part of another", some(13).narrow(0, 1, 12), false);
  taken("that lies the other way round", some().view({3, 4}).t(), false);
  taken("of another type", some().to(at::kBFloat16), false);
  taken("with a graph", some().requires_grad_(), false);
  taken("with a weight", some(), false, 2);
  taken("with padding in its rows", some(11), false, 1, 3, 11);
  taken("with padding behind its rows", some(), false, 1, 5);
  play.check("what somebody else has is as it was", held.equal(before));
}

void check_buckets(Play& play) {
  Drawn drawn(play, 5);
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> numels(1 + static_cast<std::size_t>(drawn.below(4)));
    for (auto& numel : numels) numel = 1 + drawn.below(13);
    check_bucket(play, drawn, numels);
  }
  for (const auto& numels : {std::vector<int64_t>{kFew, 3}, {2, kFew + 1}, {kFew + 3}})
    check_bucket(play, drawn, numels);
}

// ---- sums of a window ----

// Passes that count and others that do not.
struct SummedPasses {
  const BucketPlan& plan;
  at::ScalarType type;
  memory::Ledger ledger = {};
  std::optional<Accumulator> sums = {};
  std::vector<double> window = {}, pass = {};
  std::vector<bool> has = {};  // a bucket, in this window
  bool is_open = false, is_committed = false;
  int64_t staged_bytes = 0;

  SummedPasses(const BucketPlan& of, at::ScalarType dtype) : plan(of), type(dtype) {
    sums.emplace(plan, at::TensorOptions().dtype(type), ledger);
    forget();
  }
  void forget() {
    window.assign(static_cast<std::size_t>(plan.shard_numel()), 0);
    pass = window;
    has.assign(plan.buckets().size(), false);
    is_open = is_committed = false;
    staged_bytes = 0;
  }
  int64_t window_bytes() const {
    return is_open ? plan.shard_numel() * static_cast<int64_t>(c10::elementSize(type)) : 0;
  }
  bool is_charged() const {
    return ledger.bytes(Category::Gradients) == window_bytes() + staged_bytes &&
           ledger.total_bytes() == window_bytes() + staged_bytes;
  }
  bool add(Drawn& drawn, std::size_t bucket) {
    const auto& place = plan.buckets()[bucket];
    auto sum = whole_numbers(drawn, place.shard_numel);
    if (type == kExactSum) sum = kernels::exact_of(sum);
    const double weight = type == kExactSum ? 1 : drawn.of(std::vector<double>{1, 2});
    const auto values = rounded(sum);
    for (std::size_t i = 0; i < values.size(); ++i)
      pass[static_cast<std::size_t>(place.offset) + i] += weight * values[i];
    bool holds = true;
    if (weight == 1 && drawn.one_in(2)) {
      const auto block = sums->block(bucket);
      holds = block.defined() == (!is_committed && !has[bucket]);
      if (block.defined() && block.numel() == sum.numel()) sum = block.copy_(sum);
      is_open = is_open || block.defined();
    }
    if (is_committed) staged_bytes += static_cast<int64_t>(sum.nbytes());
    sums->add(bucket, std::move(sum), weight);
    if (!is_committed) is_open = true, has[bucket] = true;
    return holds && is_charged();
  }
  bool end(bool counts) {
    counts ? sums->commit() : sums->rollback();
    is_open = is_open || (counts && staged_bytes != 0);
    staged_bytes = 0;
    if (counts)
      for (std::size_t i = 0; i < window.size(); ++i) window[i] += pass[i];
    pass.assign(pass.size(), 0);
    if (counts)
      is_committed = true;
    else if (!is_committed)
      forget();
    return is_charged();
  }
  bool has_slice(int64_t begin, int64_t numel) const {
    const auto at = window.begin() + begin;
    return rounded(sums->slice(begin, numel)) == std::vector<double>(at, at + numel);
  }
};

void check_window(Play& play, Drawn& drawn, at::ScalarType type) {
  const auto table = table_of({3, 5, 1 + drawn.below(9), 2, 7});
  const BucketPlan plan(table, 1, drawn.one_in(4) ? 100 : 6);
  SummedPasses it(plan, type);
  const auto buckets = static_cast<int64_t>(plan.buckets().size());
  bool holds = it.is_charged();
  for (int64_t passes = drawn.below(5); passes > 0; --passes) {
    for (int64_t left = drawn.below(6); left > 0; --left)
      holds = it.add(drawn, static_cast<std::size_t>(drawn.below(buckets))) && holds;
    holds = it.end(!drawn.one_in(3)) && holds;
    const int64_t begin = drawn.below(plan.shard_numel());
    const int64_t numel = drawn.below(plan.shard_numel() - begin + 1);
    holds = holds && it.has_slice(begin, numel) && it.has_slice(0, plan.shard_numel());
    if (!drawn.one_in(4)) continue;
    it.sums->forget(begin, numel);
    std::fill_n(it.window.begin() + begin, numel, 0);
    holds = holds && it.has_slice(0, plan.shard_numel());
  }
  const bool clears = drawn.one_in(3);
  if (clears) holds = it.add(drawn, 0) && holds;  // of a pass that is not to end
  if (clears) it.sums->clear();
  if (clears) it.forget();
  holds = holds && it.is_charged();
  if (clears) it.sums->commit();
  const auto as = drawn.one_in(2) ? at::kFloat : at::kBFloat16;
  const auto average = it.sums->take_averaged(0.5, as);
  for (auto& value : it.window) value *= 0.5;
  holds = holds && average.scalar_type() == as && rounded(average) == it.window;
  it.forget();
  holds = holds && it.is_charged() && it.has_slice(0, plan.shard_numel());
  holds = it.add(drawn, 0) && holds;
  it.sums.reset();
  play.check(std::string("passes of type ") + c10::toString(type) +
                 " count when they end, and every byte of them is given back",
             holds && it.ledger.total_bytes() == 0);
}

// The one sum of a window is the window, and its average.
void check_memory(Play& play) {
  const auto table = table_of({3, 4});
  const BucketPlan plan(table, 1, 7);
  memory::Ledger ledger;
  Accumulator sums(plan, at::TensorOptions().dtype(at::kFloat), ledger);
  auto sum = at::ones({7});
  const auto* begin = sum.const_data_ptr();
  sums.add(0, std::move(sum), 1);
  sums.commit();
  const auto average = sums.take_averaged(2);
  play.check("one sum is all the memory that an average takes",
             average.const_data_ptr() == begin && ledger.total_peak_bytes() == 28 &&
                 average.equal(at::full({7}, 2.F)));
  const auto many = at::arange(int64_t{65536} + 3).remainder(64).to(at::kBFloat16);
  const auto want = many.to(at::kDouble).mul(0.5);
  play.check("more than a chunk is multiplied into another type",
             gradient::multiplied(many.to(at::kDouble).to(at::kFloat), 0.5, at::kBFloat16)
                     .to(at::kDouble)
                     .equal(want) &&
                 gradient::multiplied(kernels::exact_of(many), 0.5, at::kFloat)
                     .to(at::kDouble)
                     .equal(want));
  play.check("and within its own", gradient::multiplied(many, 0.5, at::kBFloat16).is_same(many) &&
                                       many.to(at::kDouble).equal(want));
}

void check_windows(Play& play) {
  Drawn drawn(play, 6);
  for (int round = 0; round < 60; ++round)
    check_window(play, drawn,
                 drawn.of(std::vector<at::ScalarType>{at::kFloat, at::kBFloat16, kExactSum}));
  check_memory(play);
}

void held_and_added(Play& play) {
  if (play.group()) {
    const UninitializedIsNan scope;
    check_buckets(play);
    check_taken(play);
    check_windows(play);
    Filled filled({5}, 2, 1, at::kFloat);
    filled.add(0, at::ones({5}), play.fault() ? 2 : 1);
    play.check("what came in once is there once", filled.it.buffer().sum().item<double>() == 5);
  }
  train_along(play);
}

// ---- micro-batches ----

// The boundary by counting on fingers.
void check_micro_batches(Play& play) {
  Drawn drawn(play, 7);
  for (int round = 0; round < 40; ++round) {
    const bool is_managed = !drawn.one_in(4);
    int64_t steps = 1 + drawn.below(4), ended = 0, passes = 0;
    std::optional<bool> set;
    MicroBatches it(steps, is_managed);
    std::shared_ptr<void> guard;
    bool holds = true;
    for (int act = 0; act < 30; ++act) {
      const bool is_boundary = set ? *set : !is_managed || ended + 1 >= steps;
      holds = holds && it.is_boundary() == is_boundary && it.accumulation_steps() == steps &&
              it.expects_step() == (is_managed && is_boundary && !guard);
      const int64_t what = drawn.below(6);
      if (what == 0)
        it.set_boundary(set = drawn.one_in(3) ? std::nullopt : std::optional(drawn.one_in(2)));
      if (what == 1) guard = guard ? nullptr : it.no_sync();
      if (what == 2 || what == 3) it.end_pass(), ++passes;
      if (what == 4 && passes > 0 && !guard) {
        it.check_step();
        it.end_step();
        ended = is_boundary ? 0 : ended + 1;
        passes = 0;
      }
      if (what == 5 && ended == 0 && passes == 0)
        it.set_train_batch_size(6 * (steps = 1 + drawn.below(4)), 6);
    }
    play.check("windows end where they are counted to end", holds);
  }
}

void check_refused_steps(Play& play) {
  MicroBatches it(3);
  const auto size = [&it](int64_t samples) {
    return [&it, samples] { it.set_train_batch_size(samples, 4); };
  };
  play.refuse("a backward pass since the last step(), got none", [&] { it.check_step(); });
  for (const int64_t samples : {3, 0, 6, -4})
    play.refuse("a multiple of 4 (micro-batch size x ranks), got " + std::to_string(samples),
                size(samples));
  it.end_pass();
  play.refuse("between windows, got 0 micro-batches and 1 passes", size(8));
  auto guard = it.no_sync();
  play.refuse("outside of no_sync(), got a guard", [&] { it.check_step(); });
  play.refuse("no guard, got one that still lives", [&] { (void)it.no_sync(); });
  guard.reset();
  it.check_step();
  it.end_step();
  play.refuse("between windows, got 1 micro-batches and 0 passes", size(8));
  play.check("what was refused has changed nothing",
             it.accumulation_steps() == 3 && !it.is_boundary());
  play.refuse("a backward pass since the last step(), got none", [&] { it.check_step(); });
}

void counted(Play& play) {
  if (play.group()) {
    check_micro_batches(play);
    check_refused_steps(play);
    play.check("one of two is no boundary", MicroBatches(2).is_boundary() == play.fault());
  }
  train_along(play);
}

}  // namespace

std::vector<Case> contributions() {
  return {of_part("buckets_and_sums",
                  "what is held and added is what came in, zeros elsewhere, byte for byte",
                  "one contribution counts twice", held_and_added),
          of_part("micro_batches", "a window's length is counted, set and given back as documented",
                  "a boundary is expected", counted)};
}

}  // namespace equigrad::conformance::contract
