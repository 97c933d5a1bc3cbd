#include "conformance/cases/case_model.hpp"

#include <ATen/ATen.h>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/cases/sequence_model.hpp"

namespace equigrad::conformance {
namespace {

class ZooModel : public CaseModel {
 public:
  ZooModel(const CaseSpec& spec, uint64_t seed, const reference::Data& data)
      : spec_(spec),
        seed_(seed),
        data_(data),
        quiet_(make_case_model(spec.model, seed)),
        model_(std::make_shared<OverflowingModel>(quiet_)) {}

  std::shared_ptr<reference::Model> model() override { return model_; }

  Forward forward(const Pass& pass, at::ScalarType dtype) override {
    const int data = pass.rank / spec_.sequence();
    const auto batch = reference::to_dtype(
        make_case_batch(
            data_, spec_.model,
            {.seed = seed_, .step = pass.step, .rank = data, .micro_batch = pass.micro_batch}),
        dtype);
    const bool overflows =
        overflowing_batch(spec_) == OverflowingBatch{pass.step, data, pass.micro_batch};
    if (spec_.sequence() > 1) take_part(*quiet_, pass.rank % spec_.sequence());
    model_->set_loss_factor(overflows ? kOverflowFactor : 1);
    return {model_->loss(batch)};
  }

 private:
  CaseSpec spec_;
  uint64_t seed_;
  const reference::Data& data_;
  std::shared_ptr<reference::Model> quiet_;
  std::shared_ptr<OverflowingModel> model_;
};

}  // namespace

at::Tensor Forward::loss() const {
  const auto value = output.detach();
  if (!gradient.defined()) return value.to(at::kCPU, at::kFloat, false, /*copy=*/true).reshape({1});
  return (value.to(at::kDouble) * gradient.detach().to(at::kDouble))
      .sum()
      .to(at::kCPU, at::kFloat)
      .reshape({1});
}

void plain_backward(const Forward& forward, double loss_scale, bool retain_graph) {
  const auto scaled = reference::widen(forward.output) * loss_scale;
  if (forward.gradient.defined())
    scaled.backward(reference::widen(forward.gradient), retain_graph);
  else
    scaled.backward({}, retain_graph);
}

reference::TensorMap CaseModel::buffers(int) { return {}; }

void CaseModel::set_buffers(int, const reference::TensorMap&) {}

MakeCaseModel zoo_model(const CaseSpec& spec, uint64_t seed, const reference::Data& data) {
  return [spec, seed, &data] { return std::make_unique<ZooModel>(spec, seed, data); };
}

}  // namespace equigrad::conformance
