// Requests in slots: each answered once, one at a time in a slot, and whatever ends a rank ends
// nothing but its request.
#include "conformance/campaigns/process_slots.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <set>
#include <utility>

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using Kind = ranks::Outcome::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

json answer(const json& request, ranks::RankContext& context) {
  if (request.at("do") == "die" && context.rank() == 0) raise(SIGKILL);
  if (request.at("do") == "hang")
    for (;;) pause();
  return {{"number", request.value("number", 0)},
          {"process", getpid()},
          {"world", context.world_size()}};
}

TEST(ProcessSlots, EveryRequestIsAnsweredOnceInASlotThatIsFree) {
  ProcessSlots slots({.slots = 2, .widest = 2, .serve = answer});
  ASSERT_EQ(slots.size(), 2u);
  std::vector<int> answered(20), busy(2);
  int next = 0, ticks = 0;
  slots.run(
      [&](std::size_t slot) -> std::optional<Task> {
        EXPECT_EQ(busy[slot], 0);
        if (next == 20) return std::nullopt;
        ++busy[slot];
        return Task{.world = 1 + next % 2,
                    .request = {{"do", "add"}, {"number", next++}},
                    .done = [&, slot](const Outcomes& outcomes, double seconds) {
                      --busy[slot];
                      ++answered[outcomes.at(0).answer.at("number").get<std::size_t>()];
                      EXPECT_EQ(outcomes.size(), outcomes[0].answer.at("world").get<std::size_t>());
                      EXPECT_GE(seconds, 0);
                    }};
      },
      [&] { ++ticks; });
  for (const int times : answered) EXPECT_EQ(times, 1);
  EXPECT_GE(ticks, 20);
}

TEST(ProcessSlots, ADeathAndATimeOutAreAnswersAndTheNextRequestFindsRanks) {
  ProcessSlots slots({.slots = 1, .widest = 2, .timeout_scale = 0.01, .serve = answer});
  std::vector<Kind> kinds;
  for (const std::string what : {"die", "hang", "add"})
    kinds.push_back(slots.ask(2, {{"do", what}}, what == "hang" ? 20 : 3'000).value().front().kind);
  EXPECT_THAT(kinds, ElementsAre(Kind::Died, Kind::TimedOut, Kind::Ok));
}

// Of the ranks of the request that ended: those of another slot, and those before a death or before
// fresh processes, are not among them.
TEST(ProcessSlots, ItKnowsWhichCasesCameBeforeInTheSameProcesses) {
  ProcessSlots slots({.slots = 1, .widest = 2, .timeout_scale = 0.01, .serve = answer});
  std::vector<std::string> before;
  const auto serve = [&](const std::string& what, const std::string& id, int world) {
    bool is_asked = false;
    slots.run(
        [&](std::size_t) -> std::optional<Task> {
          if (std::exchange(is_asked, true)) return std::nullopt;
          return Task{.world = world,
                      .request = {{"do", what}, {"id", id}},
                      .timeout_s = 2000,
                      .done = [&](const Outcomes&, double) { before = slots.before(); }};
        },
        [] {});
    return before;
  };
  EXPECT_THAT(serve("case", "a", 1), IsEmpty());
  EXPECT_THAT(serve("twin", "a", 1), ElementsAre("a")) << "which is no case itself";
  EXPECT_THAT(serve("contract", "b", 2), ElementsAre("a"));
  EXPECT_THAT(serve("case", "c", 2), ElementsAre("a", "b"));
  EXPECT_THAT(serve("die", "d", 1), ElementsAre("a", "b", "c"));
  EXPECT_THAT(serve("case", "e", 1), IsEmpty());
  EXPECT_THAT(serve("case", "f", 2), ElementsAre("b", "c", "e")) << "rank 1 lives on";
  slots.renew();
  EXPECT_THAT(serve("case", "g", 2), IsEmpty());
}

TEST(ProcessSlots, ThereAreNoMoreOfThemThanThereIsToDo) {
  EXPECT_EQ(ProcessSlots({.slots = 8, .widest = 1, .most = 3, .serve = answer}).size(), 3u);
  EXPECT_EQ(ProcessSlots({.slots = 8, .widest = 1, .most = 0, .serve = answer}).size(), 1u);
}

}  // namespace
}  // namespace equigrad::conformance
