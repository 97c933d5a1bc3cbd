// Training engine: the stations of one engine, what it remembers between calls, and the only place
// that knows their order: loss, gradient, shard, optimizer, parameter.
//
// Every phase is a span of its own in a profile (a RecordFunction of the scope USER_SCOPE, which no
// observer of operators sees):
//   engine.backward   gradient.ready (a parameter)   gradient.end_pass
//   engine.step       gradient.agree   gradient.reduce   shard.norm   shard.clip
//                     optimizer.update   parameter.publish
// and within them, where ranks wait for each other: comm.reduce, comm.finish, agreement.meet,
// agreement.want, parameter.gather, parameter.arrive.
//
// Invariants: stations are made in the order of Stations' members and destroyed in the reverse; the
// hooks of pass_ call all of them. A pass counts from the end of the window's part on: nothing
// after it throws.
// Shapes, errors: those of engine.hpp.
// Depends on: every station; sources of core and nothing else include it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/agreement/coordinator.hpp"
#include "engine/autograd/backward_pass.hpp"
#include "engine/autograd/scaled_graph.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/core/assemble.hpp"
#include "engine/core/pending_save.hpp"
#include "engine/engine.hpp"
#include "engine/gradient/micro_batches.hpp"
#include "engine/gradient/window.hpp"
#include "engine/inspect/gathering.hpp"
#include "engine/inspect/tensor_access.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/module_tree.hpp"
#include "engine/layout/stage.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/parallel/split.hpp"
#include "engine/parameter/store.hpp"
#include "engine/profile/profiled_step.hpp"
#include "engine/schedule/progressive_layer_drop.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/shard/gradient_shard.hpp"

namespace equigrad::core {

// The other ranks, and this engine's place among them.
struct Group {
  comm::Mesh mesh;
  std::shared_ptr<comm::Communicator>
      communicator;  // mesh.zero(): who shares what this rank trains
  agreement::Participant participant;

  // Who adds up what the ranks of one model have; null: this rank has the whole gradient.
  comm::Communicator* over_model(bool is_sharded) const;
};

// The model's parameters, and how they are cut.
struct Model {
  std::vector<at::Tensor> tensors;  // by index of the table
  layout::ParameterTable table;
  layout::BucketPlan plan;
  std::map<const void*, const std::string*> names;          // by tensor
  std::vector<NamedTensor> buffers = {};                    // of the module, for checkpoints
  std::vector<std::optional<parallel::Split>> splits = {};  // by index; nothing: whole
  std::vector<shard::Span> repeated = {};  // of the shard: another tensor rank's norm has them

  Model(std::vector<at::Tensor> parameters, layout::ParameterTable entries,
        const EngineConfig& config, const comm::Mesh& mesh);
};

struct Loss {
  std::shared_ptr<loss::LossScaler> scaler;
  double pass_weight = 1.0;   // of the pass under way
  bool has_autocast = false;  // a forward could run under it
};

// For the user's eyes.
struct Inspection {
  Stations stations;
  Access access;
  Gathering gathering;
  std::function<void(const std::vector<LocalShard>&)> observer;
};

// What changes from step to step.
struct Schedules {
  gradient::MicroBatches micro_batches;
  std::vector<double> configured_lr;          // by group
  std::unique_ptr<schedule::Schedule> rates;  // null: constant
  std::optional<schedule::ProgressiveLayerDrop> layer_drop;
  profile::ProfiledStep profiled;
};

// What has come of it so far.
struct Outcome {
  Counters counters;
  bool applied = false;
  std::optional<double> norm;
};

struct Parts {
  EngineConfig config;
  Group group;
  memory::Ledger ledger;
  Model model;
  Loss loss;
  optimizer::ShardedState optimizer;
  std::unique_ptr<parameter::Parameters> parameters;
  gradient::Window window;
  Inspection inspection;
  Schedules schedules;
  Outcome outcome;
  std::unique_ptr<PendingSave> pending_save;  // asynchronous; null: none

  Parts(Assembly assembly, const EngineConfig& settings, comm::Mesh mesh,
        std::vector<layout::ModuleEntry> modules);
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const Stage& stage() const { return stage_row(config.zero.stage); }
  int world_size() const { return group.mesh.sizes().world_size(); }
  // Whose gradients are averaged: those of one sequence are added.
  int averaged_ranks() const { return group.mesh.sizes().data; }
  double factor() const;  // what a window's sum is averaged with
  void set_rates();
};

}  // namespace equigrad::core

namespace equigrad {

class TrainingEngine {
 public:
  TrainingEngine(Assembly assembly, const EngineConfig& config, comm::Mesh mesh,
                 std::vector<layout::ModuleEntry> modules);
  ~TrainingEngine();
  TrainingEngine(const TrainingEngine&) = delete;
  TrainingEngine& operator=(const TrainingEngine&) = delete;

  core::Parts& parts() { return parts_; }
  const core::Parts& parts() const { return parts_; }
  at::Tensor backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas);
  at::Tensor scale(const at::Tensor& tensor);
  void share_loss_scale(TrainingEngine& owner);
  void step(const schedule::LrKeywords& lr_kwargs);
  void zero_grad();
  void set_train_batch_size(int64_t train_batch_size);
  at::Tensor full_parameter(const std::string& name);
  // What an operator or a destructor could not throw.
  void rethrow_failure();

 private:
  autograd::BackwardPass watch();
  void begin_pass();
  void end_pass();
  void abandon_pass() noexcept;
  void check_scale() const;
  void check_autocast() const;
  std::vector<std::string> together(const std::function<std::string()>& attempt);
  agreement::Agreement agree();
  void update(const agreement::Agreement& agreement);
  void call_user(const std::function<void()>& call);
  void observe(const at::Tensor& gradient, const agreement::Agreement& agreement);
  bool may_update(const at::Tensor& gradient, int64_t non_finite_numel);
  void update_masters(const at::Tensor& gradient, const agreement::Agreement& agreement);

  core::Parts parts_;
  autograd::BackwardPass pass_;  // last: its hooks call everything above
};

}  // namespace equigrad
