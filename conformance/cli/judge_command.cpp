// The judge of other engines is a program of Python's: python/equigrad/judge.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <system_error>

#include "conformance/cli/cli.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {

int judge_command(const std::vector<std::string>& words) {
  std::string path = build_info::package_directory();
  if (const char* before = std::getenv("PYTHONPATH"); before != nullptr && *before != '\0')
    path += std::string(":") + before;
  std::vector<std::string> all = {build_info::python(), "-m", "equigrad", "judge"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (auto& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  if (::setenv("PYTHONPATH", path.c_str(), 1) == 0) ::execv(arguments[0], arguments.data());
  std::cerr << "equigrad: expected to start " << all.front()
            << ", which the judge runs in, got: " << std::generic_category().message(errno)
            << ". Configure the build again, or call `python -m equigrad judge` of the package.\n";
  return kInfrastructure;
}

}  // namespace equigrad::conformance::cli
