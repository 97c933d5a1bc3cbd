#include "reports/json_text.hpp"
#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {

template <>
inline constexpr auto kFields<KillCounts> = std::tuple(
    Field{"faults", &KillCounts::faults}, Field{"caught", &KillCounts::caught},
    Field{"within_one_step", &KillCounts::within_one_step}, Field{"located", &KillCounts::located},
    Field{"by_covering", &KillCounts::by_covering}, Field{"survived", &KillCounts::survived},
    Field{"equivalent", &KillCounts::equivalent}, Field{"did_not_act", &KillCounts::did_not_act},
    Field{"not_run", &KillCounts::not_run}, Field{"with_data", &KillCounts::with_data});

namespace {

// Null where there is no data.
template <class Value>
Json by_rule(const std::array<Value, kRulesElsewhere>& values, bool has_data) {
  Json out = Json::object();
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    out[kRuleNames[i]] = has_data ? Json(values[i]) : Json();
  return out;
}

}  // namespace

void to_json(Json& json, const Found& found) {
  json = {
      {"in", found.in},           {"checks", found.checks},      {"after_steps", found.after_steps},
      {"located", found.located}, {"first", clean(found.first)}, {"replay", clean(found.replay)},
      {"seconds", found.seconds}, {"covering", found.covering}};
}

void to_json(Json& json, const FaultRow& row) {
  json = {{"fault", row.name},
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
          {"covering", is_covered(row)},
          {"found", row.found},
          {"catches", row.found.size()},
          {"all_tried", row.all_tried},
          {"thin", is_thin(row)},
          {"elsewhere", by_rule(row.elsewhere, row.has_data)},
          {"proof", clean(row.proof)},
          {"seconds", row.seconds}};
}

void to_json(Json& json, const KillCounts& sum) {
  add_fields(json, sum);
  json["elsewhere"] = by_rule(sum.elsewhere, true);
}

void to_json(Json& json, const Alarm& alarm) {
  json = {{"id", alarm.id}, {"message", clean(alarm.message)}, {"replay", clean(alarm.replay)}};
}

void to_json(Json& json, const CleanRuns& runs) {
  json = {{"asked", runs.asked},
          {"run", runs.run},
          {"compared", runs.compared},
          {"alarms", runs.alarms},
          {"seconds", runs.seconds}};
}

void to_json(Json& json, const CheckCount& check) {
  json = {{"check", check.check}, {"first", check.first}, {"all", check.all}};
}

std::string to_json(const KillMatrix& matrix) {
  std::vector<std::string> thin;
  for (const auto& row : matrix.faults)
    if (is_thin(row)) thin.push_back(row.name);
  return document_lines({{"schema_version", matrix.schema_version},
                         {"outcome", word(outcome(matrix))},
                         {"exit_code", exit_code(matrix)},
                         {"environment", matrix.environment},
                         {"command", clean(matrix.command)},
                         {"seed", std::to_string(matrix.seed)},
                         {"full", matrix.full},
                         {"covering_only", matrix.covering_only},
                         {"failure", clean(matrix.failure)},
                         {"faults_s", matrix.faults_s},
                         {"wall_s", matrix.wall_s},
                         {"counted", matrix.is_counted},
                         {"counting_s", matrix.counting_s},
                         {"thin", thin},
                         {"historical", counts(matrix, Faults::Historical)},
                         {"mutants", counts(matrix, Faults::Mutants)},
                         {"checks", checks_of(matrix)},
                         {"stale_proofs", matrix.stale_proofs},
                         {"clean", matrix.clean},
                         {"panel", matrix.panel},
                         {"not_run", matrix.not_run},
                         {"faults", matrix.faults}});
}

}  // namespace equigrad::reports
