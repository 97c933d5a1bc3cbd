// 16. What an engine holds: values that are read and set, whole parameters in scopes.
#include <ATen/ATen.h>
#include <torch/types.h>

#include <functional>
#include <utility>

#include "conformance/contract/parts/kinds.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/engine.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance::contract {
namespace {

const std::vector<std::string> kTrained = {"matrix", "tail", "one", "scalar", "turned"};

// This rank's elements of a whole, by the page of layout/partition.hpp.
at::Tensor slice_by_hand(const Play& play, const at::Tensor& whole) {
  const auto& context = play.context();
  const auto flat = whole.reshape({-1});
  if (context.stage == 0) return flat;
  const int64_t each = slice_numel(flat.numel(), context.world);
  const int64_t begin = std::min<int64_t>(each * context.rank, flat.numel());
  return flat.narrow(0, begin, std::min(each, flat.numel() - begin));
}

// A getter and a setter of each kind of value; `what` is gradient, master or a state.
struct Value {
  std::string what;
  bool is_whole;

  at::Tensor get(Access& access, const std::string& name) const {
    if (what == "gradient")
      return is_whole ? access.full_gradient(name) : access.local_gradient(name);
    if (what == "master") return is_whole ? access.full_master(name) : access.local_master(name);
    return is_whole ? access.full_optimizer_state(name, what)
                    : access.local_optimizer_state(name, what);
  }
  void set(Access& access, const std::string& name, const at::Tensor& value) const {
    if (what == "gradient")
      return is_whole ? access.set_full_gradient(name, value)
                      : access.set_local_gradient(name, value);
    if (what == "master")
      return is_whole ? access.set_full_master(name, value) : access.set_local_master(name, value);
    is_whole ? access.set_full_optimizer_state(name, what, value)
             : access.set_local_optimizer_state(name, what, value);
  }
};

std::vector<Value> every_value() {
  std::vector<Value> all;
  for (const std::string what : {"gradient", "master", "exp_avg", "exp_avg_sq"})
    for (const bool is_whole : {true, false}) all.push_back({what, is_whole});
  return all;
}

// What is set in one way is read in both, and nothing else is another value.
void check_set(Play& play, Engine& engine, const std::string& name, const at::Tensor& like) {
  auto& access = engine.access();
  double factor = 1;
  for (const auto& value : every_value()) {
    const auto want = (like.contiguous() + 0.25) * ++factor;
    std::vector<at::Tensor> before;
    for (const auto& other : every_value())
      if (other.what != value.what) before.push_back(other.get(access, name));
    const auto given = value.is_whole ? want.to(at::kDouble) : slice_by_hand(play, want);
    value.set(access, name, given);
    const std::string of = value.what + " of " + name + (value.is_whole ? "" : " by slices");
    const Value whole{value.what, true}, local{value.what, false};
    const auto got = whole.get(access, name), slice = local.get(access, name);
    play.check(of + " is what was set",
               at::equal(got, want) && got.is_contiguous() && !play.fault());
    play.check("and so are slices: " + of, at::equal(slice, slice_by_hand(play, want)));
    got.fill_(-1), slice.fill_(-1);
    play.check("a copy was given of the " + of,
               at::equal(whole.get(access, name), want) &&
                   at::equal(local.get(access, name), slice_by_hand(play, want)));
    if (value.what == "master")
      play.check("the parameter follows the " + of, at::equal(engine.full_parameter(name), want));
    bool stays = true;
    std::size_t i = 0;
    for (const auto& other : every_value()) {
      if (other.what == value.what) continue;
      const auto now = other.get(access, name), was = before[i++];
      stays = stays && now.defined() == was.defined() && (!now.defined() || at::equal(now, was));
    }
    play.check("all else stays with the " + of, stays);
  }
}

void check_values_refused(Play& play, Engine& engine) {
  auto& access = engine.access();
  const auto shape = [](const at::Tensor& value) {
    return value.dim() == 2 ? "[5, 3]" : "[" + std::to_string(value.numel()) + "]";
  };
  for (const auto& value : every_value()) {
    const auto whole = held_values({5, 3}, 0);
    const auto right = value.is_whole ? whole : slice_by_hand(play, whole);
    const std::string expected = "[engine.access] expected floating point values of shape " +
                                 shape(right) + " for \"matrix\", got ",
                      remedy = ". The getter of the same name shows the shape.";
    const auto refuse = [&](const at::Tensor& wrong, const std::string& got) {
      play.refuse(expected + got + remedy, [&] { value.set(access, "matrix", wrong); });
    };
    refuse({}, "an undefined tensor");
    refuse(right.to(at::kLong), "Long of shape " + shape(right));
    refuse(at::zeros({16}), "Float of shape [16]");
    for (const std::string name : {"frozen", "counts"}) {
      const std::string told = "[engine.access] expected a parameter that is trained, got \"" +
                               name + "\", which is frozen. Read it with full_parameter.";
      play.refuse(told, [&] { value.get(access, name); });
      play.refuse(told, [&] { value.set(access, name, at::zeros({3})); });
    }
    play.refuse("Did you mean \"matrix\"?", [&] { value.get(access, "matrx"); });
    if (value.what != "exp_avg") continue;
    const Value other{"momentum", value.is_whole};
    const std::string states =
        "expected one of the optimizer's states [exp_avg, exp_avg_sq] of \"matrix\", got "
        "\"momentum\".";
    play.refuse(states, [&] { other.get(access, "matrix"); });
    play.refuse(states, [&] { other.set(access, "matrix", right); });
  }
}

// Values of which one rank has another, or one rank more passes.
void check_values_that_differ(Play& play, Engine& engine, const Kinds& model) {
  const auto& context = play.context();
  auto& access = engine.access();
  const std::string told =
      "expected the same values on every rank for \"matrix\", got others on some. Make the same "
      "call with the same, whole value on every rank.";
  for (const auto& value : every_value()) {
    if (!value.is_whole && (context.stage > 0 || value.what.starts_with("exp_avg"))) continue;
    const auto whole = held_values({5, 3}, context.rank);
    const auto before = value.get(access, "matrix");
    play.refuse(told, [&] {
      value.set(access, "matrix", value.is_whole ? whole : slice_by_hand(play, whole));
    });
    const auto after = value.get(access, "matrix");
    play.check(
        "nothing is set where ranks differ",
        before.defined() == after.defined() && (!after.defined() || at::equal(after, before)));
  }
  const std::string state = context.rank == 0 ? "exp_avg" : "exp_avg_sq";
  play.refuse(told, [&] {  // one value, but for another state
    access.set_full_optimizer_state("matrix", state, held_values({5, 3}, 0));
  });
  if (context.stage >= 2) return;
  if (context.rank == 0) engine.backward(model.loss(1));
  play.refuse(
      "expected as many backward passes on every rank for \"tail\", got others on some. "
      "Make the same calls on every rank.",
      [&] { access.full_gradient("tail"); });
  if (context.rank != 0) engine.backward(model.loss(1));
}

void read_and_set(Play& play) {
  if (const auto group = play.group()) {
    Kinds model(play.context().rank * 100);
    const Kinds whole(0);
    const auto engine =
        initialize(model, config_beside(play, {.accumulation = 4, .optimizer = "AdamW"}), group);
    auto& access = engine->access();
    for (const auto& name : kTrained)
      play.check("no gradient before a pass of " + name,
                 !access.full_gradient(name).defined() && !access.local_gradient(name).defined());
    check_values_refused(play, *engine);
    if (play.context().world > 1) check_values_that_differ(play, *engine, model);
    for (const auto& name : kTrained) check_set(play, *engine, name, whole.of(name).detach());
    access.set_full_master("tied", held_values({7}, 3));
    play.check("a tied parameter has one value by two names",
               at::equal(access.full_master("tail"), held_values({7}, 3)));
    for (const auto& value : every_value()) {
      value.set(access, "empty", at::zeros({0}));
      const auto got = value.get(access, "empty");
      play.check("an empty one is empty", !got.defined() || got.sizes() == at::IntArrayRef{0});
    }
    std::vector<std::string> names;
    for (const auto& shard : engine->local_shards()) {
      names.push_back(shard.name);
      const auto mine = slice_by_hand(play, at::arange(whole.of(shard.name).numel(), at::kLong));
      play.check("a shard of " + shard.name,
                 shard.end - shard.begin == mine.numel() && shard.state.size() == 2 &&
                     (mine.numel() == 0 || mine[0].item<int64_t>() == shard.begin) &&
                     at::equal(shard.master, access.local_master(shard.name)));
    }
    play.check("every trained parameter has a shard", names.size() == kTrained.size());
  }
  train_along(play);
}

int64_t held_by_scopes(const Engine& engine) {
  return engine.ledger().bytes(memory::Category::Gathered);
}

// What a scope of one parameter holds: a copy, or the whole with its padding where pages go.
int64_t scope_bytes(const Play& play, const at::Tensor& tensor) {
  const auto& context = play.context();
  const int64_t numel = context.stage == 3 && tensor.is_contiguous()
                            ? slice_numel(tensor.numel(), context.world) * context.world
                            : tensor.numel();
  return numel * static_cast<int64_t>(tensor.element_size());
}

void check_held(Play& play, Engine& engine, const Kinds& model) {
  const int64_t before = held_by_scopes(engine);
  for (const auto& item : model.named_parameters()) {
    const auto& tensor = item.value();
    {
      auto scope = engine.gather({tensor, tensor});
      const auto moved = std::move(scope);
      play.check("a scope holds " + item.key(),
                 held_by_scopes(engine) == before + scope_bytes(play, tensor) && !play.fault());
      const auto whole = engine.full_parameter(item.key());
      play.check("it is whole: " + item.key(), at::equal(tensor.detach() * 1, whole));
      play.refuse("expected a parameter that no scope holds, got \"" +
                      (item.key() == "tied" ? "tail" : item.key()) +
                      "\". End the other scope first.",
                  [&] { (void)engine.gather({tensor}); });
    }
    play.check("and lets go of " + item.key(), held_by_scopes(engine) == before);
    play.check("it goes where pages go: " + item.key(),
               tensor.numel() == 0 || has_data(tensor) == (play.context().stage < 3));
  }
  auto none = engine.gather({});
  none.end(), none.end();
}

void check_scopes_refused(Play& play, Engine& engine, const Kinds& model) {
  const auto& context = play.context();
  const int world = context.world;
  const auto one = model.of("one"), tail = model.of("tail");
  for (const int wrong : {-1, world})
    play.refuse("[engine.gather] expected a modifier rank from 0 to " + std::to_string(world - 1) +
                    ", got " + std::to_string(wrong) + ". Give none to read only.",
                [&] { (void)engine.gather({one}, wrong); });
  for (const auto& wrong : {at::Tensor(), at::zeros({1})})
    play.refuse("expected parameters of this engine's model, got another tensor.", [&] {
      (void)engine.gather({one, wrong});
    });
  if (world == 1) return;
  const bool is_first = context.rank == 0;
  const std::string told =
      "expected the same parameters and modifier rank on every rank, got others on some. Make the "
      "same call on every rank.";
  const auto with = [&](int modifier) { (void)engine.gather({one}, modifier); };
  play.refuse(told, [&] { with(context.rank); });
  play.refuse(told, [&] { is_first ? (void)engine.gather({one}) : with(0); });
  play.refuse(told, [&] {
    (void)engine.gather(is_first ? std::vector<at::Tensor>{one, tail}
                                 : std::vector<at::Tensor>{tail, one});
  });
  auto scope = engine.gather({one, tail}, world - 1);
  if (is_first) tail.detach().fill_(1);
  play.refuse("expected writes on rank " + std::to_string(world - 1) +
                  " only, got a write to \"tail\" on another rank. Nothing was kept; write on the "
                  "modifier rank only.",
              [&] { scope.end(); });
  scope.end();
}

at::Tensor last_row(const at::Tensor& tensor) {
  return tensor.dim() == 0 || tensor.numel() == 0 ? tensor : tensor[-1];
}

// Part of each kind is written, of the last rank; a destructor's error comes with the next call.
void check_written(Play& play, Engine& engine, const Kinds& model) {
  const int last = play.context().world - 1;
  std::vector<at::Tensor> all, wants;
  for (const auto& item : model.named_parameters()) {
    all.push_back(item.value());
    wants.push_back(engine.full_parameter(item.key()));
    last_row(wants.back()).fill_(77);
  }
  {
    const auto scope = engine.gather(all, last);
    for (const auto& tensor : all)
      if (play.context().rank == last) last_row(tensor.detach()).fill_(77);
  }
  std::size_t i = 0;
  for (const auto& item : model.named_parameters()) {
    const auto& want = wants[i++];
    play.check("what one rank wrote is everybody's: " + item.key(),
               at::equal(engine.full_parameter(item.key()), want));
    if (!item.value().requires_grad()) continue;
    play.check("and the master's: " + item.key(),
               at::equal(engine.access().full_master(item.key()), want));
  }
  {
    const auto scope = engine.gather({model.of("frozen")});
    model.of("frozen").add_(1);
  }
  play.refuse("expected no writes without a modifier rank, got a write to \"frozen\"",
              [&] { (void)engine.full_parameter("one"); });
  play.check("it is told once", at::equal(engine.full_parameter("one"), at::full({1}, 77)));
}

// In 16 bits: where no bit was written, the master keeps those that there is no room for.
void check_masters_kept(Play& play) {
  Kinds model(0);
  auto engine = initialize(model, config_beside(play, {.keys = R"(, "bf16": {"enabled": true})"}),
                           play.group());
  const auto fine = at::full({7}, 1 + 0x1p-12F);
  engine->access().set_full_master("tail", fine);
  play.check("a parameter is its master in 16 bits",
             at::equal(engine->full_parameter("tail"), at::ones({7}, at::kBFloat16)));
  {
    const auto scope = engine->gather({model.of("tail")}, 0);
    if (play.context().rank == 0) model.of("tail").detach()[2].fill_(3);
    play.refuse(
        "[engine.access] expected a parameter that gather() has not pinned, got \"tail\". "
        "End its scope first.",
        [&] { engine->access().set_full_master("tail", fine); });
  }
  auto want = fine.clone();
  want[2] = 3;
  play.check("a master keeps what was not written",
             at::equal(engine->access().full_master("tail"), want));
  const auto outlives = engine->gather({model.of("tail")});
  engine.reset();
}

void whole_in_scopes(Play& play) {
  if (const auto group = play.group()) {
    Kinds model(0);
    const auto engine = initialize(
        model, config_beside(play, {.zero = R"(, "stage3_param_persistence_threshold": 0)"}),
        group);
    check_held(play, *engine, model);
    check_scopes_refused(play, *engine, model);
    check_written(play, *engine, model);
    check_masters_kept(play);
    const auto loss = model.of("tail").square().sum();
    engine->access().set_full_master("tail", at::ones({7}));
    play.refuse("modified by an inplace operation", [&] { engine->backward(loss); });
  }
  train_along(play);
}

}  // namespace

std::vector<Case> holdings() {
  const std::string fault = "something else is expected";
  std::vector<Case> all = {
      of_part("values_of_every_kind", "every value of every kind is read as it was set, or refused",
              fault, read_and_set, Plays::EveryStage),
      of_part("scopes_of_every_kind", "a scope holds what it says, and keeps what one rank wrote",
              fault, whole_in_scopes, Plays::EveryStage)};
  for (auto* more : {&made_within_init, &pagings, &paging_plans, &communicators, &reductions})
    for (auto& each : more()) all.push_back(std::move(each));
  return all;
}

}  // namespace equigrad::conformance::contract
