// MisuseTexts: the calls of misuse.hpp as C++.
//
// Invariants: a row for each of misuse.hpp's.
// Units: none.   Errors: std::out_of_range for a misuse without a row.
// Depends on: the C++ standard library.
#pragma once

#include <map>
#include <string>

namespace equigrad::property_tests::programs {

inline std::string misuse_text(const std::string& what) {
  const std::string access = "engine->access().";
  const std::map<std::string, std::string> calls = {
      {"step in no_sync", "engine->step();"},
      {"step without backward", "engine->step();"},
      {"nested no_sync", "(void)engine->no_sync();"},
      {"no_sync at this stage", "(void)engine->no_sync();"},
      {"batch size in a window", "engine->set_train_batch_size(2 * world);"},
      {"batch size that is no multiple", "engine->set_train_batch_size(2 * world + 1);"},
      {"backward of an output", "engine->backward(network.run(batch(0), 0).outputs[0]);"},
      {"unscaled loss", "network.run(batch(0), 1).loss.backward();"},
      {"loss scaled twice", "engine->backward(engine->scale(network.run(batch(0), 1).loss));"},
      {"scale without a graph", "(void)engine->scale(at::ones({}));"},
      {"keyword without a scheduler", "engine->step({{\"epoch\", 1.0}});"},
      {"unknown name", access + "full_master(\"nobody\");"},
      {"frozen name", access + "full_gradient(\"frozen\");"},
      {"unknown state", access + "full_optimizer_state(\"first.weight\", \"exp_average\");"},
      {"another shape", access + "set_full_gradient(\"first.weight\", at::ones({1, 1, 1}));"},
      {"values that differ",
       access + "set_full_master(\"first.weight\", at::full(network.weight().sizes(), rank, "
                "at::kFloat));"},
      {"another call on rank 0", "rank == 0 ? " + access + "full_master(\"first.weight\") : " +
                                     access + "full_gradient(\"first.weight\");"}};
  return "try { " + calls.at(what) + " } catch (const Error&) {}  // " + what;
}

}  // namespace equigrad::property_tests::programs
