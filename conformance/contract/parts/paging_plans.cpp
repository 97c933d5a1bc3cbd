// 16. Which pages stay: plans, the order of uses, leaves.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "conformance/contract/parts/least_gathered.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/parameter/leaf_pages.hpp"
#include "engine/parameter/leaf_parameters.hpp"
#include "engine/parameter/paging_plan.hpp"
#include "engine/parameter/use_trace.hpp"

namespace equigrad::conformance::contract {
namespace {

using Pages = std::vector<std::size_t>;
using Sizes64 = std::vector<int64_t>;

void check_plan(Play& play, const Pages& uses, const Sizes64& sizes, int64_t budget) {
  const int64_t least = least_by_hand(uses, sizes, budget);
  const auto plan = parameter::plan_paging(uses, sizes, budget);
  uint64_t stays = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) stays |= uint64_t{plan.stays[i]} << i;
  play.check("a plan gathers the least that any schedule can, and says so",
             plan.gathered_numel == least && plan.least_numel == least &&
                 gathered_by_hand(uses, sizes, budget, stays) == least && !play.fault());
  std::vector<bool> here(sizes.size(), false);
  bool is_told = plan.fetches.size() == uses.size() && plan.live_numel.size() == uses.size();
  for (std::size_t i = 0; i < uses.size() && is_told; ++i) {
    const auto page = uses[i];
    is_told = plan.fetches[i] == !here[page];
    here[page] = true;
    int64_t live = 0;
    for (std::size_t other = 0; other < sizes.size(); ++other) live += here[other] * sizes[other];
    is_told = is_told && plan.live_numel[i] == live;
    here[page] = plan.stays[i];
  }
  play.check("what it fetches and holds is told", is_told);
  const auto hasty = parameter::plan_paging(uses, sizes, budget, 0);
  play.check("without time it is a plan, with what is proven",
             hasty.least_numel <= least && hasty.gathered_numel >= least);
}

void check_plans(Play& play) {
  std::mt19937_64 draw(play.context().seed + static_cast<uint64_t>(play.context().world));
  for (int problem = 0; problem < 60; ++problem) {
    const std::size_t pages = 1 + draw() % 4;
    Sizes64 sizes;
    int64_t all = 0;
    for (std::size_t page = 0; page < pages; ++page)
      all += sizes.emplace_back(problem % 3 == 0 ? 4 : 1 + static_cast<int64_t>(draw() % 7));
    Pages uses;
    for (std::size_t count = draw() % 9; uses.size() < count;) {
      const std::size_t page = draw() % pages;
      if (uses.empty() || uses.back() != page || pages == 1) uses.push_back(page);
    }
    check_plan(play, uses, sizes, static_cast<int64_t>(draw() % static_cast<uint64_t>(all + 2)));
  }
  const auto free = parameter::plan_paging({0, 1, 0}, {0, 5}, 5);
  play.check("a page of nothing costs nothing", free.gathered_numel == 5 && free.least_numel == 5);
}

void follow(parameter::UseTrace& trace, const Pages& uses) {
  for (const auto page : uses) trace.use(page);
  trace.end_cycle();
}

void check_trace(Play& play) {
  const Pages order = {0, 1, 2, 1, 0};
  const Sizes64 sizes = {3, 5, 7};
  constexpr int64_t kNever = parameter::UseTrace::kNever;
  parameter::UseTrace trace(sizes);
  play.check("a trace begins with nothing", !trace.in_step() && !trace.current());
  follow(trace, {0, 0, 1, 2, 2, 1, 0});
  play.check("a cycle is learnt", trace.in_step() && !trace.current());
  play.check("what comes next, within a budget",
             trace.next_pages(kNever) == Pages({0, 1, 2}) && trace.next_pages(2).empty() &&
                 trace.next_pages(3) == Pages({0}) && trace.next_pages(7) == Pages({0}) &&
                 trace.next_pages(8) == Pages({0, 1}) && trace.next_pages(15).size() == 3);
  trace.use(0);
  play.check("how far the next use is",
             trace.current() == std::size_t{0} && trace.reuse_distance_numel(0) == 17);
  trace.use(0), trace.use(1);
  play.check("uses in a row are one", trace.in_step() && trace.reuse_distance_numel(1) == 7 &&
                                          trace.next_pages(kNever) == Pages({2, 1, 0}));
  trace.use(2);
  play.check("never again in this cycle", trace.reuse_distance_numel(2) == kNever);
  trace.use(0);
  play.check("another use is out of step", !trace.in_step());
  trace.use(1), trace.end_cycle();
  play.check("and learnt in its turn",
             trace.next_pages(kNever) == Pages({0, 1, 2}) && trace.plan().gathered_numel == 15);
  follow(trace, order), trace.end_cycle();
  play.check("a cycle without uses forgets nothing", trace.in_step());
  follow(trace, {0, 1}), trace.use(0), trace.use(1), trace.use(2);
  play.check("one that is longer is another", !trace.in_step());
  parameter::UseTrace narrow(sizes, {true, false, false}, 8 + 3);
  follow(narrow, order), follow(narrow, order);
  play.check("pages that stay need no room, and leave the rest to others",
             narrow.plan().gathered_numel == 5 + 7 + 5);
  parameter::UseTrace room(sizes, {}, 15);
  follow(room, order), room.use(0), room.use(1);
  play.check("all stay where there is room", room.stays(0) && room.stays(1));
}

void check_leaves(Play& play) {
  using Held = std::vector<std::optional<std::size_t>>;
  parameter::LeafPages leaves({{0, 1, 2}, {3}, {4, 5, 6}}, Held{0, 1, std::nullopt, 2, 3, 4, 5}, 7);
  play.check("a page is of its leaf, if that has others",
             leaves.leaf_of(0) == std::size_t{0} && leaves.leaf_of(1) == std::size_t{0} &&
                 !leaves.leaf_of(2) && leaves.leaf_of(5) == std::size_t{1} && !leaves.leaf_of(6));
  play.check("a leaf comes as a whole, behind its first",
             leaves.whole({6, 4, 1, 2}) == Pages({6, 4, 3, 5, 1, 0, 2}));
  auto next = leaves.next({0, 1});
  play.check("a leaf begins", next.uses == Pages({0, 1}) && next.left.empty());
  next = leaves.next({1, 0});
  play.check("its operators in a row are one use", next.uses.empty() && next.left.empty());
  next = leaves.next({6});
  play.check("then it is over", next.uses == Pages({6}) && next.left == Pages({0, 1}));
  next = leaves.next({3, 4, 5});
  leaves.end_cycle();
  const auto again = leaves.next({3, 4, 5});
  play.check("so it is at the end of a cycle", again.uses.size() == 3 && again.left.empty());
}

// Classes by their names, bare or in full, in C++'s words or Python's; modules by name or its end.
void check_leaf_names(Play& play) {
  const std::vector<LeafCandidate> all = {{"", "Net"},
                                          {"a", "models::MoEImpl"},
                                          {"a.b", "(anonymous namespace)::MoE"},
                                          {"c", "models::deep::PoolImpl<int>"}};
  const auto found = [&](const LeafModuleConfig& config) {
    return find_leaf_modules(all, config, "here");
  };
  for (const auto& [name, want] : std::vector<std::pair<std::string, Pages>>{{"MoE", {1, 2}},
                                                                             {"MoEImpl", {1, 2}},
                                                                             {"models::MoE", {1}},
                                                                             {"models.MoE", {1}},
                                                                             {"Pool", {3}},
                                                                             {"Net", {0}}})
    play.check("classes called " + name, found({{name}, {}, {}}) == want);
  play.check("modules by name and by its end", found({{}, {"a.b", ""}, {"c"}}) == Pages({0, 2, 3}));
  play.refuse(
      "[here] expected the class of a module of the model, got \"MoF\". Did you mean "
      "\"MoE\"?",
      [&] {
        found({{"MoF"}, {}, {}});
      });
  play.refuse("[here] expected the name of a module of the model, got \"zzzzzzzz\". The model has",
              [&] {
                found({{}, {"zzzzzzzz"}, {}});
              });
  play.refuse("[here] expected the end of the name of a module of the model, got \"zzzzzzzz\".",
              [&] {
                found({{}, {}, {"zzzzzzzz"}});
              });
}

void planned(Play& play) {
  if (play.group()) {
    check_plans(play);
    check_trace(play);
    check_leaves(play);
    check_leaf_names(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> paging_plans() {
  return {of_part("pages_are_planned", "a plan gathers the least that any schedule can",
                  "something else is expected", planned)};
}

}  // namespace equigrad::conformance::contract
