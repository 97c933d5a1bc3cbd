#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr size_t kMessageBytes = 6000;

// A link only where the path is plainly a relative one; anything else is shown as text.
std::string file_item(const std::string& file) {
  const bool plain = anchor(file) == file || file.find_first_not_of(
                                                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                                                 "XYZ0123456789._-/") == std::string::npos;
  const std::string text = shown(file, 400);
  return plain ? "<a href=\"" + text + "\">" + text + "</a>" : text;
}

std::string lanes_table(const Case& one) {
  std::string rows;
  for (const Lane& lane : one.lanes) {
    std::string cells =
        number_cells({grouped(lane.compared), grouped(lane.differing), short_number(lane.margin)}) +
        verdict_cell(lane.verdict, lane.margin, spoken(lane.verdict));
    if (const auto& worst = lane.worst)
      cells += "<td><code>" + shown(worst->tensor, 200) + "[" + std::to_string(worst->index) +
               "]</code></td>" +
               number_cells({shortest(worst->got), shortest(worst->want),
                             short_number(worst->bound), short_number(worst->ulp)});
    else
      cells += cell("–", 3) + number_cells({"–", "–", "–", "–"});
    rows += row(shown(lane.name, 60), cells);
  }
  return table("Lanes of this case",
               heads({"Lane"}) + number_heads({"Compared", "Differing", "Share of bound"}) +
                   heads({"Verdict", "Worst element"}) +
                   number_heads({"Got", "Want", "Bound", "ulp"}),
               rows);
}

std::string failure(const Case& one) {
  const bool empty = passed(one.verdict);
  const Verdict verdict = empty ? Verdict::Failed : one.verdict;
  const std::string id = anchor(one.id);
  std::string out = "<pre>" + shown(message_of(one), kMessageBytes) + "</pre>\n";
  if (!one.lanes.empty()) out += lanes_table(one);
  out += replay_html(one.replay);
  constexpr size_t kFiles = 20;
  for (size_t i = 0; i < one.files.size() && i < kFiles; ++i) {
    out += (i == 0 ? "<p>Files: " : ", ") + file_item(one.files[i]);
  }
  if (!one.files.empty()) out += "</p>\n";
  return article(id, margin_class(verdict, 0),
                 glyph(verdict) + " " + (empty ? "compared nothing" : spoken(verdict)),
                 "<a class=\"id\" href=\"#" + id + "\">" + shown(one.id, 400) + "</a>", out);
}

// End tags that HTML allows to leave out are left out here: ten thousand rows have to fit.
std::string case_row(const Case& one, bool with_id, const std::vector<std::string>& lanes) {
  const std::string id = anchor(one.id);
  std::string out =
      (with_id ? "<tr id=" + id : "<tr") + "><th scope=row>" + escape_xml(dimension(one, "style"));
  for (const char* name : {"accumulate", "clip", "optimizer", "model"}) {
    out += "<td>" + escape_xml(dimension(one, name));
  }
  double margin = 0;
  for (const std::string& name : lanes) {
    std::string text = "–";
    for (const Lane& lane : one.lanes) {
      if (worse_margin(lane.margin, margin)) margin = lane.margin;
      if (lane.name != name || lane.verdict == Verdict::Skipped) continue;
      text = bitwise(lane) ? grouped(lane.differing) : short_number(lane.margin);
    }
    out += "<td>" + text;
  }
  const std::string why = with_id ? "" : " <a href=#" + id + ">why</a>";
  return out + "<td>" + seconds_text(one.seconds) +
         "<td class=" + margin_class(one.verdict, margin) + ">" + glyph(one.verdict) + " " +
         spoken(one.verdict) + why + "\n";
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
  std::string columns = heads({"Style", "Accumulate", "Clip", "Optimizer", "Model"});
  for (const std::string& lane : lanes)
    columns +=
        number_heads({shown(lane, 60) + (lane == "bounded" ? ": share of bound" : ": differing")});
  columns += number_heads({"Time"}) + heads({"Verdict"});
  return "<details id=\"" + group_anchor(group.key[0], group.key[1], group.key[2]) +
         (went_wrong(group.verdict()) ? "\" open>" : "\">") + "<summary><b>" +
         glyph(group.verdict()) + " " + name + "</b> <span class=\"note\">" +
         short_counts(group.counts) + "</span></summary>\n" + table(name, columns, rows, "sort") +
         "</details>\n";
}

}  // namespace

std::string page_failures(const Run& run, size_t budget_bytes, std::set<const Case*>& shown) {
  const std::vector<const Case*> wrong = worst_first(wrong_cases(run));
  if (wrong.empty()) return section("failures", "Failures", "<p>None.</p>\n");
  std::string out =
      "<p class=\"lead\">" + count_of(wrong.size(), "case") + " went wrong, the worst first.</p>\n";
  for (const Case* one : wrong) {
    std::string article = failure(*one);
    if (out.size() + article.size() > budget_bytes) continue;
    out += article;
    shown.insert(one);
  }
  if (shown.size() < wrong.size()) {
    out += "<p>" + count_of(wrong.size() - shown.size(), "more case") +
           " that went wrong did not fit on this page; run.json has them all.</p>\n";
  }
  return section("failures", "Failures", out);
}

std::string page_cases(const Run& run, size_t budget_bytes, const std::set<const Case*>& shown) {
  std::vector<std::string> lanes;
  for (const LaneTotal& lane : whole(run).lanes) lanes.push_back(lane.name);
  std::string out =
      "<p class=\"lead\">Every case, by stage, precision and ranks. Open a group to see its "
      "cases.</p>\n";
  int64_t left_out = 0;
  for (const Group& group : group_by(run, {"stage", "precision", "ranks"})) {
    const size_t used = out.size() + group_of(group, lanes, "").size();
    std::string rows;
    for (const Case* one : group.cases) {
      const std::string next = case_row(*one, !shown.contains(one), lanes);
      if (used + rows.size() + next.size() > budget_bytes)
        ++left_out;
      else
        rows += next;
    }
    out += group_of(group, lanes, rows);
  }
  if (left_out > 0)
    out += "<p>" + count_of(left_out, "more case") +
           " did not fit on this page; run.json has them all.</p>\n";
  return section("cases", "Cases", out);
}

}  // namespace equigrad::reports
