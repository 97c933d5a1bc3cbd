#include <cmath>
#include <sstream>

#include "reports/comparison.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

void write_quantities(std::ostringstream& out, const Comparison& comparison) {
  out << "\n| mean over " << comparison.pairs << " pairs ["
      << std::lround(100 * comparison.confidence) << " % interval] | A | B | B - A | B / A |\n"
      << "|:--|--:|--:|--:|--:|\n";
  for (const ComparedQuantity& quantity : comparison.quantities)
    out << "| " << escape_markdown(quantity.name) << " | "
        << estimate_text(quantity.each[0], quantity.unit) << " | "
        << estimate_text(quantity.each[1], quantity.unit) << " | "
        << estimate_text(quantity.difference, quantity.unit, true) << " | "
        << formatted("%.3f", quantity.ratio) << " |\n";
}

void write_runs(std::ostringstream& out, const Comparison& comparison) {
  out << "\n| seed | run | steps | final loss | mean loss | step | held | held, peak | process, "
         "peak |\n|--:|:--|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const ComparedRun& run : comparison.runs) {
    out << "| " << run.seed << " | " << (run.configuration == 0 ? "A" : "B") << " | "
        << grouped(static_cast<int64_t>(run.losses.size())) << " | ";
    if (run.complete)
      out << value_text(run.final_loss, "nats") << " | " << value_text(run.mean_loss, "nats")
          << " | " << value_text(run.step_s, "s") << " | " << bytes_text(run.held_bytes) << " | "
          << bytes_text(run.held_peak_bytes) << " | " << bytes_text(run.process_peak_bytes)
          << " |\n";
    else
      out << escape_markdown(run.trouble) << " | | | | | |\n";
  }
}

}  // namespace

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
      << " tokens. The final loss is the mean of the last "
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

}  // namespace equigrad::reports
