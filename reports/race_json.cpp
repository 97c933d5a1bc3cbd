#include "reports/json_text.hpp"
#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

Json write(const MedianEstimate& estimate) {
  return {{"median", number(estimate.median)},
          {"low", number(estimate.low)},
          {"high", number(estimate.high)}};
}

Json write(const std::optional<int64_t>& count) { return count ? Json(*count) : Json(nullptr); }

Json write(const RaceRow& row) {
  Json rounds = Json::array();
  for (const double seconds : row.round_s) rounds.push_back(number(seconds));
  return {{"contestant", clean(row.contestant)},
          {"trouble", clean(row.trouble)},
          {"step_s", write(row.step_s)},
          {"to_base", write(row.to_base)},
          {"best_step_s", number(row.best_step_s)},
          {"cpu_s", write(row.cpu_s)},
          {"cpu_to_base", write(row.cpu_to_base)},
          {"tokens_per_s", number(row.tokens_per_s)},
          {"growth_bytes", write(row.growth_bytes)},
          {"held_peak_bytes", write(row.held_peak_bytes)},
          {"wire_bytes", write(row.wire_bytes)},
          {"collectives", row.collectives},
          {"allocations", write(row.allocations)},
          {"gathered_numel", write(row.gathered_numel)},
          {"least_gathered_numel", write(row.least_gathered_numel)},
          {"is_proven", row.is_proven},
          {"proof_margin", number(row.proof_margin)},
          {"differing_elements", row.differing_elements},
          {"round_s", rounds}};
}

Json write(const RaceGroupResult& group) {
  Json rows = Json::array();
  for (const RaceRow& row : group.rows) rows.push_back(write(row));
  return {{"name", clean(group.name)},
          {"model", clean(group.model)},
          {"parameters", group.parameters},
          {"tokens_per_step", group.tokens_per_step},
          {"ranks", group.ranks},
          {"accumulation", group.accumulation},
          {"rounds", group.rounds},
          {"steps_per_round", group.steps_per_round},
          {"base", clean(group.base)},
          {"compute_limit_s", number(group.compute_limit_s)},
          {"wire_limit_s", number(group.wire_limit_s)},
          {"rows", rows}};
}

}  // namespace

std::string to_json(const Race& race) {
  Json groups = Json::array();
  for (const RaceGroupResult& group : race.groups) groups.push_back(write(group));
  return document_lines({{"schema_version", race.schema_version},
                         {"environment", write(race.environment)},
                         {"command", clean(race.command)},
                         {"versions", race.versions},
                         {"bandwidth_bytes_per_s", number(race.bandwidth_bytes_per_s)},
                         {"load_before", number(race.load_before)},
                         {"load_after", number(race.load_after)},
                         {"wall_s", number(race.wall_s)},
                         {"groups", groups}});
}

}  // namespace equigrad::reports
