// FailureKind: in which way a case failed, in a word that is the same for larger and smaller cases.
//
//   gradient              the exact lane, in the first step in which anything differed; of the
//                         kinds that did, the one that is computed first
//   bounded update        the bounded lane alone
//   checks                the ranks' shards do not cover the parameters, or nothing was compared
//   error [engine.step]   an exception, by its place
//   died: signal 11 ...   a rank that ended
//   timed out
//
// Invariants: empty exactly where the case passed.
// Units: none.   Errors: nlohmann::json::exception for an answer of another form.
// Depends on: judge.hpp, ranks/pool.hpp, reports/causes.hpp. No torch.
#pragma once

#include <string>
#include <vector>

#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/judge.hpp"
#include "reports/causes.hpp"

namespace equigrad::conformance {

// "gradient", "died: signal 11 (Segmentation fault)".
std::string failure_kind(const Judged& judged, const std::vector<ranks::Outcome>& outcomes);

using reports::cause_in;
using reports::without_numbers;

}  // namespace equigrad::conformance
