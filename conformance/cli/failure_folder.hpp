// FailureFolder: everything about one failed case that can be handed on, in one folder.
//
//   message.txt   what went wrong                 config.json  what initialize() got
//   repro.sh      the command that repeats it     rank<N>*.safetensors  what was compared
//   program.cpp   a program that repeats it       CMakeLists.txt  builds it
//   README.md     says all this
//
// Invariants: the folder can be moved; the build that the failure is of is found by its path. Cases
// of the contract have no program: they are programs themselves.
// Units: counts of steps.   Errors: equigrad::Error where a file cannot be written.
// Depends on: shrink.hpp, program.hpp. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/diagnosis/shrink.hpp"
#include "conformance/on_rank/program.hpp"

namespace equigrad::conformance::cli {

struct Failure {
  std::string id;
  std::optional<Candidate> candidate;  // none: a case of the contract
  uint64_t seed = 0;
  DataFiles data;
  std::string fault;    // planted; empty: none
  std::string message;  // what went wrong
  std::string command;  // what repeats it, for a shell
};

// Writes all but the tensors and config.json into `folder`; returns the names. The program comes
// only with a config.json.
std::vector<std::string> write_failure(const std::string& folder, const Failure& failure);
std::string program_text(const Failure& failure);

// Whether a failure's folder has a file of this name.
bool is_failure_file(const std::string& name);
// Removes a failure's files and, if nothing else is in it, the folder.
void clear_failure(const std::string& folder);

// The path of this program, for a shell.
std::string absolute_program(const std::string& as_called);

}  // namespace equigrad::conformance::cli
