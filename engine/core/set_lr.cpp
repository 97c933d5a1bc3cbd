#include "engine/core/set_lr.hpp"

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <limits>
#include <string_view>

#include "engine/core/training_engine.hpp"
#include "engine/optimizer/update_rule.hpp"

namespace equigrad::core {
namespace {

// Ranks meet also where this one refuses the values, so that none waits for a call that has failed.
void agree_to_set(Parts& parts, const char* where, const std::vector<double>& values,
                  const std::function<void()>& check) {
  std::exception_ptr refused;
  try {
    check();
  } catch (...) {
    refused = std::current_exception();
  }
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(double));
  const auto digest = static_cast<int64_t>(std::hash<std::string_view>()(bytes) >> 1);
  const auto met = parts.group.participant.meet(agreement::SetRates{refused ? -1 : digest});
  if (refused) std::rethrow_exception(refused);
  if (met.least_flag != met.greatest_flag) {
    throw Error(where,
                fmt::format("expected the same values on every rank, got {} on some. Make the "
                            "same call with the same values on every rank.",
                            met.least_flag < 0 ? "refused ones" : "others"));
  }
}

}  // namespace

void set_lr(Parts& parts, const std::vector<double>& lr_by_group) {
  agree_to_set(parts, "engine.set_lr", lr_by_group, [&] {
    const auto groups = parts.optimizer.lr().size();
    if (lr_by_group.size() != groups) {
      throw Error("engine.set_lr",
                  fmt::format("expected {} rates, one for each parameter group, got {}. Give one "
                              "number to set all of them.",
                              groups, lr_by_group.size()));
    }
    for (const double lr : lr_by_group) {
      if (lr >= 0 && lr <= std::numeric_limits<float>::max()) continue;
      throw Error("engine.set_lr",
                  fmt::format("expected a rate of 0 or more that fp32 can hold, got {}. The rates "
                              "stay as they were.",
                              lr));
    }
  });
  parts.optimizer.set_rates(lr_by_group, {});
}

void set_hyper_parameters(Parts& parts, const std::vector<OptimizerConfig>& by_group) {
  std::vector<double> values;
  for (const auto& group : by_group)
    for (const double value :
         {static_cast<double>(group.kind), group.lr, group.weight_decay, group.beta1, group.beta2,
          group.eps, group.momentum, group.dampening, static_cast<double>(group.nesterov)})
      values.push_back(value);
  auto& now = parts.optimizer.hyper_parameters();
  agree_to_set(parts, "engine.set_hyper_parameters", values, [&] {
    if (by_group.size() != now.size()) {
      throw Error(
          "engine.set_hyper_parameters",
          fmt::format("expected {} groups{}, got {}.", now.size(),
                      now.empty() ? ", for the optimizer is the caller's" : "", by_group.size()));
    }
    auto checked = parts.config;
    for (std::size_t i = 0; i < now.size(); ++i) {
      checked.optimizer = by_group[i];
      validate(checked, parts.world_size());
      const bool has_its_states =
          optimizer::state_names(by_group[i]) == optimizer::state_names(now[i]);
      if (by_group[i].kind != now[i].kind || !has_its_states)
        throw Error("engine.set_hyper_parameters",
                    "expected an optimizer of the same kind with the same states, got another, or "
                    "SGD that gets or loses its momentum. Make a new engine.");
    }
  });
  now = by_group;
}

}  // namespace equigrad::core
