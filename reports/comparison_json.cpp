#include "reports/comparison.hpp"
#include "reports/json_text.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

Json write(const Estimate& estimate) {
  return {{"mean", number(estimate.mean)},
          {"low", number(estimate.low)},
          {"high", number(estimate.high)}};
}

Json write(const ComparedRun& run) {
  Json losses = Json::array();
  for (const double loss : run.losses) losses.push_back(number(loss));
  return {{"configuration", run.configuration == 0 ? "A" : "B"},
          {"seed", std::to_string(run.seed)},
          {"complete", run.complete},
          {"trouble", clean(run.trouble)},
          {"final_loss", number(run.final_loss)},
          {"mean_loss", number(run.mean_loss)},
          {"drop", number(run.drop)},
          {"step_s", number(run.step_s)},
          {"held", run.held},
          {"held_bytes", run.held_bytes},
          {"held_peak_bytes", run.held_peak_bytes},
          {"process_peak_bytes", run.process_peak_bytes},
          {"process_growth_bytes", run.process_growth_bytes},
          {"skipped_steps", run.skipped_steps},
          {"losses", losses}};
}

Json write(const ComparedQuantity& quantity) {
  return {{"name", quantity.name},
          {"unit", quantity.unit},
          {"A", write(quantity.each[0])},
          {"B", write(quantity.each[1])},
          {"B_minus_A", write(quantity.difference)},
          {"B_over_A", number(quantity.ratio)}};
}

Json write(const CurvePoint& point) {
  return {{"step", point.step},
          {"A", write(point.each[0])},
          {"B", write(point.each[1])},
          {"B_minus_A", write(point.difference)}};
}

// Configurations may have comments, which JSON has not: they stay text.
Json settings(const Comparison& comparison) {
  Json configurations = Json::object(), seeds = Json::array();
  for (const uint64_t seed : comparison.seeds) seeds.push_back(std::to_string(seed));
  for (std::size_t i = 0; i < 2; ++i)
    configurations[i == 0 ? "A" : "B"] = {{"name", clean(comparison.configurations[i].name)},
                                          {"text", clean(comparison.configurations[i].text)}};
  return {{"configurations", configurations},
          {"data", clean(comparison.data)},
          {"model", comparison.model},
          {"parameters", comparison.parameters},
          {"tokens_per_step", comparison.tokens_per_step},
          {"ranks", comparison.ranks},
          {"steps", comparison.steps},
          {"final_steps", comparison.final_steps},
          {"seeds", seeds},
          {"margin", number(comparison.margin)},
          {"margin_is_default", comparison.margin_is_default},
          {"confidence", number(comparison.confidence)},
          {"level", number(comparison.level)}};
}

Json verdict(const Comparison& comparison) {
  const EquivalenceResult& test = comparison.equivalence;
  return {{"outcome", word(comparison.outcome)},
          {"exit_code", exit_code(comparison.outcome)},
          {"reason", clean(comparison.reason)},
          {"pairs", comparison.pairs},
          {"p_low", number(test.p_low)},
          {"p_high", number(test.p_high)},
          {"p_no_difference", number(test.p_no_difference)},
          {"low", number(test.low)},
          {"high", number(test.high)}};
}

template <class Items>
Json all_of(const Items& items) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(write(item));
  return out;
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  return document_lines({{"schema_version", comparison.schema_version},
                         {"verdict", verdict(comparison)},
                         {"environment", write(comparison.environment)},
                         {"command", clean(comparison.command)},
                         {"wall_s", number(comparison.wall_s)},
                         {"settings", settings(comparison)},
                         {"quantities", all_of(comparison.quantities)},
                         {"runs", all_of(comparison.runs)},
                         {"curve", all_of(comparison.curve)}});
}

}  // namespace equigrad::reports
