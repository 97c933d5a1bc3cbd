// LossPoints: the losses of one recorded save, drawn and tried.
//
// Invariants: the same seed draws the same points.
// Units: points.
// Errors: those of scene.
// Depends on: scene, setting.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "conformance/crash/scene.hpp"

namespace equigrad::conformance::crash {

// The folder as it is after a point's loss.
FolderImage after_loss(const Scene& scene, const Point& point);
// Whether all was done and the save had said so.
bool is_whole(const Scene& scene, const Point& point);

// Every cut in one order, with `seeds` losses behind the extremes, and as many cuts through all
// ranks.
std::vector<Point> all_losses(const Scene& scene, std::uint64_t seed, std::uint64_t seeds);
// Losses for engines: half of them where the save becomes the one that counts.
std::vector<Point> some_losses(const Scene& scene, std::uint64_t seed, std::size_t count);

// Tries them by looks until `tell` says no.
void look_at_losses(Ground& ground, const Scene& scene, const std::vector<Point>& points,
                    const std::function<bool(const Point&, const Judged&)>& tell);
// Has engines load them.
void load_losses(Ground& ground, const Scene& scene, const std::vector<Point>& points,
                 const std::function<bool(const Point&, const Judged&)>& tell);

}  // namespace equigrad::conformance::crash
