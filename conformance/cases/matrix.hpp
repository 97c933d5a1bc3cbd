// Matrix: the conformance cases, by name.
//
//   Required.grad.zero3.bf16.w4.accumulation3.clip-above.adamw.gpt.tensor_backward
//                 stage mode world  |   clip    |     model  backward style
//                           accumulation      optimizer
//
// Of a model that ends in a number, so many ranks are a group: gated2 and gated4 are split over
// tensor ranks, of ulysses2 and ulysses4 every rank has a part of the sequence, gated2x2 is
// both, and dropout2 is gated2 with dropouts. The others of w are data ranks.
//
// full_matrix() is every combination. default_matrix() has every precision at every stage in every
// style with every number of ranks and micro-batches; clip, optimizer and model step through their
// values beside them. Behind them is every split model in every precision.
//
// Invariants: ids are unique; the default matrix holds every value of every dimension, and every
// pair of values of two dimensions (matrix_test.cpp counts them).
// Units: world and accumulation are counts of ranks and micro-batches; world = data *
// sequence * tensor.
// Errors: equigrad::Error for a value that no dimension has.
// Depends on: precision.hpp; gated_model.hpp, sequence_model.hpp and engine/error.hpp (sources
// only).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "conformance/cases/precision_modes.hpp"

namespace equigrad::conformance {

enum class Style { EngineBackward, ScaleBackward, LossBackward, TensorBackward };
enum class Clip { Off, Below, Above, AboveInf };  // the norm and the threshold: see word()
enum class Rule { Sgd, AdamW };

struct CaseSpec {
  int stage = 0;
  Precision precision = Precision::Fp32;
  Style style = Style::EngineBackward;
  int world = 1;
  int accumulation = 1;
  Clip clip = Clip::Off;
  Rule optimizer = Rule::Sgd;
  std::string model = "gpt";

  std::string id() const;
  std::map<std::string, std::string> dimensions() const;
  int tensor() const;    // ranks that share a model; 1: each has a whole one
  int sequence() const;  // ranks that share a sequence; 1: each has whole ones
  int data() const { return world / (tensor() * sequence()); }
  int zero() const { return world / tensor(); }  // ranks that ZeRO shards over
  // What decides the numbers: equal for cases that share a twin up to the order of additions.
  std::string tuple() const;
  // The precision is not defined at this stage: the case passes if initialize() says so.
  bool is_refused() const { return !refusal_keys(precision, stage).empty(); }
  bool operator==(const CaseSpec&) const = default;
};
// A split model has stages 0 to 2; a group's ranks divide all of them.
bool is_possible(const CaseSpec& spec);

std::string word(Style style);  // engine_backward, scale_backward, loss_backward, ...
// clip-off; clip-below: the norm is far below the threshold; clip-above: it is above;
// clip-above-inf: the infinity norm is.
std::string word(Clip clip);
std::string word(Rule rule);  // sgd, adamw

// The case with this id, which is possible.
CaseSpec parse_id(const std::string& id);

std::vector<CaseSpec> full_matrix();     // 171,360
std::vector<CaseSpec> default_matrix();  // 3,772

struct Selection {
  std::vector<std::string> filters;  // globs (* ? [ ]) of parts of ids; a case needs one of them
  std::vector<int> stages;           // empty: all
  std::vector<std::string> dtypes;   // words of precisions
  std::vector<int> worlds;
};
bool selects(const Selection& selection, int stage, const std::string& dtype, int world,
             const std::string& id);
std::vector<CaseSpec> select(const std::vector<CaseSpec>& cases, const Selection& selection);
// The ids that are nearest to a filter which selected nothing.
std::vector<std::string> near_matches(const std::vector<std::string>& ids,
                                      const std::string& filter, std::size_t count);
std::vector<std::string> near_matches(const std::vector<CaseSpec>& cases, const std::string& filter,
                                      std::size_t count);

}  // namespace equigrad::conformance
