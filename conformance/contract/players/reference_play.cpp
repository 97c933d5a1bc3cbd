#include "conformance/contract/players/reference_play.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/players/settings.hpp"

namespace equigrad::conformance::contract {

ReferencePlay::ReferencePlay(const Spec& spec, uint64_t seed, const reference::Data& data)
    : spec_(spec), turns_(spec.world) {
  for (std::size_t i = 0; i < spec.of->models.size(); ++i)
    steppers_.push_back(std::make_unique<reference::Stepper>(
        recipe_of(spec.of_model(i)), make_contract_model(spec.of->models[i], seed + i)));
  for (int rank = 0; rank < spec.world; ++rank) {
    const ContractContext context = {.rank = rank,
                                     .world = spec.world,
                                     .stage = spec.stage,
                                     .precision = spec.precision,
                                     .accumulation = spec.accumulation,
                                     .window = -1,
                                     .seed = seed};
    ranks_.push_back(std::make_unique<ReferenceRank>(*this, context, data));
  }
}

ReferencePlay::~ReferencePlay() = default;

std::vector<reference::StepRecord> ReferencePlay::window() {
  records_.clear();
  turns_.run([this](int rank) { ranks_[static_cast<std::size_t>(rank)]->window(); });
  return records_;
}

const Seen& ReferencePlay::seen(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)]->seen();
}

ReferenceRank::ReferenceRank(ReferencePlay& all, const ContractContext& context,
                             const reference::Data& data)
    : Play(data), all_(all) {
  context_ = context;
}

void ReferenceRank::window() {
  ++context_.window;
  boundaries_ = 0;
  seen_.clear();
  all_.spec_.of->program(*this);
  if (boundaries_ != 1)
    throw std::logic_error("[contract] expected one boundary in the program of " +
                           all_.spec_.of->name + ", got " + std::to_string(boundaries_) + ".");
}

// A pass is one for every model: those that it does not reach get nothing from it.
void ReferenceRank::run(const Call& pass, std::size_t weighed, double weight) {
  Call nested = pass;
  for (std::size_t i = 0; i < all_.steppers_.size(); ++i)
    nested = [this, i, inner = nested, weighed, weight] {
      all_.steppers_[i]->pass(context_.rank, inner, i == weighed ? weight : 1.0);
    };
  nested();
}

at::Tensor ReferenceRank::backward(const at::Tensor& loss, PassOptions options) {
  const auto accumulation = static_cast<double>(context_.accumulation);
  run([&] { scale(loss, options.engine).backward({}, options.retain_graph); }, options.engine,
      options.scale_wrt_gas ? 1.0 : accumulation);
  return options.scale_wrt_gas ? loss / accumulation : loss;
}

// In fp32, so that no 16-bit output overflows; what comes back is rounded to its type.
at::Tensor ReferenceRank::scale(const at::Tensor& tensor, std::size_t which) {
  const double scale = loss_scale(which);
  return scale == 1.0 ? tensor : tensor.to(at::kFloat) * scale;
}

void ReferenceRank::share_loss_scale(std::size_t engine, std::size_t with) {
  all_.turns_.meet(context_.rank, "sharing a loss scale",
                   [&] { all_.steppers_[with]->share_loss_scale(*all_.steppers_[engine]); });
}

at::Tensor ReferenceRank::parameter(const std::string& name, std::size_t which) {
  return model(which).named_parameters()[name].detach().clone();
}

void ReferenceRank::step() {
  ++in_window_;
  if (!boundary_.value_or(in_window_ >= context_.accumulation)) return;
  in_window_ = 0;
  ++boundaries_;
  all_.turns_.meet(context_.rank, "a boundary", [this] {
    for (auto& stepper : all_.steppers_) {
      if (all_.spec_.of->has(Feature::RateSchedule))
        stepper->set_lr(scheduled_rate(all_.spec_, all_.updates_));
      all_.records_.push_back(stepper->step());
    }
    if (!all_.records_[0].skipped) ++all_.updates_;
  });
}

void ReferenceRank::set_accumulation(int64_t steps) {
  context_.accumulation = steps;
  for (auto& stepper : all_.steppers_) stepper->set_accumulation_steps(steps);
}

// The last rank to come asks or sets, so that all ranks' passes are in it.
at::Tensor ReferenceRank::full(const std::string& what, const std::string& name) {
  all_.turns_.meet(context_.rank, "full " + what + " of " + name,
                   [&] { all_.got_ = all_.steppers_[0]->get(what, name); });
  return all_.got_.defined() ? all_.got_.clone() : at::Tensor();
}

at::Tensor ReferenceRank::local(const std::string& what, const std::string& name) {
  const auto whole = full(what, name);
  if (!whole.defined()) return whole;
  const int64_t numel = whole.numel(), shards = context_.stage == 0 ? 1 : context_.world;
  const int64_t each = (numel + shards - 1) / shards;
  const int64_t begin = std::min(numel, (shards == 1 ? 0 : context_.rank) * each);
  return whole.flatten().slice(0, begin, std::min(numel, begin + each)).clone();
}

void ReferenceRank::set_full(const std::string& what, const std::string& name,
                             const at::Tensor& value) {
  all_.turns_.meet(context_.rank, "setting " + what + " of " + name,
                   [&] { all_.steppers_[0]->set(what, name, value); });
}

// One model stands for every rank's: what a rank writes is seen when all have come. Where no bit
// was written the master keeps those that the model's type has no room for.
void ReferenceRank::gather(const std::vector<std::string>& names, std::optional<int> modifier_rank,
                           const Call& inside) {
  std::map<std::string, at::Tensor> before;
  for (const auto& name : names) before[name] = parameter(name, 0);
  inside();
  for (const auto& name : names) {
    if (modifier_rank == context_.rank) all_.written_[name] = parameter(name, 0);
    model(0).named_parameters()[name].detach().copy_(before[name]);
  }
  all_.turns_.meet(context_.rank, "the end of a gather", [&] {
    for (const auto& [name, now] : all_.written_) {
      const auto bits = now.element_size() == 2 ? at::kShort : at::kInt;
      const auto same = now.view(bits).eq(before.at(name).view(bits));
      const auto master = all_.steppers_[0]->get("master", name);
      all_.steppers_[0]->set("master", name, at::where(same, master, now.to(master.options())));
    }
    all_.written_.clear();
  });
}

// Weights stay in any case, and masters with them.
void ReferenceRank::restart(const Restart& how) {
  const bool is_anew = how.load.module_only;
  if (!is_anew && how.load.optimizer_states && how.load.lr_scheduler_states) return;
  all_.turns_.meet(context_.rank, "a restart", [&] {
    for (auto& stepper : all_.steppers_) {
      if (!is_anew && how.load.optimizer_states) continue;
      stepper->forget_states();
      stepper->forget_loss_scale();
    }
    if (is_anew || !how.load.lr_scheduler_states) all_.updates_ = 0;
  });
}

void ReferenceRank::zero_grad() {
  for (auto& stepper : all_.steppers_) stepper->discard(context_.rank);
}

void ReferenceRank::fail(const std::string& fragment, const Call& call) {
  try {
    call();
  } catch (const std::exception&) {
    return;
  }
  throw std::logic_error("[contract] expected the reference to fail with \"" + fragment + "\".");
}

void ReferenceRank::see(const std::string& what, const at::Tensor& value) {
  seen_.emplace_back(what, value.defined() ? value.detach().clone() : value);
}

}  // namespace equigrad::conformance::contract
