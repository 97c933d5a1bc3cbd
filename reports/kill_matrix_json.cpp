#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/environment_json.hpp"
#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

using Json = nlohmann::ordered_json;

Json write(const Found& found) {
  return {
      {"in", found.in},           {"checks", found.checks},      {"after_steps", found.after_steps},
      {"located", found.located}, {"first", clean(found.first)}, {"replay", clean(found.replay)},
      {"seconds", found.seconds}};
}

Json write(const FaultRow& row) {
  Json found = Json::array();
  for (const auto& one : row.found) found.push_back(write(one));
  Json elsewhere = Json::object();
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    elsewhere[kRuleNames[i]] = row.has_data ? Json(row.elsewhere[i]) : Json();
  return {{"fault", row.name},
          {"what", clean(row.what)},
          {"seam", row.seam},
          {"phase", row.phase},
          {"bugs", row.bugs},
          {"fate", word(row.fate)},
          {"acted",
           {{"times", row.acted_times},
            {"step", row.acted_step},
            {"micro_batch", row.acted_micro_batch}}},
          {"cases", row.cases},
          {"found", found},
          {"elsewhere", elsewhere},
          {"proof", clean(row.proof)},
          {"seconds", row.seconds}};
}

Json write(const KillCounts& sum) {
  Json elsewhere = Json::object();
  for (std::size_t i = 0; i < kRulesElsewhere; ++i) elsewhere[kRuleNames[i]] = sum.elsewhere[i];
  return {{"faults", sum.faults},
          {"caught", sum.caught},
          {"within_one_step", sum.within_one_step},
          {"located", sum.located},
          {"survived", sum.survived},
          {"equivalent", sum.equivalent},
          {"did_not_act", sum.did_not_act},
          {"not_run", sum.not_run},
          {"with_data", sum.with_data},
          {"elsewhere", elsewhere}};
}

Json write(const CleanRuns& runs) {
  Json alarms = Json::array();
  for (const auto& alarm : runs.alarms)
    alarms.push_back(
        {{"id", alarm.id}, {"message", clean(alarm.message)}, {"replay", clean(alarm.replay)}});
  return {{"asked", runs.asked},
          {"run", runs.run},
          {"compared", runs.compared},
          {"alarms", alarms},
          {"seconds", runs.seconds}};
}

Json checks(const KillMatrix& matrix) {
  Json rows = Json::array();
  for (const auto& check : checks_of(matrix))
    rows.push_back({{"check", check.check}, {"first", check.first}, {"all", check.all}});
  return rows;
}

}  // namespace

std::string to_json(const KillMatrix& matrix) {
  std::string faults = "[";
  for (const auto& row : matrix.faults)
    faults += (faults == "[" ? "\n " : ",\n ") + write(row).dump();
  return "{\"schema_version\": " + std::to_string(matrix.schema_version) + ",\n\"outcome\": \"" +
         std::string(word(outcome(matrix))) +
         "\",\n\"exit_code\": " + std::to_string(exit_code(matrix)) +
         ",\n\"environment\": " + write(matrix.environment).dump() +
         ",\n\"command\": " + Json(clean(matrix.command)).dump() +
         ",\n\"seed\": " + std::to_string(matrix.seed) +
         ",\n\"full\": " + (matrix.full ? "true" : "false") +
         ",\n\"failure\": " + Json(clean(matrix.failure)).dump() +
         ",\n\"faults_s\": " + Json(matrix.faults_s).dump() +
         ",\n\"wall_s\": " + Json(matrix.wall_s).dump() +
         ",\n\"historical\": " + write(counts(matrix, Faults::Historical)).dump() +
         ",\n\"mutants\": " + write(counts(matrix, Faults::Mutants)).dump() +
         ",\n\"checks\": " + checks(matrix).dump() +
         ",\n\"stale_proofs\": " + Json(matrix.stale_proofs).dump() +
         ",\n\"clean\": " + write(matrix.clean).dump() +
         ",\n\"panel\": " + Json(matrix.panel).dump() + ",\n\"faults\": " + faults + "]}\n";
}

}  // namespace equigrad::reports
