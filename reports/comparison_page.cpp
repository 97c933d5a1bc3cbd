#include <cmath>

#include "reports/comparison.hpp"
#include "reports/document.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string interval_name(const Comparison& comparison) {
  return shortest(std::round(100 * comparison.confidence)) + " %";
}

std::string quantities_table(const Comparison& comparison) {
  std::string rows;
  for (const ComparedQuantity& one : comparison.quantities)
    rows += row(shown(one.name, 200), number_cells(cells_of(one)));
  return table("Means over " + std::to_string(comparison.pairs) + " pairs, with " +
                   interval_name(comparison) + " intervals. B - A is of pairs.",
               heads({""}) + number_heads({"A", "B", "B - A", "B / A"}), rows);
}

std::string runs_table(const Comparison& comparison) {
  std::string rows;
  for (const ComparedRun& run : comparison.runs) {
    const std::string cells =
        run.complete ? number_cells(cells_of(run)) + number_cells({grouped(run.skipped_steps)})
                     : "<td colspan=\"7\">" + shown(run.trouble, 600) + "</td>";
    rows += row(std::to_string(run.seed),
                number_cells({letter_of(run), grouped(run.losses.size())}) + cells);
  }
  return table(
      "Every run, in the order in which they were run. Held is what the engine&#39;s "
      "ledger counts, process what the operating system does; the largest rank&#39;s.",
      heads({"Seed"}) + number_heads({"Run", "Steps", "Final loss", "Mean loss", "Step", "Held",
                                      "Held, peak", "Process, peak", "Skipped"}),
      rows);
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
                    count_of(comparison.seeds.size(), "seed") +
                    ". The final loss is the mean of the last " +
                    count_of(comparison.final_steps, "step") + ".</p>\n";
  if (!comparison.curve.empty())
    out += "<p>Loss, mean over seeds and its " + interval_name(comparison) + " interval:</p>\n" +
           loss_drawing(comparison) + "<p>The same of the pairs&#39; difference:</p>\n" +
           difference_drawing(comparison);
  if (!comparison.quantities.empty()) out += quantities_table(comparison);
  const std::string test = equivalence_text(comparison);
  if (!test.empty()) out += paragraph(escape_xml(test));
  return section("compare", "Compare",
                 out + runs_table(comparison) + configurations_of(comparison));
}

std::string to_html(const Comparison& comparison) {
  const uint64_t seed = comparison.seeds.empty() ? 0 : comparison.seeds.front();
  return to_html(Document{
      .origin = {comparison.environment, comparison.command, seed, comparison.wall_s},
      .brand = "Equigrad compare",
      .outcome = word(comparison.outcome),
      .banner_html = "<p>" + shown(comparison.reason, 2000) + "</p>\n<p class=\"note\">Margin: " +
                     escape_xml(margin_text(comparison)) + ".</p>\n",
      .html = page_compare(comparison),
      .data_file = "compare.json"});
}

}  // namespace equigrad::reports
