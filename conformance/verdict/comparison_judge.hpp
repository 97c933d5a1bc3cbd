// ComparisonJudge: from the runs of two configurations to means, intervals and a verdict.
//
//   equivalent    TOST rejects a difference of -margin or less and one of +margin or more
//   different     it does not, and the interval of the difference excludes 0; or one of a pair
//                 diverged and the other did not
//   inconclusive  neither; or fewer than two pairs; or equivalent, but one has not learned: two
//                 that stand still are alike, and say nothing
//
// The verdict is of the final loss alone. A configuration has learned if the drop of its loss, from
// the first final_steps to the last, is above 0 at the tests' level.
//
// Invariants: only pairs whose runs are complete and finite are counted; whatever ended a
// comparison early (an outcome given beforehand) stays its outcome.
// Units: nats, seconds, bytes; a curve has at most 100 points.
// Errors: those of statistics.hpp.
// Depends on: reports/comparison.hpp, statistics.hpp (sources only). No torch.
#pragma once

#include <optional>
#include <string>

#include "reports/comparison.hpp"

namespace equigrad::conformance {

// The losses' means; `losses` has at least final_steps of them.
void summarize(reports::ComparedRun& run, int64_t final_steps);

struct Ending {
  reports::ComparisonOutcome outcome;
  std::string reason;
};
// Fills in everything from `pairs` on; `ended`: why not all was run.
void conclude(reports::Comparison& comparison, const std::optional<Ending>& ended = std::nullopt);

}  // namespace equigrad::conformance
