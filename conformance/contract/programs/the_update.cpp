// 10. Clipping.  13. The order of sums, padding, and masters from unrounded weights.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

void train(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    play.backward(play.fault() ? loss * 0.75 : loss);
  });
}

// A gradient of the threshold's length: one element is set, the others are none.
void at_the_threshold(Play& play) {
  const int64_t last = play.context().accumulation - 1;
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.model().loss(play.batch(number)));
    if (number != last) return;
    for (const std::string name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
      auto value = at::zeros_like(play.parameter(name), at::kFloat);
      if (name == "first.bias") value[0] = play.fault() ? 2.5 : 2.0;
      play.set_full("gradient", name, value);
    }
  });
}

// Numbers of very different size, so that another order is another sum.
void order_of_sums(Play& play) {
  auto& tower = play.as<Tower>();
  const int64_t last = play.context().accumulation - 1;
  each_micro_batch(play, [&](int64_t number) {
    const int64_t turn = play.fault() ? last - number : number;
    const auto loss = uneven(tower.forward(play.batch(turn).input));
    play.backward(loss * (turn % 2 == 0 ? 1.0 : 300.0));
  });
}

// Before anything was trained, the masters hold more than the model's 16 bits show.
void masters(Play& play) {
  if (auto* engine = play.engine(); engine != nullptr && play.context().window == 0) {
    const auto fresh = make_contract_model("irregular", play.context().seed);
    for (const auto& shard : engine->local_shards()) {
      auto whole = fresh->named_parameters()[shard.name].detach();
      if (play.fault()) whole = whole.to(at::kBFloat16).to(at::kFloat);
      const auto want = whole.flatten().slice(0, shard.begin, shard.end);
      play.check("the master of " + shard.name + " is the unrounded weight",
                 shard.master.flatten().equal(want));
    }
  }
  each_micro_batch(play,
                   [&](int64_t number) { play.backward(play.model().loss(play.batch(number))); });
}

}  // namespace

std::vector<Case> the_update() {
  return {{.section = "10",
           .name = "defaults_adam_is_adamw_and_clipping_is_off",
           .sentence = "Adam decays as AdamW does, and nothing is clipped, unless it is configured",
           .fault = "the loss is less",
           .program = train,
           .places = {.precisions = kEveryPrecision},
           .optimizer = "Adam",
           .answers = {"trap 19"}},
          {.section = "10",
           .name = "clipping_off",
           .sentence = "without a threshold the gradient stays as it is",
           .fault = "the loss is less",
           .program = train},
          {.section = "10",
           .name = "clipping_below",
           .sentence = "a norm below the threshold changes no bit",
           .fault = "the loss is less",
           .program = train,
           .places = {.precisions = kEveryPrecision},
           .clipping = Clipping::Below},
          {.section = "10",
           .name = "clipping_at_the_threshold",
           .sentence = "a norm that is the threshold changes no bit",
           .fault = "it is above",
           .program = at_the_threshold,
           .models = {"tower"},
           .clipping = Clipping::At,
           .optimizer = "SGD"},
          {.section = "10",
           .name = "clipping_above",
           .sentence = "a norm above it scales the averaged gradient once",
           .fault = "the loss is less",
           .program = train,
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .clipping = Clipping::Above,
           .optimizer = "SGD"},
          {.section = "10",
           .name = "clipping_above_by_the_infinity_norm",
           .sentence = "so it does by the largest element",
           .fault = "the loss is less",
           .program = train,
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .clipping = Clipping::AboveLargest,
           .optimizer = "SGD"}};
}

std::vector<Case> the_sums() {
  return {{.section = "13",
           .name = "order_of_sums",
           .sentence = "sums are added and rounded in the documented order",
           .fault = "micro-batches come in another order",
           .program = order_of_sums,
           .models = {"tower"},
           .places = {.accumulations = {4, 5}, .precisions = kEveryPrecision},
           .optimizer = "SGD",
           .answers = {"trap 12"}},
          {.section = "13",
           .name = "bucket_of_several_pieces",
           .sentence = "a bucket is summed piece by piece, however late each piece comes",
           .fault = "the loss is less",
           .program = train,
           .models = {"wide"},
           .places = {.accumulations = {1}},
           .optimizer = "SGD",
           .features = {Feature::LateWire}},
          {.section = "13",
           .name = "bucket_of_several_pieces_of_three",
           .sentence = "so it is where every rank owns a slice of each piece",
           .fault = "the loss is less",
           .program = train,
           .models = {"wide"},
           .places = {.accumulations = {1}, .smallest_world = 3},
           .optimizer = "SGD",
           .features = {Feature::LateWire}},
          {.section = "13",
           .name = "masters_before_rounding",
           .sentence = "masters are the weights before they are rounded",
           .fault = "they are expected to be rounded",
           .program = masters,
           .places = {.accumulations = {1}, .precisions = kEveryPrecision}}};
}

}  // namespace equigrad::conformance::contract
