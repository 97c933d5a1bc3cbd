#include <cmath>
#include <cstdio>
#include <sstream>

#include "reports/comparison.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::string_view kChartStyle = ".chart{display:block;max-width:100%;height:auto}\n";

std::string cell(const std::string& text) { return number_cell(escape_xml(text)); }

std::string row_head(const std::string& text) {
  return "<tr><th scope=\"row\">" + escape_xml(clipped(text, 200)) + "</th>";
}

std::string head_of(std::initializer_list<const char*> names) {
  std::string out = "<thead><tr>";
  for (const char* name : names)
    out += std::string("<th scope=\"col\"") + (out.size() > 11 ? " class=\"n\">" : ">") + name +
           "</th>";
  return out + "</tr></thead>\n<tbody>\n";
}

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", ratio);
  return std::isfinite(ratio) ? text : shortest(ratio);
}

std::string interval_name(const Comparison& comparison) {
  return shortest(std::round(100 * comparison.confidence)) + " %";
}

std::string quantities_table(const Comparison& comparison) {
  std::string out = "<div class=\"wide\"><table>\n<caption>Means over " +
                    std::to_string(comparison.pairs) + " pairs, with " + interval_name(comparison) +
                    " intervals. B - A is of pairs.</caption>\n" +
                    head_of({"", "A", "B", "B - A", "B / A"});
  for (const ComparedQuantity& quantity : comparison.quantities)
    out += row_head(quantity.name) + cell(estimate_text(quantity.each[0], quantity.unit)) +
           cell(estimate_text(quantity.each[1], quantity.unit)) +
           cell(estimate_text(quantity.difference, quantity.unit, true)) +
           cell(ratio_text(quantity.ratio)) + "</tr>\n";
  return out + "</tbody></table></div>\n";
}

std::string runs_table(const Comparison& comparison) {
  std::string out =
      "<div class=\"wide\"><table>\n<caption>Every run, in the order in which they were run. Held "
      "is what the engine&#39;s ledger counts, process what the operating system does; the "
      "largest rank&#39;s.</caption>\n" +
      head_of({"Seed", "Run", "Steps", "Final loss", "Mean loss", "Step", "Held", "Held, peak",
               "Process, peak", "Skipped"});
  for (const ComparedRun& run : comparison.runs) {
    const auto bytes = [](int64_t count) { return cell(bytes_text(count)); };
    out += row_head(std::to_string(run.seed)) + cell(run.configuration == 0 ? "A" : "B") +
           cell(grouped(static_cast<int64_t>(run.losses.size())));
    if (run.complete)
      out += cell(value_text(run.final_loss, "nats")) + cell(value_text(run.mean_loss, "nats")) +
             cell(value_text(run.step_s, "s")) + bytes(run.held_bytes) +
             bytes(run.held_peak_bytes) + bytes(run.process_peak_bytes) +
             cell(grouped(run.skipped_steps));
    else
      out += "<td colspan=\"7\">" + escape_xml(clipped(run.trouble, 600)) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string configurations_of(const Comparison& comparison) {
  std::string out;
  for (std::size_t i = 0; i < 2; ++i)
    out += std::string("<h3>") + (i == 0 ? "A: " : "B: ") +
           escape_xml(clipped(comparison.configurations[i].name, 200)) + "</h3>\n<pre>" +
           escape_xml(clipped(comparison.configurations[i].text, 10'000)) + "</pre>\n";
  return out;
}

std::string banner(const Comparison& comparison) {
  const auto outcome = comparison.outcome;
  const bool good = outcome == ComparisonOutcome::Equivalent;
  const bool open = outcome == ComparisonOutcome::Inconclusive;
  std::string title(word(outcome));
  const std::string tone = good                                      ? "held"
                           : outcome == ComparisonOutcome::Different ? "failed"
                                                                     : title;
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  return "<header class=\"" + tone + "\">\n<p class=\"brand\">Equigrad compare, " +
         escape_xml(comparison.environment.time) + "</p>\n<h1><span aria-hidden=\"true\">" +
         (good   ? "✓"
          : open ? "?"
                 : "✗") +
         "</span> " + title + "</h1>\n<p>" + escape_xml(clipped(comparison.reason, 2000)) +
         "</p>\n<p class=\"note\">Margin: " + escape_xml(margin_text(comparison)) +
         ".</p>\n</header>\n";
}

}  // namespace

std::string page_compare(const Comparison& comparison) {
  std::string out = section_open("compare", "Compare") + "<p class=\"lead\">" +
                    escape_xml(comparison.data + "; " + comparison.model) + "; " +
                    grouped(comparison.parameters) + " parameters, " +
                    count_of(comparison.ranks, "rank") + ", " + count_of(comparison.steps, "step") +
                    " of " + grouped(comparison.tokens_per_step) + " tokens, " +
                    count_of(static_cast<int64_t>(comparison.seeds.size()), "seed") +
                    ". The final loss is the mean of the last " +
                    count_of(comparison.final_steps, "step") + ".</p>\n";
  if (!comparison.curve.empty())
    out += "<p>Loss, mean over seeds and its " + interval_name(comparison) + " interval:</p>\n" +
           loss_drawing(comparison) + "<p>The same of the pairs&#39; difference:</p>\n" +
           difference_drawing(comparison);
  if (!comparison.quantities.empty()) out += quantities_table(comparison);
  const std::string test = equivalence_text(comparison);
  if (!test.empty()) out += "<p>" + escape_xml(test) + "</p>\n";
  return out + runs_table(comparison) + configurations_of(comparison) + "</section>\n";
}

std::string to_html(const Comparison& comparison) {
  Run run;  // what the environment's section reads
  run.environment = comparison.environment;
  run.command = comparison.command;
  run.seed = comparison.seeds.empty() ? 0 : comparison.seeds.front();
  run.wall_s = comparison.wall_s;
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Equigrad compare: " +
         std::string(word(comparison.outcome)) + "</title>\n<style>" + std::string(page_style()) +
         std::string(kChartStyle) + "</style>\n</head>\n<body>\n" + banner(comparison) +
         "<main>\n" + page_compare(comparison) + page_environment(run) +
         "</main>\n<footer><p>Written by equigrad " + escape_xml(comparison.environment.version) +
         ". The same data for programs: compare.json.</p></footer>\n</body>\n</html>\n";
}

}  // namespace equigrad::reports
