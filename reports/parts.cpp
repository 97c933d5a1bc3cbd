#include "reports/parts.hpp"

#include <algorithm>

#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

const char* verdict_of(const Counts& sum) {
  if (sum.failed > 0) return "FAILED";
  if (sum.went_wrong() > 0) return "BROKEN";
  if (sum.not_run > 0) return "NOT ALL RUN";
  return sum.compared == 0 || sum.vacuous > 0 ? "INCONCLUSIVE" : "HELD";
}

std::string problems(const Counts& sum) {
  std::string out;
  for (const Verdict verdict :
       {Verdict::Failed, Verdict::Crashed, Verdict::TimedOut, Verdict::NotRun})
    if (sum.of(verdict) > 0) out += ", " + grouped(sum.of(verdict)) + " " + spoken(verdict);
  if (sum.vacuous > 0) out += ", " + grouped(sum.vacuous) + " empty";
  return out;
}

}  // namespace

std::vector<PartRange> part_ranges(const Run& run) {
  if (run.parts.empty()) return {{"", 0, run.cases.size()}};
  std::vector<PartRange> ranges;
  std::size_t begin = 0;
  for (const Part& part : run.parts) {
    const auto end = std::min(begin + static_cast<std::size_t>(part.cases), run.cases.size());
    ranges.push_back({part.name, begin, end});
    begin = end;
  }
  return ranges;
}

std::vector<std::string> part_lines(const Run& run) {
  std::vector<std::string> lines;
  const auto ranges = part_ranges(run);
  for (std::size_t i = 0; i < run.parts.size(); ++i) {
    Counts sum;
    for (auto at = ranges[i].begin; at < ranges[i].end; ++at) sum.add(run.cases[at]);
    lines.push_back(run.parts[i].name + ": " + verdict_of(sum) + "  " +
                    count_of(run.parts[i].cases, "case") + problems(sum) + ", " +
                    elements_text(sum, run.parts[i].wall_s));
  }
  return lines;
}

}  // namespace equigrad::reports
