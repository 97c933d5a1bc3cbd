#include <algorithm>
#include <array>
#include <utility>

#include "reports/page.hpp"
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

std::string claim_row(const std::string& claim, const std::string& cells) {
  return "<tr><th scope=\"row\">" + claim + "</th>" + cells + "</tr>\n";
}

std::string lane_row(const char* claim, const char* name, const LaneTotal* lane) {
  const std::string words = std::string(claim) + " <span class=\"note\">(" + name + " lane)</span>";
  if (lane == nullptr || lane->cases == 0) {
    return claim_row(words, number_cell("0") + number_cell("0") + number_cell("–") +
                                number_cell("–") + verdict_cell(Verdict::NotRun, 0, "not tested"));
  }
  const bool differs = lane->differing > 0 || lane->margin > 0;
  const Verdict verdict = lane->wrong > 0 ? Verdict::Failed
                          : differs       ? Verdict::Within
                                          : Verdict::Equal;
  const std::string state = lane->wrong > 0 ? grouped(lane->wrong) + " failed" : spoken(verdict);
  return claim_row(words, number_cell(grouped(lane->cases)) + number_cell(grouped(lane->compared)) +
                              number_cell(grouped(lane->differing)) +
                              number_cell(short_number(lane->margin)) +
                              verdict_cell(verdict, lane->margin, state));
}

std::string group_row(const Group& group) {
  const Counts& sum = group.counts;
  const Verdict verdict = group.verdict();
  const int64_t wrong = sum.failed + sum.crashed + sum.timed_out;
  const std::string state =
      wrong > 0 ? grouped(wrong) + " of " + grouped(sum.total()) + " went wrong" : spoken(verdict);
  return claim_row(escape_xml(clipped(group.key[0], 200)),
                   number_cell(grouped(sum.executed())) + number_cell(grouped(sum.compared)) +
                       number_cell(grouped(sum.differing)) +
                       number_cell(short_number(group.margin)) +
                       verdict_cell(verdict, group.margin, state));
}

}  // namespace

std::string page_claims(const Run& run) {
  const Group all = whole(run);
  std::string out = section_open("claims", "Claims") +
                    "<div class=\"wide\"><table>\n<caption>What is promised, and what this run "
                    "found. Differing counts elements whose bits differ where none may; in the "
                    "bounded lane, where they may, all that differ.</caption>\n<thead><tr>"
                    "<th scope=\"col\">Claim</th><th scope=\"col\" class=\"n\">Cases</th>"
                    "<th scope=\"col\" class=\"n\">Elements compared</th>"
                    "<th scope=\"col\" class=\"n\">Differing</th>"
                    "<th scope=\"col\" class=\"n\">Worst share of bound</th>"
                    "<th scope=\"col\">Verdict</th></tr></thead>\n<tbody>\n";
  for (const auto& [name, claim] : kLanes) out += lane_row(claim, name, all.lane(name));
  out += "</tbody>\n";
  for (const auto& [name, title] : kDimensions) {
    std::vector<Group> groups = group_by(run, {name});
    if (groups.size() > 1)  // cases that have no such dimension are counted by others
      groups.erase(std::remove_if(groups.begin(), groups.end(),
                                  [](const Group& group) { return group.key[0] == "-"; }),
                   groups.end());
    if (groups.empty() || (groups.size() == 1 && groups[0].key[0] == "-")) continue;
    out += std::string("<tbody>\n<tr><th class=\"sub\" scope=\"rowgroup\" colspan=\"6\">") + title +
           "</th></tr>\n";
    constexpr size_t kRows = 100;
    for (size_t i = 0; i < groups.size() && i < kRows; ++i) out += group_row(groups[i]);
    out += "</tbody>\n";
  }
  return out + "</table></div>\n</section>\n";
}

std::string page_self_checks(const Run& run) {
  std::string out = section_open("self-checks", "Self-checks") +
                    "<p class=\"lead\">Before its results count, a run plants faults in its own "
                    "data and must catch every one. At least " +
                    std::to_string(kRequiredSelfChecks) + " are required.</p>\n";
  if (run.self_checks.empty()) {
    return out + "<p>No fault was planted: this run proves nothing.</p>\n</section>\n";
  }
  out +=
      "<div class=\"wide\"><table>\n<caption>Faults planted in this run</caption>\n<thead><tr>"
      "<th scope=\"col\">Fault</th><th scope=\"col\">What was done</th><th "
      "scope=\"col\">Caught</th><th scope=\"col\">By</th></tr></thead>\n<tbody>\n";
  for (const SelfCheck& check : run.self_checks) {
    out += "<tr><th scope=\"row\"><code>" + escape_xml(clipped(check.fault, 200)) +
           "</code></th><td>" + escape_xml(clipped(check.what, 600)) + "</td>" +
           (check.caught ? "<td class=\"v m0\"><span>✓ caught</span></td>"
                         : "<td class=\"v bad\"><span>✗ missed</span></td>") +
           "<td>" + escape_xml(clipped(check.by, 600)) + "</td></tr>\n";
  }
  return out + "</tbody></table></div>\n</section>\n";
}

}  // namespace equigrad::reports
