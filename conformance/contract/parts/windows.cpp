// 16. Its parts: a window of gradients on all ranks, and what is sent for it when.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/parts/stations.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/agreement/coordinator.hpp"
#include "engine/error.hpp"
#include "engine/gradient/window.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance::contract {
namespace {

using gradient::Window;
using gradient::WindowOptions;
using gradient::WindowPart;
using layout::BucketPlan;

constexpr double kFactor = 0.25;

const std::vector<int64_t>& numels() {
  static const std::vector<int64_t> kNumels = {6, 3, 0, 5, 1, 9, 4, 7, 2};
  return kNumels;
}

// One engine's window, and what it must hold: sums over ranks, element by element.
struct Averaged {
  const int rank, world;
  CountedWire wire;
  layout::ParameterTable table;
  BucketPlan plan;
  agreement::Participant participant;
  memory::Ledger ledger;
  WindowOptions options;
  Window window;
  std::vector<std::vector<double>> sums, pass;  // by parameter
  std::vector<bool> used, used_in_pass;
  int64_t passes = 0;
  double weight = 1;
  bool is_doomed = false, has_thrown = false;  // the pass under way

  Averaged(Play& with, const WindowOptions& chosen, bool is_sharded)
      : rank(with.context().rank),
        world(with.context().world),
        wire(with.group()),
        table(table_of(numels())),
        plan(table, is_sharded ? world : 1, 8),
        participant(wire, numels().size()),
        options(chosen),
        window(plan, numels().size(), participant, options, ledger) {
    forget();
  }
  void forget() {
    sums.clear();
    for (const auto numel : numels()) sums.emplace_back(static_cast<std::size_t>(numel));
    pass = sums;
    used.assign(numels().size(), false);
    used_in_pass = used;
    passes = 0;
  }
  std::size_t groups() const {
    return plan.buckets().empty() ? 0 : plan.buckets().back().group + 1;
  }
  int64_t buckets() const { return static_cast<int64_t>(plan.buckets().size()); }
  // All but those of the last group.
  int64_t full_buckets() const {
    int64_t many = 0;
    for (const auto& one : plan.buckets()) many += one.group + 1 < groups() ? 1 : 0;
    return many;
  }

  void begin(double each, bool expects_step) {
    weight = each;
    has_thrown = false;
    participant.begin_pass();
    window.begin(each, expects_step);
  }
  // The same call on every rank; `by`: the ranks that have such a gradient.
  void ready(Drawn& drawn, std::size_t parameter, const std::function<bool(int)>& by) {
    const auto numel = numels()[parameter];
    for (int from = 0; from < world; ++from) {
      if (!by(from)) continue;
      auto gradient = whole_numbers(drawn, numel);
      const auto* values = gradient.const_data_ptr<float>();
      for (int64_t i = 0; i < numel; ++i)
        pass[parameter][static_cast<std::size_t>(i)] +=
            weight * options.before_sum * static_cast<double>(values[i]);
      used_in_pass[parameter] = true;
      if (from == rank) give(parameter, std::move(gradient));
    }
  }
  // Of a pass that is to be abandoned: another rank may have done so before.
  void give(std::size_t parameter, at::Tensor gradient) {
    if (has_thrown) return;
    try {
      window.ready(parameter, std::move(gradient));
    } catch (const Error&) {
      if (!is_doomed) throw;
      has_thrown = true;
    }
  }
  void all_ready(Drawn& drawn) {
    for (std::size_t at = numels().size(); at-- > 0;) ready(drawn, at, [](int) { return true; });
  }
  void end() {
    window.end();
    ++passes;
    for (std::size_t at = 0; at < sums.size(); ++at) {
      used[at] = used[at] || used_in_pass[at];
      for (std::size_t i = 0; i < sums[at].size(); ++i) sums[at][i] += pass[at][i];
    }
    drop();
  }
  void abandon() {
    window.abandon(WindowPart::Pass);
    if (options.reduce_every_pass) participant.abandon();
    drop();
  }
  void drop() {
    for (auto& one : pass) one.assign(one.size(), 0);
    used_in_pass.assign(used_in_pass.size(), false);
  }
  // A whole pass of all ranks, in the order in which buckets fill.
  void plain_pass(Drawn& drawn, bool expects_step) {
    begin(1, expects_step);
    all_ready(drawn);
    end();
  }

  // This rank's slice of the average, padding included.
  std::vector<double> slice(std::size_t parameter) const {
    const auto& slot = plan.slot(*plan.slot_of(parameter));
    std::vector<double> all(static_cast<std::size_t>(slot.shard_numel));
    const std::size_t begin = plan.shards() == 1 ? 0 : static_cast<std::size_t>(rank) * all.size();
    for (std::size_t i = 0; i < all.size() && begin + i < sums[parameter].size(); ++i)
      all[i] = kFactor * sums[parameter][begin + i];
    return all;
  }
  static bool is(const at::Tensor& got, const std::vector<double>& want) {
    const auto wide = got.to(at::kDouble).contiguous();
    return wide.numel() == static_cast<int64_t>(want.size()) &&
           std::equal(want.begin(), want.end(), wide.const_data_ptr<double>());
  }
  bool reads(std::size_t parameter) {
    participant.meet(agreement::ReadGradient{parameter, passes});
    return is(window.averaged_slice(parameter, kFactor), slice(parameter));
  }
  void assign(std::size_t parameter, double value) {
    sums[parameter].assign(sums[parameter].size(), value / kFactor);
    used[parameter] = true;
    participant.meet(agreement::WriteGradient{parameter, 1});
    const auto values = slice(parameter);
    window.assign(parameter, at::tensor(values, at::kDouble).to(at::kFloat));
  }
  bool is_counted() const {
    const auto& progress = window.progress();
    return progress.passes == passes;
  }
  // At the boundary.
  bool take() {
    const auto agreed = window.agree(rank == 0);
    bool holds = agreed.marks == used && agreed.least_flag == (world == 1 ? 1 : 0) &&
                 agreed.greatest_flag == 1;
    const auto average = window.take_averaged(kFactor);
    for (std::size_t at = 0; at < sums.size(); ++at)
      if (const auto where = plan.slot_of(at))
        holds = holds && is(average.narrow(
                                0, plan.buckets()[where->bucket].offset + plan.slot(*where).offset,
                                plan.slot(*where).shard_numel),
                            slice(at));
    forget();
    return holds && ledger.total_bytes() == 0 && is_counted() && window.progress().used == used &&
           average.scalar_type() == at::kFloat;
  }
};

struct WindowKind {
  std::string name;
  WindowOptions options;
};

std::vector<WindowKind> window_kinds() {
  const auto of = [](bool each, ReductionOrder order) {
    return WindowOptions{.param_dtype = at::kFloat,
                         .accumulate_dtype = at::kFloat,
                         .reduce_every_pass = each,
                         .order = order};
  };
  std::vector<WindowKind> all;
  for (const bool each : {false, true})
    for (const auto order : {ReductionOrder::Pinned, ReductionOrder::Exact, ReductionOrder::Native})
      all.push_back({each ? "of passes" : "of windows", of(each, order)});
  auto with = [&](const std::string& name, bool each, ReductionOrder order,
                  const std::function<void(WindowOptions&)>& change) {
    all.push_back({name, of(each, order)});
    change(all.back().options);
  };
  const auto pinned = ReductionOrder::Pinned, exact = ReductionOrder::Exact;
  with("begun in passes", false, pinned, [](auto& options) { options.eager = true; });
  with("begun in passes, in 16 bits", false, pinned, [](auto& options) {
    options.eager = true;
    options.before_sum = 0.5;
    options.communication_dtypes = {at::kBFloat16, at::kHalf};
  });
  with("begun in passes, one after the other", false, pinned, [](auto& options) {
    options.eager = true;
    options.overlaps = false;
  });
  with("one after the other", true, pinned, [](auto& options) { options.overlaps = false; });
  with("in 16 bits", true, pinned, [](auto& options) {
    options.before_sum = 0.5;
    options.communication_dtypes = {at::kBFloat16, at::kHalf};
    options.accumulate_dtype = at::kBFloat16;
  });
  with("exact sums from the start", false, exact,
       [](auto& options) { options.expects_one_pass = false; });
  with("exact, halved", true, exact, [](auto& options) { options.before_sum = 0.5; });
  return all;
}

// What each rank gives, and when, by chance.
bool any_pass(Averaged& it, Drawn& drawn) {
  it.begin(drawn.of(std::vector<double>{1, 2, 0.5}), drawn.one_in(2));
  it.is_doomed = drawn.one_in(4);
  const bool is_whole = drawn.one_in(2), is_in_order = drawn.one_in(2);
  for (int64_t at = static_cast<int64_t>(numels().size()); at-- > 0;) {
    const int64_t which = is_in_order ? at : (at * 4 + 3) % 9;
    const int64_t lacks = drawn.one_in(3) ? drawn.below(it.world + 1) : -1;
    for (int64_t times = drawn.one_in(5) ? 2 : 1; times > 0; --times)
      it.ready(drawn, static_cast<std::size_t>(which),
               [&](int from) { return is_whole || (from != lacks && lacks != it.world); });
  }
  it.is_doomed ? it.abandon() : it.end();
  return it.is_counted();
}

void check_kind(Play& play, Drawn& drawn, const WindowKind& kind) {
  Averaged it(play, kind.options, kind.options.reduce_every_pass || drawn.one_in(2));
  for (int windows = 0; windows < 3; ++windows) {
    bool holds = true;
    for (int64_t passes = drawn.below(4); passes > 0; --passes) {
      holds = any_pass(it, drawn) && holds;
      const auto which = static_cast<std::size_t>(drawn.of(std::vector<int64_t>{0, 1, 3, 5, 8}));
      if (drawn.one_in(3)) holds = it.reads(which) && holds;
      if (it.passes > 0 && drawn.one_in(5)) it.assign(which, 3);
      if (drawn.one_in(5)) holds = it.reads(which) && holds;
    }
    if (drawn.one_in(6)) {
      it.window.abandon(WindowPart::All);
      it.forget();
      holds = holds && it.is_counted() && it.ledger.total_bytes() == 0;
    }
    if (kind.options.order == ReductionOrder::Exact && !kind.options.reduce_every_pass &&
        drawn.one_in(3) && it.passes == 0)
      it.window.expect_one_pass(drawn.one_in(2));
    holds = it.take() && holds;
    play.check("averages of a window, " + kind.name + ", are those of all ranks' passes", holds);
  }
}

// ---- what is sent, and when ----

struct Sending {
  int64_t sums, messages;
};

Sending sent_while(Averaged& it, const std::function<void()>& call) {
  const Sending before{it.wire.sums, it.wire.messages};
  call();
  return {it.wire.sums - before.sums, it.wire.messages - before.messages};
}

void check_sending(Play& play, const std::string& when, const Sending& got, int64_t sums,
                   int64_t messages) {
  const bool is_alone = play.context().world == 1;
  play.check(when + ": " + std::to_string(sums) + " sums and " + std::to_string(messages) +
                 " messages, got " + std::to_string(got.sums) + " and " +
                 std::to_string(got.messages),
             got.sums == sums && got.messages == (is_alone ? 0 : messages));
}

WindowOptions plain_window(bool each, bool eager, bool overlaps = true) {
  return {.param_dtype = at::kFloat,
          .accumulate_dtype = at::kFloat,
          .reduce_every_pass = each,
          .order = ReductionOrder::Pinned,
          .overlaps = overlaps,
          .eager = eager};
}

// A guess that was right costs nothing; one that was wrong, what it sent.
void check_guesses(Play& play, bool overlaps) {
  Drawn drawn(play, 11);
  Averaged it(play, plain_window(false, true, overlaps), false);
  const auto groups = static_cast<int64_t>(it.groups());
  const int64_t early = it.full_buckets(), all = it.buckets();
  const auto pass = [&] { it.plain_pass(drawn, true); };
  const auto take = [&] { play.check("the average is right", it.take()); };
  check_sending(play, "the only pass", sent_while(it, pass), early, groups - 1);
  check_sending(play, "its step", sent_while(it, take), all - early, 1);
  check_sending(play, "a first pass", sent_while(it, pass), early, groups - 1);
  check_sending(play, "a second pass", sent_while(it, pass), 0, 0);
  check_sending(play, "their step", sent_while(it, take), all, 1);
  check_sending(play, "a pass that expects no step",
                sent_while(it, [&] { it.plain_pass(drawn, false); }), 0, 0);
  check_sending(play, "a second one that expects it", sent_while(it, pass), 0, 0);
  check_sending(play, "the step after it", sent_while(it, take), all, 1);
  it.begin(1, true);
  it.all_ready(drawn);
  it.abandon();
  check_sending(play, "a pass after one that threw", sent_while(it, pass), 0, 0);
  check_sending(play, "the step after that", sent_while(it, take), all, 1);
  check_sending(play, "a pass after that step", sent_while(it, pass), early, groups - 1);
  check_sending(play, "an assignment", sent_while(it, [&] { it.assign(3, 2); }), 0, 1);
  check_sending(play, "a step after an assignment", sent_while(it, take), all, 1);
  pass();
  check_sending(play, "a value that is read",
                sent_while(it, [&] { play.check("it is right", it.reads(5)); }), 1, 1);
  check_sending(play, "a step after that", sent_while(it, take), all - early, 1);
  pass();
  it.window.abandon(WindowPart::All);
  it.forget();
  check_sending(play, "a pass of a window that begins anew", sent_while(it, pass), early,
                groups - 1);
  take();
}

// The last rank lacks what fills the first bucket: nobody's leave before the step.
void check_wrong_guess(Play& play) {
  Drawn drawn(play, 12);
  Averaged it(play, plain_window(false, true), false);
  const int lacks = it.world - 1;
  const auto sums =
      sent_while(it, [&] {
        it.begin(1, true);
        for (std::size_t at = numels().size(); at-- > 0;)
          it.ready(drawn, at, [&](int from) { return from != lacks || at + 1 != numels().size(); });
        it.end();
      }).sums;
  play.check("what one rank has not filled leaves with the step", sums == 0);
  play.check("and is right",
             sent_while(it, [&] { play.check("the average", it.take()); }).sums == it.buckets());
  it.plain_pass(drawn, true);
  play.check("the next guess may be right", it.take());
  // One rank's pass threw, and is done again.
  it.begin(1, true);
  if (it.rank == lacks) {
    it.window.ready(8, at::ones({2}));
    it.window.abandon(WindowPart::Pass);
    it.begin(1, true);
  }
  it.all_ready(drawn);
  it.end();
  play.check("a pass that one rank did again counts once", it.take());
}

void check_each_pass(Play& play, bool overlaps) {
  Drawn drawn(play, 13);
  Averaged it(play, plain_window(true, false, overlaps), true);
  const auto groups = static_cast<int64_t>(it.groups());
  const auto pass = [&] { it.plain_pass(drawn, false); };
  check_sending(play, "a pass that is reduced", sent_while(it, pass), it.buckets(), groups);
  const auto twice = [&] {
    it.begin(1, false);
    it.all_ready(drawn);
    it.ready(drawn, 5, [](int from) { return from == 0; });
    it.end();
  };
  check_sending(play, "a pass with a second round", sent_while(it, twice), 2 * it.buckets(),
                groups);
  check_sending(play, "its step", sent_while(it, [&] { play.check("is right", it.take()); }), 0, 1);
}

// Bytes of what waits: one contribution of a parameter as it is sent, several as their exact sum.
void check_exact_bytes(Play& play) {
  Drawn drawn(play, 15);
  auto options = plain_window(false, false);
  options.order = ReductionOrder::Exact;
  Averaged it(play, options, false);
  const auto waiting = [&] { return it.ledger.bytes(memory::Category::Buckets); };
  it.plain_pass(drawn, false);
  const int64_t as_sent = waiting();
  int64_t numel = 0;
  for (const auto& bucket : it.plan.buckets())
    numel += (bucket.shard_numel + it.world - 1) / it.world * it.world;
  play.check("one contribution waits as it is", as_sent == 4 * numel);
  for (const std::string what : {"a step", "giving up"}) {
    it.plain_pass(drawn, false);
    play.check("two wait as sums", waiting() == 16 * numel);
    if (what == "a step")
      play.check("their average", it.take());
    else
      it.window.abandon(WindowPart::All), it.forget();
    play.check("nothing waits after " + what, it.ledger.total_bytes() == 0);
    it.plain_pass(drawn, false);
    play.check("after " + what + " one waits as it is again", waiting() == as_sent);
  }
  play.check("the last average", it.take());
  it.window.expect_one_pass(false);
  it.plain_pass(drawn, false);
  play.check("where several are expected the first waits as a sum", waiting() == 16 * numel);
  play.check("its average", it.take());
}

void averaged(Play& play) {
  if (play.group()) {
    const UninitializedIsNan scope;
    Drawn drawn(play, 10);
    for (const auto& kind : window_kinds()) check_kind(play, drawn, kind);
    check_exact_bytes(play);
    Averaged it(play, plain_window(false, false), false);
    it.plain_pass(drawn, false);
    if (play.fault()) it.sums[5][0] += 1;
    play.check("one pass is averaged", it.take());
  }
  train_along(play);
}

void what_is_sent(Play& play) {
  if (play.group()) {
    for (const bool overlaps : {true, false}) {
      check_guesses(play, overlaps);
      check_each_pass(play, overlaps);
    }
    check_wrong_guess(play);
    Averaged it(play, plain_window(false, false), false);
    Drawn drawn(play, 14);
    check_sending(play, "a pass of a window that does not guess",
                  sent_while(it, [&] { it.plain_pass(drawn, true); }), play.fault() ? 1 : 0, 0);
    play.check("its average", it.take());
  }
  train_along(play);
}

}  // namespace

std::vector<Case> windows_of_gradients() {
  return {of_part("windows",
                  "a window's averages are those of all ranks' passes, whoever gave what when",
                  "one more is expected", averaged, Plays::EveryWorld),
          of_part("what_is_sent_when",
                  "a pass begins what the step would send, and sends nothing in vain",
                  "a sum is expected where none is sent", what_is_sent, Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
