#include <cmath>
#include <cstdio>

#include "reports/kill_matrix.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string fate_cell(Fate fate) {
  const Verdict like = fate == Fate::Caught       ? Verdict::Equal
                       : fate == Fate::Equivalent ? Verdict::Skipped
                       : fate == Fate::NotRun     ? Verdict::NotRun
                                                  : Verdict::Failed;
  const char* mark = fate == Fate::Caught ? "✓" : fate == Fate::Survived ? "✗" : "–";
  std::string name(word(fate));
  for (char& c : name) c = c == '_' ? ' ' : c;
  return "<td class=\"v " + margin_class(like, 0) + "\"><span>" + mark + " " + name +
         "</span></td>";
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string out;
  for (const auto& one : words) out += (out.empty() ? "" : between) + one;
  return out;
}

std::string text_cell(const std::string& text, size_t limit_bytes) {
  return "<td>" + escape_xml(clipped(text, limit_bytes)) + "</td>";
}

// A column for each check that caught something; those that catch little come under "others".
constexpr size_t kColumns = 12;

std::string head_of(const std::vector<CheckCount>& checks) {
  std::string out =
      "<thead><tr><th scope=\"col\">Fault</th><th scope=\"col\">Fate</th><th scope=\"col\" "
      "class=\"n\">Steps</th><th scope=\"col\">Located</th>";
  for (const auto& check : checks)
    out += "<th scope=\"col\" class=\"n\">" + escape_xml(clipped(check.check, 40)) + "</th>";
  out += "<th scope=\"col\">Other checks</th>";
  for (const char* rule : kRuleNames)
    out += "<th scope=\"col\" class=\"n\">" + escape_xml(rule) + "</th>";
  return out +
         "<th scope=\"col\" class=\"n\">Time</th><th scope=\"col\">Seam</th><th "
         "scope=\"col\">Stands for</th></tr></thead>\n<tbody>\n";
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
                    anchor(row.name) + "\" title=\"" + escape_xml(clipped(row.what, 300)) + "\">" +
                    escape_xml(clipped(row.name, 120)) + "</a></th>" + fate_cell(row.fate);
  const int64_t steps = caught ? row.found[0].after_steps : -1;
  out += number_cell(!caught || steps < 0 ? "–" : std::to_string(steps));
  out += !caught ? "<td>–</td>" : row.found[0].located ? "<td>yes</td>" : "<td>no</td>";
  for (const auto& column : columns) out += number_cell(seen_mark(row, column.check));
  out += text_cell(others(row, columns), 300);
  for (size_t i = 0; i < kRulesElsewhere; ++i)
    out += number_cell(!row.has_data ? "–" : row.elsewhere[i] ? "x" : "");
  return out + number_cell(seconds_text(row.seconds)) + text_cell(row.seam, 60) +
         text_cell(row.bugs.empty() ? "mutant" : joined(row.bugs, " "), 300) + "</tr>\n";
}

std::string matrix_section(const KillMatrix& matrix) {
  auto columns = checks_of(matrix);
  if (columns.size() > kColumns) columns.resize(kColumns);
  std::string out =
      section_open("matrix", "Kill matrix") +
      "<p class=\"lead\">Steps counts from the one in which the fault first acted. Located: the "
      "failure&#39;s first line names the phase and the step. 1st: the check that saw it first; "
      "x: saw it too. The rules in use elsewhere were given the same tensors; – where the case "
      "ended before there were any.</p>\n<div class=\"wide\"><table class=\"sort\">\n<caption>" +
      count_of(static_cast<int64_t>(matrix.faults.size()), "fault") + "</caption>\n" +
      head_of(columns);
  for (const auto& row : matrix.faults) out += fault_row(row, columns);
  return out + "</tbody></table></div>\n</section>\n";
}

std::string article(const std::string& id, const std::string& tag, const std::string& name,
                    const std::string& text, const std::string& replay) {
  return "<article id=\"" + anchor(id) + "\" class=\"bad\">\n<h3><span class=\"tag\">" + tag +
         "</span> <span class=\"id\">" + escape_xml(clipped(name, 400)) + "</span></h3>\n<pre>" +
         escape_xml(clipped(text, 4000)) + "</pre>\n" +
         (replay.empty()
              ? ""
              : "<p>Replay: <code>" + escape_xml(clipped(replay, 1000)) + "</code></p>\n") +
         "</article>\n";
}

std::string open_section(const KillMatrix& matrix) {
  std::string out = section_open("open", "What is open"), shown;
  for (const auto& row : matrix.faults) {
    if (row.fate == Fate::Survived)
      shown += article("open." + row.name, "✗ survived", row.name, row.what, "");
    if (row.fate == Fate::DidNotAct)
      shown += article("open." + row.name, "✗ did not act", row.name, row.what, "");
  }
  for (size_t i = 0; i < matrix.clean.alarms.size(); ++i) {
    const Alarm& alarm = matrix.clean.alarms[i];
    shown += article("alarm." + std::to_string(i), "✗ false alarm", alarm.id, alarm.message,
                     alarm.replay);
  }
  return out + (shown.empty() ? "<p>Nothing.</p>\n" : shown) + "</section>\n";
}

std::string first_lines_section(const KillMatrix& matrix) {
  std::string out =
      section_open("lines", "What the failures say") +
      "<div class=\"wide\"><table class=\"sort\">\n<caption>The first line of the "
      "case that caught each fault, and how to see it again</caption>\n<thead><tr><th "
      "scope=\"col\">Fault</th><th scope=\"col\">What it does</th><th "
      "scope=\"col\">First line, or proof</th><th "
      "scope=\"col\">Replay</th></tr></thead>\n<tbody>\n";
  for (const auto& row : matrix.faults) {
    const std::string line = row.found.empty() ? row.proof : row.found[0].first;
    const std::string replay = row.found.empty() ? "" : row.found[0].replay;
    out += "<tr><th scope=\"row\"><a href=\"#" + anchor(row.name) + "\">" +
           escape_xml(clipped(row.name, 120)) + "</a></th>" + text_cell(row.what, 300) +
           text_cell(line, 400) + "<td><code>" + escape_xml(clipped(replay, 400)) +
           "</code></td></tr>\n";
  }
  return out + "</tbody></table></div>\n</section>\n";
}

std::string banner(const KillMatrix& matrix) {
  const Outcome end = outcome(matrix);
  std::string title(word(end));
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  std::string out = "<header class=\"" + std::string(word(end)) +
                    "\">\n<p class=\"brand\">Equigrad faults, " +
                    escape_xml(matrix.environment.time) + "</p>\n<h1><span aria-hidden=\"true\">" +
                    (end == Outcome::Held           ? "✓"
                     : end == Outcome::Inconclusive ? "?"
                                                    : "✗") +
                    "</span> " + title + "</h1>\n";
  if (!matrix.failure.empty()) out += "<p>" + escape_xml(clipped(matrix.failure, 2000)) + "</p>\n";
  for (const auto& line : summary_lines(matrix)) out += "<p>" + escape_xml(line) + "</p>\n";
  return out + "<p class=\"note\">" + seconds_text(matrix.faults_s) + " for the faults, " +
         seconds_text(matrix.wall_s) + " in all.</p>\n</header>\n";
}

}  // namespace

std::string page_kill_matrix(const KillMatrix& matrix) {
  return open_section(matrix) + matrix_section(matrix) + first_lines_section(matrix);
}

std::string to_html(const KillMatrix& matrix) {
  Run run;  // what the environment's section reads
  run.environment = matrix.environment;
  run.command = matrix.command;
  run.seed = matrix.seed;
  run.wall_s = matrix.wall_s;
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Equigrad faults: " +
         std::string(word(outcome(matrix))) + "</title>\n<style>" + std::string(page_style()) +
         "</style>\n</head>\n<body>\n" + banner(matrix) +
         "<nav aria-label=\"Sections\"><a href=\"#open\">Open</a> <a href=\"#matrix\">Kill "
         "matrix</a> <a href=\"#lines\">First lines</a> <a "
         "href=\"#environment\">Environment</a></nav>\n<main>\n" +
         page_kill_matrix(matrix) + page_environment(run) +
         "</main>\n<footer><p>Written by equigrad " + escape_xml(matrix.environment.version) +
         ". The same data for programs: faults.json.</p></footer>\n<script>" +
         std::string(page_script()) + "</script>\n</body>\n</html>\n";
}

}  // namespace equigrad::reports
