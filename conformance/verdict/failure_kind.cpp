#include "conformance/verdict/failure_kind.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace equigrad::conformance {
namespace {

using ranks::Outcome;

// The place of a kind of comparison in the order in which a step computes; states, by whatever
// name, come with the masters.
std::size_t place_of(const std::string& kind) {
  constexpr std::array kOrder = {"initialize", "loss.backward()", "loss",   "gradient", "norm",
                                 "boundary",   "shard",           "states", "master"};
  constexpr std::array kLast = {"parameter", "loss_scale", "skipped_steps",
                                "getter",    "ledger",     "caller"};
  const auto first = std::find(kOrder.begin(), kOrder.end(), kind);
  if (first != kOrder.end()) return static_cast<std::size_t>(first - kOrder.begin());
  const auto last = std::find(kLast.begin(), kLast.end(), kind);
  if (last == kLast.end()) return kOrder.size();
  return kOrder.size() + 1 + static_cast<std::size_t>(last - kLast.begin());
}

// The kind in which `lane` first failed, over all ranks; empty if it did not.
std::string first_kind(const std::string& lane, const std::vector<Outcome>& outcomes) {
  std::string kind;
  std::pair<int, std::size_t> least;
  for (const auto& outcome : outcomes) {
    if (!outcome.answer.contains(lane)) continue;
    for (const auto& check : outcome.answer.at(lane).at("checks")) {
      const std::pair<int, std::size_t> at{check.at("step"), place_of(check.at("kind"))};
      if (!kind.empty() && at >= least) continue;
      kind = check.at("kind");
      least = at;
    }
  }
  return kind;
}

// "[rank 1/2] [engine.step] expected ..." -> "[engine.step]": the last of the places in front.
std::string place_in(const std::string& text) {
  std::string place;
  for (std::size_t at = 0; at < text.size() && text[at] == '[';) {
    const auto end = text.find(']', at);
    if (end == std::string::npos) break;
    place = text.substr(at, end + 1 - at);
    at = text.find_first_not_of(' ', end + 1);
  }
  return place;
}

std::string kind_without_answers(const std::vector<Outcome>& outcomes) {
  for (const auto kind : {Outcome::Kind::Died, Outcome::Kind::TimedOut, Outcome::Kind::Error})
    for (const auto& outcome : outcomes) {
      if (outcome.kind != kind) continue;
      if (kind == Outcome::Kind::TimedOut) return "timed out";
      if (kind == Outcome::Kind::Died)
        return "died: " + outcome.text.substr(0, outcome.text.find('\n'));
      // Who lost a peer only tells that another rank threw.
      const bool others = std::any_of(outcomes.begin(), outcomes.end(), [&](const Outcome& other) {
        return other.kind == kind && !ranks::is_infrastructure_error(other);
      });
      if (others && ranks::is_infrastructure_error(outcome)) continue;
      return "error " + place_in(outcome.text);
    }
  return "no answer";
}

}  // namespace

std::string failure_kind(const Judged& judged, const std::vector<Outcome>& outcomes) {
  if (reports::passed(judged.record.verdict)) return {};
  if (!ranks::all_ok(outcomes)) return kind_without_answers(outcomes);
  const auto exact = first_kind("exact", outcomes);
  if (!exact.empty()) return exact;
  const auto bounded = first_kind("bounded", outcomes);
  return bounded.empty() ? "checks" : "bounded " + bounded;
}

}  // namespace equigrad::conformance
