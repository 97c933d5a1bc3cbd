// 16. Models that are made in zero::Init.
#include <ATen/ATen.h>
#include <torch/types.h>

#include <functional>
#include <stdexcept>
#include <utility>

#include "conformance/contract/parts/kinds.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/engine.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/parameter/early_shards.hpp"
#include "engine/zero_init.hpp"

namespace equigrad::conformance::contract {
namespace {

std::string early_config(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params":
            {"lr": 1}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})";
}

void operators(int count) {
  for (int i = 0; i < count; ++i) (void)at::zeros({1});
}

const std::string kAskedEarly =
    "[zero.init] expected an operator within Init's scope, or one of an engine's model, to read "
    "parameter ";

// After eight operators that do not touch it, and not before.
void check_idle(Play& play) {
  const torch::NoGradGuard no_grad;
  const double shift = play.context().rank * 100;
  zero::Init init(early_config(3), play.group());
  const auto kept = held_values({5}, shift), whole = held_values({5}, 0);
  const auto one = held_values({5}, shift).set_requires_grad(true);
  operators(7);
  play.check("a parameter is whole for seven operators", has_data(one) && !play.fault());
  operators(1);
  play.check("and gone before the eighth", !has_data(one));
  play.refuse(kAskedEarly + "0, got its data asked for where only this rank's shard is kept",
              [&] { (void)one.const_data_ptr(); });
  const auto early = parameter::early_shard(one);
  const int world = play.context().world, rank = play.context().rank;
  const int64_t each = slice_numel(5, world);
  const auto padded = at::cat({whole, at::zeros({each * world - 5})});
  play.check("its shard is kept, padded by zeros",
             early && early->rank == rank && early->world_size == world && early->number == 0 &&
                 at::equal(early->shard, padded.narrow(0, each * rank, each)));
  play.check("an operator has the whole of rank 0", at::equal(at::mul(one, 2), whole * 2));
  one.mul_(3);
  operators(8);
  play.check("what was written is kept", !has_data(one));
  play.check("an operator on a list has it too",
             at::equal(at::cat({one, one}), at::cat({whole, whole}) * 3));
  operators(7);
  (void)at::stack({one, one});
  operators(7);
  play.check("a list is a use", has_data(one));
  play.check("what is no parameter stays", at::equal(kept, held_values({5}, shift)));
  init.finish(), init.finish();
  play.check("at the end all go", !has_data(one) && has_data(kept));
  play.refuse(kAskedEarly + "3", [&] { (void)at::mul(one, 2); });
}

// Operators that throw, scopes in scopes, and scopes below stage 3.
void check_scopes_of_init(Play& play) {
  const torch::NoGradGuard no_grad;
  const auto group = play.group();
  {
    zero::Init init(early_config(3), group);
    play.refuse("expected one Init at a time, got another that lives. End it first.",
                [&] { const zero::Init second(early_config(3), group); });
    play.refuse("shape", [&] { (void)at::mm(at::zeros({2, 3}), at::zeros({2, 3})); });
    const auto one = at::ones({3}).set_requires_grad(true);
    operators(8);
    play.check("the first goes on", !has_data(one));
  }
  const zero::Init first(early_config(2), group), second(early_config(0), group);
  const auto one = at::ones({3}).set_requires_grad(true);
  operators(20);
  play.check("below stage 3 it does nothing", has_data(one) && !parameter::early_shard(one));
  play.refuse("zero_optimization.stage", [&] { const zero::Init none(early_config(4), group); });
}

const std::string kOtherModels = "[zero.init] expected every rank to make the same model, got ";

// The last rank makes another model, makes more, or breaks off; all are told what came from whom.
void check_ranks_that_differ(Play& play) {
  const auto group = play.group();
  const int last = play.context().world - 1;
  const bool is_last = play.context().rank == last;
  const std::string with = is_last ? " on rank 0" : " on rank " + std::to_string(last);
  const auto make = [&](int64_t numel) { return at::ones({numel}).set_requires_grad(true); };
  const auto part = [](int64_t numel) {
    return "parameter 0 of " + std::to_string(numel) + " elements to partition";
  };
  at::Tensor model;
  play.refuse(kOtherModels + part(is_last ? 4 : 3) + " here and " + part(is_last ? 3 : 4) + with +
                  ". Run the same constructors, with the same options, on every rank.",
              [&] {
                zero::Init init(early_config(3), group);
                model = make(is_last ? 4 : 3);
                init.finish();
              });
  const std::string end = "the end, with 0 parameters";
  const auto more =
      kOtherModels + (is_last ? part(5) + " here and " + end : end + " here and " + part(5)) + with;
  {
    const zero::Init init(early_config(3), group);
    if (is_last) model = make(5);
  }
  play.refuse(more, [] { zero::rethrow_init_failure(); });
  zero::rethrow_init_failure();
  play.refuse(is_last ? "planted" : kOtherModels + end + " here and an exception" + with, [&] {
    zero::Init init(early_config(3), group);
    if (is_last) throw std::runtime_error("planted");
    init.finish();
  });
  const std::string again = "parameter 0 of 6 elements to use again",
                    over = "the end, with 1 parameters";
  play.refuse(
      kOtherModels + (is_last ? again + " here and " + over : over + " here and " + again) + with,
      [&] {
        zero::Init init(early_config(3), group);
        model = make(6);
        operators(8);
        if (is_last)
          play.check("where nobody answers, NaN is read",
                     at::isnan(model.detach() + 1).all().item<bool>());
        init.finish();
      });
}

// What it made is the model of rank 0, in an engine that holds as much as any other.
void check_made(Play& play) {
  const auto group = play.group();
  std::shared_ptr<Kinds> made;
  {
    const zero::Init init(early_config(3), group);
    made = std::make_shared<Kinds>(play.context().rank * 100);
  }
  const Kinds whole(0);
  Kinds plain(play.context().rank * 100);
  for (const auto& item : whole.named_parameters()) {
    const auto& name = item.key();
    const bool goes = item.value().requires_grad() && item.value().numel() > 0;
    play.check(name + " has gone if it is trained",
               bool(parameter::early_shard(made->of(name))) == goes);
  }
  const auto later = held_values({4}, 0).set_requires_grad(true);
  operators(20);
  play.check("after its end nothing goes", has_data(later));
  const auto engine = initialize(*made, early_config(3), group);
  const auto other = initialize(plain, early_config(3), group);
  for (const auto& item : whole.named_parameters()) {
    const auto got = engine->full_parameter(item.key());
    play.check(item.key() + " is rank 0's", at::equal(got, item.value().detach()));
    play.check(item.key() + " keeps its strides",
               made->of(item.key()).strides() == item.value().strides());
  }
  play.check("as much is held", engine->ledger().total_bytes() == other->ledger().total_bytes());
  engine->backward(made->loss(2)), engine->step();
  play.check("it trains",
             at::equal(engine->full_parameter("turned"), whole.of("turned").detach() - 2));
}

// Shards that are kept, given back and forgotten, by hand.
void check_early_shards(Play& play) {
  const auto number_of = [](const at::Tensor& one) {
    const auto early = parameter::early_shard(one);
    return early ? early->number : -1;
  };
  const auto shard = at::ones({2});
  const auto one = at::ones({4}), two = at::ones({4});
  parameter::keep_early_shard(one, {shard, 7, 1, 2});
  parameter::keep_early_shard(two, {shard, 8, 1, 2});
  play.check("each has its own", number_of(one) == 7 && number_of(two) == 8 && !has_data(one));
  play.refuse(kAskedEarly + "8", [&] { (void)two.const_data_ptr(); });
  parameter::give_back(one, held_values({4}, 1));
  play.check("what is given back is there",
             number_of(one) == -1 && number_of(two) == 8 && at::equal(one, held_values({4}, 1)));
  two.set_data(at::zeros({4}));
  play.check("what is filled otherwise has none", number_of(two) == -1 && has_data(two));
  parameter::keep_early_shard(two, {shard, 9, 0, 1});
  parameter::keep_early_shard(two, {shard, 10, 0, 1});
  play.check("the last counts", number_of(two) == 10);
  parameter::forget_early_shard(two);
  play.check("what is forgotten is gone", number_of(two) == -1 && !has_data(two));
}

void made_in_init(Play& play) {
  if (play.group()) {
    check_early_shards(play);
    check_idle(play);
    check_scopes_of_init(play);
    if (play.context().world > 1) check_ranks_that_differ(play);
    check_made(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> made_within_init() {
  return {of_part("parameters_made_in_init",
                  "parameters go when they are idle, come back when used, and are no rank's own",
                  "something else is expected", made_in_init, Plays::EveryStage)};
}

}  // namespace equigrad::conformance::contract
