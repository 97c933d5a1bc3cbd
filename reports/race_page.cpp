#include <cstdio>

#include "reports/page.hpp"
#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::string_view kChartStyle = ".chart{display:block;max-width:100%;height:auto}\n";

std::string format(const char* how, double value) {
  char text[64];
  std::snprintf(text, sizeof text, how, value);
  return text;
}

std::string cell(const std::string& text) { return number_cell(escape_xml(text)); }

std::string interval(const char* how, const MedianEstimate& value, double unit) {
  return format(how, value.median / unit) + " [" + format(how, value.low / unit) + ", " +
         format(how, value.high / unit) + "]";
}

std::string megabytes(const std::optional<int64_t>& bytes) {
  return bytes ? format("%.3g", static_cast<double>(*bytes) / 1e6) : "";
}

std::string row_of(const RaceRow& row) {
  std::string out = "<tr><th scope=\"row\">" + escape_xml(clipped(row.contestant, 200)) + "</th>";
  if (row.round_s.empty())
    return out + "<td colspan=\"11\">" + escape_xml(clipped(row.trouble, 600)) + "</td></tr>\n";
  int64_t collectives = 0;
  for (const auto& [name, count] : row.collectives) collectives += count;
  std::string gathered;
  if (row.gathered_numel && row.least_gathered_numel)
    gathered = grouped(*row.gathered_numel) + " / " + grouped(*row.least_gathered_numel);
  const std::string proof = !row.is_proven                ? ""
                            : row.differing_elements == 0 ? "every bit"
                                                          : format("%.2g", row.proof_margin);
  return out + cell(interval("%.3g", row.step_s, 1e-3)) + cell(interval("%.2f", row.to_base, 1)) +
         cell(format("%.3g", row.best_step_s * 1e3)) + cell(interval("%.2f", row.cpu_to_base, 1)) +
         cell(grouped(static_cast<int64_t>(row.tokens_per_s))) + cell(megabytes(row.growth_bytes)) +
         cell(megabytes(row.held_peak_bytes)) + cell(megabytes(row.wire_bytes)) +
         cell(row.collectives.empty() ? "" : grouped(collectives)) + cell(gathered) + cell(proof) +
         "</tr>\n";
}

std::string group_of(const RaceGroupResult& group) {
  std::string out = "<h3>" + escape_xml(clipped(group.name, 200)) + "</h3>\n<p>" +
                    escape_xml(group.model) + ": " + grouped(group.parameters) + " parameters, " +
                    count_of(group.ranks, "rank") + ", accumulation " +
                    std::to_string(group.accumulation) + ", " + grouped(group.tokens_per_step) +
                    " tokens a step, " + count_of(group.rounds, "round") + " of " +
                    count_of(group.steps_per_round, "step") + ".";
  if (group.compute_limit_s > 0)
    out += " Limits: " + format("%.3g", group.compute_limit_s * 1e3) +
           " ms to compute without communication, " + format("%.3g", group.wire_limit_s * 1e3) +
           " ms for the bytes that " + escape_xml(group.base) + " sends.";
  out += "</p>\n" + ratio_drawing(group) +
         "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">Contestant</th>";
  for (const std::string& name :
       {std::string("Step, ms"), "/ " + group.base, std::string("Best, ms"), "CPU / " + group.base,
        std::string("Tokens/s"), std::string("Peak over base, MB"),
        std::string("Ledger&#39;s peak, MB"), std::string("Sent, MB"), std::string("Collectives"),
        std::string("Gathered / least, elements"),
        std::string("First gradients: share of the bound")})
    out += "<th scope=\"col\" class=\"n\">" + name + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const RaceRow& row : group.rows) out += row_of(row);
  return out + "</tbody></table></div>\n";
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
  Run run;  // what the environment's section reads
  run.environment = race.environment;
  run.command = race.command;
  run.wall_s = race.wall_s;
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Equigrad race</title>\n<style>" +
      std::string(page_style()) + std::string(kChartStyle) +
      "</style>\n</head>\n<body>\n<header class=\"held\">\n<p class=\"brand\">Equigrad race, " +
      escape_xml(race.environment.time) + "</p>\n<h1>How fast, beside whom</h1>\n</header>\n" +
      "<main>\n" + section_open("race", "Race") + lead_of(race);
  for (const auto& [title, along, points] : scaling_series(race))
    out += "<h3>" + escape_xml(title) + "</h3>\n" + scaling_drawing(title, along, points);
  for (const RaceGroupResult& group : race.groups) out += group_of(group);
  return out + "</section>\n" + page_environment(run) + "</main>\n<footer><p>Written by equigrad " +
         escape_xml(race.environment.version) +
         ". The same data for programs: race.json.</p></footer>\n</body>\n</html>\n";
}

}  // namespace equigrad::reports
