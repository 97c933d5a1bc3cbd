#include "reports/race.hpp"

#include <sstream>

#include "reports/document.hpp"
#include "reports/table.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string interval_text(const char* format, const MedianEstimate& value, double unit) {
  return formatted(format, value.median / unit) + " [" + formatted(format, value.low / unit) +
         ", " + formatted(format, value.high / unit) + "]";
}

std::string milliseconds_text(double seconds) { return formatted("%.3g", seconds * 1e3); }
std::string milliseconds_text(const MedianEstimate& time) {
  return interval_text("%.3g", time, 1e-3);
}
// Where the base has no time there is no ratio.
std::string ratio_text(const MedianEstimate& ratio) {
  return ratio.median > 0 ? interval_text("%.2f", ratio, 1) : "-";
}

std::string megabytes_text(const std::optional<int64_t>& bytes) {
  return bytes ? formatted("%.3g", static_cast<double>(*bytes) / 1e6) : "";
}

std::string gathered_text(const RaceRow& row) {
  if (!row.gathered_numel || !row.least_gathered_numel) return "";
  return grouped(*row.gathered_numel) + " / " + grouped(*row.least_gathered_numel);
}

// `beyond`: before the share of the bound.
std::string proof_text(const RaceRow& row, const char* beyond) {
  if (!row.is_proven) return "";
  return row.differing_elements == 0 ? "every bit" : beyond + formatted("%.2g", row.proof_margin);
}

std::string limits_text(const RaceGroupResult& group) {
  if (!(group.compute_limit_s > 0)) return {};
  return " Limits: " + milliseconds_text(group.compute_limit_s) +
         " ms to compute without communication" +
         (group.wire_limit_s > 0 ? ", " + milliseconds_text(group.wire_limit_s) +
                                       " ms for the bytes that " + group.base + " sends."
                                 : ".");
}

// 7 lives of 4 rounds of 3 steps
std::string rounds_text(const RaceGroupResult& group) {
  const auto lives = group.lives > 1 ? std::to_string(group.lives) + " lives of " : std::string();
  return lives + count_of(group.rounds, "round") + " of " + count_of(group.steps_per_round, "step");
}

std::string machine_text(const Race& race) {
  return "Load of the machine before " + formatted("%.2g", race.load_before) + ", after " +
         formatted("%.2g", race.load_after) + "; " +
         formatted("%.3g", race.bandwidth_bytes_per_s / 1e9) +
         " GB/s one way between two ranks over TCP.";
}

std::string collectives(const RaceRow& row) {
  std::string out;
  for (const auto& [name, count] : row.collectives)
    out += (out.empty() ? "" : ", ") + std::to_string(count) + " " + escape_markdown(name);
  return out;
}

void write_row(std::ostringstream& out, const RaceRow& row) {
  out << "| " << escape_markdown(row.contestant);
  if (row.round_s.empty())
    out << " | " << escape_markdown(first_line(row.trouble)) << " | | | | | | | | | | | | |\n";
  else
    out << markdown_cells(
               {milliseconds_text(row.step_s), ratio_text(row.to_base),
                milliseconds_text(row.best_step_s), milliseconds_text(row.cpu_s),
                ratio_text(row.cpu_to_base), grouped(static_cast<int64_t>(row.tokens_per_s)),
                megabytes_text(row.growth_bytes), megabytes_text(row.held_peak_bytes),
                megabytes_text(row.wire_bytes), collectives(row), gathered_text(row),
                row.allocations ? grouped(*row.allocations) : "", proof_text(row, "bound: ")})
        << "\n";
}

// GPT, 2 layers: 1,600 parameters; 2 ranks, accumulation 1, 8 tokens a step; 3 rounds of 2 steps.
std::string group_text(const RaceGroupResult& group) {
  return group.model + ": " + grouped(group.parameters) + " parameters; " +
         count_of(group.ranks, "rank") + ", accumulation " + std::to_string(group.accumulation) +
         ", " + grouped(group.tokens_per_step) + " tokens a step; " + rounds_text(group) + "." +
         limits_text(group);
}

void write_group(std::ostringstream& out, const RaceGroupResult& group) {
  out << "\n### " << escape_markdown(group.name) << "\n\n"
      << escape_markdown(group_text(group)) << "\n\n| contestant | step, ms | / "
      << escape_markdown(group.base) << " | best, ms | CPU, ms | CPU / "
      << escape_markdown(group.base)
      << " | tokens/s | peak over base, MB | ledger's peak, MB | sent, MB | collectives | "
         "gathered / least, elements | allocations | first gradients |\n"
      << "|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|:--|--:|--:|:--|\n";
  for (const RaceRow& row : group.rows) write_row(out, row);
}

constexpr const char* kProof = "of bound";

// Of one that fell the name alone.
std::vector<TableRow> terminal_rows(const RaceGroupResult& group, bool has_intervals) {
  std::vector<TableRow> rows = {
      {"contestant", "step, ms", "/ " + first_line(clean(group.base)), kProof}};
  for (const RaceRow& of : group.rows) {
    TableRow& row = rows.emplace_back(TableRow{first_line(clean(of.contestant))});
    if (of.round_s.empty()) continue;
    row.push_back(has_intervals ? milliseconds_text(of.step_s)
                                : milliseconds_text(of.step_s.median));
    row.push_back(has_intervals || !(of.to_base.median > 0) ? ratio_text(of.to_base)
                                                            : formatted("%.2f", of.to_base.median));
    row.push_back(proof_text(of, ""));
  }
  return rows;
}

void write_terminal(std::ostringstream& out, const RaceGroupResult& group, std::size_t columns) {
  auto rows = terminal_rows(group, true);
  const bool has_intervals = line_width(rows) <= columns;
  if (!has_intervals) rows = terminal_rows(group, false);
  auto left_out = narrow(rows, columns, {kProof, "step, ms"});
  if (!has_intervals) left_out.insert(left_out.begin(), "intervals");
  out << "#\n" << fitted("# " + clean(group.name + ": " + group_text(group)) + "\n", columns);
  const auto lines = aligned_lines(rows);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool has_fallen = i > 0 && group.rows[i - 1].round_s.empty();
    const std::string trouble =
        has_fallen ? "  " + first_line(clean(group.rows[i - 1].trouble)) : "";
    out << wrapped(lines[i] + trouble, columns, "    ");
  }
  if (!left_out.empty())
    out << fitted("# too wide, in race.md: " + joined(left_out, ", ") + "\n", columns);
}

std::string row_of(const RaceRow& of) {
  const std::string name = shown(of.contestant, 200);
  if (of.round_s.empty())
    return row(name, "<td colspan=\"11\">" + shown(of.trouble, 600) + "</td>");
  int64_t all_collectives = 0;
  for (const auto& [kind, count] : of.collectives) all_collectives += count;
  return row(name, number_cells({milliseconds_text(of.step_s), ratio_text(of.to_base),
                                 milliseconds_text(of.best_step_s), ratio_text(of.cpu_to_base),
                                 grouped(static_cast<int64_t>(of.tokens_per_s)),
                                 megabytes_text(of.growth_bytes),
                                 megabytes_text(of.held_peak_bytes), megabytes_text(of.wire_bytes),
                                 of.collectives.empty() ? "" : grouped(all_collectives),
                                 gathered_text(of), proof_text(of, "")}));
}

std::string group_of(const RaceGroupResult& group) {
  const std::string base = escape_xml(group.base);
  std::string rows;
  for (const RaceRow& one : group.rows) rows += row_of(one);
  return "<h3>" + shown(group.name, 200) + "</h3>\n<p>" + escape_xml(group.model) + ": " +
         grouped(group.parameters) + " parameters, " + count_of(group.ranks, "rank") +
         ", accumulation " + std::to_string(group.accumulation) + ", " +
         grouped(group.tokens_per_step) + " tokens a step, " + rounds_text(group) + "." +
         escape_xml(limits_text(group)) + "</p>\n" + ratio_drawing(group) +
         table("Step times, bytes and proofs by contestant",
               heads({"Contestant"}) +
                   number_heads({"Step, ms", "/ " + base, "Best, ms", "CPU / " + base, "Tokens/s",
                                 "Peak over base, MB", "Ledger&#39;s peak, MB", "Sent, MB",
                                 "Collectives", "Gathered / least, elements",
                                 "First gradients: share of the bound"}),
               rows);
}

// Of the fastest of ours in each group, beside the base: nothing is said that its interval leaves
// open.
std::string sentences_of(const Race& race) {
  std::string out;
  for (const RaceGroupResult& group : race.groups) {
    const RaceRow* ours = nullptr;
    for (const RaceRow& one : group.rows)
      if (one.contestant.starts_with("Equigrad") && one.to_base.median > 0 &&
          (ours == nullptr || one.to_base.median < ours->to_base.median))
        ours = &one;
    if (ours == nullptr || ours->contestant == group.base) continue;
    const char* verdict = ours->to_base.high < 1  ? " is faster than "
                          : ours->to_base.low > 1 ? " is slower than "
                                                  : " cannot be told apart from ";
    out += paragraph(escape_xml(group.name + ": " + ours->contestant + verdict + group.base + ", " +
                                formatted("%.2f", ours->to_base.median) + " [" +
                                formatted("%.2f", ours->to_base.low) + ", " +
                                formatted("%.2f", ours->to_base.high) + "] of its step time."));
  }
  return out;
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
  out << ". " << machine_text(race) << "\n\n"
      << "A time is the median over interleaved rounds [its 95 % interval; of fewer than six "
         "values "
         "the least and the largest], the slowest rank's; a ratio is of two times of one round. "
         "Where there are several lives, all are started anew for each, and a life is one value, "
         "the median of its rounds. `CPU` is the time of all threads of all ranks, which "
         "other work on the machine hardly changes. `sent` and `collectives`: a rank's, of one "
         "step.\n";
  for (const RaceGroupResult& group : race.groups) write_group(out, group);
  return out.str();
}

std::string to_terminal(const Race& race, std::size_t columns) {
  std::ostringstream out;
  const Environment& env = race.environment;
  out << fitted(
      "# equigrad " + clean(env.version) + "   commit " + clean(env.commit) + "   " +
          clean(env.cpu) + " x" + std::to_string(env.cores) + "   " + seconds_text(race.wall_s) +
          "\n# " + machine_text(race) +
          "\n# Medians over interleaved rounds [95 % intervals; of fewer than six values "
          "the range]; a ratio is of two times of one round, below 1 is faster; of bound: "
          "how far the first gradients are off, of what they may be.\n",
      columns);
  for (const RaceGroupResult& group : race.groups) write_terminal(out, group, columns);
  return out.str();
}

std::string to_html(const Race& race) {
  std::string out =
      "<p class=\"lead\">Times are medians over interleaved rounds with their 95 % interval (of "
      "fewer "
      "than six values the least and the largest), the slowest rank&#39;s; a ratio is of two times "
      "of one round. Where there are several lives, all are started anew for each, and a life is "
      "one value, the median of its rounds. Bytes and collectives are a "
      "rank&#39;s, of one step. " +
      machine_text(race) + "</p>\n";
  for (const auto& [title, along, points] : scaling_series(race))
    out += "<h3>" + escape_xml(title) + "</h3>\n" + scaling_drawing(title, along, points);
  for (const RaceGroupResult& group : race.groups) out += group_of(group);
  return to_html(Document{.origin = {race.environment, race.command, 0, race.wall_s},
                          .brand = "Equigrad race",
                          .outcome = {},
                          .heading = "How fast, beside whom",
                          .title = "Equigrad race",
                          .banner_html = sentences_of(race),
                          .html = section("race", "Race", out),
                          .data_file = "race.json"});
}

}  // namespace equigrad::reports
