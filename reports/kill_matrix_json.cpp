#include "reports/json_text.hpp"
#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

Json write(const Found& found) {
  return {{"in", found.in},
          {"checks", found.checks},
          {"after_steps", found.after_steps},
          {"located", found.located},
          {"first", clean(found.first)},
          {"replay", clean(found.replay)},
          {"seconds", number(found.seconds)}};
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
          {"seconds", number(row.seconds)}};
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
          {"seconds", number(runs.seconds)}};
}

Json checks(const KillMatrix& matrix) {
  Json rows = Json::array();
  for (const auto& check : checks_of(matrix))
    rows.push_back({{"check", check.check}, {"first", check.first}, {"all", check.all}});
  return rows;
}

}  // namespace

std::string to_json(const KillMatrix& matrix) {
  Json faults = Json::array();
  for (const auto& row : matrix.faults) faults.push_back(write(row));
  return document_lines({{"schema_version", matrix.schema_version},
                         {"outcome", word(outcome(matrix))},
                         {"exit_code", exit_code(matrix)},
                         {"environment", write(matrix.environment)},
                         {"command", clean(matrix.command)},
                         {"seed", std::to_string(matrix.seed)},
                         {"full", matrix.full},
                         {"failure", clean(matrix.failure)},
                         {"faults_s", number(matrix.faults_s)},
                         {"wall_s", number(matrix.wall_s)},
                         {"historical", write(counts(matrix, Faults::Historical))},
                         {"mutants", write(counts(matrix, Faults::Mutants))},
                         {"checks", checks(matrix)},
                         {"stale_proofs", matrix.stale_proofs},
                         {"clean", write(matrix.clean)},
                         {"panel", matrix.panel},
                         {"faults", faults}});
}

}  // namespace equigrad::reports
