// Campaign: saves cut short in every way, and what must be left of checkpoints.
//
//   power      the disk as it may look after a loss of power: behind every operation of every save
//              and at cuts through all ranks at random, each with several losses; engines load some
//   kill       the same for processes that are killed
//   signal     real ranks, killed with kill -9 in their save: one, and all
//   refuse     every operation of every rank refused, by a full disk or one that fails
//   flip       every bit of a small checkpoint, and others of a larger one and of one of a tensor
//              group; files cut to every length and made longer
//   careless   savers and readers with a mistake, which the points above must see
//
// Invariants: the checkpoint that `latest` names loads whole after each loss, and is the old one or
// the new one in every bit on every rank; the new one once the save had ended. An engine that
// loads it goes on as the run that was not interrupted, and saves into the same folder. What was
// refused leaves the engine as it was. What is damaged is refused, and changes nothing.
// Units: see setting.hpp for the names of points.
// Errors: equigrad::Error for a replay of a point that does not exist; what stops a campaign is in
// its record.
// Depends on: ground, reports/losses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "conformance/crash/ground.hpp"
#include "reports/losses.hpp"

namespace equigrad::conformance::crash {

const std::vector<std::string>& part_names();

// Fills in all but the environment and the command.
reports::Losses run_crash(const CrashOptions& options);

// The parts; with a point that one alone.
void lose_power(Ground& ground, reports::Losses& losses, const Point* only = nullptr);
void kill_ranks(Ground& ground, reports::Losses& losses, const Point* only = nullptr);
void refuse_all(Ground& ground, reports::Losses& losses, const Point* only = nullptr);
void flip_bits(Ground& ground, reports::Losses& losses, const Point* only = nullptr);
void be_careless(Ground& ground, reports::Losses& losses);

}  // namespace equigrad::conformance::crash
