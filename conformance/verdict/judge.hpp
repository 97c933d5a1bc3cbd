// Judge: from what the ranks of a case answered to its verdict, and the cross lane between cases.
//
// Invariants: a death, a time-out or a lost connection is never a pass nor a mere difference; what
// the engine throws by itself fails its case; a case passes only if every lane compared something,
// but for what the ranks say they could not compare, and the ranks' shards cover every parameter
// exactly once.
// Units: elements.   Errors: nlohmann::json::exception for an answer of another form.
// Depends on: matrix.hpp, verdict/divergence.hpp, ranks/pool.hpp, reports/record.hpp. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/divergence.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

// Kind -> bytes at the end of a step, and their peak: of one rank.
using HeldMemory = std::map<std::string, std::pair<int64_t, int64_t>>;

// The row "total", or the sum where there is none.
int64_t total_bytes(const HeldMemory& memory);

struct Judged {
  reports::Case record;
  std::optional<FirstDivergence>
      first;                // where engine and twin first differ; to_json() has it for programs
  bool answered = false;    // by all ranks, and not refused: digest and memory mean something
  bool only_empty = false;  // all that is wrong: there was nothing to compare, as of the twin
  uint64_t digest = 0;      // of everything the case computed, over all ranks
  int64_t digested = 0;     // elements in it
  HeldMemory memory;        // of the rank that holds most
};

// An empty record of the case, not run yet.
reports::Case record_of(const CaseSpec& spec, const std::string& replay);

// Whether a planted fault acted, by what the ranks say; nothing: none was planted, or not all of
// them answered.
std::optional<bool> acted(const std::vector<ranks::Outcome>& outcomes);

// Of outcomes that are not all answers: Failed only where the engine threw.
reports::Verdict verdict_of_failure(const std::vector<ranks::Outcome>& outcomes);

Judged judge(const CaseSpec& spec, const std::string& replay,
             const std::vector<ranks::Outcome>& outcomes);
// Of a case that is no case of the matrix, and is not to be refused: its record, less the verdict.
Judged judge(reports::Case record, int stage, const std::vector<ranks::Outcome>& outcomes);

// The lowest index of a rank's shard problem in words, or empty. `cover` has one answer's rows a
// rank: [name, begin, end, numel].
std::string cover_problem(int stage, const std::vector<nlohmann::json>& cover);

// Adds the cross lane to cases of one tuple: those which must agree bit for bit have equal digests.
// With one micro-batch all stages must, otherwise 0 with 1 and 2 with 3. A case without a partner
// gets no cross lane.
void cross_check(const std::vector<CaseSpec>& specs, std::vector<Judged*> cases);

}  // namespace equigrad::conformance
