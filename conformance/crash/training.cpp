#include "conformance/crash/training.hpp"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/checkpoint/digest.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr useconds_t kLateUs = 200'000;  // a time-out comes late: the others have gone on

class Counted final : public comm::Pending {
 public:
  Counted(comm::PendingPtr pending, CallCounter& calls, std::int64_t call)
      : pending_(std::move(pending)), calls_(calls), call_(call) {}
  void wait() override {
    pending_->wait();
    calls_.leave(call_);
  }

 private:
  comm::PendingPtr pending_;
  CallCounter& calls_;
  std::int64_t call_;
};

EngineConfig config_of(const Setting& setting) {
  EngineConfig config;
  config.gradient_accumulation_steps = 2;
  config.train_batch_size = 2 * setting.world;
  config.zero.stage = setting.stage;
  config.zero.reduce_bucket_size = 2000;
  config.zero.stage3_param_persistence_threshold = 10;
  config.gradient_clipping = 1.0;
  config.optimizer.lr = 0.01;
  config.optimizer.weight_decay = 0.1;
  config.scheduler.emplace();
  config.scheduler->warmup_num_steps = 50;
  config.communication_timeout_s = 20;
  auto& precision = config.precision;
  if (setting.precision == "bf16") precision.param = precision.accumulate = DataType::Bf16;
  if (setting.precision == "fp16") {
    precision.param = precision.accumulate = DataType::Fp16;
    precision.loss_scale.policy = LossScaleConfig::Policy::DeepSpeed;
    precision.loss_scale.initial_scale_power = 8;
    precision.loss_scale.loss_scale_window = 2;
  }
  return config;
}

at::ScalarType dtype_of(const Setting& setting) {
  if (setting.precision == "bf16") return at::kBFloat16;
  return setting.precision == "fp16" ? at::kHalf : at::kFloat;
}

struct Sizes {
  int64_t inputs, hidden, outputs, unused;
};

Sizes sizes_of(Size size) { return size == Size::Tiny ? Sizes{3, 2, 1, 1} : Sizes{40, 96, 5, 7}; }

std::vector<std::pair<std::string, std::vector<int64_t>>> shapes_of(const Sizes& sizes) {
  return {{"w1", {sizes.hidden, sizes.inputs}},
          {"b1", {sizes.hidden}},
          {"w2", {sizes.outputs, sizes.hidden}},
          {"b2", {sizes.outputs}},
          {"unused", {sizes.unused}},
          {"frozen", {sizes.outputs}}};
}

void add(checkpoint::Digester& digester, const std::string& name, const at::Tensor& tensor) {
  const auto here = tensor.detach().cpu().contiguous();
  digester.add(name.data(), name.size() + 1);
  digester.add(here.const_data_ptr(), here.nbytes());
}

template <class Number>
void add(checkpoint::Digester& digester, Number number) {
  digester.add(&number, sizeof number);
}

}  // namespace

void CallCounter::begin() {
  roots_.clear();
  entered_ = left_ = 0;
}

std::int64_t CallCounter::enter(int root) {
  roots_.push_back(root);
  return entered_++;
}

void CallCounter::leave(std::int64_t call) {
  left_ = std::max<std::int64_t>(left_, call + 1);
  if (call != lost_) return;
  usleep(kLateUs);
  throw comm::CommunicationError("crash.call",
                                 "expected to hear all ranks, got a peer that is lost");
}

comm::PendingPtr CallCounter::carry(Carrier by, const at::Tensor& output, const at::Tensor& input) {
  const auto call = enter(kAllWait);
  return std::make_unique<Counted>(ForwardingCommunicator::carry(by, output, input), *this, call);
}

comm::PendingPtr CallCounter::all_gather(const at::Tensor& output, const at::Tensor& input) {
  const auto call = enter(kAllWait);
  return std::make_unique<Counted>(ForwardingCommunicator::all_gather(output, input), *this, call);
}

comm::PendingPtr CallCounter::all_reduce_sum(const at::Tensor& tensor) {
  const auto call = enter(kAllWait);
  return std::make_unique<Counted>(ForwardingCommunicator::all_reduce_sum(tensor), *this, call);
}

comm::PendingPtr CallCounter::reduce_scatter_sum(const at::Tensor& output,
                                                 const at::Tensor& input) {
  const auto call = enter(kAllWait);
  return std::make_unique<Counted>(ForwardingCommunicator::reduce_scatter_sum(output, input), *this,
                                   call);
}

comm::PendingPtr CallCounter::broadcast(const at::Tensor& tensor, int root) {
  const auto call = enter(root);
  return std::make_unique<Counted>(ForwardingCommunicator::broadcast(tensor, root), *this, call);
}

Training::Training(ranks::RankContext& context, const Setting& setting, Weights weights, Size size)
    : rank_(context.rank()),
      beside_(setting.beside),
      inputs_(sizes_of(size).inputs),
      dtype_(dtype_of(setting)),
      calls_(std::make_shared<CallCounter>(context.group(setting.world))),
      mean_(at::zeros({sizes_of(size).outputs})) {
  const double begin = weights == Weights::AsRun ? 0 : 1000;
  const auto shapes = shapes_of(sizes_of(size));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, shape] = shapes[i];
    const auto numel = c10::multiply_integers(shape);
    const auto flat = at::sin(at::arange(numel) * 0.7 + begin + static_cast<double>(i));
    parameters_.push_back({name, flat.view(shape) * 0.3});
    parameters_.back().tensor.requires_grad_(name != "frozen");
  }
  at::manual_seed(static_cast<std::uint64_t>(begin) + static_cast<std::uint64_t>(rank_));
  engine_ = initialize({ParameterGroup{parameters_, {}, {}}}, config_of(setting), calls_);
}

const at::Tensor& Training::tensor(const std::string& name) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& one) { return one.name == name; });
  return found->tensor;
}

at::Tensor Training::loss() {
  const auto at = static_cast<double>(10 * engine_->counters().micro_steps + rank_);
  const auto data = at::cos(at::arange(4 * inputs_) + at).view({4, inputs_});
  const auto input = (data + at::rand({4, inputs_})).to(dtype_);
  const auto hidden = at::tanh(at::linear(input, tensor("w1"), tensor("b1")));
  const auto output = at::linear(hidden, tensor("w2"), tensor("b2")) + tensor("frozen");
  mean_.mul_(0.9).add_(output.detach().to(at::kFloat).mean(0), 0.1);
  return output.to(at::kFloat).square().mean();
}

void Training::step() {
  do {
    engine_->backward(loss());
    engine_->step();
  } while (engine_->counters().micro_steps % 2 != 0);
}

std::string Training::digest() {
  const at::NoGradGuard no_grad;
  checkpoint::Digester digester;
  for (const auto& one : parameters_) add(digester, one.name, engine_->full_parameter(one.name));
  for (const auto& shard : engine_->local_shards()) {
    add(digester, shard.name, shard.master);
    for (const auto& [name, state] : shard.state) add(digester, name, state);
  }
  add(digester, "mean", mean_);
  add(digester, "generator", at::globalContext().defaultGenerator(at::kCPU).get_state());
  const auto& counters = engine_->counters();
  add(digester, counters.micro_steps);
  add(digester, counters.global_steps);
  add(digester, counters.skipped_steps);
  add(digester, engine_->loss_scale());
  for (const double rate : engine_->get_lr()) add(digester, rate);
  add(digester, engine_->was_step_applied());
  add(digester, engine_->get_global_grad_norm().value_or(-1));
  return checkpoint::to_text(digester.digest());
}

void Training::save(const std::string& directory, const std::string& tag,
                    std::shared_ptr<checkpoint::Storage> storage) {
  SaveOptions options;
  options.client_state = R"({"steps": )" + std::to_string(engine_->counters().global_steps) + "}";
  options.buffers = {{"mean", mean_}};
  options.storage = std::move(storage);
  options.asynchronous = beside_;
  engine_->save_checkpoint(directory, tag, options);
}

std::optional<std::string> Training::load(const std::string& directory, const std::string& tag) {
  LoadOptions options;
  options.buffers = {{"mean", mean_}};
  const auto loaded = engine_->load_checkpoint(directory, tag, options);
  if (!loaded) return {};
  return loaded->client_state;
}

}  // namespace equigrad::conformance::crash
