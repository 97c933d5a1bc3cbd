// Completion: scripts by which a shell completes the command's words.
//
//   eval "$(equigrad completion bash)"        zsh, fish: the same, into the file that they read
//
// Invariants: commands, options and the values that an option takes are those of the parser's own
// tree. What its checks do not list, and what stands behind the name of another program, is given.
// Units: none.
// Errors: equigrad::Error for a shell that is none of these.
// Depends on: CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace equigrad::conformance::cli {

// Both by path, " config check".
struct OtherWords {
  std::map<std::string, const CLI::App*> programs;         // in place of the command of this path
  std::map<std::string, std::vector<std::string>> values;  // " run --fault", " run FILTER"
};
std::string completion(const CLI::App& app, const std::string& shell,
                       const OtherWords& others = {});

}  // namespace equigrad::conformance::cli
