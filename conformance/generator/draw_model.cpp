// The tensors of a generated model.
#include <algorithm>
#include <string>

#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

std::string any_name(Dice& dice, int number) {
  const auto place = std::to_string(number);
  switch (dice.below(8)) {
    case 0:
      return "w" + place;
    case 1:
      return "blocks." + place + ".attention.projection";
    case 2:
      return "γ" + place + ".β";
    case 3:
      return "deep.a.b.c.d.e.f.g" + place;
    case 4:
      return "n" + std::string(static_cast<std::size_t>(dice.between(50, 200)), 'x') + place;
    case 5:
      return "1" + place + ".2";  // numbers, as Sequential has them
    default:
      return "layers." + place + ".weight";
  }
}

std::vector<int64_t> any_sizes(Dice& dice, bool is_large) {
  // In two dimensions it may be transposed, and 1 to 4 ranks divide it.
  if (is_large && dice.one_in(3)) return {12 * dice.between(16, 40), 12 * dice.between(80, 120)};
  if (is_large)
    return {dice.pick<int64_t>({dice.log_uniform(1 << 17, 1 << 22), (1 << 21) + 3, (1 << 22) + 1})};
  switch (dice.below(10)) {
    case 0:
      return {};
    case 1:
      return {dice.pick<int64_t>({0, 1, 2}), 3};
    case 2:
      return {dice.between(1, 9), dice.between(1, 9)};
    case 3:
      if (dice.one_in(3)) return {dice.between(1, 4), dice.between(1, 4), dice.between(1, 4)};
      return {dice.between(1, 4), dice.between(1, 5), dice.between(1, 3), dice.between(1, 3)};
    case 4:
      return {dice.log_uniform(1, 5000)};
    default:
      return {dice.log_uniform(1, 200)};
  }
}

std::string layout_for(Dice& dice, const std::vector<int64_t>& sizes) {
  if (dice.coin()) return "contiguous";
  const auto numel_is_0 = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  if (sizes.size() < 2 || numel_is_0)
    return sizes.size() == 1 && !numel_is_0 ? dice.pick<std::string>({"contiguous", "sliced"})
                                            : "contiguous";
  if (sizes.size() == 4)
    return dice.pick<std::string>({"channels_last", "channels_last", "transposed", "sliced"});
  return dice.pick<std::string>({"transposed", "transposed", "sliced"});
}

WorkloadTensor any_tensor(Dice& dice, const Workload& workload, int number, bool is_large) {
  WorkloadTensor tensor;
  tensor.name = any_name(dice, number);
  tensor.sizes = any_sizes(dice, is_large);
  tensor.role =
      dice.pick<std::string>({"term", "term", "term", "term", "penalty", "sometimes", "one_rank",
                              "recomputed", "recomputed", "unused", "frozen", "buffer"});
  if (is_large) tensor.role = "term";
  tensor.layout = layout_for(dice, tensor.sizes);
  const bool is_idle = tensor.role == "frozen" || tensor.role == "unused";
  if (tensor.role == "frozen" && dice.coin())
    tensor.dtype = dice.pick<std::string>({"int64", "uint8"});
  const auto usual = dice.pick<std::string>(
      {"usual", "usual", "usual", "usual", "zeros", "negative_zeros", "subnormal"});
  tensor.values = tensor.role == "unused" && dice.one_in(3) ? "nan" : usual;
  if (!is_idle && tensor.role != "buffer" && dice.one_in(6))
    tensor.hook =
        dice.pick<std::string>({"observes", "halves", "keeps", "keeps_alias", "replaces"});
  if (!is_idle && tensor.role != "buffer" && dice.one_in(8))
    tensor.second_name = "tied." + std::to_string(number) + ".again";
  tensor.group = static_cast<int>(dice.below(static_cast<int64_t>(workload.groups.size())));
  return tensor;
}

// Layers of torch, whose kernels are matrix products.
void add_chain(Dice& dice, Workload& workload) {
  const auto layers = dice.between(1, 3);
  int64_t width = dice.between(1, 12);
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t next = dice.between(1, 12);
    const auto module = "net." + std::to_string(i);
    const auto group = static_cast<int>(dice.below(static_cast<int64_t>(workload.groups.size())));
    workload.tensors.push_back({.name = module + ".weight",
                                .sizes = {next, width},
                                .role = "linear",
                                .layout = dice.pick<std::string>({"contiguous", "transposed"}),
                                .group = group});
    if (dice.coin())
      workload.tensors.push_back(
          {.name = module + ".bias", .sizes = {next}, .role = "bias", .group = group});
    width = next;
  }
}

void add_modules(Dice& dice, Workload& workload) {
  if (!dice.one_in(3)) add_chain(dice, workload);
  if (dice.one_in(5))
    workload.tensors.push_back(
        {.name = "image.weight",
         .sizes = {dice.between(1, 5), dice.between(1, 4), dice.between(1, 3), dice.between(1, 3)},
         .role = "convolution",
         .layout = dice.pick<std::string>({"contiguous", "channels_last"})});
  if (dice.one_in(5))
    workload.tensors.push_back({.name = "words.weight",
                                .sizes = {dice.between(2, 40), dice.between(1, 8)},
                                .role = "embedding"});
}

}  // namespace

void draw_model(Dice& dice, Workload& workload) {
  workload.groups.resize(static_cast<std::size_t>(dice.pick<int>({1, 1, 1, 2, 3})));
  for (auto& group : workload.groups) {
    if (workload.groups.size() == 1) break;
    if (dice.coin()) group.lr = dice.pick<double>({0, 1e-4, 0.01, 0.05});
    if (dice.coin()) group.weight_decay = dice.pick<double>({0, 0.01, 0.3});
  }
  if (!workload.core || dice.coin()) add_modules(dice, workload);
  const bool is_large = dice.one_in(150) && !workload.core, is_long = dice.one_in(60);
  const auto more = is_long ? dice.log_uniform(30, dice.one_in(20) ? 5000 : 300) : dice.below(6);
  for (int64_t i = 0; i < more; ++i)
    workload.tensors.push_back(any_tensor(dice, workload, static_cast<int>(i), is_large && i == 0));
  const auto is_trained = [](const WorkloadTensor& tensor) {
    return tensor.role == "linear" || tensor.role == "term" || tensor.role == "convolution" ||
           tensor.role == "penalty";
  };
  const bool has_one =
      workload.core ||
      std::any_of(workload.tensors.begin(), workload.tensors.end(), [&](const auto& tensor) {
        return is_trained(tensor) &&
               std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) == tensor.sizes.end();
      });
  // Something that every pass trains, and every group.
  if (!has_one)
    workload.tensors.push_back({.name = "always", .sizes = {dice.between(1, 40)}, .role = "term"});
  for (int group = 0; group < static_cast<int>(workload.groups.size()); ++group) {
    if (workload.groups.size() == 1) break;
    workload.tensors.push_back({.name = "of_group" + std::to_string(group),
                                .sizes = {dice.between(1, 9)},
                                .role = "term",
                                .group = group});
  }
}

}  // namespace equigrad::conformance
