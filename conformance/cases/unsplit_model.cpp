#include "conformance/cases/unsplit_model.hpp"

#include "conformance/cases/gated_model.hpp"
#include "conformance/cases/linear_model.hpp"

namespace equigrad::conformance {
namespace {

class UnsplitModel : public CaseModel {
 public:
  UnsplitModel(std::string name, uint64_t seed, const reference::Data& data)
      : name_(std::move(name)), seed_(seed), data_(data), model_(make_case_model(name_, seed)) {}

  std::shared_ptr<reference::Model> model() override { return model_; }

  Forward forward(const Pass& pass, at::ScalarType dtype) override {
    const auto batch = make_case_batch(
        data_, name_,
        {.seed = seed_, .step = pass.step, .rank = pass.rank, .micro_batch = pass.micro_batch});
    return {model_->loss(reference::to_dtype(batch, dtype))};
  }

 private:
  std::string name_;
  uint64_t seed_;
  const reference::Data& data_;
  std::shared_ptr<reference::Model> model_;
};

}  // namespace

std::string unsplit_name(const CaseSpec& spec) {
  const bool is_shared = spec.tensor() * spec.sequence() > 1;
  // Parts drop out other units than the whole.
  if (!is_shared || (is_gated(spec.model) && gated_sizes(spec.model).drops_out)) return "";
  return is_gated(spec.model) ? "gated" : "ulysses";
}

MakeCaseModel unsplit_model(const CaseSpec& spec, uint64_t seed, const reference::Data& data) {
  return [name = unsplit_name(spec), seed, &data] {
    return std::make_unique<UnsplitModel>(name, seed, data);
  };
}

}  // namespace equigrad::conformance
