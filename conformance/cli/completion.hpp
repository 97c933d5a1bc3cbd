// Completion: scripts by which a shell completes the command's words.
//
//   eval "$(equigrad completion bash)"        zsh, fish: the same, into the
//   file that they read
//
// Invariants: commands, options and the values that an option takes are those
// of the parser's own tree; there is no second list. Units: none. Errors:
// equigrad::Error for a shell that is none of these. Depends on: CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace equigrad::conformance::cli {

std::string completion(const CLI::App& app, const std::string& shell);

}  // namespace equigrad::conformance::cli
