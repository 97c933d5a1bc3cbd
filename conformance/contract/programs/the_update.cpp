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
  return {Case{"10", "defaults_adam_is_adamw_and_clipping_is_off",
               "Adam decays as AdamW does, and nothing is clipped, unless it is configured",
               "the loss is less", train}
              .in_every_precision()
              .with_optimizer("Adam")
              .answering({"trap 19"}),
          Case{"10", "clipping_off", "without a threshold the gradient stays as it is",
               "the loss is less", train},
          Case{"10", "clipping_below", "a norm below the threshold changes no bit",
               "the loss is less", train}
              .in_every_precision()
              .clipped(Clipping::Below),
          Case{"10", "clipping_at_the_threshold", "a norm that is the threshold changes no bit",
               "it is above", at_the_threshold}
              .on({"tower"})
              .clipped(Clipping::At)
              .with_optimizer("SGD"),
          Case{"10", "clipping_above", "a norm above it scales the averaged gradient once",
               "the loss is less", train}
              .in_every_precision()
              .lasting(3)
              .clipped(Clipping::Above)
              .with_optimizer("SGD"),
          Case{"10", "clipping_above_by_the_infinity_norm", "so it does by the largest element",
               "the loss is less", train}
              .in_every_precision()
              .lasting(3)
              .clipped(Clipping::AboveLargest)
              .with_optimizer("SGD"),
          Case{"13", "order_of_sums", "sums are added and rounded in the documented order",
               "micro-batches come in another order", order_of_sums}
              .in_every_precision()
              .on({"tower"})
              .accumulation({4, 5})
              .with_optimizer("SGD")
              .answering({"trap 12"}),
          Case{"13", "bucket_of_several_pieces",
               "a bucket is summed piece by piece, however late each piece comes",
               "the loss is less", train}
              .on({"wide"})
              .with_late_collectives()
              .accumulation({1})
              .with_optimizer("SGD"),
          Case{"13", "bucket_of_several_pieces_of_three",
               "so it is where every rank owns a slice of each piece", "the loss is less", train}
              .on({"wide"})
              .with_late_collectives()
              .from_world(3)
              .accumulation({1})
              .with_optimizer("SGD"),
          Case{"13", "masters_before_rounding", "masters are the weights before they are rounded",
               "they are expected to be rounded", masters}
              .in_every_precision()
              .accumulation({1})};
}

}  // namespace equigrad::conformance::contract
