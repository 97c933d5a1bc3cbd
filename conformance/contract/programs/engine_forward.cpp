// 2. A model called through engine.forward, with and without progressive layer drop.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/players/settings.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

at::Tensor forward(Play& play, const at::Tensor& input, bool drops) {
  auto& model = play.as<Dropper>();
  if (auto* engine = play.engine(); engine != nullptr) {
    const auto state = engine->layer_drop();
    play.see("theta", at::scalar_tensor(state.pld_theta).to(at::kFloat));
    play.check("the state says whether layers are dropped", state.progressive_layer_drop == drops);
    return engine->forward(model, input);
  }
  const double theta = drops ? layer_drop_theta(play.context().window) : 1.0;
  play.see("theta", at::scalar_tensor(theta).to(at::kFloat));
  return model.forward(input, {drops, theta});
}

// Through engine.forward, and by the model's own forward with every block.
void through_the_engine(Play& play, bool drops) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto output = forward(play, batch.input, drops);
    // A rank that keeps no block has no graph, but the pass is one for all ranks.
    const auto loss = uneven(output) + uneven(play.as<Dropper>().first->weight);
    play.backward(play.fault() ? loss * 0.5 : loss);
    const auto again = play.model().loss(play.batch(number + 10));
    play.run([&] { again.backward(); });
  });
}

// A model whose forward does not ask for the state is called without it.
void without_the_state(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input;
    auto* engine = play.engine();
    const auto output = engine == nullptr ? tower.forward(input) : engine->forward(tower, input);
    play.backward(uneven(play.fault() ? output * 0.5 : output));
  });
}

}  // namespace

std::vector<Case> engine_forward() {
  const auto with = [](bool drops) {
    return [drops](Play& play) { through_the_engine(play, drops); };
  };
  return {{.section = "2",
           .name = "engine_forward_without_layer_drop",
           .sentence = "engine.forward tells a model that no layers are dropped",
           .fault = "the loss is halved",
           .program = with(false),
           .models = {"dropper"}},
          {.section = "2",
           .name = "engine_forward_with_layer_drop",
           .sentence = "engine.forward hands the model theta, which falls at every boundary",
           .fault = "the loss is halved",
           .program = with(true),
           .models = {"dropper"},
           .windows = 5,
           .features = {Feature::LayerDrop}},
          {.section = "2",
           .name = "engine_forward_of_a_model_that_drops_nothing",
           .sentence = "a model that does not ask for theta is called without it",
           .fault = "the output is halved",
           .program = without_the_state,
           .models = {"tower"},
           .windows = 3,
           .features = {Feature::LayerDrop}}};
}

}  // namespace equigrad::conformance::contract
