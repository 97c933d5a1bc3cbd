#include "reports/json_text.hpp"
#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {

void to_json(Json& json, const MedianEstimate& estimate) {
  json = {{"median", estimate.median}, {"low", estimate.low}, {"high", estimate.high}};
}

void to_json(Json& json, const RaceRow& row) {
  json = {{"contestant", clean(row.contestant)},
          {"trouble", clean(row.trouble)},
          {"step_s", row.step_s},
          {"to_base", row.to_base},
          {"best_step_s", row.best_step_s},
          {"cpu_s", row.cpu_s},
          {"cpu_to_base", row.cpu_to_base},
          {"tokens_per_s", row.tokens_per_s},
          {"growth_bytes", row.growth_bytes},
          {"held_peak_bytes", row.held_peak_bytes},
          {"wire_bytes", row.wire_bytes},
          {"collectives", row.collectives},
          {"allocations", row.allocations},
          {"gathered_numel", row.gathered_numel},
          {"least_gathered_numel", row.least_gathered_numel},
          {"is_proven", row.is_proven},
          {"proof_margin", row.proof_margin},
          {"differing_elements", row.differing_elements},
          {"round_s", row.round_s}};
}

void to_json(Json& json, const RaceGroupResult& group) {
  json = {{"name", clean(group.name)},
          {"model", clean(group.model)},
          {"parameters", group.parameters},
          {"tokens_per_step", group.tokens_per_step},
          {"ranks", group.ranks},
          {"accumulation", group.accumulation},
          {"lives", group.lives},
          {"rounds", group.rounds},
          {"steps_per_round", group.steps_per_round},
          {"base", clean(group.base)},
          {"compute_limit_s", group.compute_limit_s},
          {"wire_limit_s", group.wire_limit_s},
          {"rows", group.rows}};
}

std::string to_json(const Race& race) {
  return document_lines({{"schema_version", race.schema_version},
                         {"environment", race.environment},
                         {"command", clean(race.command)},
                         {"versions", race.versions},
                         {"bandwidth_bytes_per_s", race.bandwidth_bytes_per_s},
                         {"load_before", race.load_before},
                         {"load_after", race.load_after},
                         {"wall_s", race.wall_s},
                         {"groups", race.groups}});
}

}  // namespace equigrad::reports
