#include "conformance/verdict/comparison_judge.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "conformance/verdict/statistics.hpp"

namespace equigrad::conformance {
namespace {

using reports::ComparedQuantity;
using reports::ComparedRun;
using reports::Comparison;
using reports::ComparisonOutcome;
using reports::Estimate;

constexpr int64_t kCurvePoints = 100;

struct Pair {
  const ComparedRun* runs[2] = {nullptr, nullptr};
};
using Value = std::function<double(const ComparedRun&)>;

bool finite(const ComparedRun& run) {
  return std::all_of(run.losses.begin(), run.losses.end(),
                     [](double loss) { return std::isfinite(loss); });
}

std::vector<Pair> complete_pairs(const Comparison& comparison) {
  std::vector<Pair> pairs;
  for (const uint64_t seed : comparison.seeds) {
    Pair pair;
    for (const ComparedRun& run : comparison.runs)
      if (run.seed == seed && run.complete) pair.runs[run.configuration] = &run;
    if (pair.runs[0] != nullptr && pair.runs[1] != nullptr) pairs.push_back(pair);
  }
  return pairs;
}

Sample sample(const std::vector<Pair>& pairs, int of, const Value& value) {
  std::vector<double> values;
  for (const Pair& pair : pairs) values.push_back(value(*pair.runs[of]));
  return sample_of(values);
}

Sample differences(const std::vector<Pair>& pairs, const Value& value) {
  std::vector<double> values;
  for (const Pair& pair : pairs) values.push_back(value(*pair.runs[1]) - value(*pair.runs[0]));
  return sample_of(values);
}

Estimate estimate(const Sample& sample, double confidence) {
  const auto interval = mean_interval(sample, confidence);
  return {sample.mean, interval.low, interval.high};
}

double mean_between(const std::vector<double>& values, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += values[static_cast<std::size_t>(i)];
  return sum / static_cast<double>(end - begin);
}

std::vector<ComparedQuantity> quantities(const std::vector<Pair>& pairs, double confidence) {
  struct Asked {
    const char *name, *unit;
    Value value;
  };
  const auto bytes = [](int64_t ComparedRun::*field) {
    return [field](const ComparedRun& run) { return static_cast<double>(run.*field); };
  };
  const std::vector<Asked> asked = {
      {"final loss", "nats", [](const ComparedRun& run) { return run.final_loss; }},
      {"mean loss", "nats", [](const ComparedRun& run) { return run.mean_loss; }},
      {"step time, median", "s", [](const ComparedRun& run) { return run.step_s; }},
      {"held after a step", "bytes", bytes(&ComparedRun::held_bytes)},
      {"held, peak", "bytes", bytes(&ComparedRun::held_peak_bytes)},
      {"process, peak", "bytes", bytes(&ComparedRun::process_peak_bytes)},
      {"process, growth to its peak", "bytes", bytes(&ComparedRun::process_growth_bytes)}};
  std::vector<ComparedQuantity> out;
  for (const auto& [name, unit, value] : asked) {
    ComparedQuantity quantity{name, unit, {}, {}, 0};
    for (int of = 0; of < 2; ++of)
      quantity.each[static_cast<std::size_t>(of)] = estimate(sample(pairs, of, value), confidence);
    quantity.difference = estimate(differences(pairs, value), confidence);
    quantity.ratio = quantity.each[1].mean / quantity.each[0].mean;
    out.push_back(std::move(quantity));
  }
  return out;
}

std::vector<reports::CurvePoint> curve(const std::vector<Pair>& pairs, const Comparison& of) {
  std::vector<reports::CurvePoint> points;
  const int64_t count = std::min(kCurvePoints, of.steps);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = of.steps * i / count, end = of.steps * (i + 1) / count;
    const auto block = [&](const ComparedRun& run) { return mean_between(run.losses, begin, end); };
    points.push_back({end,
                      {estimate(sample(pairs, 0, block), of.confidence),
                       estimate(sample(pairs, 1, block), of.confidence)},
                      estimate(differences(pairs, block), of.confidence)});
  }
  return points;
}

// "A diverged with seed 7 at step 12", for the first run that is not finite.
std::string divergence(const ComparedRun& run) {
  const auto at = std::find_if(run.losses.begin(), run.losses.end(),
                               [](double loss) { return !std::isfinite(loss); });
  return std::string(run.configuration == 0 ? "A" : "B") + " diverged with seed " +
         std::to_string(run.seed) + ": its loss is not finite at step " +
         std::to_string(at - run.losses.begin() + 1);
}

// Pairs of which one or both diverged; empty reason: none did.
Ending diverged(const std::vector<Pair>& pairs) {
  Ending ending{ComparisonOutcome::Inconclusive, ""};
  for (const Pair& pair : pairs) {
    const bool ok[2] = {finite(*pair.runs[0]), finite(*pair.runs[1])};
    if (ok[0] && ok[1]) continue;
    if (ok[0] != ok[1])
      return {ComparisonOutcome::Different, divergence(*pair.runs[ok[0] ? 1 : 0]) +
                                                ", and that of " + (ok[0] ? "A" : "B") + " is."};
    ending.reason = divergence(*pair.runs[0]) + ", and so did B.";
  }
  return ending;
}

std::string standing_still(const std::vector<Pair>& pairs, double level) {
  for (int of = 0; of < 2; ++of) {
    const auto drop = mean_interval(
        sample(pairs, of, [](const ComparedRun& run) { return run.drop; }), 1 - 2 * level);
    if (!(drop.low > 0))
      return std::string(of == 0 ? "A" : "B") +
             " has not learned: its loss does not fall from the first steps to the last, so that "
             "the two being alike would say nothing.";
  }
  return {};
}

Ending verdict(const std::vector<Pair>& pairs, Comparison& comparison) {
  const auto value = [](const ComparedRun& run) { return run.final_loss; };
  const auto difference = differences(pairs, value);
  const auto tests = equivalence(difference, comparison.margin);
  const auto inner = mean_interval(difference, 1 - 2 * comparison.level);
  comparison.equivalence = {tests.p_low, tests.p_high, no_difference(difference), inner.low,
                            inner.high};
  const std::string found =
      "B - A is " +
      reports::estimate_text(estimate(difference, comparison.confidence), "nats", true);
  const std::string margin = " of " + reports::value_text(comparison.margin, "nats") + " nats";
  const auto still = standing_still(pairs, comparison.level);
  if (tests.p() < comparison.level && !still.empty())
    return {ComparisonOutcome::Inconclusive, still};
  if (tests.p() < comparison.level)
    return {ComparisonOutcome::Equivalent,
            "The final losses are equivalent within the margin" + margin + ": " + found + "."};
  if (comparison.equivalence.p_no_difference < 1 - comparison.confidence)
    return {ComparisonOutcome::Different, "The final losses differ: " + found +
                                              ", not shown to be within the margin" + margin + "."};
  return {ComparisonOutcome::Inconclusive,
          "Neither a difference of the final losses nor their equivalence within the margin" +
              margin + " is shown: " + found + ". More seeds would tell."};
}

}  // namespace

void summarize(ComparedRun& run, int64_t final_steps) {
  const auto steps = static_cast<int64_t>(run.losses.size());
  run.final_loss = mean_between(run.losses, steps - final_steps, steps);
  run.mean_loss = mean_between(run.losses, 0, steps);
  run.drop = mean_between(run.losses, 0, final_steps) - run.final_loss;
}

void conclude(Comparison& comparison, const std::optional<Ending>& ended) {
  auto pairs = complete_pairs(comparison);
  Ending ending = diverged(pairs);
  std::erase_if(pairs,
                [](const Pair& pair) { return !finite(*pair.runs[0]) || !finite(*pair.runs[1]); });
  comparison.pairs = static_cast<int64_t>(pairs.size());
  if (pairs.size() >= 2) {
    comparison.quantities = quantities(pairs, comparison.confidence);
    comparison.curve = curve(pairs, comparison);
    const Ending judged = verdict(pairs, comparison);
    if (ending.reason.empty()) ending = judged;
  } else if (ending.reason.empty()) {
    ending.reason =
        "Expected two complete pairs of runs or more, got " + std::to_string(pairs.size()) + ".";
  }
  if (ended) ending = *ended;
  comparison.outcome = ending.outcome;
  comparison.reason = ending.reason;
}

}  // namespace equigrad::conformance
