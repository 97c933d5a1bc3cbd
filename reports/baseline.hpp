// Baseline: cases that are known to be wrong, with who accepted that, when and why.
//
//   equigrad baseline update --reason "..."    equigrad run --baseline FILE
//
// A case is as accepted where its verdict and its cause are those of the baseline; numbers in a
// cause do not count (causes.hpp). A case that goes wrong in another way is newly wrong.
//
// Invariants: cases are in order of their ids, each once. A run changes what it ran, nothing else.
// A baseline excuses cases alone: no planted fault that was missed, no interruption.
// Units: counts of cases.
// Errors: std::runtime_error for a text that is no baseline. Pointers live as long as what they
// came from.
// Depends on: record.hpp; causes.hpp, json_text.hpp (sources only).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

struct KnownCase {
  std::string id;
  Verdict verdict = Verdict::Failed;
  std::string cause;  // without numbers
};

struct Acceptance {
  std::string time, commit, reason;  // of the run's engine
  int64_t taken_in = 0, taken_out = 0;
};

struct Baseline {
  int schema_version = 1;
  std::vector<Acceptance> accepted;  // oldest first
  std::vector<KnownCase> cases;
};

Baseline baseline_from_json(const std::string& text);
std::string to_json(const Baseline& baseline);

// What a run found beside a baseline.
struct BesideBaseline {
  std::vector<const Case*> fresh, known;  // wrong cases
  std::vector<const KnownCase*> mended;   // that hold
};
BesideBaseline beside(const Baseline& baseline, const Run& run);

// The run as a CI is to see it: known cases are skipped, with the reason; its outcome and exit code
// are those against the baseline.
Run with_known(Run run, const Baseline& baseline);
// Its cases that are wrong now, and no more; those that the run did not reach stay.
Baseline updated(const Baseline& baseline, const Run& run, const std::string& reason);

std::string to_text(const Baseline& baseline);
std::string to_text(const BesideBaseline& found, const std::string& file);

}  // namespace equigrad::reports
