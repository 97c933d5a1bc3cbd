#include <algorithm>
#include <array>
#include <set>

#include "reports/document.hpp"
#include "reports/merge.hpp"
#include "reports/page.hpp"
#include "reports/parts.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::reports {

namespace {

std::string tile(const std::string& value, const std::string& name, const char* tone) {
  return std::string("<div class=\"") + tone + "\"><dt>" + name + "</dt><dd>" + value +
         "</dd></div>\n";
}

const char* tone_of(int64_t alarming) { return alarming == 0 ? "zero" : "alarm"; }

// The cases that were selected as one bar; the same numbers stand in the tiles, so it is hidden
// from readers.
std::string proportions(const Counts& sum) {
  // For a page without its styles, in the order of kVerdicts.
  constexpr std::array<const char*, kVerdicts.size()> kFills = {
      "#b7331b", "#5f3490", "#8461b3", "#e8c45f", "#1f6f9f", "#e1e4e8", "#d4d8dd"};
  if (sum.total() == 0) return {};
  std::string out =
      "<svg class=\"bar\" viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\">";
  constexpr double kLeast = 0.5;  // of what went wrong, however little it is
  double at = 0;
  for (size_t i = 0; i < kVerdicts.size(); ++i) {
    const auto count = static_cast<double>(sum.of(kVerdicts[i]));
    double width = std::min(100 - at, 100 * count / static_cast<double>(sum.total()));
    if (count > 0 && went_wrong(kVerdicts[i])) width = std::max(width, kLeast);
    if (count > 0) out += drawn_bar(at, width, kFills[i], margin_class(kVerdicts[i], 0.5));
    at += width;
  }
  return out + "</svg>\n";
}

std::string self_check_line(const Run& run) {
  if (!run.engine_failure.empty())
    return "<a href=\"#self-checks\">No fault was planted</a> where the engine fails without "
           "one.";
  return "<a href=\"#self-checks\">" + caught_text(run) + "</a> caught in this run.";
}

// What was selected, and of how much.
std::string selection_line(const Run& run, const Counts& selected) {
  const int64_t all = counts(run).total();
  std::string out = "Selected: ";
  if (all > selected.total())
    out += "<a href=\"#not-run\">" + grouped(selected.total()) + " of " + count_of(all, "case") +
           "</a>";
  else
    out += count_of(all, "case");
  return out + ". <code>" + shown(run.command, 1000) + "</code>";
}

std::string tiles(const Counts& sum) {
  std::string out = "<dl class=\"tiles\">\n" + tile(grouped(sum.executed()), "cases ran", "") +
                    tile(grouped(sum.equal), "equal, bit for bit", "");
  if (sum.within > 0) out += tile(grouped(sum.within), "within their bound", "");
  out += tile(grouped(sum.failed), "failed", tone_of(sum.failed));
  if (sum.crashed > 0) out += tile(grouped(sum.crashed), "crashed", "alarm");
  if (sum.timed_out > 0) out += tile(grouped(sum.timed_out), "timed out", "alarm");
  if (sum.vacuous > 0) out += tile(grouped(sum.vacuous), "compared nothing", "alarm");
  if (sum.skipped > 0) out += tile(grouped(sum.skipped), "skipped", "");
  if (sum.not_run > 0) out += tile(grouped(sum.not_run), "<a href=\"#not-run\">not run</a>", "");
  return out + tile(grouped(sum.compared), "elements compared", "") +
         tile(grouped(sum.differing), "differ where none may", tone_of(sum.differing)) + "</dl>\n";
}

std::string page_banner(const Run& run) {
  const Counts sum = counts_of_selected(run);
  std::string out = paragraph(escape_xml(outcome_text(run))) + cause_list(run);
  out += tiles(sum) + proportions(sum);
  for (const std::string& line : part_lines(run)) out += paragraph(escape_xml(line));
  return out + "<p class=\"note\">" + selection_line(run, sum) + "</p>\n<p class=\"note\">" +
         self_check_line(run) + "</p>\n";
}

std::string page_not_run(const Run& run) {
  const std::vector<Reason> why = reasons(run);
  constexpr size_t kReasons = 200;
  std::string rows, more;
  for (size_t i = 0; i < why.size() && i < kReasons; ++i)
    rows += "<tr>" + verdict_cell(why[i].verdict, 0, spoken(why[i].verdict)) +
            number_cells({grouped(why[i].cases)}) + cell(why[i].text, 400) + "</tr>\n";
  if (why.size() > kReasons)
    more = "<p>" + count_of(why.size() - kReasons, "more reason") + " in run.json.</p>\n";
  if (why.empty())
    return empty_section("not-run", "Not run and skipped",
                         "Everything that was asked for was run.");
  return folded_section(
      "not-run", "Not run and skipped", count_of(why.size(), "reason"),
      table("What this run says nothing about, and why",
            heads({"State"}) + number_heads({"Cases"}) + heads({"Reason"}), rows) +
          more);
}

}  // namespace

std::string group_anchor(const std::string& stage, const std::string& precision,
                         const std::string& ranks) {
  return anchor("zero" + stage + "." + precision + ".w" + ranks);
}

std::string to_html(const Run& run, const Surroundings& around) {
  constexpr size_t kFailureBytes = 100'000;
  // The list of cases has the first claim on the page; what it leaves goes to failures in full.
  const size_t listed_bytes = 50 * run.cases.size();
  const size_t failure_bytes =
      listed_bytes < kPageBytes / 2 - kFailureBytes ? kPageBytes / 2 - listed_bytes : kFailureBytes;
  constexpr size_t kMarginBytes = 10'000;  // closing tags and the lines that say what was left out
  const Outcome end = outcome(run);
  Document page{
      .origin = {run.environment, run.command, run.seed, run.wall_s},
      .brand = "Equigrad conformance run",
      .outcome = word(end),
      .reports_html = links_html(around.pages),
      .title = "Equigrad: " + std::string(word(end)) + ", " + counts_text(counts_of_selected(run)),
      .banner_html = page_banner(run),
      .links = {{"causes", "Causes"},
                {"matrix", "Matrix"},
                {"cases", "Cases"},
                {"contract", "Contract"},
                {"claims", "Claims"},
                {"self-checks", "Self-checks"},
                {"memory", "Memory"},
                {"underflow", "Underflow"},
                {"generated", "Generated"},
                {"not-run", "Not run"},
                {"environment", "Environment"},
                {"definitions", "Definitions"}},
      .end_html = folded_section("definitions", "Definitions", "words of this page",
                                 filled("definitions.html")),
      .data_file = "run.json"};
  std::set<const Case*> shown;
  const std::string top = page_causes(run, failure_bytes, shown) + page_matrix(run);
  const std::string rest = page_contract(run) + page_claims(run) + page_self_checks(run) +
                           page_memory(run) + page_underflow(run) + page_generated(run) +
                           page_not_run(run) + page_history(run, around.earlier);
  page.html = top + rest;
  const size_t used = to_html(page).size() + kMarginBytes;
  page.html = top + page_cases(run, used < kPageBytes ? kPageBytes - used : 0, shown) + rest;
  return to_html(page);
}

}  // namespace equigrad::reports
