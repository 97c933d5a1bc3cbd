#include "property_tests/programs/engine_player.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>

#include "conformance/oracle/bits.hpp"
#include "property_tests/programs/settings.hpp"

namespace equigrad::property_tests::programs {
namespace {

// Which bits a NaN has says nothing.
at::Tensor plain(const at::Tensor& tensor) {
  const auto copy = tensor.detach().clone().contiguous();
  return copy.is_floating_point() ? copy.masked_fill(copy.isnan(), 12345) : copy;
}

}  // namespace

EnginePlayer::EnginePlayer(const json& setting, int rank, const comm::Mesh& mesh)
    : setting_(setting),
      place_(comm::place_of(rank, mesh.sizes())),
      tensor_{place_.tensor, mesh.sizes().tensor},
      parts_(parts_of_rank(mesh)),
      network_(setting, tensor_),
      observed_(network_.models().size()) {
  for (const auto& model : network_.models()) {
    const auto i = engines_.size();
    engines_.push_back(initialize(*model, config_of(setting).dump(), mesh));
    engines_[i]->on_step([this, i](const std::vector<LocalShard>& shards) {
      ++observed_[i];
      for (const auto& shard : shards)
        expect("gradient " + shard.name + of(i), shard.gradient, shard.name, shard);
    });
  }
  if (setting.at("precision") == 2 && engines_.size() == 2)
    engines_[1]->share_loss_scale(*engines_[0]);
}

std::string EnginePlayer::play(const json& call, const Seen& want) {
  want_ = &want;
  const std::string name = call.at("call");
  if (name == "forward") kept_[call.at("slot")] = run(call, branch_of(call, place_.data));
  if (name == "backward") backward(call);
  if (name == "throw") throwing(call);
  if (name == "twice") twice(call);
  window(call);
  if (name == "step") step(call);
  if (name == "get") get(call);
  if (name == "set") set(call);
  if (name == "gather") gather(call);
  if (name == "look") look(call);
  if (name == "grad") {
    const auto kept = network_.run(*parts_, batch(call), 1, Throw::None, false);
    expect("grad", torch::autograd::grad({kept.loss}, {network_.weight()})[0], "first.weight");
  }
  if (name == "refuse") refuse(call.at("what"));
  if (name == "end") {
    guards_.clear();
    for (std::size_t i = 0; i < engines_.size(); ++i)
      for (const auto& parameter : trained(setting_))
        expect("so far " + parameter + of(i), engines_[i]->access().full_gradient(parameter),
               parameter);
    expect_everything();
  }
  expect_numbers();
  return wrong_;
}

// What is asked of every engine alike.
void EnginePlayer::window(const json& call) {
  const std::string name = call.at("call");
  if (name == "zero_grad") each_engine([](Engine& engine) { engine.zero_grad(); });
  if (name == "boundary") {
    const auto& value = call.at("value");
    const auto set = value.is_null() ? std::nullopt : std::optional<bool>(value.get<bool>());
    each_engine([&](Engine& engine) { engine.set_gradient_accumulation_boundary(set); });
  }
  if (name == "no_sync") each_engine([&](Engine& engine) { guards_.push_back(engine.no_sync()); });
  if (name == "end_no_sync") guards_.clear();
  if (name == "batch_size") {
    const auto size = call["accumulation"].get<int64_t>() * 2 * mesh_of(setting_).data;
    each_engine([&](Engine& engine) { engine.set_train_batch_size(size); });
  }
}

void EnginePlayer::backward(const json& call) {
  Roots roots;
  for (const int slot : call.at("slots")) roots.push_back(kept_.at(slot));
  const auto options = pass_options(call, setting_, zero_rank());
  const auto returned = differentiate(roots, options, engines_[options.engine].get());
  if (options.style == 0) expect("returned", returned);
  for (const auto& model : network_.models())
    if (model->weight().grad().defined()) note(".grad is defined after a pass");
}

// The ranks that do not throw get an error where they are told, and count the pass where not.
void EnginePlayer::throwing(const json& call) {
  const auto& one = call.at("rank");
  const bool throws = one.is_null() || one == place_.data, counts = call.at("counts");
  constexpr std::array kPlaces = {Throw::Midway, Throw::Top, Throw::Late};
  const auto where = throws ? kPlaces[call.at("place").get<std::size_t>()] : Throw::None;
  const auto options = pass_options(call, setting_, zero_rank());
  const auto pass = [&](Throw at_place) {
    differentiate({run(call, 1, at_place)}, options, engines_[options.engine].get());
  };
  if (throws)
    fails({"planted", "got an exception on rank"}, [&] { pass(where); });
  else if (counts)
    pass(where);
  else
    fails({"got an exception on rank"}, [&] { pass(where); });
  if (call.at("probe"))
    each_engine([&](Engine& engine) {
      fails({"as many backward passes"}, [&] { engine.access().full_gradient("first.weight"); });
    });
  if (throws && call.at("again")) pass(Throw::None);
  if (counts && !call.at("again")) each_engine([](Engine& engine) { engine.zero_grad(); });
}

void EnginePlayer::twice(const json& call) {
  const Roots roots = {run(call, call.at("branch"))};
  const auto options = pass_options(call, setting_, zero_rank());
  differentiate(roots, options, engines_[options.engine].get());
  fails({"second time", "got an exception on rank"},
        [&] { differentiate(roots, options, engines_[options.engine].get()); });
}

void EnginePlayer::step(const json& call) {
  if (!call.at("acts").get<bool>()) return each_engine([](Engine& engine) { engine.step(); });
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    observed_[i] = 0;
    if (want_->at("refused" + of(i)).item<double>() != 0)
      fails({"expected finite gradients"}, [&] { engines_[i]->step(); });
    else
      engines_[i]->step();
    if (observed_[i] != want_->at("applied" + of(i)).item<double>())
      note("on_step: not called as often");
  }
  expect_everything();
}

void EnginePlayer::look(const json& call) {
  if (call.at("alone") && place_.data != 0) return;
  const at::NoGradGuard no_grad;
  expect("output", run(call, 3).outputs[0]);
}

at::Tensor EnginePlayer::batch(const json& call) {
  return batch_of(setting_, place_.data, call.at("batch"));
}

Kept EnginePlayer::run(const json& call, int branch, Throw where) {
  return network_.run(*parts_, batch(call), branch, where);
}
void EnginePlayer::note(const std::string& what) {
  if (wrong_.empty()) wrong_ = what;
}
int EnginePlayer::zero_rank() const {
  return place_.data * static_cast<int>(parts_->sequence()) + place_.sequence;
}
int EnginePlayer::world_rank() const {
  return zero_rank() * static_cast<int>(tensor_.size) + place_.tensor;
}
void EnginePlayer::expect(const std::string& what, const at::Tensor& got, const std::string& name,
                          const LocalShard& part) {
  const auto found = want_->find(what);
  const bool has_one = found != want_->end() && found->second.defined();
  const auto want = has_one ? part_of(name, found->second, tensor_) : at::Tensor();
  if (got.defined() != want.defined())
    return note(what + (want.defined() ? ": the engine has none" : ": the reference has none"));
  if (!want.defined()) return;
  const bool whole = part.name.empty();
  const auto report = conformance::oracle::compare(
      plain(whole ? got : got.flatten()),
      plain(whole ? want : want.flatten().slice(0, part.begin, part.end)));
  if (!report.equal()) note(what + ": " + conformance::oracle::describe(report));
}
void EnginePlayer::fails(std::initializer_list<const char*> fragments, const Act& act) {
  std::string got = "none";
  try {
    act();
  } catch (const std::exception& error) {
    got = error.what();
    for (const char* fragment : fragments)
      if (got.find(fragment) != std::string::npos) return;
  }
  note(std::string("expected an error with \"") + *fragments.begin() + "\", got " +
       got.substr(0, 300));
}

// This rank's slice; a copy of everything, since only its bounds are used.
LocalShard EnginePlayer::shard_of(const std::string& name, std::size_t which) const {
  const auto shards = engines_[which]->local_shards();
  return *std::find_if(shards.begin(), shards.end(),
                       [&](const LocalShard& shard) { return shard.name == name; });
}

void EnginePlayer::get(const json& call) {
  const std::size_t which = call.at("engine");
  auto& access = engines_[which]->access();
  const std::string what = call.at("what"), name = call.at("name");
  if (what == "parameter")
    return expect("parameter " + name + of(which), engines_[which]->full_parameter(name));
  const bool local = call.at("local");
  at::Tensor got;
  if (what == "gradient") got = local ? access.local_gradient(name) : access.full_gradient(name);
  if (what == "master") got = local ? access.local_master(name) : access.full_master(name);
  if (what != "gradient" && what != "master")
    got =
        local ? access.local_optimizer_state(name, what) : access.full_optimizer_state(name, what);
  expect("value", got, name, local ? shard_of(name, which) : LocalShard());
}

void EnginePlayer::set(const json& call) {
  const std::size_t which = call.at("engine");
  auto& access = engines_[which]->access();
  const std::string what = call.at("what"), name = call.at("name");
  const auto parameter = network_.models()[which]->named_parameters()[name];
  const auto whole = at::empty(whole_sizes(name, parameter.sizes(), tensor_));
  auto value = part_of(name, value_for(whole, call), tensor_);
  const bool local = call.at("local");
  if (local) {
    const auto part = shard_of(name, which);
    value = value.flatten().slice(0, part.begin, part.end);
  }
  if (what == "gradient")
    local ? access.set_local_gradient(name, value) : access.set_full_gradient(name, value);
  else if (what == "master")
    local ? access.set_local_master(name, value) : access.set_full_master(name, value);
  else
    local ? access.set_local_optimizer_state(name, what, value)
          : access.set_full_optimizer_state(name, what, value);
  if (what == "master")
    expect("parameter " + name + of(which), engines_[which]->full_parameter(name));
}

// While it is open the model's own tensor is the whole.
void EnginePlayer::gather(const json& call) {
  const std::size_t which = call.at("engine");
  const std::string name = call.at("name");
  const auto& writer = call.at("writer");
  const auto parameter = network_.models()[which]->named_parameters()[name];
  auto scope = engines_[which]->gather(
      {parameter}, writer.is_null() ? std::nullopt : std::optional<int>(writer.get<int>()));
  expect("whole", parameter.detach());
  if (writer == world_rank()) {
    const at::NoGradGuard no_grad;
    at::Tensor(parameter).copy_(value_for(parameter, call));
  }
  scope.end();
  expect("parameter " + name + of(which), engines_[which]->full_parameter(name));
}

void EnginePlayer::expect_everything() {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const auto shards = engines_[i]->local_shards();
    if (shards.size() != trained(setting_).size()) note("local_shards: not one for each parameter");
    for (const auto& shard : shards) {
      expect("master " + shard.name + of(i), shard.master, shard.name, shard);
      if (shard.state.size() != state_names(setting_).size()) note("not as many states");
      for (const auto& [state, value] : shard.state)
        expect(state + " " + shard.name + of(i), value, shard.name, shard);
    }
    for (const auto& [name, parameter] : reference::unique_parameters(*network_.models()[i]))
      expect("parameter " + name + of(i), engines_[i]->full_parameter(name));
  }
}

void EnginePlayer::expect_numbers() {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const auto& engine = *engines_[i];
    const auto& counters = engine.counters();
    const auto norm = engine.get_global_grad_norm();
    expect("boundary" + of(i), number(engine.is_gradient_accumulation_boundary()));
    expect("applied" + of(i), number(engine.was_step_applied()));
    expect("micro_steps" + of(i), number(static_cast<double>(counters.micro_steps)));
    expect("global_steps" + of(i), number(static_cast<double>(counters.global_steps)));
    expect("skipped_steps" + of(i), number(static_cast<double>(counters.skipped_steps)));
    expect("norm" + of(i), norm ? number(*norm) : at::Tensor());
    expect("loss scale" + of(i), number(engine.loss_scale()));
  }
}

void EnginePlayer::refuse(const std::string& what) {
  auto& engine = *engines_[0];
  auto& access = engine.access();
  const json call = {{"batch", 0}};
  const int64_t data = mesh_of(setting_).data;
  struct Row {
    const char* fragment;
    Act act;
  };
  const std::map<std::string, Row> rows = {
      {"step in no_sync", {"outside of no_sync()", [&] { engine.step(); }}},
      {"step without backward", {"expected a backward pass since", [&] { engine.step(); }}},
      {"nested no_sync", {"cannot be nested", [&] { (void)engine.no_sync(); }}},
      {"no_sync at this stage", {"expected ZeRO stage 0 or 1", [&] { (void)engine.no_sync(); }}},
      {"batch size in a window",
       {"expected to be between windows", [&] { engine.set_train_batch_size(2 * data); }}},
      {"batch size that is no multiple",
       {"expected a multiple of", [&] { engine.set_train_batch_size(2 * data + 1); }}},
      {"backward of an output",
       {"expected a scalar loss",
        [&] {
          engine.backward(run(call, 0).outputs[0].expand({2, -1, -1}));  // of a part it may be one
        }}},
      {"unscaled loss", {"engine.scale(loss).backward()", [&] { run(call, 1).loss.backward(); }}},
      {"loss scaled twice",
       {"scaled more than once", [&] { engine.backward(engine.scale(run(call, 1).loss)); }}},
      {"scale without a graph",
       {"requires no gradient", [&] { (void)engine.scale(at::ones({})); }}},
      {"keyword without a scheduler",
       {"expected no lr_kwargs",
        [&] {
          engine.step({{"epoch", 1.0}});
        }}},
      {"write of another rank",
       {"expected writes on rank 0 only",
        [&] {
          const auto parameter = network_.weight();
          auto scope = engine.gather({parameter}, 0);
          if (world_rank() > 0) {
            const at::NoGradGuard no_grad;
            at::Tensor(parameter).add_(1);
          }
          scope.end();
        }}},
      {"unknown name", {"got \"nobody\"", [&] { access.full_master("nobody"); }}},
      {"frozen name", {"which is frozen", [&] { access.full_gradient("frozen"); }}},
      {"unknown state",
       {"expected one of the optimizer's states",
        [&] { access.full_optimizer_state("first.weight", "exp_average"); }}},
      {"another shape",
       {"expected floating point values of shape",
        [&] {
          access.set_full_gradient("first.weight", at::ones({1, 1, 1}));
        }}},
      {"values that differ",
       {"expected the same values",
        [&] {
          access.set_full_master("first.weight",
                                 at::full(network_.weight().sizes(), zero_rank(), at::kFloat));
        }}},
      {"another call on rank 0", {"expected every rank at the same place", [&] {
                                    zero_rank() == 0 ? access.full_master("first.weight")
                                                     : access.full_gradient("first.weight");
                                  }}}};
  const auto& row = rows.at(what);
  fails({row.fragment}, row.act);
}

}  // namespace equigrad::property_tests::programs
