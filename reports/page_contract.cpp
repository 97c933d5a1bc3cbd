#include <algorithm>
#include <set>
#include <sstream>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::set<std::string> stages_of(const std::vector<ContractRow>& rows) {
  std::set<std::string> stages;
  for (const ContractRow& row : rows)
    for (const auto& [stage, counts] : row.stages) stages.insert(stage);
  return stages;
}

Verdict verdict_of(const Counts& counts) {
  if (counts.executed() == 0) return Verdict::NotRun;
  return all_hold(counts) ? Verdict::Equal : Verdict::Failed;
}

Counts at_stage(const ContractRow& row, const std::string& stage) {
  const auto found = row.stages.find(stage);
  return found == row.stages.end() ? Counts() : found->second;
}

std::string cells(const ContractRow& row, const std::set<std::string>& stages) {
  std::string out;
  for (const std::string& stage : stages) {
    const Counts counts = at_stage(row, stage);
    out += verdict_cell(verdict_of(counts), 0, held_text(counts));
  }
  return out;
}

std::string words(const Statement& statement) {
  std::string out = shown(statement.sentence, 400);
  if (statement.name.empty()) return "<strong>" + out + "</strong>";
  out += " <span class=\"note\"><code>" + shown(statement.name, 200) + "</code>";
  for (const std::string& answer : statement.answers) out += "<br>" + shown(answer, 200);
  return out + "</span>";
}

}  // namespace

std::string contract_lines(const Run& run) {
  const std::vector<ContractRow> rows = contract_rows(run);
  if (rows.empty()) return {};
  const std::set<std::string> stages = stages_of(rows);
  std::ostringstream out;
  out << "#\n# contract: cases that held, of those run, at stage";
  for (const std::string& stage : stages) out << " " << clean(stage);
  out << "\n";
  for (const ContractRow& row : rows) {
    if (!row.statement->name.empty()) continue;
    out << "  "
        << (all_hold(row.sum)         ? "held   "
            : row.sum.executed() == 0 ? "not run"
                                      : "FAILED ");
    for (const std::string& stage : stages) {
      const std::string text = held_text(at_stage(row, stage));
      out << std::string(9 - std::min<std::size_t>(text.size(), 9), ' ') << text;
    }
    out << "   " << clean(row.statement->section) << ". " << clean(row.statement->sentence) << "\n";
  }
  return out.str();
}

std::string page_contract(const Run& run) {
  const std::vector<ContractRow> rows = contract_rows(run);
  if (rows.empty())
    return section("contract", "Contract", "<p>No case of the contract was run.</p>\n");
  const std::set<std::string> stages = stages_of(rows);
  std::string body, columns = heads({"Line", "Promise"});
  for (const std::string& stage : stages) columns += number_heads({"stage " + shown(stage, 20)});
  for (const ContractRow& one : rows)
    body += row(one.statement->name.empty() ? shown(one.statement->section, 20) : "",
                "<td>" + words(*one.statement) + "</td>" + cells(one, stages));
  return section("contract", "Contract",
                 table("What the engine promises, line by line, and how many cases held at each "
                       "ZeRO stage: 20/22 means that 2 of 22 did not.",
                       columns, body));
}

}  // namespace equigrad::reports
