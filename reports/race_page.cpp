#include <cstdio>

#include "reports/document.hpp"
#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string format(const char* how, double value) {
  char text[64];
  std::snprintf(text, sizeof text, how, value);
  return text;
}

std::string interval(const char* how, const MedianEstimate& value, double unit) {
  return format(how, value.median / unit) + " [" + format(how, value.low / unit) + ", " +
         format(how, value.high / unit) + "]";
}

std::string megabytes(const std::optional<int64_t>& bytes) {
  return bytes ? format("%.3g", static_cast<double>(*bytes) / 1e6) : "";
}

std::string row_of(const RaceRow& of) {
  const std::string name = shown(of.contestant, 200);
  if (of.round_s.empty())
    return row(name, "<td colspan=\"11\">" + shown(of.trouble, 600) + "</td>");
  int64_t collectives = 0;
  for (const auto& [kind, count] : of.collectives) collectives += count;
  std::string gathered;
  if (of.gathered_numel && of.least_gathered_numel)
    gathered = grouped(*of.gathered_numel) + " / " + grouped(*of.least_gathered_numel);
  const std::string proof = !of.is_proven                ? ""
                            : of.differing_elements == 0 ? "every bit"
                                                         : format("%.2g", of.proof_margin);
  return row(name, number_cell(interval("%.3g", of.step_s, 1e-3)) +
                       number_cell(interval("%.2f", of.to_base, 1)) +
                       number_cell(format("%.3g", of.best_step_s * 1e3)) +
                       number_cell(interval("%.2f", of.cpu_to_base, 1)) +
                       number_cell(grouped(static_cast<int64_t>(of.tokens_per_s))) +
                       number_cell(megabytes(of.growth_bytes)) +
                       number_cell(megabytes(of.held_peak_bytes)) +
                       number_cell(megabytes(of.wire_bytes)) +
                       number_cell(of.collectives.empty() ? "" : grouped(collectives)) +
                       number_cell(gathered) + number_cell(proof));
}

std::string group_of(const RaceGroupResult& group) {
  std::string out = "<h3>" + shown(group.name, 200) + "</h3>\n<p>" + escape_xml(group.model) +
                    ": " + grouped(group.parameters) + " parameters, " +
                    count_of(group.ranks, "rank") + ", accumulation " +
                    std::to_string(group.accumulation) + ", " + grouped(group.tokens_per_step) +
                    " tokens a step, " + count_of(group.rounds, "round") + " of " +
                    count_of(group.steps_per_round, "step") + ".";
  if (group.compute_limit_s > 0)
    out += " Limits: " + format("%.3g", group.compute_limit_s * 1e3) +
           " ms to compute without communication, " + format("%.3g", group.wire_limit_s * 1e3) +
           " ms for the bytes that " + escape_xml(group.base) + " sends.";
  std::vector<Column> columns = {{"Contestant"}};
  for (const std::string& name :
       {std::string("Step, ms"), "/ " + escape_xml(group.base), std::string("Best, ms"),
        "CPU / " + escape_xml(group.base), std::string("Tokens/s"),
        std::string("Peak over base, MB"), std::string("Ledger&#39;s peak, MB"),
        std::string("Sent, MB"), std::string("Collectives"),
        std::string("Gathered / least, elements"),
        std::string("First gradients: share of the bound")})
    columns.push_back({name, true});
  std::string rows;
  for (const RaceRow& one : group.rows) rows += row_of(one);
  return out + "</p>\n" + ratio_drawing(group) +
         table("Step times, bytes and proofs by contestant", table_head(columns), rows);
}

std::string lead_of(const Race& race) {
  return "<p class=\"lead\">Times are medians over interleaved rounds with their 95 % interval, "
         "the slowest rank&#39;s; a ratio is of two times of one round. Bytes and collectives are "
         "a rank&#39;s, of one step. Load of the machine before " +
         format("%.2g", race.load_before) + ", after " + format("%.2g", race.load_after) + "; " +
         format("%.3g", race.bandwidth_bytes_per_s / 1e9) +
         " GB/s one way between two ranks.</p>\n";
}

}  // namespace

std::string to_html(const Race& race) {
  std::string out = lead_of(race);
  for (const auto& [title, along, points] : scaling_series(race))
    out += "<h3>" + escape_xml(title) + "</h3>\n" + scaling_drawing(title, along, points);
  for (const RaceGroupResult& group : race.groups) out += group_of(group);
  return to_html(Document{.origin = {race.environment, race.command, 0, race.wall_s},
                          .brand = "Equigrad race",
                          .tone = "held",
                          .mark = {},
                          .heading = "How fast, beside whom",
                          .title = "Equigrad race",
                          .banner_html = {},
                          .links = {},
                          .html = section("race", "Race", out),
                          .end_html = {},
                          .data_file = "race.json"});
}

}  // namespace equigrad::reports
