#include "reports/comparison.hpp"

#include <cmath>
#include <sstream>

#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// Zero decimals do not hide a p that is small.
std::string p_text(double p) { return p < 0.0001 ? "p < 0.0001" : "p = " + formatted("%.4f", p); }

}  // namespace

std::string_view word(ComparisonOutcome outcome) {
  switch (outcome) {
    case ComparisonOutcome::Equivalent:
      return "equivalent";
    case ComparisonOutcome::Different:
      return "different";
    case ComparisonOutcome::Inconclusive:
      return "inconclusive";
    case ComparisonOutcome::Failed:
      return "failed";
    case ComparisonOutcome::Broken:
      return "broken";
    case ComparisonOutcome::Interrupted:
      return "interrupted";
  }
  return "inconclusive";
}

int exit_code(ComparisonOutcome outcome) {
  switch (outcome) {
    case ComparisonOutcome::Equivalent:
      return 0;
    case ComparisonOutcome::Different:
    case ComparisonOutcome::Failed:
      return 1;
    case ComparisonOutcome::Broken:
      return 3;
    case ComparisonOutcome::Inconclusive:
      return 4;
    case ComparisonOutcome::Interrupted:
      return 130;
  }
  return 4;
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
  std::string verdict(word(comparison.outcome));
  for (char& c : verdict) c = static_cast<char>(c - 'a' + 'A');
  out << "# margin " << margin_text(comparison) << "\n"
      << verdict << "  " << clean(comparison.reason) << "\n";
  return out.str();
}

}  // namespace equigrad::reports
