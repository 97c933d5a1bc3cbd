#include "conformance/verdict/contract_judge.hpp"

#include <limits>

#include "conformance/verdict/judge.hpp"
#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {

using reports::Verdict;

void judge_contract(reports::Case& record, const std::vector<ranks::Outcome>& outcomes) {
  record.message.clear();
  if (!ranks::all_ok(outcomes)) {
    record.verdict = verdict_of_failure(outcomes);
    record.message = ranks::failures(outcomes);
    return;
  }
  reports::Lane lane{"exact", Verdict::Equal, 0, 0, 0, {}};
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& part = outcomes[rank].answer.at("exact");
    lane.compared += part.at("compared").get<int64_t>();
    lane.differing += part.at("differing").get<int64_t>();
    const std::string first = part.at("first");
    if (!first.empty())
      record.message += "  exact, rank " + std::to_string(rank) + " first: " + first + "\n";
    const auto& worst = part.at("worst");
    if (worst.is_null() || lane.worst) continue;
    lane.worst = {worst.at("tensor"),
                  worst.at("index"),
                  exact_value(worst.at("got")),
                  exact_value(worst.at("want")),
                  0,
                  exact_value(worst.at("ulp"))};
  }
  if (lane.differing > 0) {
    lane.verdict = Verdict::Failed;
    lane.margin = std::numeric_limits<double>::infinity();
  }
  record.verdict = lane.verdict;
  record.lanes = {lane};
}

}  // namespace equigrad::conformance
