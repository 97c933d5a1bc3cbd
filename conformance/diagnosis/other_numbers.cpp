#include "conformance/diagnosis/other_numbers.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace equigrad::conformance {

double clip_factor(double norm, double threshold) {
  return threshold > 0 && norm > threshold ? threshold / (norm + 1e-6) : 1;
}

namespace {

oracle::Prediction number(const std::string& cause, double value) {
  return {cause, at::full({1}, value, at::kDouble)};
}

void add_products(const DiagnosisInput& input, int step, double of,
                  std::vector<oracle::Prediction>& all) {
  const auto world = static_cast<double>(input.recipe.world),
             steps = static_cast<double>(input.recipe.accumulation_steps),
             scale = input.twin.loss_scale(step);
  const std::vector<std::pair<double, std::string>> factors = {
      {world, "the number of ranks"},
      {std::sqrt(world), "the square root of the number of ranks"},
      {steps, "the number of micro-batches"},
      {world * steps, "the number of ranks and micro-batches"},
      {scale, "the loss scale"}};
  for (const auto& [factor, words] : factors) {
    if (factor == 1) continue;
    all.push_back(number("multiplied by " + words, of * factor));
    all.push_back(number("divided by " + words, of / factor));
  }
}

}  // namespace

std::vector<oracle::Prediction> other_norms(const DiagnosisInput& input, int step) {
  std::vector<oracle::Prediction> all;
  const double right = input.twin.grad_norm(step);
  const double clip = clip_factor(right, input.twin.threshold());
  const int64_t shards = input.stage == 0 ? 1 : input.recipe.world;
  double squares = 0, largest = 0, sizes = 0;
  std::vector<double> of_shards(static_cast<std::size_t>(shards));
  std::map<std::string, double> of_names;
  for (const auto& [name, shape] : input.shapes) {
    const auto whole = input.twin.tensor(step, "gradient", name);
    if (!whole.defined() || whole.numel() == 0) continue;
    const auto flat = whole.to(at::kDouble) / clip;
    of_names[name] = flat.square().sum().item<double>();
    squares += of_names[name];
    largest = std::max(largest, flat.abs().max().item<double>());
    sizes += flat.abs().sum().item<double>();
    const int64_t numel = (flat.numel() + shards - 1) / shards;
    for (int64_t s = 0; s < shards; ++s)
      of_shards[static_cast<std::size_t>(s)] +=
          flat.slice(0, s * numel, (s + 1) * numel).square().sum().item<double>();
  }
  all.push_back(number("the square of the norm, without the root", squares));
  all.push_back(number("the Euclidean norm", std::sqrt(squares)));
  all.push_back(number("the infinity norm", largest));
  all.push_back(number("the sum of absolute values", sizes));
  all.push_back(number("the norm after clipping", right * clip));
  double sum = 0;
  for (std::size_t s = 0; s < of_shards.size(); ++s) {
    const std::string which = "shard " + std::to_string(s);
    all.push_back(number("the norm of " + which + " alone", std::sqrt(of_shards[s])));
    all.push_back(number("without " + which, std::sqrt(squares - of_shards[s])));
    all.push_back(number(which + " counted twice", std::sqrt(squares + of_shards[s])));
    sum += std::sqrt(of_shards[s]);
  }
  all.push_back(number("the sum of the shards' norms", sum));
  for (const auto& [name, square] : of_names) {
    all.push_back(number("without " + name, std::sqrt(squares - square)));
    all.push_back(number(name + " counted twice", std::sqrt(squares + square)));
    all.push_back(number("the norm of " + name + " alone", std::sqrt(square)));
  }
  if (step > 0) all.push_back(number("the previous step's norm", input.twin.grad_norm(step - 1)));
  add_products(input, step, right, all);
  return all;
}

std::vector<oracle::Prediction> other_losses(const DiagnosisInput& input, const Site& site,
                                             Rerun& rerun) {
  std::vector<oracle::Prediction> all;
  for (int64_t micro_batch = 0; micro_batch < input.recipe.accumulation_steps; ++micro_batch)
    for (int64_t rank = 0; rank < input.recipe.world; ++rank)
      all.push_back(number("the loss of micro-batch " + std::to_string(micro_batch + 1) +
                               " of rank " + std::to_string(rank),
                           input.twin.loss(site.step, micro_batch * input.recipe.world + rank)));
  if (site.step > 0)
    all.push_back(
        number("the loss of the step before", input.twin.loss(site.step - 1, site.begin)));
  add_products(input, site.step, input.twin.loss(site.step, site.begin), all);
  for (auto& one : rerun.other_losses(site)) all.push_back(number(one.first, one.second));
  return all;
}

std::vector<oracle::Prediction> other_scales(const DiagnosisInput& input, const Site& site) {
  const auto& twin = input.twin;
  const auto after = twin.loss_scale(site.step + 1), before = twin.loss_scale(site.step);
  std::vector<oracle::Prediction> all = {number("it has not changed", before)};
  if (site.what == "skipped_steps") return {};
  all.push_back(number("it grew", 2 * before));
  all.push_back(number("it shrank", before / 2));
  all.push_back(number("it grew twice", 4 * before));
  all.push_back(number("it shrank twice", before / 4));
  all.push_back(number("twice the right one", 2 * after));
  all.push_back(number("half the right one", after / 2));
  return all;
}

}  // namespace equigrad::conformance
