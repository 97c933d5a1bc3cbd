#include "engine/gradient/contributions.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/error.hpp"

namespace equigrad::gradient {

void Contributions::clear() {
  std::fill(used_.begin(), used_.end(), false);
  passes_ = 0;
}

std::vector<bool> Contributions::agree(comm::Communicator& communicator) const {
  const auto parameters = static_cast<int64_t>(used_.size());
  auto mine = at::zeros({parameters + 1}, at::kLong);
  auto* words = mine.mutable_data_ptr<int64_t>();
  for (std::size_t i = 0; i < used_.size(); ++i) words[i] = used_[i] ? 1 : 0;
  words[parameters] = passes_;
  const auto all = comm::exchange(communicator, mine);
  const auto passes = all.select(1, parameters);
  if (!passes.eq(passes_).all().item<bool>()) {
    throw Error("engine.step",
                fmt::format("expected the same number of backward passes on every rank, got {} to "
                            "{}. Make the same calls on every rank.",
                            passes.min().item<int64_t>(), passes.max().item<int64_t>()));
  }
  const auto any = std::get<0>(all.max(0));
  std::vector<bool> used(used_.size());
  for (std::size_t i = 0; i < used.size(); ++i) used[i] = any.const_data_ptr<int64_t>()[i] != 0;
  return used;
}

}  // namespace equigrad::gradient
