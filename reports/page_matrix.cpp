#include <map>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

using Cells = std::map<std::vector<std::string>, Group>;  // stage, precision, style, ranks

std::string cell_words(const Group& group) {
  const Counts& sum = group.counts;
  std::string out = "stage " + group.key[0] + ", " + group.key[1] + ", " + group.key[2] + ", " +
                    group.key[3] + (group.key[3] == "1" ? " rank: " : " ranks: ") +
                    counts_text(sum);
  if (group.margin > 0) out += "; worst share of a bound " + short_number(group.margin);
  return out;
}

std::string cell_text(const Group& group) {
  const Counts& sum = group.counts;
  const Verdict verdict = group.verdict();
  if (went_wrong(verdict)) {
    return glyph(verdict) + " " + grouped(sum.went_wrong()) + "/" + grouped(sum.total());
  }
  if (sum.vacuous > 0) return "0 compared";
  return verdict == Verdict::Within ? "≈ " + short_number(group.margin) : glyph(verdict);
}

// The case to look at first: the worst that went wrong, or the group's folded list.
std::string target(const Group& group) {
  for (const Case* one : worst_first(group.cases)) {
    if (went_wrong(one->verdict) || vacuous(*one)) return anchor(one->id);
  }
  return group_anchor(group.key[0], group.key[1], group.key[3]);
}

std::string matrix_cell(const Cells& cells, const std::vector<std::string>& key, bool edge) {
  const std::string space = edge ? " edge" : "";
  const auto found = cells.find(key);
  if (found == cells.end())
    return "<td class=\"none" + space + "\" title=\"not in this run\"><span>&nbsp;</span></td>";
  const Group& group = found->second;
  const Verdict shown =
      group.counts.vacuous > 0 && !went_wrong(group.verdict()) ? Verdict::Failed : group.verdict();
  return "<td class=\"" + margin_class(shown, group.margin) + space + "\"><a href=\"#" +
         target(group) + "\" title=\"" + escape_xml(cell_words(group)) + "\">" + cell_text(group) +
         "</a></td>";
}

std::string head(const std::vector<std::string>& styles, const std::vector<std::string>& ranks) {
  std::string out =
      "<th class=\"corner\" scope=\"col\" rowspan=\"2\">ZeRO stage</th>"
      "<th class=\"corner\" scope=\"col\" rowspan=\"2\">Precision</th>";
  for (const std::string& style : styles) {
    out += "<th class=\"edge\" scope=\"colgroup\" colspan=\"" + std::to_string(ranks.size()) +
           "\">" + escape_xml(style) + "</th>";
  }
  out += "</tr>\n<tr>";
  for (size_t i = 0; i < styles.size(); ++i) {
    for (size_t j = 0; j < ranks.size(); ++j) {
      const std::string words = ranks[j] + (j > 0 ? "" : ranks[j] == "1" ? " rank" : " ranks");
      out += std::string("<th scope=\"col\"") + (j == 0 ? " class=\"edge\"" : "") + ">" +
             escape_xml(words) + "</th>";
    }
  }
  return out;
}

}  // namespace

std::string page_matrix(const Run& run) {
  const std::vector<std::string> stages = values(run, "stage");
  const std::vector<std::string> precisions = values(run, "precision");
  const std::vector<std::string> styles = values(run, "style");
  const std::vector<std::string> ranks = values(run, "ranks");
  Cells cells;
  for (const Group& group : group_by(run, {"stage", "precision", "style", "ranks"}))
    cells.emplace(group.key, group);
  if (run.cases.empty()) return section("matrix", "Matrix", "<p>No case was run.</p>\n");
  std::string rows;
  for (const std::string& stage : stages) {
    if (!rows.empty()) rows += "</tbody>\n<tbody>\n";
    for (size_t p = 0; p < precisions.size(); ++p) {
      rows += "<tr>";
      if (p == 0)
        rows += "<th scope=\"rowgroup\" rowspan=\"" + std::to_string(precisions.size()) + "\">" +
                escape_xml(stage) + "</th>";
      rows += "<th scope=\"row\">" + escape_xml(precisions[p]) + "</th>";
      for (const std::string& style : styles)
        for (size_t r = 0; r < ranks.size(); ++r)
          rows += matrix_cell(cells, {stage, precisions[p], style, ranks[r]}, r == 0);
      rows += "</tr>\n";
    }
  }
  return section(
      "matrix", "Matrix",
      table("Worst case of each cell: = every bit equal, a number is the worst share of its bound, "
            "✗ 2/12 means 2 of 12 cases went wrong. A cell links to its cases.",
            head(styles, ranks), rows, "x") +
          filled("legend.html"));
}

}  // namespace equigrad::reports
