#include "reports/comparison.hpp"

#include <cmath>
#include <sstream>

#include "reports/document.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// Zero decimals do not hide a p that is small.
std::string p_text(double p) { return p < 0.0001 ? "p < 0.0001" : "p = " + formatted("%.4f", p); }

// What belongs to each outcome, in the order of the enumeration.
struct OutcomeRow {
  std::string_view word;
  int exit_code;
};
constexpr std::array<OutcomeRow, 6> kOutcomes = {{{"equivalent", 0},
                                                  {"different", 1},
                                                  {"inconclusive", 4},
                                                  {"failed", 1},
                                                  {"broken", 3},
                                                  {"interrupted", 130}}};

const OutcomeRow& row_of(ComparisonOutcome outcome) {
  return kOutcomes.at(static_cast<std::size_t>(outcome));
}

// What a step is counted in.
std::string samples_of(const Comparison& comparison) {
  return comparison.data.starts_with("images") ? "images" : "tokens";
}

// A, B, B - A, B / A.
std::vector<std::string> cells_of(const ComparedQuantity& quantity) {
  return {estimate_text(quantity.each[0], quantity.unit),
          estimate_text(quantity.each[1], quantity.unit),
          estimate_text(quantity.difference, quantity.unit, true),
          formatted("%.3f", quantity.ratio)};
}

// Final loss, mean loss, step, held, its peak, the process's peak.
std::vector<std::string> cells_of(const ComparedRun& run) {
  return {value_text(run.final_loss, "nats"), value_text(run.mean_loss, "nats"),
          value_text(run.step_s, "s"),        bytes_text(run.held_bytes),
          bytes_text(run.held_peak_bytes),    bytes_text(run.process_peak_bytes)};
}

void write_quantities(std::ostringstream& out, const Comparison& comparison) {
  out << "\n| mean over " << comparison.pairs << " pairs ["
      << std::lround(100 * comparison.confidence) << " % interval] | A | B | B - A | B / A |\n"
      << "|:--|--:|--:|--:|--:|\n";
  for (const ComparedQuantity& quantity : comparison.quantities)
    out << "| " << escape_markdown(quantity.name) << markdown_cells(cells_of(quantity)) << "\n";
}

void write_runs(std::ostringstream& out, const Comparison& comparison) {
  out << "\n| seed | run | steps | final loss | mean loss | step | held | held, peak | process, "
         "peak |\n|--:|:--|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const ComparedRun& run : comparison.runs) {
    std::vector<std::string> cells = {letter_of(run), grouped(run.losses.size())};
    const auto more = cells_of(run);
    if (run.complete) cells.insert(cells.end(), more.begin(), more.end());
    out << "| " << run.seed << markdown_cells(cells)
        << (run.complete ? "" : " " + escape_markdown(run.trouble) + " | | | | | |") << "\n";
  }
}

std::string interval_name(const Comparison& comparison) {
  return shortest(std::round(100 * comparison.confidence)) + " %";
}

std::string quantities_table(const Comparison& comparison) {
  std::string rows;
  for (const ComparedQuantity& one : comparison.quantities)
    rows += row(shown(one.name, 200), number_cells(cells_of(one)));
  return table("Means over " + std::to_string(comparison.pairs) + " pairs, with " +
                   interval_name(comparison) + " intervals. B - A is of pairs.",
               heads({"Quantity"}) + number_heads({"A", "B", "B - A", "B / A"}), rows);
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

std::string_view word(ComparisonOutcome outcome) { return row_of(outcome).word; }

int exit_code(const Comparison& comparison) {
  const bool is_signal =
      comparison.outcome == ComparisonOutcome::Interrupted && comparison.signal != 0;
  return is_signal ? 128 + comparison.signal : row_of(comparison.outcome).exit_code;
}

std::string value_text(double value, std::string_view unit, bool with_sign) {
  if (!std::isfinite(value)) return shortest(value);
  const std::string sign = value < 0 ? "-" : with_sign ? "+" : "";
  const double size = std::fabs(value);
  if (unit == "bytes") return sign + bytes_text(std::llround(size));
  if (unit == "s") return sign + formatted("%.1f ms", size * 1e3);
  return sign + formatted("%.4f", size);
}

std::string estimate_text(const Estimate& estimate, std::string_view unit, bool with_sign) {
  const std::string mean = value_text(estimate.mean, unit, with_sign);
  if (estimate.low == estimate.high) return mean;
  return mean + " [" + value_text(estimate.low, unit, with_sign) + ", " +
         value_text(estimate.high, unit, with_sign) + "]";
}

std::string letter_of(const ComparedRun& run) { return run.configuration == 0 ? "A" : "B"; }

std::string margin_text(const Comparison& comparison) {
  return shortest(comparison.margin) + " nats, " +
         (comparison.margin_is_default ? "the default: state your own with --margin" : "as stated");
}

std::string equivalence_text(const Comparison& comparison) {
  if (comparison.pairs < 2) return {};
  const EquivalenceResult& test = comparison.equivalence;
  const double inner = 100 * (1 - 2 * comparison.level);
  return "Two one-sided tests: " + p_text(test.p_low) + " of B - A being -margin or less, " +
         p_text(test.p_high) + " of its being +margin or more; both below " +
         shortest(comparison.level) + " means equivalent, which is to say that the " +
         formatted("%.0f", inner) + " % interval [" + value_text(test.low, "nats", true) + ", " +
         value_text(test.high, "nats", true) + "] lies within the margin. " +
         p_text(test.p_no_difference) + " of no difference at all (two-sided).";
}

std::string to_terminal(const Comparison& comparison) {
  std::ostringstream out;
  out << "#\n# means over " << comparison.pairs << " pairs of runs, with "
      << formatted("%.0f", 100 * comparison.confidence) << " % intervals (Student's t)\n";
  for (const ComparedQuantity& quantity : comparison.quantities) {
    out << "# " << quantity.name << "\n";
    for (std::size_t i = 0; i < 2; ++i)
      out << "    " << (i == 0 ? "A  " : "B  ") << estimate_text(quantity.each[i], quantity.unit)
          << "\n";
    out << "    B - A  " << estimate_text(quantity.difference, quantity.unit, true) << "   B / A  "
        << formatted("%.4f", quantity.ratio) << "\n";
  }
  const std::string test = equivalence_text(comparison);
  if (!test.empty()) out << "#\n# " << test << "\n";
  out << "# margin " << margin_text(comparison) << "\n"
      << upper_case(word(comparison.outcome)) << "  " << clean(comparison.reason) << "\n"
      << replay_line(comparison.command);
  return out.str();
}

std::string to_markdown(const Comparison& comparison) {
  std::ostringstream out;
  const Environment& env = comparison.environment;
  out << "## Equigrad compare: " << word(comparison.outcome) << "\n\n"
      << escape_markdown(comparison.reason) << "\n\nA is "
      << escape_markdown(comparison.configurations[0].name) << ", B is "
      << escape_markdown(comparison.configurations[1].name) << ". "
      << escape_markdown(comparison.data) << "; " << escape_markdown(comparison.model) << "; "
      << grouped(comparison.parameters) << " parameters, " << count_of(comparison.ranks, "rank")
      << ", " << count_of(comparison.steps, "step") << " of " << grouped(comparison.tokens_per_step)
      << " " << samples_of(comparison) << ". The final loss is the mean of the last "
      << count_of(comparison.final_steps, "step") << ". Margin: " << margin_text(comparison)
      << ".\n";
  if (!comparison.quantities.empty()) write_quantities(out, comparison);
  const std::string test = equivalence_text(comparison);
  if (!test.empty()) out << "\n" << escape_markdown(test) << "\n";
  write_runs(out, comparison);
  out << "\n"
      << environment_line(env) << ", " << escape_markdown(env.time) << ", "
      << seconds_text(comparison.wall_s) << "\n";
  return out.str();
}

std::string page_compare(const Comparison& comparison) {
  std::string out = "<p class=\"lead\">" + escape_xml(comparison.data + "; " + comparison.model) +
                    "; " + grouped(comparison.parameters) + " parameters, " +
                    count_of(comparison.ranks, "rank") + ", " + count_of(comparison.steps, "step") +
                    " of " + grouped(comparison.tokens_per_step) + " " + samples_of(comparison) +
                    ", " + count_of(comparison.seeds.size(), "seed") +
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
