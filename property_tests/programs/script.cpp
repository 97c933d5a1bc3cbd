#include "property_tests/programs/script.hpp"

#include <utility>

namespace equigrad::property_tests::programs {

// Parameters that are trained and not empty.
std::vector<std::string> trained(const json& setting) {
  const int extras = setting.at("extras");
  std::vector<std::string> names = {"first.weight", "second.weight"};
  const auto add = [&](int bits, const char* name) {
    if ((extras & bits) == bits) names.push_back(name);
  };
  add(kBias, "first.bias");
  add(kBias, "second.bias");
  add(kHeads, "left");
  if ((extras & kTied) == 0) add(kHeads, "right");
  add(kScalar, "scalar");
  add(kNever, "never");
  return names;
}

std::vector<std::string> state_names(const json& setting) {
  if (setting.at("rule") != 2) return {"exp_avg", "exp_avg_sq"};
  return setting.at("momentum") == 0.0 ? std::vector<std::string>{}
                                       : std::vector<std::string>{"momentum_buffer"};
}

// The way through the model that a forward takes on this rank.
int branch_of(const json& call, int rank) {
  const int branch = call.at("branch");
  if (!call.at("by_rank").get<bool>()) return branch;
  return branch == 5 ? (rank % 2 == 0 ? 5 : 0) : (branch + rank) % 5;
}

Script::Script(const json& setting)
    : rules_{.world = setting.at("world"),
             .data = setting.at("world").get<int>() / setting.value("tensor", 1) /
                     setting.value("sequence", 1),
             .zero = setting.at("world").get<int>() / setting.value("tensor", 1),
             .stage = setting.at("stage"),
             .fp16 = setting.at("precision") == 2,
             .pair = setting.at("pair") != 0,
             .frozen = (setting.at("extras").get<int>() & kFrozen) != 0,
             .names = trained(setting),
             .states = state_names(setting)},
      accumulation_(setting.at("accumulation")) {}

void Script::add(const CommandSeed& drawn) {
  switch (kKinds[static_cast<std::size_t>(drawn.kind)]) {
    case Kind::Backward:
      return backward(drawn);
    case Kind::Step:
      return step(drawn);
    case Kind::Forward:
      return forward(drawn.b % 3, drawn.d);
    case Kind::ZeroGrad:
      return emit({{"call", "zero_grad"}});
    case Kind::Boundary:
      return boundary(drawn);
    case Kind::Get:
      return access("get", drawn);
    case Kind::Set:
      return access("set", drawn);
    case Kind::NoSync:
      return no_sync(drawn);
    case Kind::BatchSize:
      return batch_size(drawn);
    case Kind::Throw:
      return throwing(drawn);
    case Kind::Twice:
      return twice(drawn);
    case Kind::Misuse:
      return misuse(drawn);
    case Kind::Look:
      return look(drawn);
    case Kind::Grad:
      return emit({{"call", "grad"}, {"batch", batches_++}});
    case Kind::Gather:
      return gather(drawn);
  }
}

json Script::finish() {
  emit({{"call", "end"}});
  return std::exchange(calls_, json::array());
}

void Script::emit(json call) { calls_.push_back(std::move(call)); }

void Script::refuse(const std::string& what) { emit({{"call", "refuse"}, {"what", what}}); }

void Script::count_pass() { ++window_.least, ++window_.most; }

int Script::engine(int which) const { return rules_.pair ? which % 2 : 0; }

void Script::forward(int slot, int way) {
  way %= 12;
  const int branch = way < 6 ? way : way < 11 ? way - 6 : 5;
  slots_[static_cast<std::size_t>(slot)] = {true, branch == 5};
  emit({{"call", "forward"},
        {"slot", slot},
        {"batch", batches_++},
        {"branch", branch},
        {"by_rank", way >= 6}});
}

// b: which graphs, c: 1 keeps them, 2 is without 1/accumulation, 3 is infinite.
void Script::backward(const CommandSeed& drawn) {
  std::vector<int> chosen = {drawn.b % 3};
  if (drawn.b / 3 % 3 == 1) chosen.push_back((drawn.b + 1) % 3);
  bool nothing = false;
  for (const int slot : chosen) {
    auto& place = slots_[static_cast<std::size_t>(slot)];
    if (!place.live) forward(slot, drawn.d);
    nothing = nothing || place.nothing;
    place.live = drawn.c % 3 == 1;
  }
  // A plain call that reaches no parameter is not seen by the engine.
  const int style = nothing ? 0 : drawn.a % 4;
  emit({{"call", "backward"},
        {"slots", chosen},
        {"style", style},
        {"retain", drawn.c % 3 == 1},
        {"scale_wrt_gas", style != 0 || drawn.c % 3 != 2},
        {"infinite", drawn.c % 20 == 19},
        {"engine", nothing ? 0 : engine(drawn.d)}});
  count_pass();
}

void Script::step(const CommandSeed& drawn) {
  if (window_.guarded && drawn.a % 3 == 1) return refuse("step in no_sync");
  if (window_.guarded) end_no_sync();
  if (window_.most == 0 && drawn.a % 4 == 1) return refuse("step without backward");
  if (window_.least == 0) backward(drawn);
  const bool acts = window_.boundary.value_or(window_.steps + 1 >= accumulation_);
  emit({{"call", "step"}, {"acts", acts}});
  window_.steps = acts ? 0 : window_.steps + 1;
  window_.least = window_.most = 0;
  if (acts) slots_ = {};
}

void Script::boundary(const CommandSeed& drawn) {
  window_.boundary.reset();
  if (drawn.a % 3 != 0) window_.boundary = drawn.a % 3 == 1;
  emit({{"call", "boundary"}, {"value", window_.boundary ? json(*window_.boundary) : json()}});
}

void Script::no_sync(const CommandSeed& drawn) {
  if (rules_.stage >= 2) return refuse("no_sync at this stage");
  if (window_.guarded) return drawn.a % 3 == 1 ? refuse("nested no_sync") : end_no_sync();
  window_.guarded = true;
  emit({{"call", "no_sync"}});
}

void Script::batch_size(const CommandSeed& drawn) {
  if (window_.steps != 0 || window_.least != 0) return refuse("batch size in a window");
  if (window_.most != 0) return;  // ranks differ: some would accept it
  accumulation_ = 1 + drawn.a % 4;
  emit({{"call", "batch_size"}, {"accumulation", accumulation_}});
}

// a: on which data rank, b: where, c: in which style, d: what comes of it.
void Script::throwing(const CommandSeed& drawn) {
  const bool one = rules_.data > 1 && drawn.a % 3 != 0, top = drawn.b % 3 == 1;
  // Where gradients are sent in every pass the others are told, once this rank's pass has begun. A
  // plain call that throws before it reaches a parameter has not: the others wait for it.
  const bool counts = one && (rules_.stage < 2 || (top && drawn.c % 4 != 0));
  const bool again = counts && (rules_.stage >= 2 || drawn.d % 2 == 0);
  emit({{"call", "throw"},
        {"rank", one ? json(drawn.a % rules_.data) : json()},
        {"place", drawn.b % 3},
        {"style", drawn.c % 4},
        {"counts", counts},
        {"again", again},
        {"batch", batches_++},
        {"engine", engine(drawn.c / 4)},
        {"probe", counts && rules_.stage < 2 && drawn.d % 3 == 1}});
  if (counts) ++window_.most;
  if (again) ++window_.least;
}

void Script::access(const std::string& call, const CommandSeed& drawn) {
  std::vector<std::string> kinds = {"gradient", "master"};
  if (call == "get") kinds.push_back("parameter");
  kinds.insert(kinds.end(), rules_.states.begin(), rules_.states.end());
  const auto& what = kinds[static_cast<std::size_t>(drawn.a) % kinds.size()];
  const bool local = what != "parameter" && drawn.c % 2 == 1;
  json one = {{"call", call},
              {"what", what},
              {"name", rules_.names[static_cast<std::size_t>(drawn.b) % rules_.names.size()]},
              {"local", local},
              {"engine", engine(drawn.d)}};
  if (call == "set") one["value"] = values_++;
  if (call == "set" && what == "gradient") one["infinite"] = drawn.c / 2 % 4 == 3;
  emit(std::move(one));
  if (call == "set" && what == "master") slots_ = {};
}

// c: whether anybody writes, d: who.
void Script::gather(const CommandSeed& drawn) {
  const bool writes = drawn.c % 3 != 0;
  json one = {{"call", "gather"},
              {"name", rules_.names[static_cast<std::size_t>(drawn.b) % rules_.names.size()]},
              {"writer", writes ? json(drawn.d % rules_.world) : json()},
              {"engine", engine(drawn.a)}};
  if (writes) one["value"] = values_++;
  emit(std::move(one));
  if (writes) slots_ = {};
}

void Script::misuse(const CommandSeed& drawn) {
  std::vector<std::string> kinds = {"backward of an output",
                                    "unknown name",
                                    "unknown state",
                                    "another shape",
                                    "batch size that is no multiple",
                                    "scale without a graph",
                                    "keyword without a scheduler"};
  if (rules_.frozen) kinds.push_back("frozen name");
  if (rules_.fp16) kinds.insert(kinds.end(), {"unscaled loss", "loss scaled twice"});
  if (rules_.world > 1) kinds.push_back("write of another rank");
  if (rules_.zero > 1) kinds.insert(kinds.end(), {"values that differ", "another call on rank 0"});
  const auto& kind = kinds[static_cast<std::size_t>(drawn.a) % kinds.size()];
  refuse(kind);
  if (kind == "write of another rank") slots_ = {};  // it was written, and is put back
}

void Script::end_no_sync() {
  window_.guarded = false;
  emit({{"call", "end_no_sync"}});
}

void Script::twice(const CommandSeed& drawn) {
  emit({{"call", "twice"},
        {"style", drawn.a % 4},
        {"batch", batches_++},
        {"branch", drawn.b % 4},
        {"engine", engine(drawn.d)}});
  count_pass();
}

void Script::look(const CommandSeed& drawn) {
  emit({{"call", "look"}, {"alone", drawn.a % 2 == 1}, {"batch", batches_++}});
}

}  // namespace equigrad::property_tests::programs
