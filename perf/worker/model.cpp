#include "perf/worker/model.hpp"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <stdexcept>

#include "conformance/oracle/tensor_file.hpp"

namespace equigrad::perf {

class Model::Dots final : public torch::nn::Module {
 public:
  Dots(int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; ++i)
      parameters_.push_back(register_parameter("p" + std::to_string(i), at::full({width}, 0.01)));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor total = at::zeros({}, x.options());
    for (const auto& parameter : parameters_) total = total + (parameter * x).sum();
    return total * total;
  }

 private:
  std::vector<at::Tensor> parameters_;
};

Model::Model(const nlohmann::json& settings) {
  const std::string kind = settings.at("kind");
  if (kind == "gpt")
    gpt_ = reference::make_gpt({settings.at("layers"), settings.at("dim"), settings.at("heads"),
                                settings.at("context"), settings.at("vocabulary")},
                               /*seed=*/1);
  else if (kind == "dots")
    dots_ = std::make_shared<Dots>(settings.at("count"), settings.at("width"));
  else
    throw std::runtime_error("[perf] expected a model gpt or dots, got " + kind + ".");
}

void Model::read_weights(const std::string& path) {
  const torch::NoGradGuard no_grad;
  const auto file = conformance::oracle::read_tensors(path);
  for (auto& [name, parameter] : parameters()) parameter.copy_(file.tensors.at(name));
}

torch::nn::Module& Model::module() {
  if (gpt_) return *gpt_;
  return *dots_;
}

std::vector<std::pair<std::string, at::Tensor>> Model::parameters() {
  return reference::unique_parameters(module());
}

at::Tensor Model::loss(const at::Tensor& batch, at::ScalarType dtype) {
  if (!gpt_) return dots_->forward(batch.to(dtype));
  const int64_t context = batch.size(1) - 1;
  return gpt_->loss(
      {batch.narrow(1, 0, context).contiguous(), batch.narrow(1, 1, context).contiguous()});
}

}  // namespace equigrad::perf
