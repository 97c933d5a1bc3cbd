#include <cstdio>
#include <sstream>

#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string format(const char* how, double value) {
  char text[64];
  std::snprintf(text, sizeof text, how, value);
  return text;
}

std::string estimate(const char* how, const MedianEstimate& value, double unit) {
  return format(how, value.median / unit) + " [" + format(how, value.low / unit) + ", " +
         format(how, value.high / unit) + "]";
}

std::string megabytes(const std::optional<int64_t>& bytes) {
  return bytes ? format("%.3g", static_cast<double>(*bytes) / 1e6) : "";
}

std::string collectives(const RaceRow& row) {
  std::string out;
  for (const auto& [name, count] : row.collectives)
    out += (out.empty() ? "" : ", ") + std::to_string(count) + " " + escape_markdown(name);
  return out;
}

std::string gathered(const RaceRow& row) {
  if (!row.gathered_numel || !row.least_gathered_numel) return "";
  return grouped(*row.gathered_numel) + " / " + grouped(*row.least_gathered_numel);
}

std::string proof(const RaceRow& row) {
  if (!row.is_proven) return "";
  return row.differing_elements == 0 ? "every bit" : "bound: " + format("%.2g", row.proof_margin);
}

void write_row(std::ostringstream& out, const RaceRow& row) {
  out << "| " << escape_markdown(row.contestant) << " | ";
  if (row.round_s.empty()) {
    out << escape_markdown(first_line(row.trouble)) << " | | | | | | | | | | | | |\n";
    return;
  }
  out << estimate("%.3g", row.step_s, 1e-3) << " | " << estimate("%.2f", row.to_base, 1) << " | "
      << format("%.3g", row.best_step_s * 1e3) << " | " << estimate("%.3g", row.cpu_s, 1e-3)
      << " | " << estimate("%.2f", row.cpu_to_base, 1) << " | "
      << grouped(static_cast<int64_t>(row.tokens_per_s)) << " | " << megabytes(row.growth_bytes)
      << " | " << megabytes(row.held_peak_bytes) << " | " << megabytes(row.wire_bytes) << " | "
      << collectives(row) << " | " << gathered(row) << " | "
      << (row.allocations ? grouped(*row.allocations) : "") << " | " << proof(row) << " |\n";
}

void write_group(std::ostringstream& out, const RaceGroupResult& group) {
  out << "\n### " << escape_markdown(group.name) << "\n\n"
      << escape_markdown(group.model) << ": " << grouped(group.parameters) << " parameters; "
      << count_of(group.ranks, "rank") << ", accumulation " << group.accumulation << ", "
      << grouped(group.tokens_per_step) << " tokens a step; " << count_of(group.rounds, "round")
      << " of " << count_of(group.steps_per_round, "step") << ".";
  if (group.compute_limit_s > 0)
    out << " Limits: " << format("%.3g", group.compute_limit_s * 1e3)
        << " ms to compute without communication, " << format("%.3g", group.wire_limit_s * 1e3)
        << " ms for the bytes that " << escape_markdown(group.base) << " sends.";
  out << "\n\n| contestant | step, ms | / " << escape_markdown(group.base)
      << " | best, ms | CPU, ms | CPU / " << escape_markdown(group.base)
      << " | tokens/s | peak over base, MB | ledger's peak, MB | sent, MB | collectives | "
         "gathered / least, elements | allocations | first gradients |\n"
      << "|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|:--|--:|--:|:--|\n";
  for (const RaceRow& row : group.rows) write_row(out, row);
}

}  // namespace

std::string to_markdown(const Race& race) {
  std::ostringstream out;
  const Environment& env = race.environment;
  out << "## Equigrad race\n\nequigrad " << escape_markdown(env.version) << ", commit "
      << escape_markdown(env.commit) << ", " << escape_markdown(env.compiler) << ", "
      << escape_markdown(env.cpu) << " x" << env.cores << ", " << escape_markdown(env.time) << ", "
      << seconds_text(race.wall_s) << "; one thread a rank, Gloo";
  for (const auto& [name, version] : race.versions)
    out << ", " << escape_markdown(name) << " " << escape_markdown(version);
  out << ". Load of the machine before " << format("%.2g", race.load_before) << ", after "
      << format("%.2g", race.load_after) << "; " << format("%.3g", race.bandwidth_bytes_per_s / 1e9)
      << " GB/s one way between two ranks.\n\n"
      << "A time is the median over interleaved rounds [its 95 % interval], the slowest rank's; a "
         "ratio is of two times of one round. `CPU` is the time of all threads of all ranks, which "
         "other work on the machine hardly changes. `sent` and `collectives`: a rank's, of one "
         "step.\n";
  for (const RaceGroupResult& group : race.groups) write_group(out, group);
  return out.str();
}

}  // namespace equigrad::reports
