#include "conformance/generated/model.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "conformance/cases/model_parts.hpp"
#include "conformance/contract/players/reentrant.hpp"
#include "conformance/generated/core.hpp"

namespace equigrad::conformance {
namespace {

uint64_t mixed(uint64_t a, uint64_t b) { return reference::hash(a ^ reference::hash(b + 1)); }

at::Generator generator_of(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::Tensor drawn(at::IntArrayRef sizes, at::Generator generator) {
  return at::empty(sizes, at::kFloat).normal_(0, 1, std::move(generator));
}

at::Tensor values_of(const WorkloadTensor& tensor, const at::Generator& generator) {
  auto usual = drawn(tensor.sizes, generator) * 0.5;
  if (tensor.dtype == "int64") return (usual * 8).to(at::kLong);
  if (tensor.dtype == "uint8") return (usual > 0).to(at::kByte);
  if (tensor.values == "zeros") return at::zeros(tensor.sizes);
  if (tensor.values == "negative_zeros") return at::zeros(tensor.sizes).neg();
  if (tensor.values == "subnormal") return usual * 1e-39;
  if (tensor.values == "nan")
    return at::full(tensor.sizes, std::numeric_limits<float>::quiet_NaN());
  return usual;
}

// The same values where the layout says.
at::Tensor laid_out(const at::Tensor& values, const std::string& layout, bool is_twins) {
  at::Tensor place = values;
  if (layout == "transposed" && values.dim() >= 2)
    place = at::empty_like(values.transpose(0, -1).contiguous()).transpose(0, -1);
  else if (layout == "channels_last" && values.dim() == 4)
    place = at::empty_like(values, values.options(), at::MemoryFormat::ChannelsLast);
  else if (layout == "sliced" && values.dim() >= 1)
    place = at::zeros(2 * values.numel() + 3, values.options())
                .slice(0, 1, 2 * values.numel() + 1, 2)
                .view_as(values);
  if (is_twins && layout == "sliced") place = at::empty_like(place);
  return place.copy_(values);
}

std::pair<std::string, std::string> split(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

bool is_trained(const WorkloadTensor& tensor) {
  return tensor.role != "frozen" && tensor.role != "buffer";
}

// A layer of torch whose weight the tensor is; null: it is no such weight.
std::shared_ptr<torch::nn::Module> layer_of(const WorkloadTensor& tensor, bool has_bias) {
  const auto size = [&](std::size_t i) { return tensor.sizes.at(i); };
  if (tensor.role == "linear")
    return std::make_shared<torch::nn::LinearImpl>(
        torch::nn::LinearOptions(size(1), size(0)).bias(has_bias));
  if (tensor.role == "convolution")
    return std::make_shared<torch::nn::Conv2dImpl>(
        torch::nn::Conv2dOptions(size(1), size(0), {size(2), size(3)}).bias(false));
  if (tensor.role == "embedding")
    return std::make_shared<torch::nn::EmbeddingImpl>(
        torch::nn::EmbeddingOptions(size(0), size(1)));
  return nullptr;
}

// Those of user_hooks.hpp are a rank's own; for the twin what one of them does is done here.
void add_hook(const std::string& kind, const at::Tensor& tensor, bool is_twins) {
  if (kind == "observes") tensor.register_hook([](const at::Tensor&) {});
  if (kind == "halves" || (is_twins && kind == "replaces"))
    tensor.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
}

// Scalar, fp32.
at::Tensor mean_of(const at::Tensor& values) {
  const auto wide = reference::widen(values);
  return wide.sum() * (1.0 / static_cast<double>(std::max<int64_t>(wide.numel(), 1)));
}

// Two checkpoints, each of which differentiates by a backward of its own: the parameter gets its
// gradient in two parts.
at::Tensor recomputed(const at::Tensor& parameter, at::IntArrayRef sizes, at::ScalarType dtype,
                      const at::Generator& generator) {
  at::Tensor sum;
  for (int part = 0; part < 2; ++part) {
    const auto coefficients = drawn(sizes, generator).to(dtype);
    const Block block = [parameter, coefficients](const at::Tensor& x) {
      return mean_of((parameter * coefficients).sin()) * x;
    };
    const auto term = Reentrant::apply(block, at::ones({}, at::kFloat).set_requires_grad(true));
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

class GeneratedCaseModel : public CaseModel {
 public:
  explicit GeneratedCaseModel(const Workload& workload)
      : workload_(workload), model_(std::make_shared<GeneratedModel>(workload, true)) {}

  std::shared_ptr<reference::Model> model() override { return model_; }
  Forward forward(const Pass& pass, at::ScalarType dtype) override {
    return {.output = model_->loss_of(pass, dtype),
            .uses = uses_of(workload_, pass),
            .weight = is_undivided(workload_, pass) ? workload_.accumulation : 1.0};
  }

 private:
  Workload workload_;
  std::shared_ptr<GeneratedModel> model_;
};

bool is_of(const PassEvent& event, const char* what, const Pass& pass) {
  return event.what == what && event.step == pass.step && event.micro_batch == pass.micro_batch &&
         (event.rank < 0 || event.rank == pass.rank);
}

bool shares_data(const Workload& workload, const PassEvent& event, const Pass& pass) {
  return event.rank < 0 || data_rank_of(workload, {event.step, event.rank, event.micro_batch}) ==
                               data_rank_of(workload, pass);
}

}  // namespace

GeneratedModel::GeneratedModel(const Workload& workload, bool is_twins,
                               std::shared_ptr<reference::Model> core)
    : reference::Model("GeneratedModel"), workload_(workload), core_(std::move(core)) {
  // Torch's own layers draw their weights as they are made: the generator stays as it was.
  auto of_torch = at::detail::getDefaultCPUGenerator();
  const auto state = of_torch.get_state();
  if (workload_.core && !core_) core_ = make_gated(sizes_of(*workload_.core), workload_.seed);
  if (core_) register_module(kCore, core_);
  for (const auto& tensor : workload_.tensors) add(tensor, is_twins);
  of_torch.set_state(state);
}

torch::nn::Module& GeneratedModel::module_at(const std::string& path) {
  if (path.empty()) return *this;
  auto& module = modules_[path];
  if (module) return *module;
  module = std::make_shared<torch::nn::Module>("Block");
  const auto [parent, name] = split(path);
  module_at(parent).register_module(name, module);
  return *modules_.at(path);
}

void GeneratedModel::register_as(const std::string& name, const at::Tensor& tensor,
                                 bool is_buffer) {
  const auto [path, last] = split(name);
  if (is_buffer)
    module_at(path).register_buffer(last, tensor);
  else
    module_at(path).register_parameter(last, tensor, tensor.requires_grad());
}

void GeneratedModel::add(const WorkloadTensor& tensor, bool is_twins) {
  const auto index = tensors_.size();
  const auto values = values_of(tensor, generator_of(mixed(workload_.seed, index)));
  const auto place = laid_out(values, tensor.layout, is_twins);
  const auto [path, last] = split(tensor.name);
  const bool has_bias =
      index + 1 < workload_.tensors.size() && workload_.tensors[index + 1].role == "bias";
  const auto layer = layer_of(tensor, has_bias);
  if (layer) {
    modules_[path] = layer;
    const auto [parent, name] = split(path);
    module_at(parent).register_module(name, layer);
  }
  if (layer || tensor.role == "bias") {  // of the layer that is there
    auto parameter = modules_.at(path)->named_parameters(false)[last];
    parameter.set_data(place);
    tensors_.push_back(parameter);
  } else {
    tensors_.push_back(place.set_requires_grad(is_trained(tensor)));
    register_as(tensor.name, tensors_.back(), tensor.role == "buffer");
  }
  if (!tensor.second_name.empty()) register_as(tensor.second_name, tensors_.back(), false);
  add_hook(tensor.hook, tensors_.back(), is_twins);
}

std::vector<std::vector<std::pair<std::string, at::Tensor>>> GeneratedModel::all_groups() const {
  std::map<const void*, std::size_t> group_of;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    group_of[tensors_[i].unsafeGetTensorImpl()] =
        is_trained(workload_.tensors[i]) ? static_cast<std::size_t>(workload_.tensors[i].group) : 0;
  if (core_)  // norms and biases are in the last group
    for (const auto& [name, tensor] : reference::unique_parameters(*core_))
      group_of[tensor.unsafeGetTensorImpl()] =
          tensor.requires_grad() && tensor.dim() < 2 ? workload_.groups.size() - 1 : 0;
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> groups(workload_.groups.size());
  for (const auto& entry : reference::unique_parameters(*this))
    groups.at(group_of.at(entry.second.unsafeGetTensorImpl())).push_back(entry);
  return groups;
}

std::vector<reference::GroupSpec> GeneratedModel::groups() {
  const auto number = [](const nlohmann::json& value) {
    return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
  };
  std::vector<reference::GroupSpec> specs;
  const auto all = all_groups();
  for (std::size_t group = 0; group < all.size(); ++group) {
    const auto& from = workload_.groups[group];
    specs.push_back({{}, number(from.lr), number(from.weight_decay)});
    for (const auto& [name, tensor] : all[group])
      if (tensor.requires_grad()) specs.back().names.push_back(name);
  }
  return specs;
}

at::Generator GeneratedModel::batch_of(const Pass& pass, std::size_t index) const {
  uint64_t seed = mixed(workload_.seed, 0xba7c4);
  for (const auto part : {static_cast<uint64_t>(pass.step), static_cast<uint64_t>(pass.rank),
                          static_cast<uint64_t>(pass.micro_batch), static_cast<uint64_t>(index)})
    seed = mixed(seed, part);
  return generator_of(seed);
}

// Undefined: there is no core.
at::Tensor GeneratedModel::core_term(const Pass& pass) const {
  if (!core_) return {};
  const Pass of_data{pass.step, data_rank_of(workload_, pass), pass.micro_batch};
  take_part(*core_, sequence_part_of(workload_, pass));
  return core_->loss(core_batch(*workload_.core, batch_of(of_data, workload_.tensors.size())));
}

at::Tensor GeneratedModel::chain_term(const Pass& pass, at::ScalarType dtype) const {
  at::Tensor hidden;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& tensor = workload_.tensors[i];
    if (tensor.role != "linear") continue;
    if (!hidden.defined()) hidden = drawn({2, tensor.sizes.at(1)}, batch_of(pass, i)).to(dtype);
    const auto& layer = modules_.at(split(tensor.name).first);
    hidden = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer)->forward(hidden).tanh();
  }
  return hidden.defined() ? reference::widen(hidden).pow(2).mean() : at::Tensor();
}

// Undefined: no term in this pass.
at::Tensor GeneratedModel::term_of(std::size_t index, const Pass& pass,
                                   at::ScalarType dtype) const {
  const auto& tensor = workload_.tensors[index];
  const auto& role = tensor.role;
  const auto& parameter = tensors_[index];
  const auto layer = modules_.find(split(tensor.name).first);
  if (role == "linear" || role == "bias" || role == "buffer" || role == "unused") return {};
  const int data = data_rank_of(workload_, pass);
  if (role == "sometimes" && (pass.step + data + pass.micro_batch) % 2 != 0) return {};
  if (role == "one_rank" && data != workload_.data_ranks() - 1) return {};
  if (role == "convolution") {
    const auto image = drawn({2, tensor.sizes.at(1), 5, 5}, batch_of(pass, index)).to(dtype);
    const auto& convolution = *std::dynamic_pointer_cast<torch::nn::Conv2dImpl>(layer->second);
    return mean_of(const_cast<torch::nn::Conv2dImpl&>(convolution).forward(image).sin());
  }
  if (role == "embedding") {
    auto words = drawn({6}, batch_of(pass, index)).mul(1000).abs().to(at::kLong);
    words = words.remainder(tensor.sizes.at(0));
    const auto& embedding = *std::dynamic_pointer_cast<torch::nn::EmbeddingImpl>(layer->second);
    return mean_of(const_cast<torch::nn::EmbeddingImpl&>(embedding).forward(words).sin());
  }
  if (role == "penalty") return mean_of(parameter * parameter) * 0.25;
  if (role == "recomputed")
    return recomputed(parameter, tensor.sizes, dtype, batch_of(pass, index));
  const auto coefficients = drawn(tensor.sizes, batch_of(pass, index)).to(dtype);
  const auto factor = parameter.is_floating_point() ? parameter : parameter.to(dtype);
  return mean_of((factor * coefficients).sin());
}

at::Tensor GeneratedModel::loss_of(const Pass& pass, at::ScalarType dtype,
                                   const Watch& after_term) const {
  at::Tensor loss;
  const auto add = [&](const at::Tensor& term) {
    if (!term.defined()) return;
    loss = loss.defined() ? loss + term : term;
    if (after_term) after_term(loss);
  };
  add(core_term(pass));
  add(chain_term(pass, dtype));
  for (std::size_t i = 0; i < tensors_.size(); ++i) add(term_of(i, pass, dtype));
  for (const auto& event : workload_.passes) {
    auto of_anyone = event;
    of_anyone.rank = -1;
    if (!is_of(of_anyone, "overflow", pass) || !shares_data(workload_, event, pass)) continue;
    // 0, but for a gradient of 2^200, which fp32 does not hold. Ranks that share a sequence use the
    // same parameters, and have one loss.
    const auto element =
        event.tensor < 0
            ? loss
            : reference::widen(tensors_.at(static_cast<std::size_t>(event.tensor)).flatten())
                  .select(0, event.element);
    const bool is_infinite = is_of(event, "overflow", pass) || event.tensor < 0;
    const double size = is_infinite ? 0x1p100 : 0;
    add((element - element.detach()) * size * size);
  }
  return loss;
}

int uses_of(const Workload& workload, const Pass& pass) {
  return std::any_of(workload.passes.begin(), workload.passes.end(),
                     [&](const PassEvent& event) { return is_of(event, "twice", pass); })
             ? 2
             : 1;
}

bool is_undivided(const Workload& workload, const Pass& pass) {
  return std::any_of(workload.passes.begin(), workload.passes.end(),
                     [&](const PassEvent& event) { return is_of(event, "undivided", pass); });
}

MakeCaseModel generated_case_model(const Workload& workload) {
  return [workload] { return std::make_unique<GeneratedCaseModel>(workload); };
}

}  // namespace equigrad::conformance
