// Inputs: what several commands ask of their data and of the text model, and how they look it up.
//
// Invariants: a problem is empty where nothing is wrong.
// Units: none.   Errors: ConfigError where there is no data; `where` begins it.
// Depends on: matrix.hpp, program.hpp. No torch.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"

namespace equigrad::conformance::cli {

bool needs_images(const CaseSpec& spec);
// Why cases that need them are not run.
inline constexpr const char* kNoImages =
    "no images: install dataset-fashion-mnist or give --data-dir";
// Why a case has nothing to do on a CUDA device; empty: it has.
const char* why_not_on_cuda(const CaseSpec& spec);
// For cases: plays, and images where they are there.
DataFiles case_data(const std::string& directory);
// For training: all plays, and images where `data` is "images".
DataFiles training_data(const std::string& where, const std::string& data,
                        const std::string& directory);

void check_heads(int dim, int heads, std::vector<std::string>& problems);
// What --layers, --dim, --heads and --context say is the text model's.
template <class Command>
void check_model(const Command& command, std::vector<std::string>& problems) {
  const Command usual;
  if (command.data == "text")
    check_heads(command.dim, command.heads, problems);
  else if (command.layers != usual.layers || command.dim != usual.dim ||
           command.heads != usual.heads || command.context != usual.context)
    problems.push_back("--layers, --dim, --heads and --context are of the text model; " +
                       command.data + " have models of their own. Leave them out");
}
// Of images, micro-batches have one size.
void check_micro_batch(const std::string& data, int64_t micro_batch,
                       std::vector<std::string>& problems);

// "equigrad: 0 WHAT selected by ...; near it are", on stderr.
void say_what_is_near(const char* what, const std::string& filter,
                      const std::vector<std::string>& names, const char* all_are_in);

}  // namespace equigrad::conformance::cli
