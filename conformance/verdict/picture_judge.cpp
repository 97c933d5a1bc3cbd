#include "conformance/verdict/picture_judge.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;

// Of an answer: its own, or that of the contract's difference.
json picture_in(const json& answer) {
  const auto own = answer.find("picture");
  if (own != answer.end()) return *own;
  const auto difference = answer.find("difference");
  return difference == answer.end() ? json() : difference->value("picture", json());
}

// The slice of a tensor that a rank compared, and where in it the wrong elements are.
void add_slices(reports::Picture& picture, const json& answer, int rank) {
  const auto own = picture_in(answer);
  const bool is_same = !own.is_null() && own.at("step") == picture.step;
  if (is_same)
    for (const auto& slice : own.at("slices"))
      if (slice.at(0) == picture.tensor) {
        picture.slices.push_back({rank, slice.at(1), slice.at(2), slice.at(3)});
        return;
      }
  for (const auto& row : answer.value("cover", json::array()))
    if (row.at(0) == picture.tensor && row.at(1) != row.at(2))
      picture.slices.push_back({rank, row.at(1), row.at(2), {}});
}

int64_t numel_of(const reports::Picture& picture, const std::vector<Outcome>& outcomes) {
  int64_t numel = 0;
  for (const auto& outcome : outcomes)
    for (const auto& row : outcome.answer.value("cover", json::array()))
      if (row.at(0) == picture.tensor) numel = std::max(numel, row.at(3).get<int64_t>());
  for (const auto& slice : picture.slices) numel = std::max(numel, slice.end);
  return numel;
}

// On how many ranks the gradient of each parameter was wrong, step by step.
void add_gradients(reports::Picture& picture, const std::vector<Outcome>& outcomes) {
  std::map<std::string, std::size_t> places;
  for (const auto& outcome : outcomes) {
    const auto steps = outcome.answer.value("gradients", json::array());
    for (std::size_t step = 0; step < steps.size(); ++step)
      for (const auto& row : steps[step]) {
        const std::string name = row.at(0);
        const auto [at, is_new] = places.try_emplace(name, picture.gradients.size());
        if (is_new) picture.gradients.push_back({name, std::vector<int64_t>(steps.size(), 0)});
        auto& ranks = picture.gradients[at->second].wrong_ranks;
        if (step < ranks.size() && !row.at(1).get<bool>()) ++ranks[step];
      }
  }
}

}  // namespace

std::optional<reports::Picture> picture_from(const std::vector<Outcome>& outcomes, int first_rank) {
  json found;
  int rank = 0;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto own = picture_in(outcomes[i].answer);
    if (own.is_null() || (!found.is_null() && static_cast<int>(i) != first_rank)) continue;
    found = own;
    rank = static_cast<int>(i);
  }
  if (found.is_null()) return std::nullopt;
  reports::Picture picture;
  picture.tensor = found.at("tensor");
  picture.what = found.at("what");
  picture.step = found.at("step");
  picture.rank = rank;
  picture.ulps = found.at("ulps").get<std::vector<int64_t>>();
  for (const auto& sample : found.at("samples"))
    picture.samples.push_back({sample.at(0), exact_value(sample.at(1)), exact_value(sample.at(2))});
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    add_slices(picture, outcomes[i].answer, static_cast<int>(i));
  picture.numel = numel_of(picture, outcomes);
  add_gradients(picture, outcomes);
  return picture;
}

}  // namespace equigrad::conformance
