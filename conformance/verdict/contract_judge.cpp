#include "conformance/verdict/contract_judge.hpp"

#include <cstdio>
#include <limits>

#include "conformance/verdict/judge.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "conformance/verdict/picture_judge.hpp"

namespace equigrad::conformance {

namespace {

// Of the rank whose play parted first.
const nlohmann::json* first_difference(const std::vector<ranks::Outcome>& outcomes, int& of_rank) {
  const nlohmann::json* first = nullptr;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto found = outcomes[rank].answer.find("difference");
    if (found == outcomes[rank].answer.end()) continue;
    if (first != nullptr && first->at("order") <= found->at("order")) continue;
    first = &*found;
    of_rank = static_cast<int>(rank);
  }
  return first;
}

std::string number_text(const nlohmann::json& exact) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", exact_value(exact));
  return text;
}

// "  first   step 1, gradient of head.bias, element 3 on rank 1, by on_step(): got 0.5 want 1
// (8388608 ulp)", and what explains it; or what does not hold, after which call.
std::string difference_text(const nlohmann::json& first, int rank) {
  const std::string call = first.at("call"), parameter = first.at("parameter");
  std::string text = "  first   step " + std::to_string(first.at("step").get<int>() + 1) + ", ";
  const std::string on = " on rank " + std::to_string(rank);
  if (first.contains("finding"))
    return text + (parameter.empty() ? "" : parameter + ", ") + "after " + call + on + ": " +
           first.at("finding").get<std::string>() + "\n";
  text += first.at("what").get<std::string>() + (parameter.empty() ? "" : " of " + parameter) +
          ", element " + std::to_string(first.at("index").get<int64_t>()) + on + ", by " + call +
          ": got " + number_text(first.at("got")) + " want " + number_text(first.at("want")) +
          " (" + number_text(first.at("ulp")) + " ulp)\n";
  return text + first.at("text").get<std::string>();
}

}  // namespace

using reports::Verdict;

void judge_contract(reports::Case& record, const std::vector<ranks::Outcome>& outcomes) {
  record.message.clear();
  record.acted = acted(outcomes);
  if (!ranks::all_ok(outcomes)) {
    record.verdict = verdict_of_failure(outcomes);
    record.message = ranks::failures(outcomes);
    return;
  }
  reports::Lane lane{"exact", Verdict::Equal, 0, 0, 0, {}};
  int of_rank = 0;
  if (const auto* first = first_difference(outcomes, of_rank))
    record.message = difference_text(*first, of_rank);
  record.picture = picture_from(outcomes, of_rank);
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
