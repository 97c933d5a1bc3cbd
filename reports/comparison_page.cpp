#include <cmath>
#include <cstdio>

#include "reports/comparison.hpp"
#include "reports/document.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", ratio);
  return std::isfinite(ratio) ? text : shortest(ratio);
}

std::string interval_name(const Comparison& comparison) {
  return shortest(std::round(100 * comparison.confidence)) + " %";
}

std::string quantities_table(const Comparison& comparison) {
  std::string rows;
  for (const ComparedQuantity& one : comparison.quantities)
    rows +=
        row(shown(one.name, 200), number_cell(estimate_text(one.each[0], one.unit)) +
                                      number_cell(estimate_text(one.each[1], one.unit)) +
                                      number_cell(estimate_text(one.difference, one.unit, true)) +
                                      number_cell(ratio_text(one.ratio)));
  return table("Means over " + std::to_string(comparison.pairs) + " pairs, with " +
                   interval_name(comparison) + " intervals. B - A is of pairs.",
               table_head({{""}, {"A", true}, {"B", true}, {"B - A", true}, {"B / A", true}}),
               rows);
}

std::string runs_table(const Comparison& comparison) {
  std::string rows;
  for (const ComparedRun& run : comparison.runs) {
    const auto bytes = [](int64_t count) { return number_cell(bytes_text(count)); };
    std::string cells = number_cell(run.configuration == 0 ? "A" : "B") +
                        number_cell(grouped(static_cast<int64_t>(run.losses.size())));
    if (run.complete)
      cells += number_cell(value_text(run.final_loss, "nats")) +
               number_cell(value_text(run.mean_loss, "nats")) +
               number_cell(value_text(run.step_s, "s")) + bytes(run.held_bytes) +
               bytes(run.held_peak_bytes) + bytes(run.process_peak_bytes) +
               number_cell(grouped(run.skipped_steps));
    else
      cells += "<td colspan=\"7\">" + shown(run.trouble, 600) + "</td>";
    rows += row(std::to_string(run.seed), cells);
  }
  std::vector<Column> columns = {{"Seed"}};
  for (const char* name : {"Run", "Steps", "Final loss", "Mean loss", "Step", "Held", "Held, peak",
                           "Process, peak", "Skipped"})
    columns.push_back({name, true});
  return table(
      "Every run, in the order in which they were run. Held is what the engine&#39;s "
      "ledger counts, process what the operating system does; the largest rank&#39;s.",
      table_head(columns), rows);
}

std::string configurations_of(const Comparison& comparison) {
  std::string out;
  for (std::size_t i = 0; i < 2; ++i)
    out += std::string("<h3>") + (i == 0 ? "A: " : "B: ") +
           shown(comparison.configurations[i].name, 200) + "</h3>\n<pre>" +
           shown(comparison.configurations[i].text, 10'000) + "</pre>\n";
  return out;
}

}  // namespace

std::string page_compare(const Comparison& comparison) {
  std::string out = "<p class=\"lead\">" + escape_xml(comparison.data + "; " + comparison.model) +
                    "; " + grouped(comparison.parameters) + " parameters, " +
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
  return section("compare", "Compare",
                 out + runs_table(comparison) + configurations_of(comparison));
}

std::string to_html(const Comparison& comparison) {
  const auto outcome = comparison.outcome;
  const bool good = outcome == ComparisonOutcome::Equivalent;
  const bool different = outcome == ComparisonOutcome::Different;
  const uint64_t seed = comparison.seeds.empty() ? 0 : comparison.seeds.front();
  return to_html(Document{
      .origin = {comparison.environment, comparison.command, seed, comparison.wall_s},
      .brand = "Equigrad compare",
      .tone = good        ? "held"
              : different ? "failed"
                          : word(outcome),
      .mark = mark_of(good, outcome == ComparisonOutcome::Inconclusive),
      .heading = capitalised(word(outcome)),
      .title = "Equigrad compare: " + std::string(word(outcome)),
      .banner_html = "<p>" + shown(comparison.reason, 2000) + "</p>\n<p class=\"note\">Margin: " +
                     escape_xml(margin_text(comparison)) + ".</p>\n",
      .links = {},
      .html = page_compare(comparison),
      .end_html = {},
      .data_file = "compare.json"});
}

}  // namespace equigrad::reports
