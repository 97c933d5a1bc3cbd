#include "conformance/verdict/divergence_judge.hpp"

namespace equigrad::conformance {

using ranks::Outcome;

std::optional<FirstDivergence> first_of(const std::vector<Outcome>& outcomes) {
  std::vector<nlohmann::json> of_ranks;
  for (const auto& outcome : outcomes)
    of_ranks.push_back(outcome.answer.value("divergences", Divergences().to_json()));
  return first_divergence(of_ranks);
}

std::optional<FirstDivergence> first_failure(const std::vector<Outcome>& outcomes) {
  std::optional<FirstDivergence> first;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& outcome = outcomes[rank];
    if (outcome.kind == Outcome::Kind::Ok || outcome.kind == Outcome::Kind::Stopped) continue;
    auto divergence = divergence_of_note(static_cast<int>(rank), outcome.doing);
    if (divergence && (!first || !outcome.lost_peer)) first = std::move(divergence);
    if (first && !outcome.lost_peer) break;
  }
  return first;
}

}  // namespace equigrad::conformance
