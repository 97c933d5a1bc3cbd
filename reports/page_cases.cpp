#include <array>
#include <utility>

#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr size_t kMessageBytes = 6000;

// A link only where the path is plainly a relative one; anything else is shown as text.
std::string file_item(const std::string& file) {
  const bool plain = anchor(file) == file || file.find_first_not_of(
                                                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                                                 "XYZ0123456789._-/") == std::string::npos;
  const std::string text = escape_xml(clipped(file, 400));
  return plain ? "<a href=\"" + text + "\">" + text + "</a>" : text;
}

std::string lanes_table(const Case& one) {
  std::string out =
      "<div class=\"wide\"><table>\n<caption>Lanes of this case</caption>\n<thead><tr><th "
      "scope=\"col\">Lane</th><th scope=\"col\" class=\"n\">Compared</th><th scope=\"col\" "
      "class=\"n\">Differing</th><th scope=\"col\" class=\"n\">Share of bound</th><th "
      "scope=\"col\">Verdict</th><th scope=\"col\">Worst element</th><th scope=\"col\" "
      "class=\"n\">Got</th><th scope=\"col\" class=\"n\">Want</th><th scope=\"col\" "
      "class=\"n\">Bound</th><th scope=\"col\" class=\"n\">ulp</th></tr></thead>\n<tbody>\n";
  for (const Lane& lane : one.lanes) {
    out += "<tr><th scope=\"row\">" + escape_xml(clipped(lane.name, 60)) + "</th>" +
           number_cell(grouped(lane.compared)) + number_cell(grouped(lane.differing)) +
           number_cell(short_number(lane.margin)) +
           verdict_cell(lane.verdict, lane.margin, spoken(lane.verdict));
    if (lane.worst) {
      out += "<td><code>" + escape_xml(clipped(lane.worst->tensor, 200)) + "[" +
             std::to_string(lane.worst->index) + "]</code></td>" +
             number_cell(shortest(lane.worst->got)) + number_cell(shortest(lane.worst->want)) +
             number_cell(short_number(lane.worst->bound)) +
             number_cell(short_number(lane.worst->ulp));
    } else {
      out +=
          "<td>–</td>" + number_cell("–") + number_cell("–") + number_cell("–") + number_cell("–");
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string failure(const Case& one) {
  const bool empty = passed(one.verdict);
  const Verdict shown = empty ? Verdict::Failed : one.verdict;
  const std::string id = anchor(one.id);
  std::string out = "<article id=\"" + id + "\" class=\"" + margin_class(shown, 0) +
                    "\">\n<h3><span class=\"tag\">" + glyph(shown) + " " +
                    (empty ? "compared nothing" : spoken(shown)) +
                    "</span> <a class=\"id\" href=\"#" + id + "\">" +
                    escape_xml(clipped(one.id, 400)) + "</a></h3>\n";
  const std::string message = empty ? "passed without comparing anything" : message_of(one);
  out += "<pre>" + escape_xml(clipped(message, kMessageBytes)) + "</pre>\n";
  if (!one.lanes.empty()) out += lanes_table(one);
  if (!one.replay.empty()) {
    out += "<p>Replay: <code>" + escape_xml(clipped(one.replay, 1000)) + "</code></p>\n";
  }
  constexpr size_t kFiles = 20;
  for (size_t i = 0; i < one.files.size() && i < kFiles; ++i) {
    out += (i == 0 ? "<p>Files: " : ", ") + file_item(one.files[i]);
  }
  if (!one.files.empty()) out += "</p>\n";
  return out + "</article>\n";
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
  const std::array<std::pair<Verdict, int64_t>, 7> parts = {{{Verdict::Failed, sum.failed},
                                                             {Verdict::Crashed, sum.crashed},
                                                             {Verdict::TimedOut, sum.timed_out},
                                                             {Verdict::Within, sum.within},
                                                             {Verdict::Equal, sum.equal},
                                                             {Verdict::Skipped, sum.skipped},
                                                             {Verdict::NotRun, sum.not_run}}};
  std::string out = count_of(sum.total(), "case") + ":";
  const char* between = " ";
  for (const auto& [verdict, count] : parts) {
    if (count == 0) continue;
    out += between + grouped(count) + " " + spoken(verdict);
    between = ", ";
  }
  return out;
}

std::string group_open(const Group& group, const std::vector<std::string>& lanes) {
  const std::string name = "stage " + escape_xml(group.key[0]) + ", " + escape_xml(group.key[1]) +
                           ", " + escape_xml(group.key[2]) +
                           (group.key[2] == "1" ? " rank" : " ranks");
  const bool wrong = went_wrong(group.verdict());
  std::string out = "<details id=\"" + group_anchor(group.key[0], group.key[1], group.key[2]) +
                    (wrong ? "\" open>" : "\">") + "<summary><b>" + glyph(group.verdict()) + " " +
                    name + "</b> <span class=\"note\">" + short_counts(group.counts) +
                    "</span></summary>\n<div class=\"wide\"><table class=\"sort\">\n<caption>" +
                    name +
                    "</caption>\n<thead><tr><th scope=col>Style<th scope=col>Accumulate<th " +
                    "scope=col>Clip<th scope=col>Optimizer<th scope=col>Model";
  for (const std::string& lane : lanes) {
    const char* unit = lane == "bounded" ? ": share of bound" : ": differing";
    out += "<th scope=col class=n>" + escape_xml(clipped(lane, 60)) + unit;
  }
  return out + "<th scope=col class=n>Time<th scope=col>Verdict</tr></thead>\n<tbody>\n";
}

}  // namespace

std::string page_failures(const Run& run, size_t budget_bytes, std::set<const Case*>& shown) {
  const std::vector<const Case*> wrong = worst_first(wrong_cases(run));
  std::string out = section_open("failures", "Failures");
  if (wrong.empty()) return out + "<p>None.</p>\n</section>\n";
  out += "<p class=\"lead\">" + count_of(static_cast<int64_t>(wrong.size()), "case") +
         " went wrong, the worst first.</p>\n";
  for (const Case* one : wrong) {
    std::string article = failure(*one);
    if (out.size() + article.size() > budget_bytes) continue;
    out += article;
    shown.insert(one);
  }
  if (shown.size() < wrong.size()) {
    out += "<p>" + count_of(static_cast<int64_t>(wrong.size() - shown.size()), "more case") +
           " that went wrong did not fit on this page; run.json has them all.</p>\n";
  }
  return out + "</section>\n";
}

std::string page_cases(const Run& run, size_t budget_bytes, const std::set<const Case*>& shown) {
  std::vector<std::string> lanes;
  for (const LaneTotal& lane : whole(run).lanes) lanes.push_back(lane.name);
  std::string out = section_open("cases", "Cases") +
                    "<p class=\"lead\">Every case, by stage, precision and ranks. Open a group to "
                    "see its cases.</p>\n";
  int64_t left_out = 0;
  for (const Group& group : group_by(run, {"stage", "precision", "ranks"})) {
    out += group_open(group, lanes);
    for (const Case* one : group.cases) {
      std::string row = case_row(*one, !shown.contains(one), lanes);
      if (out.size() + row.size() > budget_bytes) {
        ++left_out;
      } else {
        out += row;
      }
    }
    out += "</tbody></table></div></details>\n";
  }
  if (left_out > 0) {
    out += "<p>" + count_of(left_out, "more case") +
           " did not fit on this page; run.json has them all.</p>\n";
  }
  return out + "</section>\n";
}

}  // namespace equigrad::reports
