#include "conformance/contract/programs/two_groups.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance::contract {

std::vector<ParameterGroup> TwoGroups::usual_groups(double fill) {
  const auto leaf = [&](int64_t numel) { return at::full({numel}, fill).requires_grad_(); };
  return {{{{"a", leaf(5)}}, 0.25, {}}, {{{"b", leaf(3)}, {"c", leaf(4)}}, {}, 0.125}};
}

TwoGroups::TwoGroups(Play& play, std::vector<ParameterGroup> made_of, const Beside& beside)
    : groups(std::move(made_of)),
      engine(initialize(groups, parse_config(config_beside(play, beside), play.context().world),
                        play.group())) {}

void TwoGroups::train(int64_t windows) {
  for (int64_t window = 0; window < windows; ++window) {
    std::vector<at::Tensor> terms;
    for (const auto& group : groups)
      for (const auto& one : group.parameters)
        if (one.tensor.requires_grad())
          terms.push_back((one.tensor * one.tensor * 0.5 + one.tensor).sum());
    engine->backward(at::stack(terms).sum());
    engine->step();
  }
}

Seen TwoGroups::held() const {
  Seen all;
  add_shards(all, *engine);
  return all;
}

void add_shards(Seen& held, Engine& engine) {
  for (const auto& shard : engine.local_shards()) {
    held.emplace_back("master " + shard.name, shard.master.clone());
    for (const auto& [name, state] : shard.state)
      held.emplace_back(name + " " + shard.name, state.clone());
  }
}

void check_same(Play& play, const std::string& what, const Seen& got, const Seen& want) {
  play.check(what + ": as much is held", got.size() == want.size());
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i)
    play.check(what + ": " + want[i].first,
               got[i].first == want[i].first && got[i].second.equal(want[i].second));
}

void wait_for_all(Play& play) { (void)comm::exchange(*play.group(), at::zeros({1}, at::kLong)); }

}  // namespace equigrad::conformance::contract
