// 16. Its parts: full buckets that ranks announce, and which thread may speak.
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/contract/parts/part.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/agreement/coordinator.hpp"

namespace equigrad::conformance::contract {
namespace {

using agreement::Agreement;
using agreement::coordinator_of;
using agreement::LaunchBucket;
using agreement::NoFullBucket;
using agreement::Participant;
using agreement::Step;
using agreement::SyncPoint;

// What was announced, and the answer.
struct Heard {
  int count = 0;
  Agreement answer = {};
  Participant::Then then() {
    return [this](const Agreement& agreement) {
      ++count;
      answer = agreement;
    };
  }
  bool is(bool together) const { return count == 1 && answer.together == together; }
};

const LaunchBucket kFull{.bucket = 2};

// All of them, at once or later.
void check_all_announce(Play& play) {
  Part part(play);
  Heard at_once, later, spoken;
  part.it->announce(kFull, at_once.then());
  play.check("an answer comes later, but of a rank alone",
             at_once.count == (part.is_alone() ? 1 : 0));
  part.it->settle();
  play.check("who settles hears it", at_once.is(true));
  part.it->settle();
  play.check("once", at_once.is(true));
  part.it->announce(LaunchBucket{.bucket = 3}, later.then());
  part.it->announce(NoFullBucket{}, spoken.then());
  play.check("so does who speaks again", later.is(true));
  part.it->meet(Step{});
  play.check("and who comes to a step",
             spoken.is(!play.fault()) && part.wire.messages == (part.is_alone() ? 0 : 4));
  Heard rounds;
  part.it->announce(LaunchBucket{.bucket = 3, .rounds = 5}, rounds.then());
  part.it->settle();
  play.check("flags are heard too",
             rounds.answer.least_flag == 5 && rounds.answer.greatest_flag == 5);
}

// The last rank says something else; whether what the others announced leaves.
void check_postponed(Play& play, const SyncPoint& of_last, bool wants, const std::string& what) {
  Part part(play);
  Participant second(part.wire, 3);
  if (part.is_alone()) return;
  Heard heard;
  if (part.is_last()) {
    if (wants) part.it->want({5});
    part.it->announce(of_last, heard.then());
  } else {
    part.it->announce(kFull, heard.then());
  }
  part.it->meet(Step{});
  play.check("a full bucket waits where another rank says " + what, heard.is(false));
  play.check("and reads are served", part.gathered.size() == (wants ? 1 : 0));
  play.check("then all meet", part.it->meet(Step{}).together);
  Heard of_engines;
  (part.is_last() ? second : *part.it).announce(kFull, of_engines.then());
  second.settle();
  play.check("full buckets of two engines wait", of_engines.is(false));
}

// The last rank is at the end of its pass, and launches what is full elsewhere.
void check_flush(Play& play) {
  Part part(play);
  if (part.is_alone()) return;
  Heard heard;
  if (part.is_last()) {
    const auto agreed = part.it->meet(LaunchBucket{.bucket = 2, .rounds = 3});
    play.check("who flushes hears that others are full",
               agreed.together && agreed.least_flag == 0 && agreed.greatest_flag == 3);
  } else {
    part.it->announce(kFull, heard.then());
    part.it->settle();
    play.check("who is full leaves with who flushes", heard.is(true));
  }
  if (part.is_last()) {
    part.it->meet(Step{});
  } else {
    part.it->announce(kFull, heard.then());
    part.it->meet(Step{});
    play.check("who comes to a step postpones what is full",
               heard.count == 2 && !heard.answer.together);
  }
}

// The last rank's pass threw.
void check_thrown(Play& play) {
  Part part(play);
  if (part.is_alone()) return;
  Heard heard;
  part.it->begin_pass();
  if (part.is_last()) {
    part.it->abandon();
  } else {
    part.it->announce(kFull, heard.then());
    play.refuse("expected every rank to finish its backward pass, got an exception on rank " +
                    std::to_string(part.last),
                [&] { part.it->settle(); });
  }
  const auto before = part.wire.messages;
  part.it->abandon();
  play.check("all know it", part.wire.messages == before && heard.count == 0);
  play.check("and meet afterwards", part.it->meet(Step{}).together);
  // Who abandons a pass has heard first what it announced.
  part.it->begin_pass();
  part.it->announce(kFull, heard.then());
  part.it->abandon();
  play.check("an answer comes before the exception", heard.is(true));
  // Of a step, in which no pass is under way, all hear it in their next one.
  play.check("all meet again", part.it->meet(Step{}).together);
  {
    Participant gone(part.wire, 1);
    gone.announce(kFull, heard.then());
  }
  part.it->settle();
  play.check("an engine that is gone hears nothing", heard.count == 1);
  play.check("all meet without it", part.it->meet(Step{}).together);
}

std::string said_by_a_thread(const Play::Call& call) {
  std::string said = "nothing";
  std::thread([&] {
    try {
      call();
    } catch (const std::exception& error) {
      said = error.what();
    }
  }).join();
  return said;
}

// One thread at a time; what it calls may speak too.
void check_threads(Play& play) {
  Part part(play);
  Heard heard;
  const std::vector<std::pair<std::string, Play::Call>> calls = {
      {"settle()", [&] { part.it->settle(); }},
      {"meet()", [&] { part.it->meet(Step{}); }},
      {"want()", [&] { part.it->want({4}); }},
      {"abandon()", [&] { part.it->abandon(); }},
      {"announce()", [&] { part.it->announce(kFull, heard.then()); }},
      {"initialize()", [&] { coordinator_of(part.wire).meet_to_initialize(); }}};
  std::vector<std::string> said;
  int64_t nested = -1;
  part.it->serve([&](const Pages& pages) {
    if (pages != Pages{3}) return;
    part.it->begin_pass();
    for (const auto& [name, call] : calls) said.push_back(said_by_a_thread(call));
    nested = part.it->meet(LaunchBucket{.bucket = 1, .rounds = 4}).greatest_flag;
  });
  part.it->want({3});
  play.check("who is served may speak", nested == 4 && said.size() == calls.size());
  const std::string words =
      "expected one thread of a rank at a time to call the engines of one communicator, got a "
      "second one while the first waits for the other ranks. Make the calls from one thread";
  for (std::size_t i = 0; i < said.size(); ++i)
    play.check("a second thread's " + calls[i].first + " is refused in words, but of a rank alone",
               part.is_alone() ? said[i] == "nothing" : said[i].find(words) != std::string::npos);
  play.check("afterwards any thread may speak", said_by_a_thread(calls[1].second) == "nothing");
}

void announced(Play& play) {
  if (play.group()) {
    check_all_announce(play);
    check_postponed(play, LaunchBucket{.bucket = 3}, false, "it is at another one");
    check_postponed(play, NoFullBucket{}, true, "nothing more will be full");
    check_flush(play);
    check_thrown(play);
    check_threads(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> announcements() {
  return {of_part("announcements",
                  "what is announced is heard once, and leaves where all have come to it",
                  "an answer is expected that is none", announced, Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
