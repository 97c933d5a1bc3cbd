// Setting: under what a save is cut short, and the names of the points that are tried, from which
// each can be tried again.
//
//   zero2.w3.fp16.new.power.7-4-4.s12      ranks had done 7, 4 and 4 operations; seed 12
//   zero0.w2.fp32.same.kill.9-5.s1         as if the processes had been killed there
//   zero3.w4.bf16.new.signal-1.r2.o17      rank 2 is killed at its operation 17; signal-4: all are
//   zero2.w2.fp32.same.call.r1.o5          rank 1 loses its peers in its call 5
//   zero1.w1.fp16.same-beside.ENOSPC.r0.o8 the disk is full at operation 8 of rank 0; EIO: it fails
//   zero2.w4s2t2.fp32.new.EIO.r3.o2        4 ranks in groups of 2 along sequence and 2 along tensor
//   flip.small.rank1.4711                  bit 4711 of that file; flip.large.manifest.77;
//                                          flip.parts.rank1.5: of tensors in parts
//
// Invariants: a name that is read is written again as it was.
// Units: bits and operations count from 0.
// Errors: equigrad::Error for a name that is none.
// Depends on: crash/disk, nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/crash/disk/operation.hpp"

namespace equigrad::conformance::crash {

struct Setting {
  int stage = 0;
  int world = 1;
  std::string precision = "fp32";  // fp32, bf16, fp16
  bool same_tag = false;           // the save goes over the tag that is there
  bool beside = false;             // training goes on while it is written: asynchronous
  int sequence = 1, tensor = 1;    // of the world's ranks, in groups of so many
  bool operator==(const Setting&) const = default;
};

std::string to_text(const Setting& setting);  // "zero2.w3.fp16.new"
void to_json(nlohmann::json& json, const Setting& setting);
void from_json(const nlohmann::json& json, Setting& setting);
// Every number of ranks at every stage, with a new tag and over the old one, of which one is saved
// beside the training; precisions take turns. Behind them some of ranks that share a model.
std::vector<Setting> settings(const std::vector<int>& stages, const std::vector<int>& worlds);

// Which checkpoint's bits flip: a small one of one rank; a larger one; one of tensors in parts.
enum class Flipped { Small, Large, Parts };

struct Point {
  enum class Kind { Power, Kill, SignalOne, SignalAll, LostCall, DiskFull, DiskFails, Flip };
  Kind kind = Kind::Power;
  Setting setting;
  Cut cut = {};            // Power, Kill
  std::uint64_t seed = 0;  // Power, Kill
  int rank = 0;            // of what follows
  std::int64_t at = 0;     // operation, call, or bit
  Flipped of = Flipped::Small;
  std::string file = {};  // Flip: "latest", "manifest", "rank1"
};

std::string to_text(const Point& point);
Point point_from(const std::string& text);

}  // namespace equigrad::conformance::crash
