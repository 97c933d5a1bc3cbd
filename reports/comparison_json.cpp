#include "reports/comparison.hpp"
#include "reports/json_text.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {

void to_json(Json& json, const Estimate& estimate) {
  json = {{"mean", estimate.mean}, {"low", estimate.low}, {"high", estimate.high}};
}

void to_json(Json& json, const ComparedRun& run) {
  json = {{"configuration", letter_of(run)},
          {"seed", std::to_string(run.seed)},
          {"complete", run.complete},
          {"trouble", clean(run.trouble)},
          {"final_loss", run.final_loss},
          {"mean_loss", run.mean_loss},
          {"drop", run.drop},
          {"step_s", run.step_s},
          {"held", run.held},
          {"held_bytes", run.held_bytes},
          {"held_peak_bytes", run.held_peak_bytes},
          {"process_peak_bytes", run.process_peak_bytes},
          {"process_growth_bytes", run.process_growth_bytes},
          {"skipped_steps", run.skipped_steps},
          {"losses", run.losses}};
}

void to_json(Json& json, const ComparedQuantity& quantity) {
  json = {{"name", quantity.name},
          {"unit", quantity.unit},
          {"A", quantity.each[0]},
          {"B", quantity.each[1]},
          {"B_minus_A", quantity.difference},
          {"B_over_A", quantity.ratio}};
}

void to_json(Json& json, const CurvePoint& point) {
  json = {{"step", point.step},
          {"A", point.each[0]},
          {"B", point.each[1]},
          {"B_minus_A", point.difference}};
}

namespace {

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
          {"margin", comparison.margin},
          {"margin_is_default", comparison.margin_is_default},
          {"confidence", comparison.confidence},
          {"level", comparison.level}};
}

Json verdict(const Comparison& comparison) {
  const EquivalenceResult& test = comparison.equivalence;
  return {{"outcome", word(comparison.outcome)},
          {"exit_code", exit_code(comparison)},
          {"reason", clean(comparison.reason)},
          {"pairs", comparison.pairs},
          {"p_low", test.p_low},
          {"p_high", test.p_high},
          {"p_no_difference", test.p_no_difference},
          {"low", test.low},
          {"high", test.high}};
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  return document_lines({{"schema_version", comparison.schema_version},
                         {"verdict", verdict(comparison)},
                         {"environment", comparison.environment},
                         {"command", clean(comparison.command)},
                         {"wall_s", comparison.wall_s},
                         {"settings", settings(comparison)},
                         {"quantities", comparison.quantities},
                         {"runs", comparison.runs},
                         {"curve", comparison.curve}});
}

}  // namespace equigrad::reports
