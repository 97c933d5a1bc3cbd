#include <cmath>
#include <cstdio>
#include <sstream>

#include "reports/comparison.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// Text in a cell or a line: what would be markup is spelt out.
std::string inert(const std::string& foreign) {
  std::string out;
  for (const char c : clean(foreign)) {
    if (c == '\n')
      out += ' ';
    else if (std::string_view("<>&").find(c) != std::string_view::npos)
      out += escape_xml(std::string(1, c));
    else if (std::string_view("\\`*[]|").find(c) != std::string_view::npos)
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out;
}

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", ratio);
  return std::isfinite(ratio) ? text : shortest(ratio);
}

void write_quantities(std::ostringstream& out, const Comparison& comparison) {
  out << "\n| mean over " << comparison.pairs << " pairs ["
      << std::lround(100 * comparison.confidence) << " % interval] | A | B | B - A | B / A |\n"
      << "|:--|--:|--:|--:|--:|\n";
  for (const ComparedQuantity& quantity : comparison.quantities)
    out << "| " << inert(quantity.name) << " | " << estimate_text(quantity.each[0], quantity.unit)
        << " | " << estimate_text(quantity.each[1], quantity.unit) << " | "
        << estimate_text(quantity.difference, quantity.unit, true) << " | "
        << ratio_text(quantity.ratio) << " |\n";
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
      out << inert(run.trouble) << " | | | | | |\n";
  }
}

}  // namespace

std::string to_markdown(const Comparison& comparison) {
  std::ostringstream out;
  const Environment& env = comparison.environment;
  out << "## Equigrad compare: " << word(comparison.outcome) << "\n\n"
      << inert(comparison.reason) << "\n\nA is " << inert(comparison.configurations[0].name)
      << ", B is " << inert(comparison.configurations[1].name) << ". " << inert(comparison.data)
      << "; " << inert(comparison.model) << "; " << grouped(comparison.parameters)
      << " parameters, " << count_of(comparison.ranks, "rank") << ", "
      << count_of(comparison.steps, "step") << " of " << grouped(comparison.tokens_per_step)
      << " tokens. The final loss is the mean of the last "
      << count_of(comparison.final_steps, "step") << ". Margin: " << margin_text(comparison)
      << ".\n";
  if (!comparison.quantities.empty()) write_quantities(out, comparison);
  const std::string test = equivalence_text(comparison);
  if (!test.empty()) out << "\n" << inert(test) << "\n";
  write_runs(out, comparison);
  out << "\nequigrad " << inert(env.version) << ", commit " << inert(env.commit) << ", torch "
      << inert(env.torch) << ", " << inert(env.compiler) << ", " << inert(env.device) << ", "
      << inert(env.cpu) << " x" << env.cores << ", " << inert(env.time) << ", "
      << seconds_text(comparison.wall_s) << "\n";
  return out.str();
}

}  // namespace equigrad::reports
