// Misuse: calls that the engine must refuse, each with its message, and nothing else happens.
//
// Invariants: every rank gets the error.
// Units: none.   Errors: none; a call that is not refused is noted.
// Depends on: engine_player.hpp.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "property_tests/programs/engine_player.hpp"

namespace equigrad::property_tests::programs {

inline void EnginePlayer::refuse(const std::string& what) {
  auto& engine = *engines_[0];
  auto& access = engine.access();
  const json call = {{"batch", 0}};
  const auto world = setting_.at("world").get<int64_t>();
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
       {"expected to be between windows", [&] { engine.set_train_batch_size(2 * world); }}},
      {"batch size that is no multiple",
       {"expected a multiple of", [&] { engine.set_train_batch_size(2 * world + 1); }}},
      {"backward of an output",
       {"expected a scalar loss", [&] { engine.backward(run(call, 0).outputs[0]); }}},
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
                                 at::full(network_.weight().sizes(), rank_, at::kFloat));
        }}},
      {"another call on rank 0", {"expected every rank at the same place", [&] {
                                    rank_ == 0 ? access.full_master("first.weight")
                                               : access.full_gradient("first.weight");
                                  }}}};
  const auto& row = rows.at(what);
  fails({row.fragment}, row.act);
}

}  // namespace equigrad::property_tests::programs
