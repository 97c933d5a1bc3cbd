// ContractSpec: what a case of the contract is, and a case at one place; the players play it, the
// programs fill it in, conformance/contract has the table of all.
//
//   Contract.2.two_losses_on_one_forward.zero2.bf16.w3.accumulation1
//            line of the contract       stage dtype  ranks  accumulation
//
// Invariants: a Spec points into a table of cases that outlives it. Whether 16 bits sum in fp32
// depends on the place alone.
// Units: worlds count ranks, accumulations micro-batches.
// Errors: none.   Depends on: the C++ standard library. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace equigrad::conformance::contract {

class Play;

enum class Clipping { Off, Below, At, Above, AboveLargest };  // the last: of the infinity norm
enum class Precision { Fp32, Bf16, Fp16, Fp16Static };        // fp16: with a dynamic loss scale
std::string word(Precision precision);                        // fp32, bf16, fp16, fp16-static

inline const std::vector<Precision> kEveryPrecision = {Precision::Fp32, Precision::Bf16,
                                                       Precision::Fp16, Precision::Fp16Static};

enum class Feature {
  RateSchedule,     // WarmupLR
  LayerDrop,        // progressive layer drop
  GradScaler,       // dynamic fp16 by torch's rule, not DeepSpeed's
  LateWire,         // collectives complete as late as wait()
  LeafModules,      // the modules called experts are leaf modules
  WithinInit,       // models are made in zero::Init's scope
  Fp32BehindFirst,  // engines after the first are in fp32
  SmallPagesStay,   // stage 3: parameters of up to 20 elements are whole all the time
  ExactSums,        // "reduction": "exact", so that no stage changes a bit
  PatientScale,     // dynamic fp16 that bears two overflows, and halves at the third
  LowMasters,  // 16-bit masters and, in bf16, states; at stage 0 of bf16, which has none, fp32's
};

// What of a case depends on its place, and so how often the default selection plays it.
enum class Plays {
  EveryStage,  // and once with each other number of ranks
  EveryWorld,  // its stage changes nothing: one stage for each number of ranks
  Once,        // nor do its ranks
};

// Where a case is played: every stage, and these.
struct Places {
  std::vector<int64_t> accumulations = {1, 3};
  std::vector<Precision> precisions = {Precision::Fp32, Precision::Bf16};
  int smallest_world = 1;
  Plays plays = Plays::EveryStage;
};

struct Case {
  std::string section = {};   // the contract's line: "2"
  std::string name = {};      // two_losses_on_one_forward
  std::string sentence = {};  // what holds, for the report
  std::string fault = {};     // the wrong way that its program can play, in words
  std::function<void(Play&)> program = {};
  std::vector<std::string> models = {"irregular"};  // models.hpp; one engine each
  Places places = {};
  int windows = 2;
  Clipping clipping = Clipping::Off;
  std::string optimizer = "AdamW";  // or Adam, which is AdamW too, or SGD, with momentum
  std::set<Feature> features = {};
  std::vector<std::string> answers = {};  // what it answers: "trap 1", "misbehaviour 5"

  bool has(Feature feature) const { return features.contains(feature); }
  // Contract.2.two_losses_on_one_forward: what its ids begin with, and the name of its fault.
  std::string family() const { return "Contract." + section + "." + name; }
};

// A case at one place.
struct Spec {
  const Case* of = nullptr;
  int stage = 0;
  Precision precision = Precision::Fp32;
  int world = 1;
  int64_t accumulation = 1;

  Spec of_model(std::size_t which) const;  // in that engine's precision
  std::string id() const;
  std::string place() const;  // .zero2.bf16.w3.accumulation1
  std::map<std::string, std::string> dimensions() const;
  bool is_fp16() const {
    return precision == Precision::Fp16 || precision == Precision::Fp16Static;
  }
  // 16 bits sum in 16 bits or in fp32; both are played.
  bool sums_in_fp32() const { return precision == Precision::Fp32 || (world + stage) % 2 == 1; }
};

}  // namespace equigrad::conformance::contract
