#include "reports/document.hpp"
#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string fate_cell(Fate fate) {
  const Verdict like = fate == Fate::Caught       ? Verdict::Equal
                       : fate == Fate::Equivalent ? Verdict::Skipped
                       : fate == Fate::NotRun     ? Verdict::NotRun
                                                  : Verdict::Failed;
  const char* mark = fate == Fate::Caught ? "✓" : fate == Fate::Survived ? "✗" : "–";
  const std::string name = replaced(word(fate), {{'_', " "}});
  return "<td class=\"v " + margin_class(like, 0) + "\"><span>" + mark + " " + name +
         "</span></td>";
}

// A column for each check that caught something; those that catch little come under "others".
constexpr size_t kColumns = 12;

std::string head_of(const std::vector<CheckCount>& checks) {
  std::string out = heads({"Fault", "Fate"}) + number_heads({"Steps"}) +
                    heads({"Located", "Covering"}) + number_heads({"Caught by"});
  for (const auto& check : checks) out += number_heads({shown(check.check, 40)});
  out += heads({"Other checks"});
  for (const char* rule : kRuleNames) out += number_heads({escape_xml(rule)});
  return out + number_heads({"Time"}) + heads({"Seam", "Stands for"});
}

// "1": the first check that saw it; "x": saw it too.
std::string seen_mark(const FaultRow& row, const std::string& check) {
  for (const auto& found : row.found)
    for (size_t i = 0; i < found.checks.size(); ++i)
      if (found.checks[i] == check) return i == 0 && &found == &row.found[0] ? "1st" : "x";
  return "";
}

std::string others(const FaultRow& row, const std::vector<CheckCount>& columns) {
  std::vector<std::string> names;
  for (const auto& found : row.found)
    for (const auto& check : found.checks) {
      bool known = false;
      for (const auto& column : columns) known = known || column.check == check;
      for (const auto& name : names) known = known || name == check;
      if (!known) names.push_back(check);
    }
  return joined(names, " ");
}

std::string fault_row(const FaultRow& row, const std::vector<CheckCount>& columns) {
  const bool caught = !row.found.empty();
  std::string out = "<tr id=\"" + anchor(row.name) + "\"><th scope=\"row\"><a href=\"#" +
                    anchor(row.name) + "\" title=\"" + shown(row.what, 300) + "\">" +
                    shown(row.name, 120) + "</a></th>" + fate_cell(row.fate);
  const int64_t steps = caught ? row.found[0].after_steps : -1;
  out += number_cells({!caught || steps < 0 ? "–" : std::to_string(steps)});
  for (const bool holds : {caught && row.found[0].located, is_covered(row)})
    out += cell(!caught ? "–" : holds ? "yes" : "no", 3);
  out += number_cells({!caught ? "–" : catches_text(row)});
  for (const auto& column : columns) out += number_cells({seen_mark(row, column.check)});
  out += cell(others(row, columns), 300);
  for (size_t i = 0; i < kRulesElsewhere; ++i)
    out += number_cells({!row.has_data ? "–" : row.elsewhere[i] ? "x" : ""});
  return out + number_cells({seconds_text(row.seconds)}) + cell(row.seam, 60) +
         cell(row.bugs.empty() ? "mutant" : joined(row.bugs, " "), 300) + "</tr>\n";
}

std::string matrix_section(const KillMatrix& matrix) {
  auto columns = checks_of(matrix);
  if (columns.size() > kColumns) columns.resize(kColumns);
  std::string rows;
  for (const auto& one : matrix.faults) rows += fault_row(one, columns);
  return section(
      "matrix", "Kill matrix",
      "<p class=\"lead\">Steps counts from the one in which the fault first acted. Located: the "
      "failure&#39;s first line names the phase and the step. Covering: a case of the covering "
      "selection, with which every run begins, caught it. Caught by: so many cases; + where not "
      "all "
      "were tried. 1st: the check that saw it first; "
      "x: saw it too. The rules in use elsewhere were given the same tensors; – where the case "
      "ended before there were any.</p>\n" +
          table(count_of(matrix.faults.size(), "fault"), head_of(columns), rows, "sort"));
}

std::string open_article(const std::string& id, const char* tag, const std::string& name,
                         const std::string& text, const std::string& replay) {
  return article(anchor(id), "bad", tag, "<span class=\"id\">" + shown(name, 400) + "</span>",
                 "<pre>" + shown(text, 4000) + "</pre>\n" + replay_html(replay));
}

std::string open_section(const KillMatrix& matrix) {
  std::string out;
  for (const auto& row : matrix.faults)
    if (row.fate == Fate::Survived || row.fate == Fate::DidNotAct)
      out += open_article("open." + row.name,
                          row.fate == Fate::Survived ? "✗ survived" : "✗ did not act", row.name,
                          row.what, "");
  for (size_t i = 0; i < matrix.clean.alarms.size(); ++i) {
    const Alarm& alarm = matrix.clean.alarms[i];
    out += open_article("alarm." + std::to_string(i), "✗ false alarm", alarm.id, alarm.message,
                        alarm.replay);
  }
  if (out.empty()) out = paragraph("Nothing.");
  std::string thin;
  for (const auto& row : matrix.faults)
    if (is_thin(row))
      thin += (thin.empty() ? "" : ", ") + std::string("<a href=\"#") + anchor(row.name) + "\">" +
              shown(thin_text(row), 200) + "</a>";
  if (!thin.empty())
    out += paragraph("Caught by fewer than " + std::to_string(kEnoughCatches) + " cases: " + thin);
  return section("open", "What is open", out);
}

std::string first_lines_section(const KillMatrix& matrix) {
  std::string rows;
  for (const auto& one : matrix.faults) {
    const std::string line = one.found.empty() ? one.proof : one.found[0].first;
    const std::string replay = one.found.empty() ? "" : one.found[0].replay;
    rows += row(
        "<a href=\"#" + anchor(one.name) + "\">" + shown(one.name, 120) + "</a>",
        cell(one.what, 300) + cell(line, 400) + "<td><code>" + shown(replay, 400) + "</code></td>");
  }
  return section(
      "lines", "What the failures say",
      table("The first line of the case that caught each fault, and how to see it again",
            heads({"Fault", "What it does", "First line, or proof", "Replay"}), rows, "sort"));
}

std::string banner(const KillMatrix& matrix) {
  std::string out;
  if (!matrix.failure.empty()) out += paragraph(shown(matrix.failure, 2000));
  for (const auto& line : summary_lines(matrix)) out += paragraph(escape_xml(line));
  return out + "<p class=\"note\">" + seconds_text(matrix.faults_s) + " for the faults, " +
         seconds_text(matrix.wall_s) + " in all.</p>\n";
}

}  // namespace

std::string page_kill_matrix(const KillMatrix& matrix) {
  return open_section(matrix) + matrix_section(matrix) + first_lines_section(matrix);
}

std::string to_html(const KillMatrix& matrix) {
  return to_html(
      Document{.origin = {matrix.environment, matrix.command, matrix.seed, matrix.wall_s},
               .brand = "Equigrad faults",
               .outcome = word(outcome(matrix)),
               .banner_html = banner(matrix),
               .links = {{"open", "Open"},
                         {"matrix", "Kill matrix"},
                         {"lines", "First lines"},
                         {"environment", "Environment"}},
               .html = page_kill_matrix(matrix),
               .data_file = "faults.json"});
}

}  // namespace equigrad::reports
