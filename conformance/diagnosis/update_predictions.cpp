#include "conformance/diagnosis/update_predictions.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "conformance/diagnosis/search.hpp"
#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/plain_update.hpp"

namespace equigrad::conformance::oracle {
namespace {

constexpr int64_t kNoCorrection = 1 << 30;  // 1 - beta^t is 1

at::Tensor wide(const at::Tensor& values) { return values.to(at::kFloat).contiguous(); }

Weights wide(const Weights& weights) {
  Weights result{wide(weights.master), {}};
  for (const auto& [name, state] : weights.state) result.state[name] = wide(state);
  return result;
}

// The rule on what is stored, which is rounded to its own types again.
Weights updated(const UpdateSpec& spec, const Weights& before, const at::Tensor& gradient) {
  auto after = fp32_update(spec, wide(before), wide(gradient));
  after.master = after.master.to(before.master.scalar_type());
  for (auto& [name, state] : after.state) state = state.to(before.state.at(name).scalar_type());
  return after;
}

class Predictions {
 public:
  explicit Predictions(const UpdateEvidence& evidence) : it_(evidence) {
    wrong_ = differs(it_.after.master, it_.want.master);
    for (const auto& [name, state] : it_.after.state)
      wrong_ = wrong_.logical_or(differs(state, it_.want.state.at(name)));
  }

  std::vector<WeightsPrediction> run() {
    if (!wrong_.any().item<bool>()) return {};
    add("the previous step's values: not updated", it_.before);
    add("updated twice", updated(with_step(it_.spec.step + 1), it_.want, it_.gradient),
        kOfSettings);
    add("updated twice as the same step", updated(it_.spec, it_.want, it_.gradient), kOfSettings);
    try_settings();
    if (it_.spec.rule != UpdateRule::Sgd) try_corrections();
    try_momentum();
    try_gradients();
    try_parts();
    return std::move(found_);
  }

 private:
  static at::Tensor differs(const at::Tensor& got, const at::Tensor& want) {
    return got.ne(want).flatten().contiguous();
  }

  UpdateSpec with_step(int64_t step) const {
    auto spec = it_.spec;
    spec.step = step;
    return spec;
  }

  void add_spec(const std::string& cause, const UpdateSpec& spec) {
    add(cause, updated(spec, it_.before, it_.gradient), kOfSettings);
  }

  void try_settings() {
    auto spec = it_.spec;
    if (spec.weight_decay != 0) {
      spec.weight_decay = 0;
      add_spec("no weight decay", spec);
      spec.weight_decay = 2 * it_.spec.weight_decay;
      add_spec("weight decay applied twice", spec);
      spec = it_.spec;
      spec.rule = UpdateRule::Adam;
      if (it_.spec.rule == UpdateRule::AdamW)
        add_spec("weight decay applied to the gradient (L2) instead of decoupled", spec);
      spec.rule = UpdateRule::AdamW;
      if (it_.spec.rule == UpdateRule::Adam)
        add_spec("weight decay decoupled instead of applied to the gradient (L2)", spec);
      spec = it_.spec;
      spec.weight_decay *= -1;
      add_spec("weight decay with the other sign", spec);
      spec.weight_decay = it_.spec.weight_decay / it_.spec.lr;
      if (it_.spec.rule == UpdateRule::AdamW)
        add_spec("weight decay not multiplied by the learning rate", spec);
    }
    for (const auto& other : it_.other_groups) {
      spec = it_.spec;
      spec.lr = other.lr;
      if (other.lr != it_.spec.lr) add_spec("the learning rate of another group", spec);
      spec = it_.spec;
      spec.weight_decay = other.weight_decay;
      if (other.weight_decay != it_.spec.weight_decay)
        add_spec("the weight decay of another group", spec);
      spec.lr = other.lr;
      if (other.lr != it_.spec.lr) add_spec("the settings of another group", spec);
    }
    spec = it_.spec;
    std::swap(spec.beta1, spec.beta2);
    add_spec("beta1 and beta2 are swapped", spec);
    spec = it_.spec;
    spec.eps = 0;
    add_spec("eps left out", spec);
    spec.eps =
        it_.spec.eps / std::sqrt(1 - std::pow(it_.spec.beta2, static_cast<double>(it_.spec.step)));
    add_spec("the bias correction is applied to eps as well", spec);
    for (const auto& [factor, words] : factors()) {
      spec = it_.spec;
      spec.lr *= factor;
      add_spec("the learning rate " + words, spec);
    }
    spec.lr = 0;
    add_spec("a learning rate of 0", spec);
    spec.lr = -it_.spec.lr;
    add_spec("the sign of the step is flipped", spec);
  }

  void try_corrections() {
    const int64_t step = it_.spec.step;
    add_spec("no bias correction", with_step(kNoCorrection));
    if (step > 1) add_spec("bias correction of step 1", with_step(1));
    if (step > 2) add_spec("bias correction of the step before", with_step(step - 1));
    add_spec("bias correction of the next step", with_step(step + 1));
    add_spec("bias correction counted in micro-batches", with_step(step * it_.accumulation_steps));
    add_spec("bias correction counted once a rank", with_step(step * it_.world));
  }

  void try_momentum() {
    auto before = it_.before;
    for (auto& [name, state] : before.state) state = at::zeros_like(state);
    if (!before.state.empty())
      add("momentum not carried: the states began with zeros",
          updated(it_.spec, before, it_.gradient), kOfSettings);
    for (const auto& [name, state] : it_.before.state) {
      before = it_.before;
      before.state[name] = at::zeros_like(state);
      add(name + " not carried: it began with zeros", updated(it_.spec, before, it_.gradient),
          kOfSettings);
    }
    if (it_.spec.rule != UpdateRule::Sgd || it_.spec.momentum == 0) return;
    auto spec = it_.spec;
    spec.nesterov = !spec.nesterov;
    add_spec(spec.nesterov ? "Nesterov's momentum" : "plain momentum", spec);
    spec = it_.spec;
    spec.dampening = spec.momentum;
    add_spec("momentum damped", spec);
    if (spec.step > 1) add_spec("momentum begins anew: the first step's rule", with_step(1));
  }

  std::vector<std::pair<double, std::string>> factors() const {
    const auto world = static_cast<double>(it_.world),
               steps = static_cast<double>(it_.accumulation_steps);
    std::vector<std::pair<double, std::string>> all;
    const auto add_both = [&](double factor, const std::string& what) {
      if (factor == 1) return;
      all.emplace_back(factor, "times " + what);
      all.emplace_back(1 / factor, "divided by " + what);
    };
    add_both(world, "the number of ranks");
    add_both(steps, "the number of micro-batches");
    add_both(it_.loss_scale, "the loss scale");
    all.emplace_back(2, "twice");
    all.emplace_back(0.5, "halved");
    return all;
  }

  void try_gradients() {
    const auto with = [&](const std::string& cause, const at::Tensor& gradient) {
      if (gradient.defined()) add(cause, updated(it_.spec, it_.before, gradient), kOfGradient);
    };
    const auto& gradient = it_.gradient;
    with("the gradient of the step before", it_.previous_gradient);
    with("a gradient of zeros", at::zeros_like(gradient));
    with("the sign of the gradient is flipped", gradient.neg());
    if (it_.clip_factor != 1) {
      with("the gradient clipped twice", gradient * it_.clip_factor);
      with("the gradient not clipped", gradient / it_.clip_factor);
    }
    for (const auto& [factor, words] : factors()) with("the gradient " + words, gradient * factor);
    with("the gradient shifted by one element", at::roll(gradient, 1));
    with("the gradient shifted by one element", at::roll(gradient, -1));
    with("the gradient rounded to bf16", gradient.to(at::kBFloat16).to(gradient.scalar_type()));
    with("the gradient rounded to fp16", gradient.to(at::kHalf).to(gradient.scalar_type()));
    with("the gradient's absolute value", gradient.abs());
  }

  // Right values for some of the tensors, others for the rest.
  void try_parts() {
    auto weights = it_.want;
    weights.master = it_.before.master;
    add("the masters were not updated, the states were", weights);
    for (const auto& [name, state] : it_.before.state) {
      weights = it_.want;
      weights.state[name] = state;
      add(name + " was not updated", weights);
      weights.state[name] = at::zeros_like(state);
      add(name + " is zeros", weights);
    }
    weights = it_.before;
    weights.master = it_.want.master;
    add("the states were not updated", weights);
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const std::string to = dtype == at::kHalf ? " rounded to fp16" : " rounded to bf16";
      weights = it_.want;
      weights.master = weights.master.to(dtype).to(it_.want.master.scalar_type());
      add("the masters are" + to, weights);
      for (auto& [name, state] : weights.state)
        state = it_.want.state.at(name).to(dtype).to(state.scalar_type());
      add("the masters and the states are" + to, weights);
      weights.master = it_.want.master;
      add("the states are" + to, weights);
    }
  }

  // Whether half of the wrong elements agree, in this tensor.
  bool agrees(const at::Tensor& got, const at::Tensor& before, const at::Tensor& predicted,
              double roundings) const {
    const auto type = got.scalar_type();
    const auto x = flat_double(got), b = flat_double(before), p = flat_double(predicted);
    const auto* values = x.const_data_ptr<double>();
    const auto* befores = b.const_data_ptr<double>();
    const auto* predictions = p.const_data_ptr<double>();
    const auto* wrong = wrong_.const_data_ptr<bool>();
    int64_t all = 0, hit = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (!wrong[i]) continue;
      ++all;
      const double largest =
          std::max({std::fabs(values[i]), std::fabs(befores[i]), std::fabs(predictions[i])});
      hit += std::fabs(values[i] - predictions[i]) <= roundings * ulp_of(largest, type);
    }
    return 2 * hit >= all;
  }

  void add(const std::string& cause, Weights weights, double roundings = 0) {
    if (!agrees(it_.after.master, it_.before.master, weights.master, roundings)) return;
    for (const auto& [name, state] : it_.after.state)
      if (!agrees(state, it_.before.state.at(name), weights.state.at(name), roundings)) return;
    found_.push_back({cause, std::move(weights), roundings});
  }

  const UpdateEvidence& it_;
  at::Tensor wrong_;
  std::vector<WeightsPrediction> found_;
};

}  // namespace

std::vector<WeightsPrediction> update_predictions(const UpdateEvidence& evidence) {
  return Predictions(evidence).run();
}

}  // namespace equigrad::conformance::oracle
