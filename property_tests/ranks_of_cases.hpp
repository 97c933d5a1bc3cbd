// Ranks of cases: generated cases, handed as JSON to the ranks of a pool, and what the ranks say.
//
//   RapidCheck (this process, no torch) --case--> rank 0 .. world - 1: check(case) --> verdicts
//
// Only what is deterministic can be shrunk, so one process draws the case and every rank gets the
// same one. What a check says is text: empty if the property holds, else what is wrong; the whole
// case is in the text, so a failure names its counterexample in one line beside RapidCheck's
// reproduce=... line.
//
// Invariants: the pool is forked at the first case, before this process has run torch.
// Units: one["world"] is the number of ranks.   Errors: none; a rank that throws, dies or hangs is
// a verdict.   Depends on: conformance/ranks/pool.hpp, nlohmann-json. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "conformance/ranks/pool.hpp"

namespace equigrad::property_tests {

using conformance::ranks::RankContext;
using nlohmann::json;

// What one rank found. Digests are additive: the sum over the ranks stands for all they hold.
struct Verdict {
  std::string wrong;
  uint64_t digest = 0;
};

using Check = std::function<Verdict(const json& one, RankContext& context)>;

class RanksOfCases {
 public:
  RanksOfCases(int most_ranks, std::map<std::string, Check> checks)
      : pool_(most_ranks, [checks = std::move(checks)](const json& one, RankContext& context) {
          const Verdict verdict = checks.at(one.at("check"))(one, context);
          return json{{"wrong", verdict.wrong}, {"digest", verdict.digest}};
        }) {}

  // The check one["check"] on one["world"] ranks.
  Verdict run(const json& one) {
    std::vector<int> ranks(one.at("world").get<std::size_t>());
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    const auto outcomes = pool_.run(ranks, one);
    Verdict all{conformance::ranks::failures(outcomes)};
    for (std::size_t rank = 0; all.wrong.empty() && rank < outcomes.size(); ++rank) {
      const auto& answer = outcomes[rank].answer;
      all.digest += answer.at("digest").get<uint64_t>();
      const auto wrong = answer.at("wrong").get<std::string>();
      if (!wrong.empty()) all.wrong = "rank " + std::to_string(rank) + ": " + wrong;
    }
    if (!all.wrong.empty()) all.wrong += " in the case " + one.dump();
    return all;
  }

  std::string wrong(const json& one) { return run(one).wrong; }

 private:
  conformance::ranks::Pool pool_;
};

}  // namespace equigrad::property_tests
