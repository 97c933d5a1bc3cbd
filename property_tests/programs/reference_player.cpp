#include "property_tests/programs/reference_player.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>
#include <stdexcept>

#include "property_tests/programs/settings.hpp"

namespace equigrad::property_tests::programs {

at::Tensor number(double value) { return at::full({}, value, at::kDouble); }

ReferencePlayer::ReferencePlayer(const json& setting, int rank)
    : setting_(setting),
      rank_(rank / mesh_of(setting).tensor),
      world_(mesh_of(setting).data * mesh_of(setting).sequence),
      tensor_(mesh_of(setting).tensor),
      sequence_(mesh_of(setting).sequence),
      accumulation_(setting.at("accumulation")),
      network_(setting),
      kept_(static_cast<std::size_t>(world_)),
      told_(network_.models().size()) {
  for (const auto& model : network_.models())
    steppers_.push_back(std::make_unique<reference::Stepper>(recipe_of(setting), model));
  if (setting.at("precision") == 2 && steppers_.size() == 2)
    steppers_[0]->share_loss_scale(*steppers_[1]);
}

Seen ReferencePlayer::play(const json& call) {
  seen_.clear();
  const std::string name = call.at("call");
  if (name == "forward") forward(call);
  if (name == "backward") backward(call);
  if (name == "throw") throwing(call);
  if (name == "twice") twice(call);
  if (name == "zero_grad") discard();
  if (name == "step") step(call);
  if (name == "boundary") boundary_ = call.at("value");
  if (name == "batch_size") {
    accumulation_ = call["accumulation"];
    for (auto& stepper : steppers_) stepper->set_accumulation_steps(accumulation_);
  }
  if (name == "get" && call.at("what") == "parameter")
    see_parameter(call.at("name"), call.at("engine"));
  if (name == "get" && call.at("what") != "parameter")
    seen_["value"] =
        steppers_[call.at("engine").get<std::size_t>()]->get(call.at("what"), call.at("name"));
  if (name == "set") set(call);
  if (name == "gather") gather(call);
  if (name == "look") look(call);
  if (name == "grad") grad(call);
  if (name == "end") end();
  see_numbers();
  return seen_;
}

void ReferencePlayer::pass(int rank, const Roots& roots, const PassOptions& options) {
  at::Tensor loss;
  PassOptions scaled = options;
  scaled.scale = steppers_[options.engine]->loss_scale();
  const double weight = options.scale_wrt_gas ? 1.0 : static_cast<double>(accumulation_);
  std::function<void()> nested = [&] { loss = differentiate(roots, scaled, nullptr); };
  for (std::size_t i = 0; i < steppers_.size(); ++i)
    nested = [&, i, inner = nested] {
      const bool weighed = options.style == 0 && i == options.engine;
      steppers_[i]->pass(rank, inner, weighed ? weight : 1.0);
    };
  nested();
  if (rank == rank_ && options.style == 0)
    seen_["returned"] = options.scale_wrt_gas ? loss / static_cast<double>(accumulation_) : loss;
}

void ReferencePlayer::backward(const json& call) {
  each_rank([&](int rank) {
    Roots roots;
    for (const int slot : call.at("slots"))
      roots.push_back(kept_[static_cast<std::size_t>(rank)].at(slot));
    pass(rank, roots, pass_options(call, setting_, rank));
  });
}

// What the passes that throw leave behind is nothing.
void ReferencePlayer::throwing(const json& call) {
  if (!call.at("counts").get<bool>()) return;
  each_rank([&](int rank) {
    if (rank / sequence_ != call.at("rank") || call.at("again").get<bool>())
      pass(rank, {run(call, rank, 1)}, pass_options(call, setting_, rank));
  });
  seen_.clear();
  if (!call.at("again").get<bool>()) discard();
}

void ReferencePlayer::twice(const json& call) {
  each_rank([&](int rank) {
    const Roots roots = {run(call, rank, call.at("branch"))};
    pass(rank, roots, pass_options(call, setting_, rank));
    try {
      pass(rank, roots, pass_options(call, setting_, rank));
    } catch (const std::exception&) {
      return;
    }
    throw std::logic_error("expected the second backward of one graph to throw");
  });
  seen_.clear();
}

void ReferencePlayer::step(const json& call) {
  ++micro_steps_;
  in_window_ = call.at("acts").get<bool>() ? 0 : in_window_ + 1;
  if (!call.at("acts").get<bool>()) return;
  for (std::size_t i = 0; i < steppers_.size(); ++i) step_of(i);
  see_everything();
}

void ReferencePlayer::step_of(std::size_t which) {
  const auto record = steppers_[which]->step();
  auto& told = told_[which];
  const bool error = record.skipped && setting_.at("precision") == 0;
  told.global_steps += error ? 0 : 1;
  told.skipped_steps += record.skipped && !error ? 1 : 0;
  told.applied = !record.skipped;
  told.norm = record.skipped ? std::numeric_limits<double>::quiet_NaN() : record.grad_norm;
  seen_["refused" + of(which)] = number(error ? 1 : 0);
  if (record.skipped) return;
  for (const auto& [name, gradient] : record.gradients)
    seen_["gradient " + name + of(which)] = gradient;
}

Kept ReferencePlayer::run(const json& call, int rank, int branch, bool may_nest) {
  const auto parts = parts_of_all(tensor_, sequence_, static_cast<std::size_t>(rank % sequence_));
  return network_.run(*parts, batch_of(setting_, rank / sequence_, call.at("batch")), branch,
                      Throw::None, may_nest);
}
void ReferencePlayer::forward(const json& call) {
  each_rank([&](int rank) {
    kept_[static_cast<std::size_t>(rank)][call.at("slot")] =
        run(call, rank, branch_of(call, rank / sequence_));
  });
}

void ReferencePlayer::discard() {
  each_rank([&](int rank) {
    for (auto& stepper : steppers_) stepper->discard(rank);
  });
}

void ReferencePlayer::end() {
  for (std::size_t i = 0; i < steppers_.size(); ++i)
    for (const auto& name : trained(setting_))
      seen_["so far " + name + of(i)] = steppers_[i]->get("gradient", name);
  see_everything();
}

void ReferencePlayer::set(const json& call) {
  const std::string what = call.at("what"), name = call.at("name");
  const std::size_t which = call.at("engine");
  const auto like = steppers_[which]->get("master", name);
  steppers_[which]->set(what, name, value_for(like, call));
  if (what == "master") see_parameter(name, which);
}

// What is written is the parameter, in its own type; its master follows where a bit of it differs.
void ReferencePlayer::gather(const json& call) {
  const std::string name = call.at("name");
  const std::size_t which = call.at("engine");
  see_parameter(name, which);
  seen_["whole"] = seen_.at("parameter " + name + of(which));
  if (call.at("writer").is_null()) return;
  const auto like = steppers_[which]->get("master", name);
  const auto in_its_type = [&](const at::Tensor& values) {
    return values.to(dtype_of(setting_)).to(like.scalar_type());
  };
  const auto written = in_its_type(value_for(like, call));
  steppers_[which]->set("master", name, at::where(in_its_type(like).eq(written), like, written));
  see_parameter(name, which);
}

void ReferencePlayer::look(const json& call) {
  const at::NoGradGuard no_grad;
  seen_["output"] = run(call, rank_, 3).outputs[0].clone();
}

void ReferencePlayer::grad(const json& call) {
  const auto kept = run(call, rank_, 1, /*may_nest=*/false);
  seen_["grad"] = torch::autograd::grad({kept.loss}, {network_.weight()})[0].clone();
}

void ReferencePlayer::see_everything() {
  for (std::size_t i = 0; i < steppers_.size(); ++i) {
    for (const auto& [name, parameter] : reference::unique_parameters(*network_.models()[i]))
      see_parameter(name, i);
    for (const auto& name : trained(setting_)) {
      seen_["master " + name + of(i)] = steppers_[i]->get("master", name);
      for (const auto& state : state_names(setting_))
        seen_[state + " " + name + of(i)] = steppers_[i]->get(state, name);
    }
  }
}

void ReferencePlayer::see_numbers() {
  const bool last = in_window_ + 1 >= accumulation_;
  for (std::size_t i = 0; i < steppers_.size(); ++i) {
    const auto& told = told_[i];
    seen_["boundary" + of(i)] = number(boundary_.is_null() ? last : boundary_.get<bool>());
    seen_["applied" + of(i)] = number(told.applied);
    seen_["micro_steps" + of(i)] = number(static_cast<double>(micro_steps_));
    seen_["global_steps" + of(i)] = number(static_cast<double>(told.global_steps));
    seen_["skipped_steps" + of(i)] = number(static_cast<double>(told.skipped_steps));
    seen_["norm" + of(i)] = told.norm ? number(*told.norm) : at::Tensor();
    seen_["loss scale" + of(i)] = number(steppers_[i]->loss_scale());
  }
}

void ReferencePlayer::see_parameter(const std::string& name, std::size_t which) {
  auto& model = *network_.models()[which];
  seen_["parameter " + name + of(which)] = model.named_parameters()[name].detach().clone();
}

}  // namespace equigrad::property_tests::programs
