#include "conformance/verdict/divergence_judge.hpp"

namespace equigrad::conformance {

using ranks::Outcome;

std::optional<FirstPlace> first_of(const std::vector<Outcome>& outcomes) {
  std::vector<nlohmann::json> trails;
  for (const auto& outcome : outcomes)
    trails.push_back(outcome.answer.value("trail", Trail().to_json()));
  return first_place(trails);
}

std::optional<FirstPlace> first_failure(const std::vector<Outcome>& outcomes) {
  std::optional<FirstPlace> first;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& outcome = outcomes[rank];
    if (outcome.kind == Outcome::Kind::Ok || outcome.kind == Outcome::Kind::Stopped) continue;
    auto place = place_of_note(static_cast<int>(rank), outcome.doing);
    if (place && (!first || !outcome.lost_peer)) first = std::move(place);
    if (first && !outcome.lost_peer) break;
  }
  return first;
}

}  // namespace equigrad::conformance
