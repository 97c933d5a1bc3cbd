// Paged model: square matrices that stage 3 pages, without an engine around them.
//
// Invariants: every rank's is the same; matrix 3 is frozen; cycle() uses them one after the other.
// Shapes: kLayers of [kDim, kDim].   Errors: those of the communicator.
// Depends on: cut_wire, sample, ranks/rank_context, engine/parameter.
#pragma once

#include <ATen/core/grad_mode.h>

#include <memory>
#include <vector>

#include "conformance/ranks/rank_context.hpp"
#include "conformance/testing/cutting_communicator.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/parameter/store.hpp"

namespace equigrad::parameter {

inline constexpr int64_t kLayers = 8;
inline constexpr int64_t kDim = 25;  // no multiple of 2, 3 or 4

inline at::Tensor original(int64_t layer) {
  return conformance::sample(kDim * kDim, static_cast<uint64_t>(layer) + 1).view({kDim, kDim});
}

inline constexpr int64_t kPageBytes = kDim * kDim * 4;

// kLayers square matrices, and by default nothing is persistent.
struct PagedModel {
  conformance::CuttingCommunicator communicator;
  layout::ParameterTable table = conformance::table_of(
      std::vector<int64_t>(static_cast<std::size_t>(kLayers), kDim* kDim), {3});
  layout::BucketPlan plan;
  agreement::Participant participant;
  ZeroConfig zero;
  memory::Ledger ledger;
  std::vector<at::Tensor> tensors;
  at::Tensor masters;
  std::unique_ptr<Parameters> keeper;
  Traffic traffic;  // of the last cycle()

  explicit PagedModel(conformance::ranks::RankContext& context,
                      const ZeroConfig& settings = none_persistent(),
                      at::ScalarType dtype = at::kFloat)
      : communicator(context.group()),
        plan(table, context.world_size(), 2000),
        participant(communicator, table.size()),
        zero(settings) {
    for (int64_t i = 0; i < kLayers; ++i) tensors.push_back(original(i).requires_grad_(i != 3));
    masters = at::zeros({plan.shard_numel()});
    const Context all{.table = table,
                      .plan = plan,
                      .zero = zero,
                      .communicator = communicator,
                      .participant = participant,
                      .ledger = ledger,
                      .masters = masters,
                      .tensors = tensors,
                      .dtype = dtype};
    const at::NoGradGuard no_grad;
    fill_masters(all);
    keeper = make_pages(all);
  }
  static ZeroConfig none_persistent() {
    ZeroConfig zero;
    zero.stage3_param_persistence_threshold = 0;
    return zero;
  }
  bool here(std::size_t i) const { return tensors[i].storage().data() != nullptr; }
  int64_t gathered() const { return ledger.bytes(memory::Category::Gathered); }
  at::Tensor forward(const at::Tensor& input) const {
    auto x = input;
    for (const auto& tensor : tensors) x = at::tanh(at::mm(x, tensor.to(at::kFloat)));
    return x.sum();
  }
  // A forward and a backward pass; the gradient of the input.
  at::Tensor cycle() {
    auto input = conformance::sample(kDim, 50).view({1, kDim}).requires_grad_();
    forward(input).backward();
    traffic = keeper->end_of_pass();
    return input.grad();
  }
};

}  // namespace equigrad::parameter
