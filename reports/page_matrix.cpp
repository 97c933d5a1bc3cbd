#include <map>

#include "reports/page.hpp"
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
    return glyph(verdict) + " " + grouped(sum.failed + sum.crashed + sum.timed_out) + "/" +
           grouped(sum.total());
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

std::string cell(const Cells& cells, const std::vector<std::string>& key, bool edge) {
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
      "<thead><tr><th class=\"corner\" scope=\"col\" rowspan=\"2\">ZeRO stage</th>"
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
  return out + "</tr></thead>\n";
}

constexpr std::string_view kLegend =
    "<ul class=\"key\" aria-label=\"Legend\"><li><span class=\"m0\">=</span> equal</li>"
    "<li><span class=\"m1\">≈</span> up to ¼ of bound</li>"
    "<li><span class=\"m2\">≈</span> up to ½</li><li><span class=\"m3\">≈</span> up to ¾</li>"
    "<li><span class=\"m4\">≈</span> up to 1</li>"
    "<li><span class=\"bad\">✗</span> failed</li><li><span class=\"crash\">!</span> crashed</li>"
    "<li><span class=\"late\">◷</span> timed out</li><li><span class=\"skip-c\">–</span> "
    "skipped</li>"
    "<li><span class=\"none\">·</span> not run</li></ul>\n";

}  // namespace

std::string page_matrix(const Run& run) {
  const std::vector<std::string> stages = values(run, "stage");
  const std::vector<std::string> precisions = values(run, "precision");
  const std::vector<std::string> styles = values(run, "style");
  const std::vector<std::string> ranks = values(run, "ranks");
  Cells cells;
  for (Group& group : group_by(run, {"stage", "precision", "style", "ranks"})) {
    std::vector<std::string> key = group.key;
    cells.emplace(std::move(key), std::move(group));
  }
  std::string out = section_open("matrix", "Matrix");
  if (run.cases.empty()) return out + "<p>No case was run.</p>\n</section>\n";
  out +=
      "<div class=\"wide\"><table class=\"x\">\n<caption>Worst case of each cell: = every bit "
      "equal, a number is the worst share of its bound, ✗ 2/12 means 2 of 12 cases went wrong. "
      "A cell links to its cases.</caption>\n" +
      head(styles, ranks);
  for (const std::string& stage : stages) {
    out += "<tbody>\n";
    for (size_t p = 0; p < precisions.size(); ++p) {
      out += "<tr>";
      if (p == 0) {
        out += "<th scope=\"rowgroup\" rowspan=\"" + std::to_string(precisions.size()) + "\">" +
               escape_xml(stage) + "</th>";
      }
      out += "<th scope=\"row\">" + escape_xml(precisions[p]) + "</th>";
      for (const std::string& style : styles) {
        for (size_t r = 0; r < ranks.size(); ++r) {
          out += cell(cells, {stage, precisions[p], style, ranks[r]}, r == 0);
        }
      }
      out += "</tr>\n";
    }
    out += "</tbody>\n";
  }
  return out + "</table></div>\n" + std::string(kLegend) + "</section>\n";
}

}  // namespace equigrad::reports
