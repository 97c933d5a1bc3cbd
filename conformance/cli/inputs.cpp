#include "conformance/cli/inputs.hpp"

#include <iostream>

#include "conformance/cases/device.hpp"
#include "conformance/cases/precision_modes.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {

namespace {

ConfigError no_file(const std::string& where, const std::string& what,
                    const std::string& directory) {
  const std::string place = directory.empty() ? "the usual folders" : directory;
  return ConfigError(where, {"expected " + what + " in " + place +
                             ", got no such file. Name its folder with --data-dir; equigrad doctor "
                             "says what is there."});
}

}  // namespace

bool needs_images(const CaseSpec& spec) { return spec.model == "conv" || spec.model == "vision"; }

const char* why_not_on_cuda(const CaseSpec& spec) {
  if (sums_exactly(spec.precision)) return kNoExactSumsOnCuda;
  if (spec.model == "dropout2") return "their twin knows the CPU's random numbers, not CUDA's";
  return "";
}

DataFiles case_data(const std::string& directory) {
  auto files = find_data(directory, false);
  if (files.text.empty()) throw no_file("data", "plays.txt or plays_slice.txt", directory);
  return files;
}

DataFiles training_data(const std::string& where, const std::string& data,
                        const std::string& directory) {
  auto files = find_data(directory, true);
  if (files.text.empty()) throw no_file(where, "plays.txt or plays_slice.txt", directory);
  if (data == "images" && files.images.empty()) throw no_file(where, "Fashion-MNIST", directory);
  return files;
}

void check_heads(int dim, int heads, std::vector<std::string>& problems) {
  if (dim % heads != 0)
    problems.push_back("expected --dim to be a multiple of --heads, got " + std::to_string(dim) +
                       " and " + std::to_string(heads));
}

void check_micro_batch(const std::string& data, int64_t micro_batch,
                       std::vector<std::string>& problems) {
  constexpr int64_t kImages = 4;  // of the conv model
  if (data == "images" && micro_batch != kImages)
    problems.push_back("images come in micro-batches of " + std::to_string(kImages) + ", got " +
                       std::to_string(micro_batch));
}

void say_what_is_near(const char* what, const std::string& filter,
                      const std::vector<std::string>& names, const char* all_are_in) {
  std::cerr << "equigrad: 0 " << what << " selected by \"" << filter << "\"; near it are\n";
  for (const auto& name : near_matches(names, filter, 3)) std::cerr << "  " << name << "\n";
  std::cerr << all_are_in << "\n";
}

}  // namespace equigrad::conformance::cli
