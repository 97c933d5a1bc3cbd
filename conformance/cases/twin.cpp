#include "conformance/cases/twin.hpp"

#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/recipe.hpp"

namespace equigrad::conformance {
namespace {

using reference::SumOrder;

std::string word(SumOrder order) {
  return order == SumOrder::ExactGrid       ? "exact_grid"
         : order == SumOrder::AddThenReduce ? "add_then_reduce"
                                            : "reduce_then_add";
}

// Exact and readable.
std::string hexadecimal(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

// What the stages of a tuple add in; with one micro-batch there is one order only.
std::vector<SumOrder> orders_of(const CaseSpec& spec) {
  if (sums_exactly(spec.precision)) return {SumOrder::ExactGrid};
  if (spec.accumulation == 1) return {SumOrder::AddThenReduce};
  return {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd};
}

// Clipping must act, or must not; the norm of the first step that is applied says where the
// threshold belongs.
double threshold_for(const CaseSpec& spec, uint64_t seed, const reference::Data& data) {
  if (spec.clip == Clip::Off) return 0;
  if (spec.clip == Clip::Below) return 1e6;
  reference::Trainer trainer(
      recipe_of(spec, seed, 0, orders_of(spec)[0]), make_case_model(spec.model, seed),
      [&](int64_t step, int64_t rank, int64_t micro_batch) {
        return make_case_batch(data, spec.model, {seed, step, rank, micro_batch});
      });
  for (int step = 0; step < kSteps; ++step) {
    const auto record = trainer.train_step();
    if (!record.skipped) return 0.5 * record.grad_norm;
  }
  throw std::runtime_error("[twin] expected a step with finite gradients in " + spec.tuple() + ".");
}

// The trainer of a case from its `first` step on, whose loss overflows where the case's does.
class CaseTrainer {
 public:
  CaseTrainer(const reference::Recipe& recipe, const CaseSpec& spec, const reference::Data& data,
              int first = 0)
      : model_(std::make_shared<OverflowingModel>(make_case_model(recipe.model, recipe.seed))),
        trainer_(recipe, model_,
                 [model = model_, recipe, overflowing = overflowing_batch(spec), &data, first](
                     int64_t step, int64_t rank, int64_t micro_batch) {
                   const OverflowingBatch now{first + static_cast<int>(step),
                                              static_cast<int>(rank),
                                              static_cast<int>(micro_batch)};
                   model->set_loss_factor(overflowing == now ? kOverflowFactor : 1);
                   return make_case_batch(data, recipe.model,
                                          {recipe.seed, now.step, rank, micro_batch});
                 }) {}

  double loss_scale() const { return trainer_.loss_scale(); }
  reference::StepRecord train_step() { return trainer_.train_step(); }

 private:
  std::shared_ptr<OverflowingModel> model_;
  reference::Trainer trainer_;
};

// The exact sum of the engine's own contributions: its types up to the sum, none of them after it.
reference::Recipe plain_recipe(const CaseSpec& spec, uint64_t seed) {
  auto recipe = recipe_of(spec, seed, 0, SumOrder::Fp64);
  auto& precision = recipe.precision;
  precision.master_dtype = precision.state_dtype = at::kFloat;
  if (precision.averaging != reference::Averaging::Never)
    precision.averaging = reference::Averaging::AfterSum;
  recipe.absolute_sums = true;
  return recipe;
}

// The same mathematics in more bits.
reference::Recipe precise_recipe(const CaseSpec& spec, uint64_t seed) {
  auto recipe = plain_recipe(spec, seed);
  const auto averaging = recipe.precision.averaging;
  recipe.precision = {};
  recipe.precision.averaging = averaging;
  recipe.absolute_sums = false;
  const bool is_narrow = dtype_of(spec) != at::kFloat || is_autocast(spec.precision);
  recipe.compute_dtype = is_narrow ? at::kFloat : at::kDouble;
  return recipe;
}

void add_map(oracle::TensorFile& file, const std::string& prefix,
             const reference::TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) file.tensors[prefix + "/" + name] = tensor;
}

// Of the first step that is applied: until then the weights are as they were made. Gives the more
// precise gradient.
reference::TensorMap add_bounded_runs(oracle::TensorFile& file, const CaseSpec& spec, uint64_t seed,
                                      const reference::Data& data, int step, double scale) {
  auto recipe = plain_recipe(spec, seed);
  auto& of_scale = recipe.precision.loss_scale;
  if (scale != 1) of_scale = {.policy = reference::LossScaleSpec::Policy::Static, .initial = scale};
  const std::string number = "/" + std::to_string(step);
  const auto plain = CaseTrainer(recipe, spec, data, step).train_step();
  add_map(file, "plain" + number + "/gradient", plain.gradients);
  add_map(file, "plain" + number + "/absolute_sum", plain.absolute_sum);
  const auto precise = CaseTrainer(precise_recipe(spec, seed), spec, data, step).train_step();
  add_map(file, "precise" + number + "/gradient", precise.gradients);
  return precise.gradients;
}

// The steps of one order of additions; gives the first that is applied and its loss scale.
std::pair<int, double> add_steps(oracle::TensorFile& file, const CaseSpec& spec,
                                 const reference::Recipe& recipe, const reference::Data& data) {
  CaseTrainer trainer(recipe, spec, data);
  std::pair<int, double> first{-1, 1};
  for (int step = 0; step <= kSteps; ++step) {
    const std::string prefix = word(recipe.order) + "/" + std::to_string(step);
    const double scale = trainer.loss_scale();
    file.metadata[prefix + "/loss_scale"] = hexadecimal(scale);
    if (step == kSteps) break;
    const auto record = trainer.train_step();
    add_step(file, prefix, record);
    if (first.first < 0 && !record.skipped) first = {step, scale};
  }
  file.metadata[word(recipe.order) + "/first_applied"] = std::to_string(first.first);
  return first;
}

}  // namespace

void add_step(oracle::TensorFile& file, const std::string& prefix,
              const reference::StepRecord& record) {
  add_map(file, prefix + "/gradient", record.gradients);
  add_map(file, prefix + "/master", record.masters);
  add_map(file, prefix + "/parameter", record.parameters);
  for (const auto& [state, tensors] : record.state) add_map(file, prefix + "/" + state, tensors);
  std::vector<at::Tensor> losses;
  for (const auto& loss : record.losses) losses.push_back(loss.to(at::kFloat).reshape({1}));
  file.tensors[prefix + "/losses"] = at::cat(losses);
  file.metadata[prefix + "/grad_norm"] = hexadecimal(record.grad_norm);
  file.metadata[prefix + "/skipped"] = record.skipped ? "1" : "0";
}

std::optional<oracle::UnderflowLedger> make_twin(const CaseSpec& spec, uint64_t seed,
                                                 const reference::Data& data,
                                                 const std::string& path) {
  oracle::TensorFile file;
  const double threshold = threshold_for(spec, seed, data);
  file.metadata["threshold"] = hexadecimal(threshold);
  std::optional<oracle::UnderflowLedger> ledger;
  std::map<int, double> bounded;  // steps, with their scales
  for (const SumOrder order : orders_of(spec))
    bounded.insert(add_steps(file, spec, recipe_of(spec, seed, threshold, order), data));
  bounded.erase(-1);
  for (const auto& [step, scale] : bounded) {
    const auto precise = add_bounded_runs(file, spec, seed, data, step, scale);
    if (ledger || scaling_of(spec.precision) == Scaling::None) continue;
    ledger.emplace(at::kHalf, scale);
    for (const auto& [name, gradient] : precise) ledger->add(gradient);
  }
  oracle::write_tensors(path, file.tensors, file.metadata);
  return ledger;
}

Twin::Twin(const std::string& path, SumOrder order)
    : file_(oracle::read_tensors(path)), order_(word(order)) {
  if (file_.metadata.count(order_ + "/0/grad_norm") == 0) order_ = word(SumOrder::AddThenReduce);
  if (file_.metadata.count(order_ + "/0/grad_norm") == 0)
    throw std::runtime_error("[twin] expected a twin's file, got " + path + ".");
}

at::Tensor Twin::tensor(int step, const std::string& what, const std::string& name) const {
  const auto found =
      file_.tensors.find(order_ + "/" + std::to_string(step) + "/" + what + "/" + name);
  return found == file_.tensors.end() ? at::Tensor() : found->second.flatten();
}

at::Tensor Twin::other(const std::string& run, const std::string& what,
                       const std::string& name) const {
  const auto found =
      file_.tensors.find(run + "/" + std::to_string(first_applied()) + "/" + what + "/" + name);
  return found == file_.tensors.end() ? at::Tensor() : found->second.flatten();
}

float Twin::loss(int step, int64_t index) const {
  return file_.tensors.at(order_ + "/" + std::to_string(step) + "/losses")[index].item<float>();
}

double Twin::number(int step, const std::string& what) const {
  return std::strtod(file_.metadata.at(order_ + "/" + std::to_string(step) + "/" + what).c_str(),
                     nullptr);
}

int Twin::first_applied() const { return std::stoi(file_.metadata.at(order_ + "/first_applied")); }

double Twin::grad_norm(int step) const { return number(step, "grad_norm"); }

bool Twin::skipped(int step) const { return number(step, "skipped") != 0; }

double Twin::loss_scale(int step) const { return number(step, "loss_scale"); }

double Twin::threshold() const {
  return std::strtod(file_.metadata.at("threshold").c_str(), nullptr);
}

}  // namespace equigrad::conformance
