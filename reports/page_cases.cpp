#include <map>
#include <tuple>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// A row of the list: one case that went wrong; or those that are alike but for the way into the
// backward pass, or, of the contract, but for their name.
struct CaseRow {
  std::vector<std::string> names;  // ways into the backward pass, or cases of the contract
  std::vector<std::string> cells;  // accumulate, clip, optimizer, model; a text for each lane
  Verdict verdict = Verdict::NotRun;
  double margin = 0, seconds = 0;
  int64_t cases = 0;
  const Case* wrong = nullptr;
};

bool is_wrong(const Case& one) { return went_wrong(one.verdict) || vacuous(one); }

std::string name_of(const Case& one) {
  const std::string name = dimension(one, "case");
  if (name != "-") return name;
  const std::string style = dimension(one, "style");
  return style.ends_with("_backward") ? style.substr(0, style.size() - 9) : style;
}

CaseRow row_of(const Case& one, const std::vector<std::string>& lanes) {
  CaseRow row;
  row.names = {name_of(one)};
  row.verdict = one.verdict;
  row.seconds = one.seconds;
  row.cases = 1;
  for (const char* name : {"accumulate", "clip", "optimizer", "model"})
    row.cells.push_back(dimension(one, name));
  for (const std::string& name : lanes) {
    std::string text = "–";
    for (const Lane& lane : one.lanes) {
      if (worse_margin(lane.margin, row.margin)) row.margin = lane.margin;
      if (lane.name != name || lane.verdict == Verdict::Skipped) continue;
      text = bitwise(lane) ? grouped(lane.differing) : short_number(lane.margin);
    }
    row.cells.push_back(std::move(text));
  }
  if (is_wrong(one)) row.wrong = &one;
  return row;
}

std::vector<CaseRow> folded_rows(const Group& group, const std::vector<std::string>& lanes) {
  std::map<std::tuple<std::vector<std::string>, Verdict, const Case*, std::string>, size_t> places;
  std::vector<CaseRow> rows;
  for (const Case* one : group.cases) {
    CaseRow next = row_of(*one, lanes);
    const auto [at, is_new] = places.try_emplace(
        {next.cells, next.verdict, next.wrong, dimension(*one, "section")}, rows.size());
    if (is_new) {
      rows.push_back(std::move(next));
      continue;
    }
    CaseRow& row = rows[at->second];
    row.names.push_back(next.names[0]);
    row.seconds += next.seconds;
    ++row.cases;
  }
  return rows;
}

// End tags that HTML allows to leave out are left out here: thousands of rows have to fit.
std::string html_of(const CaseRow& row, const std::set<const Case*>& shown) {
  const bool is_shown = row.wrong != nullptr && shown.contains(row.wrong);
  std::string out = "<tr";
  if (row.wrong != nullptr && !is_shown) out += " id=" + anchor(row.wrong->id);
  out += "><th scope=row>" + escape_xml(joined(row.names, ", "));
  for (const std::string& cell : row.cells) out += "<td>" + escape_xml(cell);
  const std::string why = is_shown ? " <a href=#" + anchor(row.wrong->id) + ">why</a>" : "";
  return out + "<td>" + grouped(row.cases) + "<td>" + seconds_text(row.seconds) +
         "<td class=" + margin_class(row.verdict, row.margin) + ">" + glyph(row.verdict) + " " +
         spoken(row.verdict) + why + "\n";
}

// Only what there is: "16 cases: 15 within, 1 failed".
std::string short_counts(const Counts& sum) {
  std::string out = count_of(sum.total(), "case") + ":";
  const char* between = " ";
  for (const Verdict verdict : kVerdicts) {
    if (sum.of(verdict) == 0) continue;
    out += between + grouped(sum.of(verdict)) + " " + spoken(verdict);
    between = ", ";
  }
  return out;
}

std::string group_of(const Group& group, const std::vector<std::string>& lanes,
                     const std::string& rows) {
  const std::string name = "stage " + escape_xml(group.key[0]) + ", " + escape_xml(group.key[1]) +
                           ", " + escape_xml(group.key[2]) +
                           (group.key[2] == "1" ? " rank" : " ranks");
  std::string columns = heads({"Called by", "Accumulate", "Clip", "Optimizer", "Model"});
  for (const std::string& lane : lanes)
    columns +=
        number_heads({shown(lane, 60) + (lane == "bounded" ? ": share of bound" : ": differing")});
  columns += number_heads({"Cases", "Time"}) + heads({"Verdict"});
  return "<details id=\"" + group_anchor(group.key[0], group.key[1], group.key[2]) +
         "\"><summary><b>" + glyph(group.verdict()) + " " + name + "</b> <span class=\"note\">" +
         short_counts(group.counts) + "</span></summary>\n" + table(name, columns, rows, "sort") +
         "</details>\n";
}

}  // namespace

std::string page_cases(const Run& run, size_t budget_bytes, const std::set<const Case*>& shown) {
  std::vector<std::string> lanes;
  for (const LaneTotal& lane : whole(run).lanes) lanes.push_back(lane.name);
  std::string out =
      "<p class=\"lead\">Every case, by stage, precision and ranks. Cases that are alike, and none "
      "of which went wrong, are one row.</p>\n";
  const auto groups = group_by(run, {"stage", "precision", "ranks"});
  size_t used = out.size();
  for (const Group& group : groups) used += group_of(group, lanes, "").size();
  int64_t left_out = 0;
  for (const Group& group : groups) {
    std::string rows;
    for (const CaseRow& row : folded_rows(group, lanes)) {
      const std::string next = html_of(row, shown);
      if (used + next.size() > budget_bytes) {
        left_out += row.cases;
        continue;
      }
      used += next.size();
      rows += next;
    }
    out += group_of(group, lanes, rows);
  }
  if (left_out > 0)
    out += "<p>" + count_of(left_out, "more case") +
           " did not fit on this page; run.json has them all.</p>\n";
  return folded_section("cases", "Cases", short_counts(whole(run).counts), out);
}

}  // namespace equigrad::reports
