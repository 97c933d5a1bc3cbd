// ContractCase: every line of the contract as named cases, each at every stage.
//
//   Contract.2.two_losses_on_one_forward.zero2.bf16.w3.accumulation1
//            line of the contract       stage dtype  ranks  accumulation
//
// Invariants: names are unique; every case is in the default selection at all stages and all its
// precisions with two ranks (or its fewest), and once with each other number of ranks.
// Units: world counts ranks, accumulation micro-batches.
// Errors: equigrad::Error for an id that no case has.
// Depends on: the C++ standard library; engine/error.hpp in the source. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace equigrad::conformance::contract {

class Play;

enum class Clipping { Off, Below, At, Above, AboveLargest };  // the last: of the infinity norm
enum class Precision { Fp32, Bf16, Fp16, Fp16Static };        // fp16: with a dynamic loss scale
std::string word(Precision precision);                        // fp32, bf16, fp16, fp16-static

struct Case {
  std::string section;   // the contract's line: "2"
  std::string name;      // two_losses_on_one_forward
  std::string sentence;  // what holds, for the report
  std::string fault;     // the wrong way that its program can play, in words
  std::function<void(Play&)> program;
  std::vector<std::string> models = {"irregular"};  // models.hpp; one engine each
  std::vector<int64_t> accumulations = {1, 3};
  int windows = 2;
  Clipping clipping = Clipping::Off;
  std::string optimizer = "AdamW";  // or Adam, which is AdamW too, or SGD, with momentum
  bool schedule = false;            // WarmupLR
  bool drops_layers = false;        // progressive layer drop
  bool grad_scaler = false;         // dynamic fp16 by torch's rule, not DeepSpeed's
  bool late_collectives = false;    // collectives complete as late as wait()
  bool has_leaf = false;            // the modules called experts are leaf modules
  bool within_init = false;         // models are made in zero::Init's scope
  int smallest_world = 1;
  std::vector<std::string> answers = {};  // what it answers: "trap 1", "misbehaviour 5"
  std::vector<Precision> precisions = {Precision::Fp32, Precision::Bf16};
  std::size_t fp32_from = 99;  // of models: engines from here on are in fp32

  Case on(std::vector<std::string> names) const;
  Case accumulation(std::vector<int64_t> steps) const;
  Case lasting(int count) const;
  Case clipped(Clipping where) const;
  Case with_optimizer(std::string type) const;
  Case scheduled() const;
  Case dropping_layers() const;
  Case with_grad_scaler() const;
  Case with_late_collectives() const;
  Case with_leaf() const;
  Case made_within_init() const;
  Case from_world(int world) const;
  Case answering(std::vector<std::string> known) const;
  Case in(std::vector<Precision> modes) const;
  Case in_every_precision() const;
  Case with_fp32_from(std::size_t model) const;

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
  // Its other names, one for each known mistake that it answers (known_mistakes.hpp):
  // Contract.trap-18-engines-share-no-state.independent_engines.zero2.bf16.w3.accumulation3
  std::vector<std::string> aliases() const;
  std::string place() const;  // .zero2.bf16.w3.accumulation1
  std::map<std::string, std::string> dimensions() const;
  bool is_fp16() const {
    return precision == Precision::Fp16 || precision == Precision::Fp16Static;
  }
  // 16 bits sum in 16 bits or in fp32; both are played.
  bool sums_in_fp32() const { return precision == Precision::Fp32 || (world + stage) % 2 == 1; }
};

struct Section {
  std::string number;  // "2"
  std::string sentence;
};
const std::vector<Section>& sections();

const std::vector<Case>& cases();
std::vector<Spec> default_specs();
std::vector<Spec> full_specs();
Spec parse_contract_id(const std::string& id);

}  // namespace equigrad::conformance::contract
