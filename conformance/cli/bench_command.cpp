// Measurements are another program's, equigrad_perf (perf/), which lies beside this one: what is
// timed is the engine as users link it, without the harness.
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <system_error>

#include "conformance/cli/cli.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {

int bench_command(const std::vector<std::string>& words, const std::string& folder) {
  const std::string path =
      (folder.empty() ? build_info::binary_directory() : folder) + "/equigrad_perf";
  std::vector<std::string> all = {"equigrad bench"};  // the name that it has in its help
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (auto& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::cout.flush();
  ::execv(path.c_str(), arguments.data());
  std::cerr << "equigrad: expected to start " << path
            << ", which measures, got: " << std::generic_category().message(errno)
            << ". Build it: cmake --build --preset dev --target equigrad_perf perf_worker\n";
  return kInfrastructure;
}

}  // namespace equigrad::conformance::cli
