#include "conformance/campaigns/environment.hpp"

#include <glob.h>

#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "equigrad_build_info.hpp"

namespace equigrad::conformance {
namespace {

// The value behind `key` in a file of "key : value" or KEY="value" lines.
std::string look_up(const std::string& path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const auto at = line.find(separator);
    if (at == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t\"", at + 1);
    if (begin == std::string::npos) continue;
    return line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin);
  }
  return "unknown";
}

// As the driver says, without a context on the device.
std::string cuda_name() {
  glob_t found{};
  std::string name = "unknown";
  if (glob("/proc/driver/nvidia/gpus/*/information", 0, nullptr, &found) == 0)
    name = std::to_string(found.gl_pathc) + " x " + look_up(found.gl_pathv[0], "Model", ':');
  globfree(&found);
  return name;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

reports::Environment environment_here(bool on_cuda) {
  reports::Environment environment;
  environment.version = build_info::version();
  environment.commit = build_info::commit();
  environment.torch = build_info::torch_version();
  environment.compiler = build_info::compiler();
  environment.device = on_cuda ? "cuda: " + cuda_name() : "cpu, Gloo";
  environment.cpu = look_up("/proc/cpuinfo", "model name", ':');
  environment.cores = static_cast<int>(std::thread::hardware_concurrency());
  environment.threads_per_rank = 1;
  environment.os = look_up("/etc/os-release", "PRETTY_NAME", '=');
  environment.time = utc_now();
  return environment;
}

}  // namespace equigrad::conformance
