#include "conformance/contract/programs/beside.hpp"

#include <unistd.h>

namespace equigrad::conformance::contract {

std::string config_beside(const Play& play, const Beside& beside) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
         std::to_string(beside.accumulation) + R"(, "optimizer": {"type": ")" + beside.optimizer +
         R"(", "params": {"lr": 1}}, "zero_optimization": {"stage": )" +
         std::to_string(play.context().stage) + beside.zero + "}" + beside.keys + "}";
}

std::string file_beside(const Play& play, const std::string& name) {
  return play.context().directory + "/" + std::to_string(getpid()) + "-" + name;
}

void train_along(Play& play) {
  each_micro_batch(play,
                   [&](int64_t number) { play.backward(play.model().loss(play.batch(number))); });
}

Case case_beside(Case of, Plays plays) {
  of.models = {"tower"};
  of.places.precisions = {Precision::Fp32};
  of.places.plays = plays;
  of.windows = 1;
  return of;
}

}  // namespace equigrad::conformance::contract
