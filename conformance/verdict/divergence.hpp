// Divergence: where engine and twin first differ, in the order of the run.
//
//   first   step 1, gradient of head.bias [0, 3) on rank 0, micro-batch 2, bucket 0
//
// The order of a step is that of Phase; of one phase over all ranks: the micro-batch where it is
// known, then the order in which the run comes to the parameters, then the rank.
//
// Invariants: Divergences keeps those of the earliest phase only; equal answers give equal lines.
// Units: flat elements [begin, end) of the whole parameter; steps and micro-batches count from 0
// here, from 1 in lines.   Errors: nlohmann::json::exception for an answer of another form.
// Depends on: nlohmann-json. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace equigrad::conformance {

// Start: the loss scale that a step begins with; Skip: whether it is applied at all.
enum class Phase { Start, Forward, Gradient, Norm, Clip, Skip, Update, Parameter, Scale };
std::string word(Phase phase);  // scale forward gradient norm clip scale update parameter scale

struct Divergence {
  Phase phase = Phase::Forward;
  int step = 0;
  int micro_batch = -1;   // -1: not known
  int from_rank = -1;     // whose contribution it is; -1: not known, or everybody's
  std::string what;       // "gradient", "exp_avg", "loss"; a sentence where nothing was compared
  std::string parameter;  // empty: of no parameter
  int64_t position = 0;   // of the parameter, in the order of the run
  int64_t begin = 0, end = 0;  // begin == end: nothing was compared
  int bucket = -1;             // -1: not known
};

// Of one rank.
class Divergences {
 public:
  void add(Divergence divergence);
  const std::vector<Divergence>& all() const { return all_; }
  // Of the divergence of this name: what its explanation found out.
  void tell(const std::string& parameter, int micro_batch, int from_rank);
  // The one that comes first, which is what the rank explains.
  const Divergence& first() const;
  // Parameters that were compared, in the phase of the divergences.
  void set_compared(int64_t parameters) { compared_ = parameters; }
  nlohmann::json to_json() const;

 private:
  std::vector<Divergence> all_;
  int64_t compared_ = 0;
};

struct FirstDivergence {
  Divergence divergence;
  int rank = 0;
  std::vector<std::string> parameters;  // all that are wrong in this phase of this step
  int64_t compared = 0;                 // of so many
};

// `of_ranks`: those of each rank. Nothing where no rank has one.
std::optional<FirstDivergence> first_divergence(const std::vector<nlohmann::json>& of_ranks);
// "  first   step 1, ...\n"
std::string line_of(const FirstDivergence& first);
// {"phase", "step", "micro_batch", "parameter", "parameters", "rank", "from_rank", "begin", "end",
//  "bucket", "what"}
nlohmann::json to_json(const FirstDivergence& first);

// Of ranks that did not answer: what the first of them was doing, "step 2 micro-batch 3 ...".
std::optional<FirstDivergence> divergence_of_note(int rank, const std::string& note);

}  // namespace equigrad::conformance
