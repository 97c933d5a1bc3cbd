#include "conformance/diagnosis/other_numbers.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace equigrad::conformance {

double clip_factor(double norm, double threshold) {
  return threshold > 0 && norm > threshold ? threshold / (norm + 1e-6) : 1;
}

namespace {

oracle::Prediction number(const std::string& cause, double value, double roundings = 0) {
  return {.cause = cause, .values = at::full({1}, value, at::kDouble), .roundings = roundings};
}

// A factor that is no power of two: its product is rounded on both sides.
constexpr double kOfProduct = 2;

// Adds the predictions that have the same roundings.
struct Numbers {
  std::vector<oracle::Prediction>& all;
  double roundings;

  void add(const std::string& cause, double value) const {
    all.push_back(number(cause, value, roundings));
  }
};

void add_products(const DiagnosisInput& input, int step, double of,
                  std::vector<oracle::Prediction>& all) {
  const Numbers products{all, kOfProduct};
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
    products.add("multiplied by " + words, of * factor);
    products.add("divided by " + words, of / factor);
  }
}

bool holds(at::ScalarType type, const at::Tensor& number) {
  return number.to(type).to(number.scalar_type()).equal(number);
}

}  // namespace

at::ScalarType norm_type(const DiagnosisInput& input, int step) {
  if (clip_factor(input.twin.grad_norm(step), input.twin.threshold()) == 1) return at::kDouble;
  for (const auto& [name, shape] : input.shapes) {
    const auto gradient = input.twin.tensor(step, "gradient", name);
    if (gradient.defined()) return gradient.scalar_type();
  }
  return at::kFloat;
}

at::ScalarType loss_type(const at::Tensor& got, const at::Tensor& want) {
  for (const auto narrow : {at::kBFloat16, at::kHalf})
    if (holds(narrow, got) && holds(narrow, want)) return narrow;
  return want.scalar_type();
}

std::vector<oracle::Prediction> other_norms(const DiagnosisInput& input, int step) {
  std::vector<oracle::Prediction> all;
  const double right = input.twin.grad_norm(step);
  const double clip = clip_factor(right, input.twin.threshold());
  const int64_t shards = input.stage == 0 ? 1 : input.recipe.world;
  int64_t elements = 0;
  double squares = 0, largest = 0, sizes = 0;
  std::vector<double> of_shards(static_cast<std::size_t>(shards));
  std::map<std::string, double> of_names;
  for (const auto& [name, shape] : input.shapes) {
    const auto whole = input.twin.tensor(step, "gradient", name);
    if (!whole.defined() || whole.numel() == 0) continue;
    const auto flat = whole.to(at::kDouble) / clip;
    elements += flat.numel();
    of_names[name] = flat.square().sum().item<double>();
    squares += of_names[name];
    largest = std::max(largest, flat.abs().max().item<double>());
    sizes += flat.abs().sum().item<double>();
    const int64_t numel = (flat.numel() + shards - 1) / shards;
    for (int64_t s = 0; s < shards; ++s)
      of_shards[static_cast<std::size_t>(s)] +=
          flat.slice(0, s * numel, (s + 1) * numel).square().sum().item<double>();
  }
  // A sum of so many squares, half of whose roundings the root leaves; or those of clipping, which
  // is undone above: the factor and the product, twice each in a square, and halved again.
  constexpr double kOfClipping = 4;
  const Numbers norms{all, clip == 1 ? static_cast<double>(elements) + kOfProduct : kOfClipping};
  norms.add("the square of the norm, without the root", squares);
  norms.add("the Euclidean norm", std::sqrt(squares));
  norms.add("the infinity norm", largest);
  norms.add("the sum of absolute values", sizes);
  norms.add("the norm after clipping", right * clip);
  double sum = 0;
  for (std::size_t s = 0; s < of_shards.size(); ++s) {
    const std::string which = "shard " + std::to_string(s);
    norms.add("the norm of " + which + " alone", std::sqrt(of_shards[s]));
    norms.add("without " + which, std::sqrt(squares - of_shards[s]));
    norms.add(which + " counted twice", std::sqrt(squares + of_shards[s]));
    sum += std::sqrt(of_shards[s]);
  }
  norms.add("the sum of the shards' norms", sum);
  for (const auto& [name, square] : of_names) {
    norms.add("without " + name, std::sqrt(squares - square));
    norms.add(name + " counted twice", std::sqrt(squares + square));
    norms.add("the norm of " + name + " alone", std::sqrt(square));
  }
  if (step > 0) norms.add("the previous step's norm", input.twin.grad_norm(step - 1));
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
