#include "conformance/cli/machine.hpp"

#include <glob.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {
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

bool set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != 0 && std::string(value) != "0";
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

int64_t free_bytes(const std::string& directory) {
  struct statvfs status {};
  if (statvfs(directory.c_str(), &status) != 0) return 0;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

bool use_colour(const std::string& color, int descriptor) {
  if (color == "always") return true;
  if (color == "never" || std::getenv("NO_COLOR") != nullptr) return false;
  if (set("FORCE_COLOR") || set("CLICOLOR_FORCE")) return true;
  const char* term = std::getenv("TERM");
  return isatty(descriptor) == 1 && (term == nullptr || std::string(term) != "dumb");
}

}  // namespace equigrad::conformance::cli
