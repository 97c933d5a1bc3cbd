// 16. Its parts: what ranks say to each other, and what they hear where they are not at one place.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "conformance/contract/parts/part.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/agreement/coordinator.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::contract {
namespace {

using agreement::coordinator_of;
using agreement::GatherBegins;
using agreement::GatherEnds;
using agreement::GatherStands;
using agreement::HessianProduct;
using agreement::Initialize;
using agreement::LaunchBucket;
using agreement::ObservedUpdate;
using agreement::Participant;
using agreement::ReadGradient;
using agreement::ReadMaster;
using agreement::ReadParameter;
using agreement::ReadState;
using agreement::SetRates;
using agreement::Step;
using agreement::SyncPoint;
using agreement::WriteGradient;
using agreement::WriteLocal;
using agreement::WriteMaster;
using agreement::WriteState;
// ---- places ----

struct MeetingPlace {
  SyncPoint point;
  std::string words;       // of engine 0
  std::string unfinished;  // what it is that another rank's exception ends
};

const std::vector<MeetingPlace>& meeting_places() {
  static const std::string kPass = "backward pass", kStep = "step()", kGather = "gather()";
  static const std::vector<MeetingPlace> kPlaces = {
      {LaunchBucket{.bucket = 4, .rounds = 1}, "the reduction of bucket 4 of engine 0", kPass},
      {LaunchBucket{.bucket = 5, .rounds = 1}, "the reduction of bucket 5 of engine 0", kPass},
      {Step{.passes = 6}, "step() of engine 0 after 6 backward passes", kPass},
      {Step{.passes = 7, .eager_buckets = 2}, "step() of engine 0 after 7 backward passes", kPass},
      {ObservedUpdate{}, "the update of engine 0", kStep},
      {ReadParameter{3}, "full_parameter of engine 0, parameter 3", kGather},
      {ReadParameter{4}, "full_parameter of engine 0, parameter 4", kGather},
      {ReadGradient{3, 2}, "the getter of a gradient of engine 0, parameter 3", kGather},
      {ReadMaster{2}, "the getter of a master of engine 0, parameter 2", kGather},
      {ReadState{5, 1}, "the getter of a state of engine 0, parameter 5", kGather},
      {WriteGradient{6, 9}, "the setter of a gradient of engine 0, parameter 6", kGather},
      {WriteMaster{7, 9}, "the setter of a master of engine 0, parameter 7", kGather},
      {WriteState{8, 9}, "the setter of a state of engine 0, parameter 8", kGather},
      {WriteLocal{9, true}, "the setter of a local value of engine 0, parameter 9", kGather},
      {SetRates{3}, "set_lr() or set_hyper_parameters() of engine 0", kGather},
      {GatherBegins{3}, "the beginning of gather() of engine 0", kGather},
      {GatherStands{}, "the parameters of gather() of engine 0", kGather},
      {GatherEnds{true}, "the end of gather() of engine 0", kGather},
      {HessianProduct{7}, "product 7 with the Hessian, which is engine 0", kGather},
      {HessianProduct{8}, "product 8 with the Hessian, which is engine 0", kGather},
      {Initialize{2}, "initialize()", kPass}};
  return kPlaces;
}

// The last rank is somewhere else.
void check_two_places(Play& play) {
  Part part(play);
  Drawn drawn(play, 30);
  const auto count = static_cast<int64_t>(meeting_places().size());
  for (int64_t one = 0; one < count; ++one)
    for (const int64_t away : {int64_t{1}, 2 + drawn.below(count - 2)}) {
      const auto &here = meeting_places()[static_cast<std::size_t>(one)],
                 &there = meeting_places()[static_cast<std::size_t>((one + away) % count)];
      const auto meet = [&] { return part.it->meet(part.is_last() ? there.point : here.point); };
      if (part.is_alone()) {
        play.check("one rank alone is at " + there.words, meet().together);
        continue;
      }
      play.refuse("expected every rank at the same place, got rank 0 at " + here.words +
                      " and rank " + std::to_string(part.last) + " at " +
                      (play.fault() ? "no such place" : there.words),
                  meet);
    }
  // Of two engines, each at its own.
  Participant second(part.wire, 3);
  const auto meet = [&] { (part.is_last() ? second : *part.it).meet(Step{.passes = 1}); };
  if (!part.is_alone())
    play.refuse("rank 0 at step() of engine 0 after 1 backward passes and rank " +
                    std::to_string(part.last) + " at step() of engine 1 after",
                meet);
  play.check("engines are counted as they are made",
             part.it->number() == (play.fault() ? 1 : 0) && second.number() == 1);
  play.check("nothing is left over", part.it->meet(Step{}).together && part.gathered.empty());
}

// What a rank says beside where it is, and the number that it is sent as.
struct Flag {
  std::string name;
  SyncPoint mine;  // of one rank
  std::function<int64_t(int)> of_rank;
};

std::vector<Flag> flags(int rank) {
  const auto same = [](int of) { return int64_t{10} + of; };
  const auto bit = [](int of) { return static_cast<int64_t>(of % 2); };
  const auto none = [](int) { return int64_t{0}; };
  const bool odd = rank % 2 == 1;
  const std::size_t left = odd ? 2 : 3;
  const int64_t mine = same(rank);
  return {{"rounds", LaunchBucket{2, mine}, same},
          {"buckets that have left", Step{2, left, false}, [=](int of) { return 6 - 2 * bit(of); }},
          {"an observer", Step{2, 0, odd}, bit},
          {"both", Step{2, left, odd}, [=](int of) { return 6 - bit(of); }},
          {"nothing of a parameter", ReadParameter{3}, none},
          {"nothing of a master", ReadMaster{3}, none},
          {"nothing of a product", HessianProduct{3}, none},
          {"passes", ReadGradient{3, mine}, same},
          {"a state", ReadState{3, static_cast<std::size_t>(mine)}, same},
          {"a gradient", WriteGradient{3, mine}, same},
          {"a master's value", WriteMaster{3, mine}, same},
          {"a state's value", WriteState{3, mine}, same},
          {"a local value", WriteLocal{3, odd}, bit},
          {"rates", SetRates{mine}, same},
          {"refused rates", SetRates{-rank}, [](int of) { return int64_t{-of}; }},
          {"a gather's parameters", GatherBegins{mine}, same},
          {"a write", GatherEnds{odd}, bit},
          {"the oldest engine", Initialize{mine}, same}};
}

void check_flags(Play& play) {
  Part part(play);
  for (const auto& flag : flags(part.rank)) {
    int64_t least = flag.of_rank(part.rank), greatest = least;
    for (int rank = 0; rank < part.world; ++rank) {
      least = std::min(least, flag.of_rank(rank));
      greatest = std::max(greatest, flag.of_rank(rank));
    }
    const auto agreed = part.it->meet(flag.mine);
    play.check("ranks that differ in " + flag.name + " hear the least and the greatest",
               agreed.together && agreed.least_flag == least && agreed.greatest_flag == greatest &&
                   agreed.marks.empty());
  }
}

// Around the sizes of words, and beside an engine with more of them.
void check_marks(Play& play) {
  Drawn drawn(play, 31);
  for (const std::size_t widest : {std::size_t{0}, std::size_t{300}})
    for (const std::size_t count : {0U, 1U, 62U, 63U, 64U, 126U, 127U, 190U}) {
      Part part(play, count);
      const Participant other(part.wire, widest);
      std::vector<bool> want(count), mine(count);
      for (int rank = 0; rank < part.world; ++rank)
        for (std::size_t mark = 0; mark < count; ++mark) {
          const bool is_set = drawn.one_in(5) || (rank == part.last && mark + 1 == count);
          if (is_set) want[mark] = true;
          if (is_set && rank == part.rank) mine[mark] = true;
        }
      const auto before = part.wire.words;
      play.check(std::to_string(count) + " marks of every rank are heard by all",
                 part.it->meet(Step{.passes = 2}, mine).marks == want);
      const auto words = [](std::size_t bits) { return static_cast<int64_t>((bits + 62) / 63); };
      if (!part.is_alone())
        play.check("a message is as long as it has to be",
                   part.wire.words - before == 4 + 1 + words(std::max(widest, count)));
    }
}

// ---- pages ----

void check_pages(Play& play) {
  Part part(play, 200);
  Drawn drawn(play, 32);
  std::vector<std::vector<Pages>> wants(static_cast<std::size_t>(part.world));
  std::vector<std::set<std::size_t>> together(8);
  for (auto& of_rank : wants)
    for (int64_t left = drawn.below(8); left > 0; --left) {
      Pages pages;
      for (int64_t many = 1 + drawn.below(4); many > 0; --many)
        pages.push_back(static_cast<std::size_t>(
            drawn.of(std::vector<int64_t>{0, 62, 63, 199, drawn.below(200)})));
      together[of_rank.size()].insert(pages.begin(), pages.end());
      of_rank.push_back(pages);
    }
  std::vector<Pages> want;
  for (const auto& pages : together)
    if (!pages.empty()) want.emplace_back(pages.begin(), pages.end());
  const auto& mine = wants[static_cast<std::size_t>(part.rank)];
  for (const auto& pages : mine) part.it->want(pages);
  part.it->meet(Step{.passes = 1});
  play.check("who waits gathers what others want, and nothing else",
             part.gathered == (part.is_alone() ? mine : want));
}

// Of seventy engines some are gone, one of them on the last rank alone.
void check_destroyed(Play& play) {
  Part part(play, 1);
  std::vector<std::unique_ptr<Participant>> others;
  std::vector<int64_t> served;
  for (int64_t number = 1; number < 70; ++number) {
    others.push_back(std::make_unique<Participant>(part.wire, 2));
    others.back()->serve([&served, number](const Pages&) { served.push_back(number); });
  }
  const auto at = [&](int64_t number) -> auto& {
    return others[static_cast<std::size_t>(number - 1)];
  };
  const auto said = [&] {
    const auto before = part.wire.words;
    part.it->meet(Step{});
    return part.wire.words - before;
  };
  if (part.is_last()) at(65).reset();
  if (part.is_alone()) return;
  for (const int64_t number : {64, 62, 63, 69}) {
    if (!part.is_last()) at(number)->want({1});
    part.it->meet(Step{});
  }
  play.check("those that all have are gathered", served == std::vector<int64_t>{64, 62, 63, 69});
  play.refuse("expected engine 65 on every rank, got rank " + std::to_string(part.last) +
                  ", which has destroyed it while rank 0 reads its parameters",
              [&] { part.is_last() ? (void)part.it->meet(Step{}) : at(65)->want({0}); });
  play.check("nothing is gathered for it", served.size() == 4);
  play.check("seventy engines take two words", said() == 4 + 2 + 1);
  for (int64_t number = 1; number < 60; ++number) at(number).reset();
}

// A message has a bit for every engine since the oldest that any rank has.
void check_oldest(Play& play) {
  Part part(play, 1);
  if (part.is_alone()) return coordinator_of(part.wire).meet_to_initialize();
  std::vector<std::unique_ptr<Participant>> all;
  const auto make_until = [&](std::size_t end) {
    while (all.size() < end) all.push_back(std::make_unique<Participant>(part.wire, 1));
  };
  const auto leave_from = [&](std::size_t begin) {
    for (std::size_t at = 0; at < begin; ++at) all[at].reset();
  };
  const auto words_of_engines = [&] {
    const auto before = part.wire.words;
    all.back()->meet(Step{});
    return part.wire.words - before - 4 - 1;
  };
  const auto initialize = [&] { coordinator_of(part.wire).meet_to_initialize(); };
  make_until(70);
  auto first = std::move(part.it);
  first.reset();
  leave_from(60);
  play.check("engines that are gone are counted until there is another", words_of_engines() == 2);
  initialize();
  play.check("then they are forgotten", words_of_engines() == 1);
  make_until(123);
  play.check("a word has sixty-three engines", words_of_engines() == 1);
  make_until(124);
  play.check("and no more", words_of_engines() == 2);
  if (part.is_last())
    leave_from(100);
  else
    leave_from(99);
  initialize();
  make_until(125);
  play.check("the oldest of any rank counts", all.back()->number() == 125);
  play.refuse("expected engine 100 on every rank, got rank " + std::to_string(part.last),
              [&] { part.is_last() ? (void)all.back()->meet(Step{}) : all[99]->want({0}); });
  all.clear();
  initialize();
  make_until(1);
  play.check("of none there is nothing to remember",
             words_of_engines() == 1 && all.back()->number() == 126);
}

// ---- exceptions ----

void check_abandoned(Play& play) {
  Part part(play);
  if (part.is_alone()) {
    part.it->abandon();
    play.check("one rank alone tells nobody", part.wire.messages == 0);
    return;
  }
  for (const auto& place : meeting_places()) {
    part.it->begin_pass();
    if (part.rank == 0)
      part.it->abandon();
    else
      play.refuse("expected every rank to finish its " + place.unfinished +
                      ", got an exception on rank 0. It counts on no rank",
                  [&] { part.it->meet(place.point); });
    part.it->begin_pass();
  }
  play.check("nothing is left over", part.it->meet(Step{}).together);
  part.it->begin_pass();
  if (part.rank < 2)
    part.it->abandon();
  else
    play.refuse("got an exception on rank 0", [&] { part.it->meet(Step{.passes = 1}); });
  // Who has heard it says nothing, until the next pass.
  part.it->begin_pass();
  if (part.is_last()) {
    part.it->abandon();
  } else {
    if (part.rank == 0) part.it->want({7});
    play.refuse("got an exception on rank " + std::to_string(part.last),
                [&] { part.it->meet(LaunchBucket{.bucket = 0, .rounds = 1}); });
  }
  play.check("who reads is served first", part.gathered == std::vector<Pages>{{7}});
  const auto before = part.wire.messages;
  part.it->abandon();
  play.check("it is told once", part.wire.messages == before);
  part.it->begin_pass();
  part.it->abandon();
  play.check("all may tell it at the same time", part.wire.messages == before + 1);
  play.check("and meet afterwards", part.it->meet(Step{}).together);
  const auto later = part.wire.messages;
  part.it->abandon();
  play.check("a step that all have come to is no pass that threw", part.wire.messages == later + 1);
  play.check("nothing is left over", part.it->meet(Step{}).together);
}

void different_places(Play& play) {
  if (play.group()) {
    check_two_places(play);
    check_flags(play);
    check_marks(play);
  }
  train_along(play);
}

void reads_and_exceptions(Play& play) {
  if (play.group()) {
    check_pages(play);
    check_destroyed(play);
    check_oldest(play);
    check_abandoned(play);
    const Part part(play);
    play.check("an engine of its own is the first", part.it->number() == (play.fault() ? 1 : 0));
  }
  train_along(play);
}

}  // namespace

std::vector<Case> disagreements() {
  return {of_part("ranks_at_different_places",
                  "all are told which ranks are where, and what every rank says is heard",
                  "another place is expected", different_places, Plays::EveryWorld),
          of_part("ranks_that_read_leave_or_throw",
                  "who waits serves, who is gone is named, an exception is told once",
                  "another engine is expected", reads_and_exceptions, Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
