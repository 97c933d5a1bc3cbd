// Settings: a contract case's settings, once as an engine and once as the reference's recipe.
//
// The two are written separately on purpose: what the engine misreads must not be misread by both.
//
// Invariants: equal specs give equal settings. Buckets are small at even worlds and stages.
// Units: bucket sizes count elements.   Errors: those of initialize.
// Depends on: contract_spec.hpp, reference/stepper.hpp, engine/engine.hpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "conformance/contract/players/contract_spec.hpp"
#include "engine/engine.hpp"
#include "reference/stepper.hpp"

namespace equigrad::conformance::contract {

reference::Recipe recipe_of(const Spec& spec);
// Of a scheduled case, after so many updates.
double scheduled_rate(const Spec& spec, int64_t updates);
// Of a case that drops layers: theta of the passes of window 0, 1, ...
double layer_drop_theta(int64_t window);
std::string config_text(const Spec& spec);
// At another stage if one is given: the rest is as the spec's own has it.
std::unique_ptr<Engine> make_engine(const Spec& spec, reference::Model& model,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::optional<int> stage = std::nullopt);

}  // namespace equigrad::conformance::contract
