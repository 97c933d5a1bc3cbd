// SecondReading: what a DeepSpeed configuration asks for, read a second time, for the twin.
//
// The engine's parser has its own reading of the same text. The two are written separately on
// purpose: names, defaults and what follows from what are written out here again, so that a key
// which the engine misreads is not misread by the twin too.
//
// Invariants: keys that change no number are not read. Nothing of the engine is used.
// Units: those of the configuration.
// Errors: nlohmann::json::exception for a value of another type; what is refused by the engine is
// not refused here.
// Depends on: reference/recipe.hpp, reference/schedule.hpp, nlohmann-json.
// Source: deepspeed.ai/docs/config-json; torch.optim for what it leaves to torch.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "reference/recipe.hpp"
#include "reference/schedule.hpp"

namespace equigrad::conformance {

// But world, accumulation, seed and, where sums are not exact, the order, which are the caller's.
reference::Recipe read_again(const nlohmann::json& config);
std::optional<reference::ScheduleSpec> schedule_of(const nlohmann::json& config);

}  // namespace equigrad::conformance
