// 16. Its parts: which rank owns what, and what is sent together.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/parts/stations.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/module_tree.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/layout/partition.hpp"
#include "engine/layout/stage.hpp"

namespace equigrad::conformance::contract {
namespace {

using layout::BucketPlan;
using layout::ParameterTable;
using layout::Partition;
using layout::Registration;

constexpr int64_t kMostNumel = std::numeric_limits<int64_t>::max();

// ---- partitions and stages ----

// By dealing them out: as few a rank as will do.
void check_partition(Play& play, int64_t numel, int shards) {
  const Partition it(numel, shards);
  int64_t each = 0, element = 0;
  while (each * shards < numel) ++each;
  bool holds = it.numel() == numel && it.shards() == shards && it.shard_numel() == each &&
               it.padded_numel() == each * shards && it == Partition(numel, shards) &&
               !(it == Partition(numel + 1, shards)) && !(it == Partition(numel, shards + 1));
  for (int rank = 0; rank < shards; ++rank) {
    const int64_t begin = element;
    for (int64_t dealt = 0; dealt < each && element < numel; ++dealt, ++element)
      holds = holds && it.owner_of(element) == rank;
    const auto range = it.range(rank);
    holds = holds && range == layout::Range{begin, element} && range.numel() == element - begin;
  }
  play.check(std::to_string(numel) + " elements are dealt out to " + std::to_string(shards), holds);
}

void check_partitions(Play& play) {
  for (int shards = 1; shards <= 9; ++shards)
    for (int64_t numel = 0; numel <= 30; ++numel) check_partition(play, numel, shards);
  play.check("the largest size that can be padded is cut",
             Partition(kMostNumel - 3, 3).padded_numel() >= kMostNumel - 3 &&
                 Partition(kMostNumel - 1, 1).range(0).end == kMostNumel - 1);
  const Partition ten(10, 4);
  const std::vector<std::pair<std::string, Play::Call>> refused = {
      {"at least 0, got -1", [] { Partition(-1, 2); }},
      {"at least 1 shard, got 0", [] { Partition(3, 0); }},
      {"got " + std::to_string(kMostNumel - 2) + " elements", [] { Partition(kMostNumel - 2, 3); }},
      {"from 0 to 3, got 4", [&] { (void)ten.range(4); }},
      {"from 0 to 3, got -1", [&] { (void)ten.range(-1); }},
      {"from 0 to 9, got 10", [&] { (void)ten.owner_of(10); }},
      {"from 0 to 9, got -1", [&] { (void)ten.owner_of(-1); }},
      {"stage 0-3, got -1", [] { (void)stage_row(-1); }},
      {"stage 0-3, got 4", [] { (void)stage_row(4); }}};
  for (const auto& [words, call] : refused) play.refuse(words, call);
}

// Figure 1 of the paper.
void check_stages(Play& play) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto& row = stage_row(stage);
    bool holds = row.optimizer_state_sharded == (stage >= 1) &&
                 row.gradients_sharded == (stage >= 2) && row.parameters_sharded == (stage >= 3) &&
                 row.shards(5) == (stage >= 1 ? 5 : 1);
    for (const bool eager : {false, true})
      holds = holds && row.sends_full_buckets(eager) == (eager || stage >= 2);
    play.check("stage " + std::to_string(stage) + " shards what the paper says", holds);
  }
}

// ---- tables and modules ----

Registration registered(const std::string& name, const void* identity, std::vector<int64_t> shape,
                        bool lower = false) {
  return {.name = name, .identity = identity, .shape = std::move(shape), .lower_precision = lower};
}

void check_entries(Play& play) {
  const std::vector<int> at(4);
  auto frozen = registered("c.frozen", &at[2], {0, 7});
  frozen.trainable = false;
  frozen.group = 3;
  frozen.element_bytes = 8;
  const ParameterTable table(
      {registered("a.weight", &at[0], {3, 5}, true), registered("scalar", &at[1], {}, true),
       registered("b.weight", &at[0], {3, 5}, true), frozen, registered("scalar.again", &at[1], {}),
       registered("a.again", &at[0], {3, 5}, true)});
  const layout::Entry a{"a.weight", 15, {3, 5}, true, 0, true, {"b.weight", "a.again"}, 0},
      scalar{"scalar", 1, {}, true, 0, false, {"scalar.again"}, 0},
      empty{"c.frozen", 0, {0, 7}, false, 3, false, {}, 8};
  play.check("a tensor has one entry, in the order of the first names",
             table.entries() == std::vector<layout::Entry>{a, scalar, empty} && table.size() == 3 &&
                 table[2] == empty);
  for (const auto& [name, index] :
       std::vector<std::pair<std::string, std::size_t>>{{"a.weight", 0},
                                                        {"b.weight", 0},
                                                        {"a.again", 0},
                                                        {"scalar", 1},
                                                        {"scalar.again", 1},
                                                        {"c.frozen", 2}})
    play.check(name + " is found", table.contains(name) && table.index_of(name) == index);
  play.check("no other name is there", !table.contains("") && !table.contains("a"));
  play.refuse("one of 3 parameters, got \"a.wieght\". Did you mean \"a.weight\"?",
              [&] { (void)table.index_of("a.wieght"); });
}

void check_refused_tables(Play& play) {
  const std::vector<int> at(3);
  const auto a = registered("a", &at[0], {2, 3});
  const auto changed = [&](const std::function<void(Registration&)>& change) {
    auto again = registered("again", &at[0], {2, 3});
    change(again);
    return again;
  };
  const std::vector<std::pair<std::string, Registration>> refused = {
      {"got an empty one after 1 others", registered("", &at[1], {})},
      {"an identity for parameter \"b\", got null", registered("b", nullptr, {})},
      {"every name once, got \"a\" twice", registered("a", &at[1], {})},
      {"got size -1 for parameter \"b\"", registered("b", &at[1], {0, -1})},
      {"got size 4 for parameter \"b\"", registered("b", &at[1], {int64_t{1} << 61, 4})},
      {"got \"a\" and \"again\" in groups 0 and 2", changed([](auto& one) { one.group = 2; })},
      {"got \"a\" and \"again\" with different shapes", changed([](auto& one) {
         one.shape = {3, 2};
       })},
      {"got \"a\" and \"again\" with different shapes",
       changed([](auto& one) { one.trainable = false; })},
      {"got \"a\" and \"again\" with different shapes",
       changed([](auto& one) { one.element_bytes = 2; })}};
  for (const auto& [words, second] : refused)
    play.refuse(words, [&a, &second = second] { ParameterTable({a, second}); });
  play.check("the largest size is none too large",
             ParameterTable({registered("b", &at[1], {kMostNumel, 1})})[0].numel == kMostNumel);
}

// The modules of names: every name's own beginnings, up to a dot.
void check_modules(Play& play) {
  Drawn drawn(play, 1);
  const std::vector<int> identities(7);
  const std::vector<std::string> parts = {"a", "b", "ab", "a_b", "1"};
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<std::string, const void*>> names;
    std::map<std::string, std::vector<const void*>> want{{"", {}}};
    for (int64_t left = drawn.below(9); left > 0; --left) {
      std::string name, module;
      for (int64_t depth = drawn.below(5); depth > 0; --depth) {
        name += drawn.of(parts);
        want[module = name];
        name += ".";
      }
      names.emplace_back(name + "weight", &drawn.of(identities));
      want[module].push_back(names.back().second);
    }
    std::set<std::string> seen;
    bool holds = true;
    for (const auto& one : layout::modules_of(names)) {
      const auto dot = one.name.rfind('.');
      const auto parent = dot == std::string::npos ? "" : one.name.substr(0, dot);
      holds = holds && (one.name.empty() ? seen.empty() : seen.contains(parent)) &&
              one.type == "Module" && want.contains(one.name) && want[one.name] == one.parameters &&
              seen.insert(one.name).second;
    }
    play.check("the modules of " + std::to_string(names.size()) + " names, parents first",
               holds && seen.size() == want.size());
  }
}

// ---- bucket plans ----

constexpr int64_t kSentAlone = 131072, kSmallPart = 1048576, kLargePart = 4194304;

int64_t an_eighth(const ParameterTable& table) {
  int64_t numel = 0, part = 0;
  for (const auto& entry : table.entries()) numel += entry.trainable ? entry.numel : 0;
  part = numel / 8;
  return std::max(kSmallPart, part * 8 < numel ? part + 1 : part);
}

struct SentTogether {
  std::vector<std::size_t> parameters;
  bool lower = false;
  int64_t numel = 0;
};

// One precision after the other.
std::vector<SentTogether> sent_together(const ParameterTable& table, int64_t limit) {
  std::vector<SentTogether> all;
  for (const bool lower : {false, true}) {
    SentTogether open{{}, lower, 0};
    const auto leave = [&] {
      if (!open.parameters.empty()) all.push_back(open);
      open = {{}, lower, 0};
    };
    for (std::size_t at = table.size(); at-- > 0;) {
      const auto& entry = table[at];
      if (!entry.trainable || entry.numel == 0 || entry.lower_precision != lower) continue;
      if (entry.numel >= kSentAlone) {
        all.push_back({{at}, lower, entry.numel});
        continue;
      }
      if (limit < kMostNumel / 2 && open.numel + entry.numel > limit) leave();
      open.parameters.push_back(at);
      open.numel += entry.numel;
    }
    leave();
  }
  std::sort(all.begin(), all.end(), [](const SentTogether& one, const SentTogether& other) {
    return one.parameters.back() > other.parameters.back();
  });
  return all;
}

// What is sent together lies as the header draws it, and leaves in groups.
void check_bucket_plan(Play& play, const ParameterTable& table, int shards, int64_t limit) {
  const BucketPlan plan(table, shards, limit);
  const auto want = sent_together(table, limit);
  const int64_t most = std::min({limit, an_eighth(table), kLargePart});
  bool holds = plan.shards() == shards && plan.buckets().size() == want.size();
  int64_t offset = 0, in_group = 0;
  std::size_t group = 0;
  std::vector<std::optional<layout::SlotLocation>> places(table.size());
  for (std::size_t at = 0; holds && at < want.size(); ++at) {
    const auto& got = plan.buckets()[at];
    if (at > 0 && want[at].numel + in_group > most) ++group, in_group = 0;
    in_group += want[at].numel;
    int64_t columns = 0;
    holds = got.slots.size() == want[at].parameters.size() && got.offset == offset &&
            got.group == group && got.lower_precision == want[at].lower;
    for (std::size_t slot = 0; holds && slot < got.slots.size(); ++slot) {
      const auto parameter = want[at].parameters[slot];
      const int64_t numel = table[parameter].numel, each = numel / shards + (numel % shards != 0);
      places[parameter] = {at, slot};
      holds = got.slots[slot] == layout::Slot{parameter, numel, each, columns} &&
              plan.slot({at, slot}) == got.slots[slot];
      columns += each;
    }
    holds = holds && got.shard_numel == columns;
    offset += columns;
  }
  holds = holds && plan.shard_numel() == offset;
  for (std::size_t at = 0; at < table.size(); ++at) holds = holds && plan.slot_of(at) == places[at];
  for (std::size_t at = 0; holds && at < want.size(); ++at) {
    const auto end = plan.end_of_group(at);
    holds = end > at && plan.buckets()[end - 1].group == plan.buckets()[at].group &&
            (end == want.size() || plan.buckets()[end].group == plan.buckets()[at].group + 1);
  }
  play.check(std::to_string(table.size()) + " parameters in buckets of " + std::to_string(limit) +
                 " on " + std::to_string(shards) + " shards",
             holds);
}

ParameterTable named(const std::vector<Registration>& some) {
  static const std::vector<int> kIdentities(64);
  auto all = some;
  for (std::size_t at = 0; at < all.size(); ++at) {
    all[at].name = "p" + std::to_string(at);
    all[at].identity = &kIdentities.at(at);
  }
  return ParameterTable(all);
}

ParameterTable any_table(Drawn& drawn, int64_t limit) {
  const int64_t near = std::min<int64_t>(limit, 1000);
  const std::vector<int64_t> sizes = {0,
                                      1,
                                      near - 1,
                                      near,
                                      near + 1,
                                      kSentAlone - 1,
                                      kSentAlone,
                                      kSentAlone + 1,
                                      kSmallPart / 2,
                                      kSmallPart / 2 + 1,
                                      kLargePart / 2,
                                      8 * kSmallPart,
                                      8 * kLargePart};
  std::vector<Registration> all(static_cast<std::size_t>(drawn.below(15)));
  for (auto& one : all) {
    one.shape = {drawn.one_in(2) ? drawn.below(near + 1) : drawn.of(sizes)};
    one.trainable = !drawn.one_in(6);
    one.lower_precision = drawn.one_in(3);
  }
  return named(all);
}

void check_bucket_sizes(Play& play) {
  struct Sized {
    std::vector<int64_t> numels;
    int64_t limit, want;
  };
  for (const auto& [numels, limit, want] :
       std::vector<Sized>{{{}, kMostNumel, kSmallPart},
                          {{}, 5, 5},
                          {{8 * kSmallPart}, kMostNumel, kSmallPart},
                          {{8 * kSmallPart, 1}, kMostNumel, kSmallPart + 1},
                          {{8 * kSmallPart + 8}, kMostNumel, kSmallPart + 1},
                          {{8 * kSmallPart + 9}, kMostNumel, kSmallPart + 2},
                          {{64 * kSmallPart}, 8 * kSmallPart - 1, 8 * kSmallPart - 1},
                          {{64 * kSmallPart}, 8 * kSmallPart + 1, 8 * kSmallPart}}) {
    const auto table = table_of(numels);
    play.check("buckets that leave full have an eighth of what is trained, others their limit",
               layout::bucket_size(table, limit, true) == want &&
                   layout::bucket_size(table, limit, false) == limit);
    for (const int64_t again : {limit, want, kSmallPart, 2 * kLargePart})
      check_bucket_plan(play, table, 2, again);
  }
  std::vector<Registration> frozen(2);
  frozen[0].shape = {8 * kSmallPart};
  frozen[1].shape = {800};
  frozen[1].trainable = false;
  play.check("what is not trained does not count",
             layout::bucket_size(named(frozen), kMostNumel, true) == kSmallPart);
}

void check_bucket_plans(Play& play) {
  Drawn drawn(play, 2);
  const std::vector<int64_t> limits = {1,          10,         1000,           kSentAlone,
                                       kSmallPart, kLargePart, 2 * kLargePart, kMostNumel};
  for (int round = 0; round < 200; ++round) {
    const int64_t limit = drawn.of(limits);
    check_bucket_plan(play, any_table(drawn, limit), 1 + static_cast<int>(drawn.below(5)), limit);
  }
  // Exactly a group, and one more than that.
  const int64_t half = kSmallPart / 2;
  for (const auto& numels :
       std::vector<std::vector<int64_t>>{{half, half, half},
                                         {half, half + 1, half},
                                         {half + 1, half, half},
                                         {kLargePart / 2, kLargePart / 2, 1, 8 * kLargePart},
                                         {kLargePart / 2, kLargePart / 2 + 1, 1, 8 * kLargePart}})
    check_bucket_plan(play, table_of(numels), 3, kMostNumel);
  const auto table = table_of({3, 0});
  const BucketPlan plan(table, 2, 5);
  play.refuse("at least 1 shard, got 0", [&] { BucketPlan(table, 0, 5); });
  play.refuse("at least 1 element, got 0", [&] { BucketPlan(table, 1, 0); });
  play.refuse("one of 2 parameters, got 2", [&] { (void)plan.slot_of(2); });
}

void layouts(Play& play) {
  if (play.group()) {
    check_partitions(play);
    check_stages(play);
    check_entries(play);
    check_refused_tables(play);
    check_modules(play);
    check_bucket_sizes(play);
    check_bucket_plans(play);
    play.check("five elements are padded to six on two ranks",
               Partition(5, 2).padded_numel() == (play.fault() ? 5 : 6));
  }
  train_along(play);
}

}  // namespace

std::vector<Case> orders() {
  return {of_part("layouts",
                  "who owns what, and what is sent together, is as documented at every size",
                  "another padding is expected", layouts)};
}

}  // namespace equigrad::conformance::contract
