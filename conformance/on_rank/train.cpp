#include "conformance/on_rank/train.hpp"

#include <torch/types.h>

#include "conformance/cases/device.hpp"
#include "conformance/cases/model_groups.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/on_rank/answer.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {
namespace {

// What train_config() (cli/train_command.cpp) says to the engine, said to the reference. The two
// are written separately on purpose, as in recipe.hpp.
reference::Recipe recipe_of_options(const nlohmann::json& options) {
  reference::Recipe recipe;
  recipe.accumulation_steps = options.at("accumulate");
  recipe.optimizer.rule = reference::Rule::AdamW;
  recipe.optimizer.lr = options.at("lr");
  recipe.optimizer.weight_decay = 0.01;
  recipe.gradient_clipping = 1.0;
  recipe.compute_dtype = options.at("dtype") == "bf16" ? at::kBFloat16 : at::kFloat;
  recipe.accumulate_dtype = recipe.compute_dtype;
  recipe.order = order_of(options.at("stage"));
  recipe.absolute_sums = false;
  return recipe;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

struct Job {
  std::string data;  // text or images
  uint64_t seed = 0;
  int world = 1;
  reference::GptOptions gpt;
  reference::Recipe recipe;
  int64_t micro_batch_size = 1;
  int stage = 0;

  explicit Job(const nlohmann::json& request)
      : data(request.at("kind")),
        seed(request.at("seed")),
        world(request.at("world")),
        gpt{request.at("layers"), request.at("dim"), request.at("heads"), request.at("context")} {
    if (request.contains("options")) {
      const auto& options = request["options"];
      recipe = recipe_of_options(options);
      micro_batch_size = options.at("micro_batch");
      stage = options.at("stage");
    } else {
      const auto config = load_config(request.at("config"), world);
      recipe = recipe_of(config, world, seed);
      micro_batch_size = config.train_micro_batch_size_per_gpu;
      stage = config.zero.stage;
    }
    recipe.seed = seed;
    recipe.world = world;
  }

  std::shared_ptr<reference::Model> model() const {
    return on_device(data == "text" ? reference::make_gpt(gpt, seed)
                                    : reference::make_model("conv", seed));
  }
  reference::Batch batch(const reference::Data& from, const reference::Draw& draw) const {
    return on_device(data == "text" ? from.text_batch(micro_batch_size, gpt.context, draw)
                                    : from.make_batch("conv", draw));
  }
};

class Session {
 public:
  virtual ~Session() = default;
  virtual nlohmann::json step(const nlohmann::json& request) = 0;
  virtual nlohmann::json compare(const nlohmann::json& request) = 0;
};

class TwinSession : public Session {
 public:
  TwinSession(const Job& job, const reference::Data& data)
      : trainer_(job.recipe, job.model(),
                 [job, &data](int64_t step, int64_t rank, int64_t micro_batch) {
                   return job.batch(data, {job.seed, step, rank, micro_batch});
                 }) {}

  nlohmann::json step(const nlohmann::json& request) override {
    const auto record = trainer_.train_step();
    oracle::TensorFile file;
    add_step(file, "add_then_reduce/0", record);
    oracle::write_tensors(request.at("path"), file.tensors, file.metadata);
    double sum = 0;
    for (const auto& loss : record.losses) sum += loss.item<double>();
    return {{"loss", sum / static_cast<double>(record.losses.size())}};
  }
  nlohmann::json compare(const nlohmann::json&) override { return nullptr; }

 private:
  reference::Trainer trainer_;
};

class EngineSession : public Session {
 public:
  EngineSession(const Job& job, const std::string& config, const reference::Data& data,
                ranks::RankContext& context)
      : job_(job), data_(data), context_(context), model_(job.model()) {
    ParameterGroup all;
    const auto types = module_types(*model_);
    for (const auto& [name, tensor] : reference::unique_parameters(*model_)) {
      all.parameters.push_back({name, tensor, *types.at(name).begin()});
      if (tensor.requires_grad()) numels_[name] = tensor.numel();
    }
    engine_ = initialize({all}, load_config(config, job.world), context.group());
    engine_->on_step([this](const std::vector<LocalShard>& shards) {
      for (const auto& shard : shards)
        gradients_[shard.name] = shard.gradient.defined() ? copy_of(shard.gradient) : at::Tensor();
    });
  }

  nlohmann::json step(const nlohmann::json&) override {
    losses_.clear();
    gradients_.clear();
    double sum = 0;
    for (int64_t index = 0; index < job_.recipe.accumulation_steps; ++index) {
      context_.note("step " + std::to_string(step_ + 1) + " micro-batch " +
                    std::to_string(index + 1));
      const auto batch = job_.batch(data_, {job_.seed, step_, context_.rank(), index});
      auto guard = engine_->autocast();
      const auto loss = model_->loss(reference::to_dtype(batch, job_.recipe.compute_dtype));
      guard.reset();
      engine_->backward(loss);
      engine_->step();
      losses_.push_back(loss.detach().to(at::kCPU, at::kFloat));
      sum += losses_.back().item<double>();
    }
    ++step_;
    return {{"loss", sum / static_cast<double>(losses_.size())}};
  }

  nlohmann::json compare(const nlohmann::json& request) override {
    const Twin twin(request.at("path"), reference::SumOrder::AddThenReduce);
    LaneTally tally;
    for (std::size_t i = 0; i < losses_.size(); ++i) {
      const int64_t index = static_cast<int64_t>(i) * job_.world + context_.rank();
      const auto want = at::full({1}, twin.loss(0, index), at::kFloat);
      tally.add("loss of micro-batch " + std::to_string(i + 1), 0,
                oracle::compare(losses_[i].reshape({1}), want));
    }
    check_boundary(tally, twin);
    for (const auto& shard : engine_->local_shards()) {
      if (!twin.skipped(0)) check(tally, twin, "gradient", shard, gradients_[shard.name]);
      check(tally, twin, "master", shard, shard.master);
      check_states(tally, twin, shard);
    }
    for (const auto& [name, tensor] : reference::unique_parameters(*model_))
      tally.add("parameter " + name, 0,
                oracle::compare(engine_->full_parameter(name).cpu().flatten(),
                                twin.tensor(0, "parameter", name)));
    auto answer = tally.to_json();
    answer["cover"] = cover_rows(numels_, *engine_);
    return answer;
  }

 private:
  // A step that is skipped shows no gradients, and its norm is not a number.
  void check_boundary(LaneTally& tally, const Twin& twin) const {
    const double norm = engine_->get_global_grad_norm().value_or(0);
    if (engine_->was_step_applied() == twin.skipped(0))
      return tally.add_finding("boundary", twin.skipped(0) ? "applied, the twin skips it"
                                                           : "skipped, the twin applies it");
    if (twin.skipped(0)) return tally.add_held(1);
    if (gradients_.empty()) tally.add_finding("boundary", "on_step was not called");
    tally.add("norm of the gradient", 0,
              oracle::compare(at::full({1}, norm, at::kDouble),
                              at::full({1}, twin.grad_norm(0), at::kDouble)));
  }

  static void check(LaneTally& tally, const Twin& twin, const std::string& what,
                    const LocalShard& shard, const at::Tensor& got) {
    const auto want = twin.tensor(0, what, shard.name);
    const std::string where = what + " " + shard.name;
    if (got.defined() != want.defined())
      return tally.add_finding(where, got.defined() ? "the twin has none" : "the engine has none");
    if (got.defined())
      tally.add(where, shard.begin,
                oracle::compare(got.cpu().flatten(), want.slice(0, shard.begin, shard.end)));
  }

  void check_states(LaneTally& tally, const Twin& twin, const LocalShard& shard) const {
    for (const auto& [name, state] : shard.state) check(tally, twin, name, shard, state);
    const auto wanted = reference::state_names(job_.recipe.optimizer).size();
    if (wanted != shard.state.size())
      tally.add_finding("states of " + shard.name, "expected " + std::to_string(wanted) +
                                                       " of them, got " +
                                                       std::to_string(shard.state.size()));
  }

  Job job_;
  const reference::Data& data_;
  ranks::RankContext& context_;
  std::shared_ptr<reference::Model> model_;
  std::map<std::string, int64_t> numels_;  // of the trainable parameters
  std::unique_ptr<Engine> engine_;
  std::map<std::string, at::Tensor> gradients_;
  std::vector<at::Tensor> losses_;
  int64_t step_ = 0;
};

}  // namespace

nlohmann::json serve_train(const nlohmann::json& request, ranks::RankContext& context,
                           const reference::Data& data) {
  static std::unique_ptr<Session> session;
  const std::string verb = request.at("verb");
  if (verb == "start") {
    session.reset();
    const Job job(request);
    if (request.at("part") == "twin")
      session = std::make_unique<TwinSession>(job, data);
    else
      session = std::make_unique<EngineSession>(job, request.at("config"), data, context);
    int64_t numel = 0;
    for (const auto& [name, tensor] : reference::unique_parameters(*job.model()))
      numel += tensor.numel();
    const int64_t sequences = job.micro_batch_size * job.recipe.accumulation_steps * job.world;
    return {{"parameters", numel},
            {"stage", job.stage},
            {"tokens", sequences * (job.data == "text" ? job.gpt.context : 1)}};
  }
  if (!session) throw Error("train", "expected a session, got none. Send the verb start first.");
  if (verb == "step") return session->step(request);
  return session->compare(request);
}

}  // namespace equigrad::conformance
