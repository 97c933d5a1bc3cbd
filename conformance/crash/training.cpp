#include "conformance/crash/training.hpp"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/checkpoint/digest.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/config/config.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/sequence.hpp"
#include "engine/parallel/split_marks.hpp"

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

comm::MeshSizes sizes_of(const Setting& setting) {
  return comm::mesh_sizes(setting.world, setting.sequence, setting.tensor);
}

EngineConfig config_of(const Setting& setting) {
  EngineConfig config;
  config.gradient_accumulation_steps = 2;
  config.train_batch_size = 2 * sizes_of(setting).data;
  config.sequence_parallel_size = setting.sequence;
  if (setting.tensor > 1) config.tensor_parallel.autotp_size = setting.tensor;
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

// A parameter of the whole network, and how a tensor group splits it.
struct Whole {
  std::string name;
  std::vector<int64_t> shape;
  std::optional<parallel::Split> split = {};
};

std::vector<Whole> wholes(const Sizes& sizes, bool on_tensor_group) {
  const auto [inputs, hidden, outputs, unused] = sizes;
  const auto packed =
      hidden % 4 == 0 ? std::vector{hidden / 4, hidden * 3 / 4} : std::vector{hidden};
  const auto split = [&packed](int64_t dimension, std::vector<int64_t> shape) {
    return parallel::Split{dimension, packed, std::move(shape)};
  };
  std::vector<Whole> all = {{"w1", {hidden, inputs}, split(0, {hidden, inputs})},
                            {"b1", {hidden}, split(0, {hidden})},
                            {"w2", {outputs, hidden}, split(1, {outputs, hidden})},
                            {"b2", {outputs}},
                            {"unused", {unused}},
                            {"frozen", {outputs}}};
  if (on_tensor_group) all.push_back({"frozen_part", {hidden}, split(0, {hidden})});
  return all;
}

comm::Mesh mesh_of(ranks::RankContext& context, const Setting& setting,
                   std::shared_ptr<CallCounter>& calls) {
  const auto connect = [&](const std::string& name, int rank,
                           int size) -> std::shared_ptr<comm::Communicator> {
    if (name != "world") return context.group(name, rank, size);
    calls = std::make_shared<CallCounter>(context.group(size));
    return calls;
  };
  return comm::make_mesh(context.rank(), sizes_of(setting), connect);
}

// This rank's part of a value.
at::Tensor own_part(const Whole& whole, const at::Tensor& value, const parallel::Group& tensor) {
  if (!tensor || !whole.split) return value;
  const auto part = parallel::part_of(value, *whole.split, tensor->rank(), tensor->world_size());
  parallel::mark_split(part, *whole.split, tensor->world_size());
  return part;
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
    : beside_(setting.beside),
      inputs_(sizes_of(size).inputs),
      dtype_(dtype_of(setting)),
      mesh_(mesh_of(context, setting, calls_)),
      mean_(at::zeros({sizes_of(size).outputs})) {
  const double begin = weights == Weights::AsRun ? 0 : 1000;
  const auto all = wholes(sizes_of(size), mesh_.tensor() != nullptr);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto numel = c10::multiply_integers(all[i].shape);
    const auto flat = at::sin(at::arange(numel) * 0.7 + begin + static_cast<double>(i));
    const auto value = own_part(all[i], flat.view(all[i].shape) * 0.3, mesh_.tensor());
    parameters_.push_back({all[i].name, value});
    parameters_.back().tensor.requires_grad_(!all[i].name.starts_with("frozen"));
  }
  at::manual_seed(static_cast<std::uint64_t>(begin) + static_cast<std::uint64_t>(data_rank()));
  engine_ = initialize({ParameterGroup{parameters_, {}, {}}}, config_of(setting), mesh_);
}

// Those that share a model, or sequences, have one batch.
int Training::data_rank() const {
  return comm::place_of(mesh_.world()->rank(), mesh_.sizes()).data;
}

const at::Tensor& Training::tensor(const std::string& name) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& one) { return one.name == name; });
  return found->tensor;
}

at::Tensor Training::output(const at::Tensor& input) const {
  const auto& group = mesh_.tensor();
  auto hidden = parallel::column_linear(input, tensor("w1"), tensor("b1"), group);
  if (group) hidden = hidden + tensor("frozen_part");
  return parallel::row_linear(at::tanh(hidden), tensor("w2"), tensor("b2"), group) +
         tensor("frozen");
}

at::Tensor Training::loss() {
  const auto at = static_cast<double>(10 * engine_->counters().micro_steps + data_rank());
  const auto data = at::cos(at::arange(4 * inputs_) + at).view({4, inputs_});
  const auto input = (data + at::rand({4, inputs_})).to(dtype_);
  const auto& sequence = mesh_.sequence();
  const auto wide = output(parallel::sequence_part(input, 0, sequence)).to(at::kFloat);
  const double own = mesh_.world()->rank();  // a rank's means are no other's
  mean_.mul_(0.9).add_(wide.detach().mean(0) + own, 0.1);
  if (!sequence) return wide.square().mean();
  return parallel::sequence_mean(wide.square().sum(), at::full({}, wide.numel(), at::kLong),
                                 sequence);
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
