// CrashedDisk: a folder as it may look after a process was killed, or the power was lost, in the
// middle of a save.
//
// A killed process leaves what it did, and of what it was writing a part. A loss of power leaves of
// what was not synced what POSIX allows, which is more than any one file system does:
//
//   bytes      a file's size is any from what was synced to what was written; each page (of 4 KiB,
//              or a sector of 512 bytes) behind what was synced is there as it was after any of the
//              writes, or it is not: then it has zeros, anything, or what lay at its place in an
//              older file
//   names      of what was done in a folder since that was synced: all, none, what was done first
//              (a journal), or any part; a rename happened or did not, in both of its names
//   failed     what a failed sync should have written is lost, or not, whatever is synced later
//
// Invariants: what was synced is there. The same seed gives the same loss. Seeds 0 to 4 are the
// extremes: nothing survives; all; names without bytes; bytes without names; all, but sizes
// without bytes.
// Units: bytes.
// Errors: equigrad::Error for a log that no file system could have carried out: a rename of what is
// not there.
// Depends on: folder_image, operation.
#pragma once

#include <cstdint>

#include "conformance/crash/disk/folder_image.hpp"
#include "conformance/crash/disk/operation.hpp"

namespace equigrad::conformance::crash {

constexpr std::uint64_t kExtremeSeeds = 5;

// `before`: what was in the log's folder, all of it synced.
FolderImage after_power_loss(const FolderImage& before, const Log& log, const Cut& cut,
                             std::uint64_t seed);
// Of what a rank was about to write a part is there, of even seeds none.
FolderImage after_kill(const FolderImage& before, const Log& log, const Cut& cut,
                       std::uint64_t seed);

}  // namespace equigrad::conformance::crash
