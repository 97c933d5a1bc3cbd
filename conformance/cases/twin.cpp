#include "conformance/cases/twin.hpp"

#include <ATen/ATen.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "conformance/cases/recipe.hpp"
#include "conformance/cases/unsplit_model.hpp"
#include "reference/stepper.hpp"

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

// Exact, one after the other.
std::string list_text(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : " ") + hexadecimal(value);
  return text;
}

std::vector<double> list_of(const std::string& text) {
  std::vector<double> values;
  const char* from = text.c_str();
  for (char* end = nullptr; *from != '\0'; from = end) values.push_back(std::strtod(from, &end));
  return values;
}

// The trainer of a plan from its `first` step on.
class PlanTrainer {
 public:
  PlanTrainer(const TwinPlan& plan, const reference::Recipe& recipe, int first = 0)
      : dtype_(recipe.compute_dtype),
        world_(static_cast<int>(recipe.world)),
        micro_batches_(static_cast<int>(recipe.accumulation_steps)),
        model_(plan.make_model()),
        stepper_(recipe, model_->model()),
        rates_(plan.rates),
        step_(first) {}

  double loss_scale() const { return stepper_.loss_scale(); }
  CaseModel& model() { return *model_; }

  // What the next step's update takes, where the plan sets it.
  reference::Rates set_rates() {
    if (!rates_) return {};
    const auto now = rates_(step_, applied_);
    if (!now.lr.empty()) stepper_.set_lr(now.lr);
    if (!now.beta1.empty()) stepper_.set_beta1(now.beta1);
    return now;
  }

  reference::StepRecord train_step() {
    std::vector<at::Tensor> losses;
    for (int micro_batch = 0; micro_batch < micro_batches_; ++micro_batch)
      for (int rank = 0; rank < world_; ++rank) {
        const auto forward = run_forward({step_, rank, micro_batch});
        for (int use = 1; use <= forward.uses; ++use)
          stepper_.pass(
              rank, [&] { plain_backward(forward, stepper_.loss_scale(), use < forward.uses); },
              forward.weight);
        losses.push_back(forward.loss());
      }
    auto record = stepper_.step();
    record.losses = std::move(losses);
    applied_ += record.skipped ? 0 : 1;
    ++step_;
    return record;
  }

 private:
  Forward run_forward(const Pass& pass) {
    const auto guard = stepper_.autocast();
    return model_->forward(pass, dtype_);
  }

  at::ScalarType dtype_;
  int world_, micro_batches_;
  std::unique_ptr<CaseModel> model_;
  reference::Stepper stepper_;
  std::function<reference::Rates(int, int64_t)> rates_;
  int step_;
  int64_t applied_ = 0;
};

bool scales_loss(const reference::Recipe& recipe) {
  return recipe.precision.loss_scale.policy != reference::LossScaleSpec::Policy::None;
}

// Clipping must act; the norm of the first step that is applied says where the threshold belongs.
double threshold_of(const TwinPlan& plan) {
  if (plan.threshold) return *plan.threshold;
  PlanTrainer trainer(plan, plan.recipe(0, plan.orders[0]));
  for (int step = 0; step < plan.steps; ++step) {
    const auto record = trainer.train_step();
    if (!record.skipped) return 0.5 * record.grad_norm;
  }
  if (plan.if_none_is) return *plan.if_none_is;
  throw std::runtime_error("[twin] expected a step with finite gradients, got none in " +
                           std::to_string(plan.steps) + ".");
}

// The exact sum of the engine's own contributions: its types up to the sum, none of them after it.
reference::Recipe plain_recipe(const TwinPlan& plan) {
  auto recipe = plan.recipe(0, SumOrder::Fp64);
  auto& precision = recipe.precision;
  precision.master_dtype = precision.state_dtype = at::kFloat;
  if (precision.averaging != reference::Averaging::Never)
    precision.averaging = reference::Averaging::AfterSum;
  recipe.absolute_sums = true;
  return recipe;
}

// The same mathematics in more bits.
reference::Recipe precise_recipe(const TwinPlan& plan) {
  auto recipe = plain_recipe(plan);
  const bool is_narrow =
      recipe.compute_dtype != at::kFloat || recipe.precision.autocast.has_value();
  const auto averaging = recipe.precision.averaging;
  recipe.precision = {};
  recipe.precision.averaging = averaging;
  recipe.absolute_sums = false;
  recipe.compute_dtype = is_narrow ? at::kFloat : at::kDouble;
  return recipe;
}

void add_map(oracle::TensorFile& file, const std::string& prefix,
             const reference::TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) file.tensors[prefix + "/" + name] = tensor;
}

// What the passes of the skipped steps before made of them.
void take_buffers(const oracle::TensorFile& file, const TwinPlan& plan, int step,
                  PlanTrainer& trainer) {
  if (step == 0) return;
  const auto world = plan.recipe(0, plan.orders[0]).world;
  for (int rank = 0; rank < world; ++rank) {
    auto values = trainer.model().buffers(rank);
    for (auto& [name, value] : values)
      value = file.tensors.at(word(plan.orders[0]) + "/" + std::to_string(step - 1) + "/buffer" +
                              std::to_string(rank) + "/" + name);
    trainer.model().set_buffers(rank, values);
  }
}

// The contributions of data ranks that share nothing, in the engine's types and in more bits.
void add_unsplit_runs(oracle::TensorFile& file, const TwinPlan& plan, int step,
                      const reference::Recipe& plain) {
  TwinPlan whole = plan;
  whole.make_model = plan.unsplit->make_model;
  const auto run = [&](reference::Recipe recipe, const std::string& name) {
    recipe.world = plan.unsplit->world;
    recipe.sequence = 1;
    recipe.absolute_sums = false;
    add_map(file, name + "/" + std::to_string(step) + "/gradient",
            PlanTrainer(whole, recipe, step).train_step().gradients);
  };
  run(plain, "unsplit");
  run(precise_recipe(plan), "unsplit_precise");
}

// Of the first step that is applied: until then the weights are as they were made. Gives the more
// precise gradient.
reference::TensorMap add_bounded_runs(oracle::TensorFile& file, const TwinPlan& plan, int step,
                                      double scale) {
  auto recipe = plain_recipe(plan);
  auto& of_scale = recipe.precision.loss_scale;
  if (scale != 1) of_scale = {.policy = reference::LossScaleSpec::Policy::Static, .initial = scale};
  const std::string number = "/" + std::to_string(step);
  PlanTrainer plain_trainer(plan, recipe, step), precise_trainer(plan, precise_recipe(plan), step);
  take_buffers(file, plan, step, plain_trainer);
  const auto plain = plain_trainer.train_step();
  take_buffers(file, plan, step, precise_trainer);
  const auto precise = precise_trainer.train_step();
  add_map(file, "plain" + number + "/gradient", plain.gradients);
  add_map(file, "plain" + number + "/absolute_sum", plain.absolute_sum);
  add_map(file, "precise" + number + "/gradient", precise.gradients);
  if (plan.unsplit) add_unsplit_runs(file, plan, step, recipe);
  return precise.gradients;
}

// Nothing where the model cannot run in more bits and need not: the file says why.
reference::TensorMap try_bounded_runs(oracle::TensorFile& file, const TwinPlan& plan, int step,
                                      double scale) {
  if (!plan.unbounded.empty()) {
    file.metadata["unbounded"] = plan.unbounded;
    return {};
  }
  try {
    return add_bounded_runs(file, plan, step, scale);
  } catch (const std::exception& error) {
    if (plan.needs_bounds) throw;
    const std::string text = error.what();
    file.metadata["unbounded"] = "the model did not run in more bits: " +
                                 text.substr(0, text.find("\nException raised from "));
    return {};
  }
}

// The steps of one order of additions; gives the first that is applied and its loss scale.
std::pair<int, double> add_steps(oracle::TensorFile& file, const TwinPlan& plan,
                                 const reference::Recipe& recipe) {
  PlanTrainer trainer(plan, recipe);
  std::pair<int, double> first{-1, 1};
  for (int step = 0; step <= plan.steps; ++step) {
    const std::string prefix = word(recipe.order) + "/" + std::to_string(step);
    const double scale = trainer.loss_scale();
    file.metadata[prefix + "/loss_scale"] = hexadecimal(scale);
    if (step == plan.steps) break;
    const auto rates = trainer.set_rates();
    file.metadata[prefix + "/lr"] = list_text(rates.lr);
    file.metadata[prefix + "/beta1"] = list_text(rates.beta1);
    const auto record = trainer.train_step();
    add_step(file, prefix, record);
    for (int rank = 0; rank < recipe.world; ++rank)
      add_map(file, prefix + "/buffer" + std::to_string(rank), trainer.model().buffers(rank));
    if (first.first < 0 && !record.skipped) first = {step, scale};
  }
  file.metadata[word(recipe.order) + "/first_applied"] = std::to_string(first.first);
  return first;
}

// Cases of one twin follow one another, so the last file is kept. What is written anew is another
// inode, whose number nothing else gets while this one is mapped.
std::shared_ptr<const oracle::TensorFile> file_at(const std::string& path) {
  static struct {
    struct stat status = {};
    std::shared_ptr<const oracle::TensorFile> file;
  } last;
  struct stat now = {};
  const bool is_there = ::stat(path.c_str(), &now) == 0;
  if (is_there && last.file && now.st_dev == last.status.st_dev && now.st_ino == last.status.st_ino)
    return last.file;
  last.file = std::make_shared<const oracle::TensorFile>(oracle::read_tensors(path));
  last.status = now;
  return last.file;
}

}  // namespace

void add_step(oracle::TensorFile& file, const std::string& prefix,
              const reference::StepRecord& record) {
  add_map(file, prefix + "/gradient", record.gradients);
  add_map(file, prefix + "/master", record.masters);
  add_map(file, prefix + "/parameter", record.parameters);
  for (const auto& [state, tensors] : record.state) add_map(file, prefix + "/" + state, tensors);
  std::vector<at::Tensor> losses;
  for (const auto& loss : record.losses)
    losses.push_back(loss.to(at::kCPU, at::kFloat).reshape({1}));
  file.tensors[prefix + "/losses"] = at::cat(losses);
  file.metadata[prefix + "/grad_norm"] = hexadecimal(record.grad_norm);
  file.metadata[prefix + "/skipped"] = record.skipped ? "1" : "0";
}

std::vector<SumOrder> orders_of(const CaseSpec& spec) {
  if (sums_exactly(spec.precision)) return {SumOrder::ExactGrid};
  if (spec.accumulation == 1) return {SumOrder::AddThenReduce};
  return {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd};
}

TwinPlan plan_of(const CaseSpec& spec, uint64_t seed, const reference::Data& data) {
  TwinPlan plan{
      .make_model = zoo_model(spec, seed, data),
      .recipe = [spec, seed](double threshold,
                             SumOrder order) { return recipe_of(spec, seed, threshold, order); },
      .orders = orders_of(spec),
      .threshold = std::nullopt,
      .steps = kSteps,
      .needs_bounds = true};
  if (spec.clip == Clip::Off) plan.threshold = 0;
  if (spec.clip == Clip::Below) plan.threshold = 1e6;
  if (!unsplit_name(spec).empty())
    plan.unsplit = UnsplitPlan{unsplit_model(spec, seed, data), spec.data()};
  return plan;
}

std::optional<oracle::UnderflowLedger> make_twin(const TwinPlan& plan, const std::string& path) {
  oracle::TensorFile file;
  const double threshold = threshold_of(plan);
  file.metadata["threshold"] = hexadecimal(threshold);
  std::optional<oracle::UnderflowLedger> ledger;
  std::map<int, double> bounded;  // steps, with their scales
  for (const SumOrder order : plan.orders)
    bounded.insert(add_steps(file, plan, plan.recipe(threshold, order)));
  bounded.erase(-1);
  for (const auto& [step, scale] : bounded) {
    const auto precise = try_bounded_runs(file, plan, step, scale);
    if (ledger || !scales_loss(plan.recipe(threshold, plan.orders[0]))) continue;
    ledger.emplace(at::kHalf, scale);
    for (const auto& [name, gradient] : precise) ledger->add(gradient);
  }
  oracle::write_tensors(path, file.tensors, file.metadata);
  return ledger;
}

std::optional<oracle::UnderflowLedger> make_twin(const CaseSpec& spec, uint64_t seed,
                                                 const reference::Data& data,
                                                 const std::string& path) {
  return make_twin(plan_of(spec, seed, data), path);
}

at::Tensor TensorPlace::own(const std::string& name, const at::Tensor& whole) const {
  const auto cut = cuts.find(name);
  return (cut == cuts.end() ? whole : cut_out(whole, cut->second, part, parts)).flatten();
}

Twin::Twin(const std::string& path, SumOrder order, TensorPlace place)
    : file_(file_at(path)), order_(word(order)), place_(std::move(place)) {
  if (file_->metadata.count(order_ + "/0/grad_norm") == 0) order_ = word(SumOrder::AddThenReduce);
  if (file_->metadata.count(order_ + "/0/grad_norm") == 0)
    throw std::runtime_error("[twin] expected a twin's file, got " + path + ".");
}

at::Tensor Twin::tensor(int step, const std::string& what, const std::string& name) const {
  const auto found =
      file_->tensors.find(order_ + "/" + std::to_string(step) + "/" + what + "/" + name);
  if (found == file_->tensors.end()) return {};
  return what == "parameter" ? found->second.flatten() : place_.own(name, found->second);
}

at::Tensor Twin::other(const std::string& run, const std::string& what,
                       const std::string& name) const {
  const auto found =
      file_->tensors.find(run + "/" + std::to_string(first_applied()) + "/" + what + "/" + name);
  return found == file_->tensors.end() ? at::Tensor() : place_.own(name, found->second);
}

float Twin::loss(int step, int64_t index) const {
  return file_->tensors.at(order_ + "/" + std::to_string(step) + "/losses")[index].item<float>();
}

double Twin::number(int step, const std::string& what) const {
  return std::strtod(file_->metadata.at(order_ + "/" + std::to_string(step) + "/" + what).c_str(),
                     nullptr);
}

int Twin::first_applied() const { return std::stoi(file_->metadata.at(order_ + "/first_applied")); }

double Twin::grad_norm(int step) const { return number(step, "grad_norm"); }

bool Twin::skipped(int step) const { return number(step, "skipped") != 0; }

double Twin::loss_scale(int step) const { return number(step, "loss_scale"); }

std::string Twin::unbounded() const {
  const auto found = file_->metadata.find("unbounded");
  return found == file_->metadata.end() ? "" : found->second;
}

reference::Rates Twin::rates(int step) const {
  const auto prefix = order_ + "/" + std::to_string(step);
  return {list_of(file_->metadata.at(prefix + "/lr")),
          list_of(file_->metadata.at(prefix + "/beta1"))};
}

double Twin::threshold() const {
  return std::strtod(file_->metadata.at("threshold").c_str(), nullptr);
}

}  // namespace equigrad::conformance
