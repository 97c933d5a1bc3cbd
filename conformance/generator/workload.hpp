// Workload: what a generated case computes, and Execution: how an engine does it. The numbers
// depend on the workload alone, so the executions of one workload share a twin.
//
//   Generated.<seed>.<workload>.<execution>      drawn again from these three numbers (draw.hpp)
//   {"workload": {...}, "execution": {...}}      a file of its own, as a shrunk failure is written
//
// A model is a list of tensors, each with its role:
//
//   linear       weight of a torch::nn::Linear, [out, in]; a chain of them ends in the loss
//   bias         of the linear before it
//   convolution  weight of a torch::nn::Conv2d, 4 dimensions; a term of the loss
//   embedding    weight of a torch::nn::Embedding; a term of the loss
//   term         any shape: a term of the loss, sin of it times the pass's own coefficients
//   penalty      as term, but of the parameter alone
//   sometimes    as term, in every second pass of a data rank
//   one_rank     as term, on one data rank
//   recomputed   two terms, each in a reentrant checkpoint: its gradient comes in two parts
//   unused       in no pass
//   frozen       as term, without a gradient
//   buffer       no parameter; read by no pass
//
// Beside them there may be a core, the gated network of cases/gated_model.hpp under the name
// "core", whose ranks make up a mesh: so many share the model, so many the sequence. Those use the
// same parameters in every pass.
//
// Invariants: names are unique; what cannot be trained (int64, uint8) is frozen or unused; groups
// hold trainable tensors only. `config` and `knobs` are DeepSpeed's keys; knobs change no number.
// Where config has "gradient_clipping": "half", it is half of the norm of the first step applied.
// Units: sizes count elements; steps, micro-batches and ranks count from 0.
// Errors: equigrad::Error for a file that is none, has a word that no case has, no ranks, passes,
// steps or tensors, too many ranks, a tensor of a group that is not there, or a core that its ranks
// do not divide.
// Depends on: nlohmann-json. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace equigrad::conformance {

constexpr int kGeneratedRanks = 8;  // of a case at most: that a slot needs to have

struct WorkloadTensor {
  std::string name;
  std::vector<int64_t> sizes;
  std::string role = "term";
  std::string layout = "contiguous";  // transposed, channels_last, sliced
  std::string dtype = "float";        // int64, uint8
  std::string values = "usual";       // zeros, negative_zeros, subnormal, nan
  std::string hook = "none";          // of the user's: observes, halves, on the gradient; keeps,
                                      // keeps_alias, replaces, once it is there
  std::string second_name = {};       // tied
  int group = 0;
};

// What the parameters of a group have beside the optimizer's own; null: nothing.
struct WorkloadGroup {
  nlohmann::json lr = nullptr, weight_decay = nullptr;
};

// What is split over a mesh, and how; sizes are those of cases/gated_sizes.hpp.
struct WorkloadCore {
  int tensor = 1, sequence = 1;  // ranks that share a model, and a sequence
  int64_t batch = 1, vocabulary = 4, context = 2, features = 2, hidden = 2;
  int64_t heads = 1, key_heads = 1, width = 1, layers = 1;
  bool is_tied = true, has_qkv_bias = true, has_padding = false, has_spare = false;
  std::string loss = "split";   // whole: of logits that are put together first
  std::string labels = "all";   // some: of many none counts; late: none of the first part does
  std::string frozen = "none";  // or a word that names of parameters have
};

// Of one pass, on one rank, or on all: rank -1. Ranks are those that ZeRO shards over.
struct PassEvent {
  std::string what;  // twice: the graph is kept and used again; undivided: scale_wrt_gas false;
                     // overflow: the gradient of one element of a tensor is infinite
  int step = 0, rank = -1, micro_batch = 0;
  int tensor = 0;       // of overflow, its place in the list; -1: the loss itself
  int64_t element = 0;  // of it
};

struct RateEvent {  // set_lr before a step
  int step = 0;
  double lr = 0;
};

struct Workload {
  uint64_t seed = 1;  // of weights and batches
  int world = 1, accumulation = 1, steps = 3;
  std::optional<WorkloadCore> core = {};
  std::vector<WorkloadTensor> tensors;
  std::vector<WorkloadGroup> groups;
  std::vector<PassEvent> passes;
  std::vector<RateEvent> rates;
  nlohmann::json config = nlohmann::json::object();

  int tensor_ranks() const { return core ? core->tensor : 1; }
  int sequence_ranks() const { return core ? core->sequence : 1; }
  int zero_ranks() const { return world / tensor_ranks(); }
  int data_ranks() const { return zero_ranks() / sequence_ranks(); }
};

// Something that must change nothing, in the pass before which it comes.
struct HarmlessEvent {
  std::string what;  // cancelled: a pass, then zero_grad(); evaluated: a forward without gradients;
                     // thrown, thrown_alone: a pass whose hook throws, on one rank; asked:
                     // autograd::grad of the loss; read: getters of every kind; bystander: another
                     // engine's step; together: another engine's loss in the same pass; crowd: more
                     // engines, to the end
  int step = 0, micro_batch = 0;
};

struct Execution {
  int stage = 0;
  uint64_t seed = 0;              // of the call style of each pass
  uint64_t adversary = 0;         // of a communicator that completes late; 0: a plain one
  std::string way_in = "groups";  // module: initialize(module)
  int resumed_before = -1;  // this step the engine is saved, and loaded by a new one; -1: none
  std::vector<HarmlessEvent> events;
  nlohmann::json knobs = nlohmann::json::object();
};

struct GeneratedCase {
  Workload workload;
  Execution execution;
  std::string id = {};  // empty: of a file
};

// What a case has in words, by what they are of: "tensor role", "hook", "pass", ...
const std::map<std::string, std::vector<std::string>>& case_words();

nlohmann::json to_json(const Workload& workload);
nlohmann::json to_json(const GeneratedCase& one);
GeneratedCase generated_case(const nlohmann::json& file);

// The whole configuration, with the threshold that gradients are clipped at where it is "half".
nlohmann::json engine_config(const GeneratedCase& one, double threshold);

}  // namespace equigrad::conformance
