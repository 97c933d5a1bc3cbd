#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/environment_json.hpp"
#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(shortest(value)); }

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

Json settings(const RaceGroupResult& group) {
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
          {"wire_limit_s", number(group.wire_limit_s)}};
}

}  // namespace

std::string to_json(const Race& race) {
  std::string out = "{\"schema_version\": " + std::to_string(race.schema_version) +
                    ",\n\"environment\": " + write(race.environment).dump() +
                    ",\n\"command\": " + Json(clean(race.command)).dump() +
                    ",\n\"versions\": " + Json(race.versions).dump() +
                    ",\n\"bandwidth_bytes_per_s\": " + number(race.bandwidth_bytes_per_s).dump() +
                    ",\n\"load_before\": " + number(race.load_before).dump() +
                    ",\n\"load_after\": " + number(race.load_after).dump() +
                    ",\n\"wall_s\": " + number(race.wall_s).dump() + ",\n\"groups\": [";
  for (std::size_t i = 0; i < race.groups.size(); ++i) {
    std::string head = settings(race.groups[i]).dump();
    head.pop_back();
    out += (i == 0 ? "\n" : ",\n") + head + ",\"rows\":[";
    for (std::size_t r = 0; r < race.groups[i].rows.size(); ++r)
      out += (r == 0 ? "\n " : ",\n ") + write(race.groups[i].rows[r]).dump();
    out += "]}";
  }
  return out + "]}\n";
}

}  // namespace equigrad::reports
