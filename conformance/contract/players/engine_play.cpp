#include "conformance/contract/players/engine_play.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/players/settings.hpp"
#include "conformance/oracle/bits.hpp"
#include "conformance/ranks/private_directory.hpp"
#include "engine/zero_init.hpp"

namespace equigrad::conformance::contract {
namespace {

std::map<std::string, LocalShard> copy_of(const std::vector<LocalShard>& shards) {
  std::map<std::string, LocalShard> copies;
  for (const auto& shard : shards) {
    auto& copy = copies[shard.name] = shard;
    if (shard.gradient.defined()) copy.gradient = shard.gradient.flatten().clone();
  }
  return copies;
}

// In zero::Init's scope rank 0's weights count, as ever; the wrong way has rank 1's.
std::shared_ptr<reference::Model> make_model(
    const Spec& spec, const ContractContext& context, std::size_t which, uint64_t other_weights,
    const std::shared_ptr<comm::Communicator>& communicator) {
  const uint64_t seed = context.seed + which + other_weights;
  const auto& name = spec.of->models[which];
  if (!spec.of->has(Feature::WithinInit)) return make_contract_model(name, seed);
  zero::Init init(config_text(spec.of_model(which)), communicator);
  auto model = make_contract_model(name, context.rank == 0 && !context.fault ? seed : seed + 99);
  init.finish();
  return model;
}

at::Tensor number(double value) { return at::full({1}, value, at::kDouble); }

}  // namespace

EnginePlay::EnginePlay(const Spec& spec, const ContractContext& context,
                       ranks::RankContext& rank_context, const reference::Data& data,
                       const std::shared_ptr<comm::Communicator>& communicator)
    : Play(data),
      spec_(spec),
      rank_context_(rank_context),
      communicator_(communicator),
      folder_(rank_context.directory() + "/" + rank_context.set() + ".checkpoints"),
      trained_(spec.of->models.size()) {
  context_ = context;
  context_.window = -1;
  for (std::size_t i = 0; i < trained_.size(); ++i) make(i, 0, std::nullopt);
}

EnginePlay::~EnginePlay() {
  if (context_.rank == 0) ranks::remove_private_directory(folder_);
}

void EnginePlay::make(std::size_t which, uint64_t other_weights, std::optional<int> stage) {
  auto& one = trained_[which];
  one.model = make_model(spec_, context_, which, other_weights, communicator_);
  one.engine = make_engine(spec_.of_model(which), *one.model, communicator_, stage);
  one.engine->on_step([this, which](const std::vector<LocalShard>& shards) {
    trained_[which].stepped.push_back(copy_of(shards));
  });
}

std::string EnginePlay::at(const std::string& what) const {
  return "step " + std::to_string(context_.window + 1) + " " + what;
}

std::string EnginePlay::of(std::size_t which) const {
  return trained_.size() > 1 ? " of model " + std::to_string(which + 1) : "";
}

void EnginePlay::enter(const std::string& call, const std::string& parameter,
                       const std::string& what) {
  last_ = {call, parameter, what};
  rank_context_.note(at(call));
}

void EnginePlay::enter_of(std::size_t which, const std::string& call, const std::string& parameter,
                          const std::string& what) {
  const std::string whose =
      trained_.size() > 1 ? "engine " + std::to_string(which + 1) + "'s " : "";
  enter(whose + call, parameter, what);
}

void EnginePlay::window(const std::vector<reference::StepRecord>& want, const Seen& seen) {
  ++context_.window;
  seen_.clear();
  seen_from_.clear();
  for (auto& one : trained_) one.stepped.clear();
  enter("program");
  spec_.of->program(*this);
  rank_context_.note(at("comparison"));
  steps_ = {want, std::move(steps_[0])};
  compare_seen(seen);
  for (std::size_t i = 0; i < trained_.size(); ++i) compare_model(i, want[i]);
}

void EnginePlay::compare_seen(const Seen& want) {
  check("as much is seen as by the reference", seen_.size() == want.size());
  for (std::size_t i = 0; i < std::min(seen_.size(), want.size()); ++i) {
    const auto& [name, value] = want[i];
    if (seen_[i].second.defined() && value.defined())
      compare({.source = seen_from_[i], .name = name}, seen_[i].second, value);
    else
      find(name + " is defined on both sides or on none",
           seen_[i].second.defined() == value.defined(), seen_from_[i]);
  }
}

namespace {

// As the reference has it after a step; undefined: it is none of what a step has.
at::Tensor in_record(const reference::StepRecord& record, const Source& source) {
  const auto of = [&](const reference::TensorMap& tensors) {
    const auto found = tensors.find(source.parameter);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  if (source.what == "gradient") return of(record.gradients);
  if (source.what == "master") return of(record.masters);
  if (source.what == "parameter") return of(record.parameters);
  const auto state = record.state.find(source.what);
  return state == record.state.end() ? at::Tensor() : of(state->second);
}

}  // namespace

void EnginePlay::compare(const Compared& one, const at::Tensor& got, const at::Tensor& whole) {
  const bool is_whole = one.end < 0;
  const auto want = is_whole ? whole : whole.flatten().slice(0, one.begin, one.end);
  const auto report = oracle::compare(got, want);
  ++comparisons_;
  if (tally_.add(at(one.name), one.begin, report) || difference_) return;
  difference_ = PlayDifference{.order = comparisons_,
                               .window = context_.window,
                               .accumulation = context_.accumulation,
                               .loss_scale = steps_[0][one.which].loss_scale,
                               .source = one.source,
                               .finding = report.mismatch,
                               .begin = one.begin};
  if (difference_->source.what.empty()) difference_->source.what = one.name;
  if (!report.mismatch.empty()) return;
  difference_->got = got.flatten().clone();
  difference_->want = want.flatten().clone();
  difference_->whole = whole;
  if (one.which >= steps_[1].size()) return;
  const auto previous = in_record(steps_[1][one.which], one.source);
  if (previous.defined() && previous.sizes() == whole.sizes()) difference_->previous = previous;
}

void EnginePlay::compare_norm(std::size_t which, const reference::StepRecord& want) {
  enter_of(which, "get_global_grad_norm()");
  const double norm = trained_[which].engine->get_global_grad_norm().value_or(-1);
  if (want.skipped)
    check("the norm is not a number" + of(which), std::isnan(norm));
  else
    compare({.source = last_, .name = "norm" + of(which), .which = which}, number(norm),
            number(want.grad_norm));
}

// What comes of what is compared after it: a wrong norm of wrong gradients; where they are clipped,
// wrong gradients of a wrong norm.
void EnginePlay::compare_model(std::size_t which, const reference::StepRecord& want) {
  enter_of(which, "step()");
  check("one update" + of(which), trained_[which].stepped.size() == (want.skipped ? 0 : 1));
  const bool is_clipped = spec_.of->clipping != Clipping::Off;
  if (is_clipped) compare_norm(which, want);
  if (!want.skipped && !trained_[which].stepped.empty())
    for (const auto& [name, shard] : trained_[which].stepped.back())
      compare_gradient(which, shard, want);
  if (!is_clipped) compare_norm(which, want);
  compare_shards(which, want);
  for (const auto& [name, parameter] : want.parameters) {
    enter_of(which, "full_parameter(\"" + name + "\")", name, "parameter");
    compare({.source = last_, .name = "parameter " + name + of(which), .which = which},
            trained_[which].engine->full_parameter(name), parameter);
  }
}

void EnginePlay::compare_shards(std::size_t which, const reference::StepRecord& want) {
  enter_of(which, "local_shards()");
  const std::string call = last_.call;
  for (const auto& shard : trained_[which].engine->local_shards()) {
    const auto one = [&](const std::string& what) {
      return Compared{.source = {call, shard.name, what},
                      .name = what + " " + shard.name + of(which),
                      .which = which,
                      .begin = shard.begin,
                      .end = shard.end};
    };
    compare(one("master"), shard.master.flatten(), want.masters.at(shard.name));
    find("states of " + shard.name + of(which), shard.state.size() == want.state.size(),
         {call, shard.name, "states"});
    for (const auto& [name, state] : shard.state)
      compare(one(name), state.flatten(), want.state.at(name).at(shard.name));
  }
}

void EnginePlay::compare_gradient(std::size_t which, const LocalShard& shard,
                                  const reference::StepRecord& want) {
  enter_of(which, "on_step()", shard.name, "gradient");
  const std::string where = "gradient " + shard.name + of(which);
  const auto found = want.gradients.find(shard.name);
  const bool used = found != want.gradients.end();
  check(where + (used ? " is there" : " is absent: no rank used it"),
        used == shard.gradient.defined());
  if (used && shard.gradient.defined())
    compare(
        {.source = last_, .name = where, .which = which, .begin = shard.begin, .end = shard.end},
        shard.gradient, found->second);
}

at::Tensor EnginePlay::parameter(const std::string& name, std::size_t which) {
  enter_of(which, "full_parameter(\"" + name + "\")", name, "parameter");
  return trained_[which].engine->full_parameter(name);
}

// What the program then does with it is not seen here.
Engine* EnginePlay::engine(std::size_t which) {
  enter_of(which, "the program's own use of the engine");
  return trained_[which].engine.get();
}

std::shared_ptr<comm::Communicator> EnginePlay::group(int world) {
  enter("an engine of the program's own");
  return rank_context_.group(world);
}

at::Tensor EnginePlay::backward(const at::Tensor& loss, PassOptions options) {
  enter_of(options.engine, "backward(loss)");
  return trained_[options.engine].engine->backward(loss, options.retain_graph,
                                                   options.scale_wrt_gas);
}

at::Tensor EnginePlay::scale(const at::Tensor& tensor, std::size_t which) {
  enter_of(which, "scale(tensor)");
  return trained_[which].engine->scale(tensor);
}

double EnginePlay::loss_scale(std::size_t which) {
  enter_of(which, "loss_scale()");
  return trained_[which].engine->loss_scale();
}

void EnginePlay::share_loss_scale(std::size_t engine, std::size_t with) {
  enter_of(engine, "share_loss_scale(other)");
  trained_[engine].engine->share_loss_scale(*trained_[with].engine);
}

void EnginePlay::run(const Call& pass) {
  enter("a backward pass of torch's own");
  pass();
}

void EnginePlay::step() {
  enter("step()");
  for (auto& one : trained_) one.engine->step();
}

void EnginePlay::zero_grad() {
  enter("zero_grad()");
  for (auto& one : trained_) one.engine->zero_grad();
}

void EnginePlay::gather(const std::vector<std::string>& names, std::optional<int> modifier_rank,
                        const Call& inside) {
  const auto all = trained_[0].model->named_parameters();
  std::vector<at::Tensor> tensors;
  for (const auto& name : names) tensors.push_back(all[name]);
  enter("gather(parameters)", names.empty() ? "" : names.front());
  auto whole = trained_[0].engine->gather(tensors, modifier_rank);
  inside();
  whole.end();
}

void EnginePlay::fail(const std::string& fragment, const Call& call) {
  const std::string expected = "expected an error with \"" + fragment + "\", got ";
  enter("the call that is to be refused");
  try {
    call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool holds = text.find(fragment) != std::string::npos;
    return check(holds ? "an error with \"" + fragment + "\"" : expected + text.substr(0, 300),
                 holds);
  }
  check(expected + "none", false);
}

void EnginePlay::check(const std::string& what, bool holds) { find(what, holds, last_); }

void EnginePlay::find(const std::string& what, bool holds, const Source& source) {
  ++comparisons_;
  if (holds) {
    oracle::BitsReport one;
    one.compared = 1;
    tally_.add(at(what), 0, one);
    return;
  }
  tally_.add_finding(at("check"), "does not hold: " + what);
  if (!difference_)
    difference_ = PlayDifference{.order = comparisons_,
                                 .window = context_.window,
                                 .accumulation = context_.accumulation,
                                 .source = source,
                                 .finding = "does not hold: " + what};
}

void EnginePlay::see(const std::string& what, const at::Tensor& value) {
  seen_.emplace_back(what, value.defined() ? value.detach().clone() : value);
  seen_from_.push_back(last_);
}

}  // namespace equigrad::conformance::contract
