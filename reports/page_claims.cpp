#include <algorithm>
#include <array>
#include <utility>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 3> kLanes = {{
    {"exact",
     "Every gradient, parameter, master weight and optimizer state has the bits of the "
     "reference&#39;s twin"},
    {"cross",
     "The ways into a backward pass agree with each other bit for bit, and so do the stages"},
    {"bounded",
     "Distribution is no further from higher precision than a plain run of the same precision, but "
     "for what the roundings of its own sums explain"},
}};

constexpr std::array<std::pair<const char*, const char*>, 8> kDimensions = {{
    {"stage", "ZeRO stage"},
    {"precision", "Precision"},
    {"style", "Way into the backward pass"},
    {"ranks", "Ranks"},
    {"accumulate", "Micro-batches in a step"},
    {"clip", "Gradient clipping against the norm"},
    {"optimizer", "Optimizer"},
    {"model", "Model"},
}};

std::string lane_row(const char* claim, const char* name, const LaneTotal* lane) {
  const std::string words = std::string(claim) + " <span class=\"note\">(" + name + " lane)</span>";
  if (lane == nullptr || lane->cases == 0) {
    return row(words,
               number_cells({"0", "0", "–", "–"}) + verdict_cell(Verdict::NotRun, 0, "not tested"));
  }
  const bool differs = lane->differing > 0 || lane->margin > 0;
  const Verdict verdict = lane->wrong > 0 ? Verdict::Failed
                          : differs       ? Verdict::Within
                                          : Verdict::Equal;
  const std::string state = lane->wrong > 0 ? grouped(lane->wrong) + " failed" : spoken(verdict);
  return row(words, number_cells({grouped(lane->cases), grouped(lane->compared),
                                  grouped(lane->differing), short_number(lane->margin)}) +
                        verdict_cell(verdict, lane->margin, state));
}

std::string group_row(const Group& group) {
  const Counts& sum = group.counts;
  const Verdict verdict = group.verdict();
  const int64_t wrong = sum.went_wrong();
  const std::string state =
      wrong > 0 ? grouped(wrong) + " of " + grouped(sum.total()) + " went wrong" : spoken(verdict);
  return row(shown(group.key[0], 200),
             number_cells({grouped(sum.executed()), grouped(sum.compared), grouped(sum.differing),
                           short_number(group.margin)}) +
                 verdict_cell(verdict, group.margin, state));
}

}  // namespace

std::string page_claims(const Run& run) {
  const Group all = whole(run);
  std::string rows;
  for (const auto& [name, claim] : kLanes) rows += lane_row(claim, name, all.lane(name));
  for (const auto& [name, title] : kDimensions) {
    std::vector<Group> groups = group_by(run, {name});
    // Cases that have no such dimension are counted by others.
    std::erase_if(groups, [](const Group& group) { return group.key[0] == "-"; });
    if (groups.empty()) continue;
    rows += subtitle(6, title, false);
    constexpr size_t kRows = 100;
    for (size_t i = 0; i < groups.size() && i < kRows; ++i) rows += group_row(groups[i]);
  }
  return folded_section(
      "claims", "Claims", "what is promised, and what this run found",
      table("What is promised, and what this run found. Differing counts elements whose bits "
            "differ where none may; in the bounded lane, where they may, all that differ.",
            heads({"Claim"}) +
                number_heads({"Cases", "Elements compared", "Differing", "Worst share of bound"}) +
                heads({"Verdict"}),
            rows));
}

std::string caught_text(const Run& run) {
  const auto caught = std::count_if(run.self_checks.begin(), run.self_checks.end(),
                                    [](const SelfCheck& check) { return check.caught; });
  return grouped(caught) + " of " + count_of(run.self_checks.size(), "planted fault");
}

std::string page_self_checks(const Run& run) {
  std::string rows;
  for (const SelfCheck& check : run.self_checks)
    rows += row("<code>" + shown(check.fault, 200) + "</code>",
                cell(check.what, 600) +
                    (check.caught ? "<td class=\"v m0\"><span>✓ caught</span></td>"
                                  : "<td class=\"v bad\"><span>✗ missed</span></td>") +
                    cell(check.by, 600));
  return folded_section(
      "self-checks", "Self-checks", caught_text(run) + " caught",
      "<p class=\"lead\">Before its results count, a run plants faults in its own data and must "
      "catch every one. At least " +
          std::to_string(kRequiredSelfChecks) + " are required.</p>\n" +
          (run.engine_failure.empty() ? "" : paragraph(escape_xml(engine_text(run)))) +
          (rows.empty() && run.engine_failure.empty()
               ? "<p>No fault was planted: this run proves nothing.</p>\n"
               : "") +
          (rows.empty() ? ""
                        : table("Faults planted in this run",
                                heads({"Fault", "What was done", "Caught", "By"}), rows)));
}

}  // namespace equigrad::reports
