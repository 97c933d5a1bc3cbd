#include <algorithm>

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

std::string fault_heads() {
  return heads({"Fault", "Fate"}) + number_heads({"Steps"}) + heads({"Located", "Covering"}) +
         number_heads({"Caught by"}) +
         heads({"Checks that saw it", "Rules elsewhere that saw it"}) + number_heads({"Time"}) +
         heads({"Seam", "Stands for"});
}

// Each check once, the one that saw it first in front.
std::string seen_by(const FaultRow& row) {
  std::vector<std::string> names;
  for (const auto& found : row.found)
    for (const auto& check : found.checks)
      if (std::find(names.begin(), names.end(), check) == names.end()) names.push_back(check);
  if (names.empty()) return "–";
  std::string out = "<b>" + shown(names[0], 60) + "</b>";
  names.erase(names.begin());
  return names.empty() ? out : out + ", " + shown(joined(names, ", "), 400);
}

std::string rules_of(const FaultRow& row) {
  if (!row.has_data) return "–";
  std::vector<std::string> names;
  for (size_t i = 0; i < kRulesElsewhere; ++i)
    if (row.elsewhere[i]) names.emplace_back(kRuleNames[i]);
  return names.empty() ? "none" : joined(names, ", ");
}

// A narrow column breaks a name behind its words.
std::string name_of(const FaultRow& row) {
  return replaced(shown(row.name, 120), {{'_', "_<wbr/>"}, {'.', ".<wbr/>"}});
}

std::string fault_row(const FaultRow& row) {
  const bool caught = !row.found.empty();
  std::string out = "<tr id=\"" + anchor(row.name) + "\"><th scope=\"row\"><a href=\"#" +
                    anchor(row.name) + "\" title=\"" + shown(row.what, 300) + "\">" + name_of(row) +
                    "</a></th>" + fate_cell(row.fate);
  const int64_t steps = caught ? row.found[0].after_steps : -1;
  out += number_cells({!caught || steps < 0 ? "–" : std::to_string(steps)});
  for (const bool holds : {caught && row.found[0].located, is_covered(row)})
    out += cell(!caught ? "–" : holds ? "yes" : "no", 3);
  return out + number_cells({!caught ? "–" : catches_text(row)}) + "<td>" + seen_by(row) + "</td>" +
         cell(rules_of(row), 200) + number_cells({seconds_text(row.seconds)}) + cell(row.seam, 60) +
         cell(row.bugs.empty() ? "mutant" : joined(row.bugs, " "), 300) + "</tr>\n";
}

std::string matrix_section(const KillMatrix& matrix) {
  std::string rows;
  for (const auto& one : matrix.faults) rows += fault_row(one);
  return section(
      "matrix", "Kill matrix",
      "<p class=\"lead\">Steps counts from the one in which the fault first acted. Located: the "
      "failure&#39;s first line names the phase and the step. Covering: a case of the covering "
      "selection, with which every run begins, caught it. Caught by: so many cases; + where not "
      "all were tried. The check that saw it first is bold. The rules in use elsewhere were given "
      "the same tensors; – where the case ended before there were any.</p>\n" +
          table(count_of(matrix.faults.size(), "fault"), fault_heads(), rows, "sort faults"));
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
  return folded_section(
      "lines", "What the failures say", "the first line of each",
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
