// Settings: where a program plays, once as a DeepSpeed configuration and once as the reference's
// recipe.
//
// The two are written separately on purpose: what the engine misreads must not be misread by both.
//
// Invariants: equal settings give equal texts.
// Units: bucket sizes count elements.   Errors: none.
// Depends on: network.hpp, reference/stepper.hpp, nlohmann-json.
#pragma once

#include "engine/comm/mesh.hpp"
#include "property_tests/programs/network.hpp"
#include "reference/stepper.hpp"

namespace equigrad::property_tests::programs {

comm::MeshSizes mesh_of(const json& setting);
json config_of(const json& setting);
reference::Recipe recipe_of(const json& setting);

}  // namespace equigrad::property_tests::programs
