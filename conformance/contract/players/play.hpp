// Play: what a contract case may do, written once and played by two players.
//
//   EnginePlay      this rank's part, with real engines
//   ReferencePlay   every rank's part in turn, in plain torch calls, on reference::Stepper
//
// A program plays one accumulation window: it ends with the step() at the boundary.
//
// Play is as wide as what it plays: one function for each call of an engine that a program may
// make, and four for what a program expects and sees. A pass, a step and a value of one window
// share its ranks' turns and its batches, so objects for each of them would all hold the same
// window.
//
// Invariants: both players give a program the same batches and models with the same weights. What
// one player is asked to see() must be, bit for bit, what the other sees.
// Shapes: a batch is the irregular model's: input [3, 7] floats, target [3] classes below 5.
// Errors: a player never throws for a finding; it notes it. A reference that is asked for a second
// boundary in one window throws.
// Depends on: contract_spec.hpp, engine/api/checkpoint_types.hpp, reference/models,
// engine/engine.hpp and engine/comm/communicator.hpp by name only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"
#include "engine/api/checkpoint_types.hpp"
#include "reference/models/data.hpp"
#include "reference/models/model.hpp"

namespace equigrad {
class Engine;
namespace comm {
class Communicator;
}
}  // namespace equigrad

namespace equigrad::conformance::contract {

// Where the program plays.
struct ContractContext {
  int rank = 0;
  int world = 1;
  int stage = 0;
  Precision precision = Precision::Fp32;
  int64_t accumulation = 1;  // at the beginning
  int64_t window = 0;
  uint64_t seed = 1;
  bool fault = false;          // play the program's wrong way; never set for the reference
  std::string directory = {};  // for files of a program, which it removes; none of the reference

  at::ScalarType dtype() const {
    if (precision == Precision::Fp32) return at::kFloat;
    return precision == Precision::Bf16 ? at::kBFloat16 : at::kHalf;
  }
};

// What a program saw, by name; undefined tensors too.
using Seen = std::vector<std::pair<std::string, at::Tensor>>;

struct PassOptions {
  bool retain_graph = false;
  bool scale_wrt_gas = true;
  std::size_t engine = 0;
};

// A save of every engine, and the load of it into new ones, of models with other weights.
struct Restart {
  LoadOptions load = {};
  std::optional<int> stage = std::nullopt;  // of the new engines; nothing: that which they had
};

class Play {
 public:
  using Call = std::function<void()>;

  explicit Play(const reference::Data& data) : data_(data) {}
  virtual ~Play() = default;
  Play(const Play&) = delete;
  Play& operator=(const Play&) = delete;

  const ContractContext& context() const { return context_; }
  bool fault() const { return context_.fault; }
  // Another number is another batch; so is another rank or window.
  reference::Batch batch(int64_t number = 0) const {
    return reference::to_dtype(data_.make_batch("irregular", {.seed = context_.seed,
                                                              .step = context_.window,
                                                              .rank = context_.rank,
                                                              .micro_batch = number}),
                               context_.dtype());
  }

  // For a program: what it keeps from one window to another.
  at::Tensor& kept() { return kept_; }

  virtual reference::Model& model(std::size_t which = 0) = 0;
  template <class Kind>
  Kind& as(std::size_t which = 0) {
    return dynamic_cast<Kind&>(model(which));
  }
  // A copy of the whole parameter, as the model sees it.
  virtual at::Tensor parameter(const std::string& name, std::size_t which = 0) = 0;
  // nullptr for the reference.
  virtual Engine* engine(std::size_t which = 0) = 0;
  // Of all ranks, for engines that the program makes beside, or of the first ones, who alone may
  // ask for it; nullptr for the reference.
  virtual std::shared_ptr<comm::Communicator> group(int world) = 0;
  std::shared_ptr<comm::Communicator> group() { return group(0); }

  // engine.backward(loss, ...).
  virtual at::Tensor backward(const at::Tensor& loss, PassOptions options = {}) = 0;
  virtual at::Tensor scale(const at::Tensor& tensor, std::size_t which = 0) = 0;
  virtual double loss_scale(std::size_t which = 0) = 0;
  virtual void share_loss_scale(std::size_t engine, std::size_t with) = 0;
  // A plain torch call that runs one backward pass: loss.backward(), out.backward(g), ...
  virtual void run(const Call& pass) = 0;
  // step() and zero_grad() of every engine.
  virtual void step() = 0;
  virtual void zero_grad() = 0;

  // Of every engine.
  virtual void set_boundary(std::optional<bool> is_boundary) = 0;
  virtual void set_accumulation(int64_t steps) = 0;
  // `what` is gradient, master or a state. Collective; undefined where there is no gradient.
  virtual at::Tensor full(const std::string& what, const std::string& name) = 0;
  virtual at::Tensor local(const std::string& what, const std::string& name) = 0;
  virtual void set_full(const std::string& what, const std::string& name,
                        const at::Tensor& value) = 0;
  // `whole` is of the parameter; each rank hands in its own slice of it.
  virtual void set_local(const std::string& what, const std::string& name,
                         const at::Tensor& whole) = 0;

  // Whole parameters of the first model while `inside` runs; what `modifier_rank` writes to them in
  // it is theirs on every rank afterwards. Collective.
  virtual void gather(const std::vector<std::string>& names, std::optional<int> modifier_rank,
                      const Call& inside) = 0;

  // Between two windows. The reference goes on, but for what the options leave out: then its states
  // or its scale begin anew.
  virtual void restart(const Restart& how) = 0;
  void restart() { restart({}); }
  // What `away` trains between a save and a load of it by the same engines, which is nothing then;
  // the reference leaves it out. The wrong way loads nothing.
  virtual void detour(const Call& away) = 0;
  // For checkpoints of the program's own: one for all ranks, in which nothing is; empty for the
  // reference.
  virtual std::string folder() = 0;

  // A call that the engine refuses with a message that has `fragment`. The reference leaves it out.
  virtual void refuse(const std::string& fragment, const Call& call) = 0;
  // A call of a pass that throws for both.
  virtual void fail(const std::string& fragment, const Call& call) = 0;
  // Something that must hold of the engine.
  virtual void check(const std::string& what, bool holds) = 0;
  virtual void see(const std::string& what, const at::Tensor& value) = 0;

 protected:
  ContractContext context_;

 private:
  const reference::Data& data_;
  at::Tensor kept_;
};

// The window of a program whose micro-batches are alike.
template <class MicroBatch>
void each_micro_batch(Play& play, MicroBatch micro_batch) {
  const int64_t accumulation = play.context().accumulation;
  for (int64_t number = 0; number < accumulation; ++number) {
    micro_batch(number);
    play.step();
  }
}

}  // namespace equigrad::conformance::contract
