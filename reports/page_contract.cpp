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

void add(Counts& sum, const Counts& more) {
  sum.equal += more.equal;
  sum.within += more.within;
  sum.failed += more.failed;
  sum.crashed += more.crashed;
  sum.timed_out += more.timed_out;
  sum.vacuous += more.vacuous;
}

std::string words(const Statement& statement) {
  std::string out = shown(statement.sentence, 400) + " <span class=\"note\"><code>" +
                    shown(statement.name, 200) + "</code>";
  for (size_t i = 0; i < statement.answers.size(); ++i)
    out += (i == 0 ? "<br>Would have caught: " : "; ") + shown(statement.answers[i], 200);
  return out + "</span>";
}

std::string stage_heads(const std::set<std::string>& stages) {
  std::string out;
  for (const std::string& stage : stages) out += heads({"stage " + shown(stage, 20)});
  return out;
}

// The cases of one line, folded.
std::string cases_of(const std::vector<ContractRow>& rows, const Statement& line,
                     const std::set<std::string>& stages) {
  std::string body;
  int64_t count = 0;
  for (const ContractRow& one : rows) {
    if (one.statement->name.empty() || one.statement->section != line.section) continue;
    body += row(words(*one.statement), cells(one, stages));
    ++count;
  }
  if (count == 0) return {};
  const std::string name = shown(line.section, 20) + ". " + shown(line.sentence, 400);
  return "<details><summary>" + name + " <span class=\"note\">" + count_of(count, "case") +
         "</span></summary>\n" + table(name, heads({"Case"}) + stage_heads(stages), body) +
         "</details>\n";
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
  int64_t others = 0;
  for (const ContractRow& row : rows) {
    if (!row.statement->name.empty()) continue;
    if (row.sum.total() == 0) {
      ++others;
      continue;
    }
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
  if (others > 0)
    out << "  " << count_of(others, "other line") << " of it: no case was asked for\n";
  return out.str();
}

std::string page_contract(const Run& run) {
  const std::vector<ContractRow> rows = contract_rows(run);
  if (rows.empty())
    return empty_section("contract", "Contract", "No case of the contract was run.");
  const std::set<std::string> stages = stages_of(rows);
  std::string lines, cases;
  Counts sum;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ContractRow& line = rows[i];
    if (!line.statement->name.empty()) continue;
    lines += row(shown(line.statement->section, 20),
                 cell(line.statement->sentence, 400) + cells(line, stages));
    for (const auto& [stage, of_stage] : line.stages) add(sum, of_stage);
    cases += cases_of(rows, *line.statement, stages);
  }
  return folded_section(
      "contract", "Contract", held_text(sum) + " cases held",
      table("What the engine promises, line by line, and how many cases held at each ZeRO stage: "
            "20/22 means that 2 of 22 did not.",
            heads({"Line", "Promise"}) + stage_heads(stages), lines) +
          cases);
}

}  // namespace equigrad::reports
