#include "conformance/cases/linear_model.hpp"

#include <ATen/ATen.h>

#include <vector>

#include "conformance/cases/device.hpp"
#include "conformance/cases/gated_model.hpp"
#include "conformance/cases/sequence_model.hpp"

namespace equigrad::conformance {
namespace {

// The n of "linear<n>"; 0: another model.
int64_t linear_size(const std::string& name) {
  const bool is_linear =
      name.size() == 7 && name.starts_with("linear") && name[6] >= '1' && name[6] <= '7';
  return is_linear ? name[6] - '0' : 0;
}

class Linear : public reference::Model {
 public:
  Linear(int64_t count, uint64_t seed) {
    uint64_t key = reference::hash(seed);
    for (int64_t numel = 1; numel <= count; ++numel) {
      auto dot = at::empty({numel});
      for (int64_t i = 0; i < numel; ++i) {
        key = reference::hash(key);
        const auto uniform = static_cast<float>(static_cast<int64_t>(key >> 41) | 1) / 0x1p22f;
        dot.mutable_data_ptr<float>()[i] = uniform - 1;  // in (-1, 1), never 0
      }
      dots_.push_back(register_parameter("dot" + std::to_string(numel), dot));
    }
  }

  at::Tensor output(const reference::Batch& batch) override {
    std::vector<at::Tensor> columns;
    for (const auto& dot : dots_)
      columns.push_back(at::matmul(batch.input.narrow(1, 0, dot.numel()), dot));
    return at::stack(columns, 1);
  }

  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    return (reference::widen(output) - batch.target.unsqueeze(1)).square().mean() * 0.5;
  }

 private:
  std::vector<at::Tensor> dots_;
};

std::shared_ptr<reference::Model> made(const std::string& name, uint64_t seed) {
  if (const int64_t count = linear_size(name)) return std::make_shared<Linear>(count, seed);
  if (is_gated(name)) return make_gated(gated_sizes(name), seed);
  if (is_sequence(name)) return make_sequence(sequence_parts_of(name), seed);
  return reference::make_model(name, seed);
}

}  // namespace

std::shared_ptr<reference::Model> make_case_model(const std::string& name, uint64_t seed) {
  return on_device(made(name, seed));
}

reference::Batch make_case_batch(const reference::Data& data, const std::string& model,
                                 const reference::Draw& draw) {
  if (is_gated(model)) return on_device(gated_batch(data, draw));
  if (is_sequence(model)) return on_device(sequence_batch(data, draw));
  return on_device(data.make_batch(linear_size(model) > 0 ? "irregular" : model, draw));
}

}  // namespace equigrad::conformance
