// CaptionRank: the two engines and the reference on one rank, one request after another.
//
//   {"verb": "start", "setting", "images", "labels"}  models and engines    -> parameters of each
//   {"verb": "steps", "count", "compared": true}      optimizer steps
//        -> "losses" (of each step, the mean over micro-batches; null without language model),
//           "encoder" and "language" (LaneTally::to_json), "clipped" (steps, by the reference)
//   {"verb": "write", "count"}                        captions of images held out
//        -> "right", "shown", "samples" (pairs: written, wanted)
//
// Invariants: with "compared" the reference takes every step too, in this process, and everything
//   is compared after each; a run is compared from its first step on or not at all.
// Units: losses in nats a byte.
// Errors: equigrad::Error for verbs out of order; those of the engines.
// Depends on: engine_pair.hpp and reference_pair.hpp (source only), ranks/rank_context.hpp.
#pragma once

#include <nlohmann/json.hpp>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance::vision {

nlohmann::json serve_captions(const nlohmann::json& request, ranks::RankContext& context);

}  // namespace equigrad::conformance::vision
