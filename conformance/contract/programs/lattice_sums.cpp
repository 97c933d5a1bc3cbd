// 13. Sums that can be computed by hand: the backend's own, where no order matters, and exact ones.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr int64_t kPasses = 3;

// A layer that torch_autocast sends in bf16, and a parameter that it does not; all zeros.
struct Lattice : torch::nn::Module {
  Lattice() : torch::nn::Module("Lattice") {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.zero_();
  }
  torch::nn::Linear lower = register_module("lower", torch::nn::Linear(7, 5));
  at::Tensor plain = register_parameter("plain", at::zeros({11}));
};

struct Sums {
  std::string keys;      // of the configuration
  int64_t steps = 1;     // gradients are multiples of 1 / steps, from -3 to 3
  bool is_cast = false;  // torch_autocast
};

// After the first pass, rank 0 alone has a gradient of every parameter, the others of one.
bool uses(const std::string& name, int64_t pass, int rank) {
  return pass == 0 || rank == 0 || (pass == 2 && name == "lower.weight");
}

at::Tensor contribution(const Sums& sums, const at::Tensor& like, int64_t pass, int rank) {
  const int64_t numbers = 6 * sums.steps + 1;
  const auto number = (at::arange(like.numel(), at::kLong) * 37 + 101 * pass + 59 * rank + 7) * 13;
  const auto whole = number.remainder(numbers) - 3 * sums.steps;
  return whole.to(at::kFloat).div(static_cast<double>(sums.steps)).view(like.sizes());
}

at::Tensor loss_of(const Play& play, const Sums& sums, const Lattice& model, int64_t pass) {
  auto loss = at::zeros({}).requires_grad_() * 1;  // a rank that uses nothing has a graph too
  for (const auto& item : model.named_parameters())
    if (const auto& tensor = item.value(); uses(item.key(), pass, play.context().rank)) {
      const auto factor = contribution(sums, tensor, pass, play.context().rank);
      loss = loss + (tensor * factor.to(tensor.scalar_type())).to(at::kFloat).sum();
    }
  return play.fault() && pass == 1 ? loss * 2 : loss;
}

// Of the first `passes`: every term in the type that it is sent in, and two roundings.
at::Tensor average_of(const Play& play, const Sums& sums, const std::string& name,
                      const at::Tensor& like, int64_t passes) {
  const auto& context = play.context();
  auto sum = at::zeros(like.sizes(), at::kDouble);
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int rank = 0; rank < context.world; ++rank) {
      if (!uses(name, pass, rank)) continue;
      const auto term = contribution(sums, like, pass, rank);
      const bool lower = sums.is_cast && name.starts_with("lower.");
      sum += (lower ? term.to(at::kBFloat16) : term).to(at::kDouble);
    }
  const auto divisor = static_cast<double>(context.accumulation * context.world);
  return sum.to(at::kFloat) * at::full({}, 1 / divisor, at::kFloat);
}

// A window whose passes reach no parameter of the engine, on any rank: no master moves.
void reach_nothing(Play& play, Engine& engine) {
  for (int64_t pass = 0; pass < play.context().accumulation; ++pass) {
    engine.backward(at::zeros({}).requires_grad_() * 1);
    engine.step();
  }
  play.check("a window that reached nothing has a norm of 0", engine.get_global_grad_norm() == 0);
  for (const auto& shard : engine.local_shards())
    play.check("a window that reached nothing leaves " + shard.name + " as it was",
               shard.master.eq(0).all().item<bool>());
}

// Every gradient is read in every pass, while its bucket waits, and comes in the step once more.
void by_hand(Play& play, const Sums& sums) {
  const Lattice shapes;
  const auto group = play.group();
  Lattice model;
  const int64_t accumulation = play.context().accumulation;
  const auto text = config_beside(
      play,
      {.accumulation = accumulation, .zero = R"(, "reduce_bucket_size": 30)", .keys = sums.keys});
  const auto engine = group ? initialize(model, text, group) : nullptr;
  if (engine) {
    const auto guard = engine->autocast();
    reach_nothing(play, *engine);
  }
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    if (engine) {
      const auto guard = engine->autocast();
      engine->backward(loss_of(play, sums, model, pass));
    }
    for (const auto& item : shapes.named_parameters()) {
      const auto& name = item.key();
      play.see("average so far of " + name,
               engine ? engine->access().full_gradient(name)
                      : average_of(play, sums, name, item.value(), pass + 1));
    }
    if (engine && (accumulation == kPasses || pass + 1 == kPasses)) engine->step();
  }
  for (const auto& item : shapes.named_parameters()) {
    const auto& name = item.key();
    const auto average = average_of(play, sums, name, item.value(), kPasses);
    play.see("master after the step of " + name,
             engine ? engine->access().full_master(name) : at::zeros_like(average) - average);
  }
  train_along(play);
}

void native(Play& play) {
  const bool bf16 = play.context().precision == Precision::Bf16;
  by_hand(play, {.keys = std::string(R"(, "reduction": "native")") +
                         (bf16 ? R"(, "bf16": {"enabled": true})" : "")});
}

// In bf16 most of these numbers are others.
void exact(Play& play) {
  by_hand(play, {.keys = R"(, "reduction": "exact",
                            "torch_autocast": {"enabled": true, "dtype": "bfloat16"})",
                 .steps = 512,
                 .is_cast = true});
}

}  // namespace

std::vector<Case> lattice_sums() {
  return {
      {.section = "13",
       .name = "native_sums_of_small_integers",
       .sentence = "sums in the backend's own order are right where no order matters",
       .fault = "a pass counts twice",
       .program = native,
       .models = {"tower"},
       .windows = 1},
      case_beside(
          {.section = "13",
           .name = "exact_sums_of_what_is_sent_in_fewer_bits",
           .sentence = "exact sums are those of what was sent, read at any time, whoever sent it",
           .fault = "a pass counts twice",
           .program = exact})};
}

}  // namespace equigrad::conformance::contract
