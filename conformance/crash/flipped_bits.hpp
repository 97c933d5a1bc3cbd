// FlippedBits: a file of a checkpoint that is not as it was saved, and what one who opens it says.
//
// Invariants: the file is as it was before, afterwards.
// Units: bits, counted from the lowest of the first byte.
// Errors: equigrad::Error for a bit that is not in the file.
// Depends on: scene.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "conformance/crash/scene.hpp"

namespace equigrad::conformance::crash {

// "latest", "manifest", "rank0", ...: the files of the tag that latest names, from the directory.
std::map<std::string, std::string> files_by_part(const std::string& directory);

// Empty where it is refused, as it must be.
std::string wrong_with_flip(const std::string& directory, const std::string& file, std::int64_t bit,
                            Reader reader);
// With other bytes in the place of all.
std::string wrong_with_length(const std::string& directory, const std::string& file,
                              const std::string& bytes);

}  // namespace equigrad::conformance::crash
