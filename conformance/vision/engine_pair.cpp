#include "conformance/vision/engine_pair.hpp"

#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "conformance/oracle/bits.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::conformance::vision {
namespace {

std::string config_text(const Setting& setting, int stage, double clipping) {
  nlohmann::json config;
  config["train_micro_batch_size_per_gpu"] = setting.images;
  config["gradient_accumulation_steps"] = setting.accumulation;
  config["gradient_clipping"] = clipping;
  config["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", 3e-3}, {"weight_decay", 0.01}}}};
  if (setting.bf16) config["bf16"]["enabled"] = true;
  config["zero_optimization"] = {{"stage", stage},
                                 {"reduce_bucket_size", 8000},
                                 {"allgather_bucket_size", 8000},
                                 {"stage3_prefetch_bucket_size", 8000}};
  if (stage == 3) config["zero_optimization"]["stage3_param_persistence_threshold"] = 0;
  return config.dump();
}

// A group of its own for ranks [first, first + count) of `all`; all ranks call it. The processes
// are the group's name, so that the same ones find it again.
std::shared_ptr<comm::Communicator> part_of(comm::Communicator& all, int first, int count,
                                            const std::string& directory) {
  static std::map<std::string, std::shared_ptr<comm::Communicator>> known;
  const auto processes = comm::exchange(all, at::full({1}, getpid(), at::kLong));
  std::string name = "part";
  for (int rank = first; rank < first + count; ++rank)
    name += "-" + std::to_string(processes[rank][0].item<int64_t>());
  auto& group = known[name];
  if (!group)
    group = comm::connect_gloo(all.rank() - first, count, directory + "/" + name,
                               std::chrono::seconds(60));
  return group;
}

at::Tensor number(double value) { return at::full({1}, value, at::kDouble); }

}  // namespace

EnginePair::EnginePair(const Setting& setting, ranks::RankContext& context, const Album& album)
    : setting_(setting), context_(context), album_(album), all_(context.group()) {
  const bool apart = setting.way == Way::TwoGroups;
  group_ = apart
               ? part_of(*all_, reads_only() ? setting.ranks : 0, group_size(), context.directory())
               : all_;
  const auto make = [&](std::shared_ptr<reference::Model> model, int stage, double clipping) {
    auto half = std::make_unique<Half>();
    half->model = std::move(model);
    half->engine = initialize(*half->model, config_text(setting, stage, clipping), group_);
    half->engine->on_step([to = half.get()](const std::vector<LocalShard>& shards) {
      for (const auto& shard : shards)
        to->gradients[shard.name] =
            shard.gradient.defined() ? shard.gradient.clone() : at::Tensor();
    });
    return half;
  };
  if (!reads_only())
    encoder_ = make(make_encoder(setting.seed), setting.encoder_stage, kEncoderClipping);
  if (!apart || reads_only())
    language_ = make(make_captioner(setting.seed), setting.language_stage, kLanguageClipping);
  if (apart) bridge_ = make_bridge(setting.whole_batch(), true);
}

std::unique_ptr<parallel::Bridge> EnginePair::make_bridge(int64_t rows, bool gradients) const {
  const parallel::Side producer{.first = 0, .data = setting_.ranks};
  const parallel::Side consumer{.first = setting_.ranks, .data = setting_.language_ranks()};
  return std::make_unique<parallel::Bridge>(
      all_, producer, consumer,
      parallel::BridgeOptions{.rows = rows,
                              .row_sizes = {kPlaces, kWidth},
                              .dtype = setting_.bf16 ? at::kBFloat16 : at::kFloat,
                              .gradients = gradients,
                              .gradient_factor = std::nullopt});
}

void EnginePair::step() {
  losses_.clear();
  for (auto* half : {encoder_.get(), language_.get()})
    if (half != nullptr) half->gradients.clear();
  for (int64_t index = 0; index < setting_.accumulation; ++index) micro_batch(index);
  ++step_;
}

void EnginePair::micro_batch(int64_t index) {
  context_.note("step " + std::to_string(step_ + 1) + " micro-batch " + std::to_string(index + 1));
  const auto rows = parallel::rows_of(setting_.whole_batch(), group_rank(), group_size());
  const auto batch = reference::to_dtype(
      album_.rows({setting_.seed, step_, 0, index}, setting_.images, rows.begin, rows.count()),
      setting_.bf16 ? at::kBFloat16 : at::kFloat);
  if (setting_.way == Way::OneGraph) in_one_graph(batch);
  if (setting_.way == Way::Handed) by_gradient(batch);
  if (setting_.way == Way::TwoGroups) over_the_bridge(batch);
  for (auto* half : {encoder_.get(), language_.get()})
    if (half != nullptr) half->engine->step();
}

void EnginePair::in_one_graph(const reference::Batch& batch) {
  const auto features = encoder().forward(batch.input);
  backward(captioner().forward(features, batch.target), batch, false);
}

void EnginePair::by_gradient(const reference::Batch& batch) {
  const bool attached = setting_.fault == Fault::NotDetached;
  const auto features = encoder().forward(batch.input);
  auto input =
      setting_.fault == Fault::OtherFeatures ? of_rank(group_rank() + 1, features) : features;
  if (attached)
    input.retain_grad();
  else
    input = input.detach().requires_grad_();
  const auto gradient = read(input, batch, attached);
  features.backward(handed(gradient));
}

void EnginePair::over_the_bridge(const reference::Batch& batch) {
  if (language_) return bridge_->send_gradient(read(bridge_->receive(), batch, false));
  const auto features = encoder().forward(batch.input);
  bridge_->send(setting_.fault == Fault::OtherFeatures ? of_rank(group_rank() + 1, features)
                                                       : features);
  features.backward(handed(bridge_->receive_gradient()));
}

// The language model's pass; the gradient of what it reads.
at::Tensor EnginePair::read(const at::Tensor& input, const reference::Batch& batch,
                            bool retain_graph) {
  backward(captioner().forward(input, batch.target), batch, retain_graph);
  return input.grad();
}

at::Tensor EnginePair::handed(const at::Tensor& gradient) {
  const auto now =
      setting_.fault == Fault::DividedTwice ? gradient / setting_.accumulation : gradient;
  const auto before = std::exchange(handed_before_, now);
  return setting_.fault == Fault::OtherMicroBatch && before.defined() ? before : now;
}

// What that rank of this one's group has.
at::Tensor EnginePair::of_rank(int from, const at::Tensor& mine) {
  const auto heard = at::empty({group_size() * mine.numel()}, mine.options());
  group_->all_gather(heard, mine.detach().flatten())->wait();
  return heard.narrow(0, from % group_size() * mine.numel(), mine.numel()).view(mine.sizes());
}

void EnginePair::backward(const at::Tensor& logits, const reference::Batch& batch,
                          bool retain_graph) {
  auto& engine = *language_->engine;
  if (setting_.style == Style::LogitsBackward) {
    const auto leaf = logits.detach().requires_grad_();
    losses_.push_back(captioner().criterion(leaf, batch));
    losses_.back().backward();
    logits.backward(leaf.grad(), retain_graph);
  } else {
    const auto loss = captioner().criterion(logits, batch);
    losses_.push_back(loss);
    if (setting_.style == Style::EngineBackward) engine.backward(loss, retain_graph);
    if (setting_.style == Style::ScaleBackward) engine.scale(loss).backward({}, retain_graph);
    if (setting_.style == Style::LossBackward) loss.backward({}, retain_graph);
  }
  losses_.back() = losses_.back().detach();
}

void EnginePair::compare(const PairRecord& want, LaneTally& encoder_tally,
                         LaneTally& language_tally) {
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const auto& wanted = want.losses[i * static_cast<std::size_t>(group_size()) +
                                     static_cast<std::size_t>(group_rank())];
    language_tally.add("loss", 0, oracle::compare(losses_[i], wanted));
  }
  if (encoder_) compare_half(*encoder_, want.encoder, encoder_tally);
  if (language_) compare_half(*language_, want.language, language_tally);
}

void EnginePair::compare_half(const Half& half, const reference::StepRecord& want,
                              LaneTally& tally) const {
  const std::string when = "step " + std::to_string(step_) + " ";
  const auto norm = number(half.engine->get_global_grad_norm().value_or(NAN));
  tally.add(when + "norm", 0, oracle::compare(norm, number(want.grad_norm)));
  const auto shards = half.engine->local_shards();
  if (shards.size() != want.masters.size() || half.gradients.size() != want.gradients.size())
    tally.add_finding(when + "parameters", "not as many as the reference has");
  for (const auto& shard : shards) {
    const auto check = [&](const std::string& what, const at::Tensor& got,
                           const at::Tensor& whole) {
      const auto part = whole.flatten().slice(0, shard.begin, shard.end);
      tally.add(when + what + " " + shard.name, shard.begin, oracle::compare(got.flatten(), part));
    };
    const auto gradient = half.gradients.find(shard.name);
    if (gradient == half.gradients.end() || !gradient->second.defined())
      tally.add_finding(when + "gradient " + shard.name, "there is none");
    else
      check("gradient", gradient->second, want.gradients.at(shard.name));
    check("master", shard.master, want.masters.at(shard.name));
    if (shard.state.size() != want.state.size())
      tally.add_finding(when + "states of " + shard.name, "not as many as the reference has");
    for (const auto& [name, state] : shard.state)
      check(name, state, want.state.at(name).at(shard.name));
  }
  for (const auto& [name, parameter] : want.parameters)
    tally.add(when + "parameter " + name, 0,
              oracle::compare(half.engine->full_parameter(name), parameter));
}

at::Tensor EnginePair::write(const at::Tensor& images) {
  const at::NoGradGuard no_grad;
  at::Tensor features;
  if (encoder_) features = encoder().forward(images.to(setting_.bf16 ? at::kBFloat16 : at::kFloat));
  if (setting_.way != Way::TwoGroups) return captioner().write(features);
  const auto counts = comm::exchange(*group_, at::full({1}, images.size(0), at::kLong));
  const auto bridge = make_bridge(counts.sum().item<int64_t>(), false);
  if (language_) return captioner().write(bridge->receive());
  bridge->send(features);
  return {};
}

}  // namespace equigrad::conformance::vision
