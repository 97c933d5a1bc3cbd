// CheckCase: a case of a check: what a rank of an engine and its twin are asked to run.
//
// Two ways to a case: by a mode of the harness, whose meaning is written twice (cases/recipe.hpp);
// or by a DeepSpeed configuration of the user's, whose twin is what the engine's parser read.
//
// Invariants: cases of one tuple share a twin. What a twin cannot follow (a scheduler, sums in an
// order that no one pinned) is taken out of a configuration, and named.
// Shapes/Units: steps count optimizer steps.
// Errors: ConfigError for a configuration that the engine refuses; equigrad::Error for unknown
// words.
// Depends on: subject.hpp, cases/matrix.hpp, cases/twin.hpp, on_rank/run.hpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/check/subject.hpp"
#include "conformance/check/subject_model.hpp"
#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance {

struct CheckCase {
  CaseSpec spec;
  std::string config = {};  // a user's; empty: of the spec
  uint64_t seed = 1;
  int steps = kSteps;
  bool may_overflow = true;  // a pass does where the loss scale is dynamic
};

// The configuration of a user's without what a twin cannot follow; `left_out` gets a sentence for
// each such thing.
std::string comparable_config(const std::string& config, std::vector<std::string>& left_out);
// The user's configuration with another stage and, where that is not empty, another mode of
// precision.
std::string config_with(const std::string& config, int stage, const std::string& precision);
// What a user's configuration asks for, in the words of the matrix.
CaseSpec spec_of_config(const std::string& config, int world);

reference::Recipe recipe_of(const CheckCase& one, double threshold, reference::SumOrder order);
std::string config_text(const CheckCase& one, double threshold, Subject& subject);
PassSetting setting_of(const CheckCase& one);

// Writes the twin of a case, and of all others of its tuple.
std::optional<oracle::UnderflowLedger> twin_of(const MakeSubject& make, const CheckCase& one,
                                               const std::string& path);

// A rank's run of a case beside its twin. The answer is that of on_rank/run.hpp. `request` has twin
// (a path); optional fault, keep and config, as there.
nlohmann::json check_on_rank(const MakeSubject& make, const CheckCase& one,
                             const nlohmann::json& request, ranks::RankContext& context);

}  // namespace equigrad::conformance
