// Place: where engine and twin part first, in the order of the run.
//
//   first   step 1, gradient of head.bias [0, 3) on rank 0, micro-batch 2, bucket 0
//
// The order of a step is that of Phase; of one phase over all ranks: the micro-batch where it is
// known, then the order in which the run comes to the parameters, then the rank.
//
// Invariants: a Trail keeps the places of its earliest phase only; equal answers give equal lines.
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

struct Place {
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
class Trail {
 public:
  void add(Place place);
  const std::vector<Place>& places() const { return places_; }
  // Of the place of this name: what its explanation found out.
  void tell(const std::string& parameter, int micro_batch, int from_rank);
  // The place that comes first, which is what the rank explains.
  const Place& first() const;
  // Parameters that were looked at, in the phase of the places.
  void set_compared(int64_t parameters) { compared_ = parameters; }
  nlohmann::json to_json() const;

 private:
  std::vector<Place> places_;
  int64_t compared_ = 0;
};

struct FirstPlace {
  Place place;
  int rank = 0;
  std::vector<std::string> parameters;  // all that are wrong in this phase of this step
  int64_t compared = 0;                 // of so many
};

// `trails`: one a rank. Nothing where no rank has a place.
std::optional<FirstPlace> first_place(const std::vector<nlohmann::json>& trails);
// "  first   step 1, ...\n"
std::string line_of(const FirstPlace& first);
// {"phase", "step", "micro_batch", "parameter", "parameters", "rank", "from_rank", "begin", "end",
//  "bucket", "what"}
nlohmann::json to_json(const FirstPlace& first);

// Of ranks that did not answer: what the first of them was doing, "step 2 micro-batch 3 ...".
std::optional<FirstPlace> place_of_note(int rank, const std::string& note);

}  // namespace equigrad::conformance
