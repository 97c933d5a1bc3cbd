// Engine: a ZeRO training engine with DeepSpeed's API. This header is the whole of what a user
// reads.
//
//   auto engine = equigrad::initialize(*model, "ds_config.json");
//   auto loss = model->forward(batch);
//   engine->backward(loss);  // or engine->scale(loss).backward(), loss.backward(), out.backward(g)
//   engine->step();          // acts at the accumulation boundary only
//
// Invariants: the four ways into a backward pass give the same bits; every pass adds to the
// accumulation window, and is a transaction: one that throws leaves the window as it was; the order
// of every sum is the engine's own (comm/reduction.hpp), so the bits do not depend on bucket size,
// nor on the stage within {0, 1} and {2, 3}; every rank calls backward and step the same number of
// times in the same order.
// Shapes: parameters keep theirs at every stage. What is computed and kept in which type, and what
// the loss scale does: config/precision.hpp.
// Errors: equigrad::Error, "[where] expected X, got Y. Remedy."; the engine stays usable. A step()
// that finds a gradient which is not finite empties the window and writes nothing.
// Depends on: ATen tensors, access.hpp, checkpoint_types.hpp, config.hpp, engine_types.hpp,
// error.hpp, gathered_parameters.hpp, layout/module_tree, schedule.
// Paper: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models
// (arXiv 1910.02054).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/api/access.hpp"
#include "engine/api/checkpoint_types.hpp"
#include "engine/api/engine_types.hpp"
#include "engine/api/gathered_parameters.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"
#include "engine/layout/module_tree.hpp"
#include "engine/schedule/progressive_layer_drop.hpp"
#include "engine/schedule/schedule.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace equigrad {

namespace memory {
class Ledger;
}

class SliceOptimizer;  // engine/api/slice_optimizer.hpp
class TrainingEngine;

class Engine {
 public:
  explicit Engine(std::unique_ptr<TrainingEngine> engine);
  ~Engine();

  // Runs the backward pass of a scalar loss and returns loss / accumulation steps (or the loss,
  // scale_wrt_gas false).
  at::Tensor backward(const at::Tensor& loss, bool retain_graph = false, bool scale_wrt_gas = true);
  // The tensor to call .backward() on; the tensor itself where the precision needs no loss scale.
  at::Tensor scale(const at::Tensor& tensor);
  // What scale() multiplies by now; 1 where the precision needs no loss scale.
  double loss_scale() const;
  // Engines under one loss need one scale: from now on this engine uses the other's.
  void share_loss_scale(Engine& other);

  // model.forward(inputs...), with the state of progressive layer drop as the last argument if the
  // model takes one. Calling the model itself is as good, but for torch_autocast, and for a gather
  // that fails at stage 3: this call throws; the model itself gives NaN, and the engine's next call
  // throws.
  template <class Model, class... Inputs>
  auto forward(Model& model, Inputs&&... inputs) {
    check_forward();
    const auto guard = autocast();
    struct Anything {};  // a forward that takes this takes whatever comes (Sequential)
    if constexpr (
        requires { model.forward(std::forward<Inputs>(inputs)..., layer_drop()); } &&
        !requires { model.forward(std::forward<Inputs>(inputs)..., Anything{}); }) {
      return checked(model.forward(std::forward<Inputs>(inputs)..., layer_drop()));
    } else {
      return checked(model.forward(std::forward<Inputs>(inputs)...));
    }
  }
  // While the guard lives, operators choose their types as torch_autocast says; nothing without it.
  [[nodiscard]] std::shared_ptr<void> autocast();
  schedule::LayerDropState layer_drop() const;

  // Once per micro-batch. At the boundary: reduce, average, check, clip, update, publish, zero the
  // window, and the scheduler's step, to which lr_kwargs go.
  void step(const schedule::LrKeywords& lr_kwargs = {});
  // Empties the accumulation window. The boundary comes where it would have come.
  void zero_grad();
  // Whether the next step() acts: after gradient_accumulation_steps calls of it, and always where
  // managed_gradient_accumulation is false, unless it was set.
  bool is_gradient_accumulation_boundary() const;
  // Holds until it is set again; std::nullopt gives the decision back to the count.
  void set_gradient_accumulation_boundary(std::optional<bool> is_boundary);
  // While the guard lives, passes add up and step() is an error. Stages 0 and 1: later ones reduce
  // in every pass.
  [[nodiscard]] std::shared_ptr<void> no_sync();
  // Between windows: other accumulation steps for the same micro-batch size.
  void set_train_batch_size(int64_t train_batch_size);

  const EngineConfig& config() const;
  std::vector<double> get_lr() const;  // of the next update, by parameter group
  // The rate of the next update and of those after it, of every group or by group. A configured
  // scheduler overrides it when it steps, which is after the next update that is applied, as in
  // DeepSpeed. Finite and not negative, and the same on every rank: else an error on all, and
  // nothing is set. Collective.
  void set_lr(double lr);
  void set_lr(const std::vector<double>& lr_by_group);
  // What the configured optimizer takes beside the rate, by parameter group: as set_lr. The kind
  // stays, and so does whether SGD has a momentum. None, and an error, with an optimizer of the
  // user's, whose groups hold them.
  std::vector<OptimizerConfig> hyper_parameters() const;
  void set_hyper_parameters(const std::vector<OptimizerConfig>& by_group);
  const Counters& counters() const;
  // Whether the last step() at a boundary updated the parameters; false before the first.
  bool was_step_applied() const;
  // Norm of the averaged gradient before clipping, of the last boundary; NaN if it was not finite,
  // nothing before the first.
  std::optional<double> get_global_grad_norm() const;
  // The whole parameter as the model sees it, a copy of its own. Collective.
  at::Tensor full_parameter(const std::string& name);
  std::vector<LocalShard> local_shards() const;
  Access& access();
  // Whole parameters while the guard lives, which one rank may write. Collective.
  [[nodiscard]] GatheredParameters gather(const std::vector<at::Tensor>& parameters,
                                          std::optional<int> modifier_rank = std::nullopt);
  // Called at every boundary after clipping and before the update.
  void on_step(std::function<void(const std::vector<LocalShard>&)> observer);
  // Everything that the next step depends on, into DIRECTORY/TAG: at a boundary, else an error.
  // Without a tag it is "global_step" and their number. What was there stays whole until the new
  // one is; the other tags stay. A run that loads it goes on as if it had never been interrupted,
  // bit for bit: on as many ranks at the same stage, and in the exact order on any number at any
  // stage. Collective.
  void save_checkpoint(const std::string& directory, const std::string& tag = "",
                       const SaveOptions& options = {});
  // Ends an asynchronous save (SaveOptions), which counts from here on: waits until every rank has
  // written. The next save and the next load do it too; an engine that is destroyed before gives
  // the save up. Collective.
  void finish_checkpoint();
  // Without a tag the one that DIRECTORY/latest names; nothing is loaded, and nothing given back,
  // if there is no such file. An error on any rank is one on all, and changes nothing. Collective.
  std::optional<LoadedCheckpoint> load_checkpoint(const std::string& directory,
                                                  const std::string& tag = "",
                                                  const LoadOptions& options = {});
  // Bytes this rank holds, by category, now and at the peak.
  const memory::Ledger& ledger() const;

 private:
  void check_forward();
  template <class Output>
  Output checked(Output output) {
    check_forward();
    return output;
  }

  std::unique_ptr<TrainingEngine> engine_;
};

// The core: named parameters, a checked configuration, the ranks: a communicator (comm/launch.hpp
// makes one), or a mesh of them (comm/mesh.hpp) whose sizes the configuration names.
// `modules` are the model's, parents first, for leaf modules and the flops profiler; without any
// they are those that the parameters' names tell of.
std::unique_ptr<Engine> initialize(std::vector<ParameterGroup> groups, const EngineConfig& config,
                                   comm::Mesh ranks, std::vector<layout::ModuleEntry> modules = {});

// Any unmodified module. `config` is a DeepSpeed JSON text or the path of one; without a
// communicator the ranks come from the launch environment (torchrun, mpirun, Slurm), or it is one
// rank.
std::unique_ptr<Engine> initialize(torch::nn::Module& model, const std::string& config,
                                   comm::Mesh ranks = nullptr);

// With an optimizer of the user's, whose groups hold the trainable parameters of the model, each
// once: any that updates every element by itself, and steps without a closure. A configuration that
// names an "optimizer" too is an error. Its groups keep their options and hold slices of masters
// from now on (engine/api/slice_optimizer.hpp); get_lr, set_lr and a scheduler act on them. Masters
// are fp32. With an EngineConfig, which always has an optimizer, that one is not used.
std::unique_ptr<Engine> initialize(torch::nn::Module& model, const std::string& config,
                                   std::shared_ptr<torch::optim::Optimizer> optimizer,
                                   comm::Mesh ranks = nullptr);
std::unique_ptr<Engine> initialize(std::vector<ParameterGroup> groups, const EngineConfig& config,
                                   comm::Mesh ranks, std::shared_ptr<SliceOptimizer> optimizer,
                                   std::vector<layout::ModuleEntry> modules = {});

}  // namespace equigrad
