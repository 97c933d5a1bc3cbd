#include "conformance/cli/machine.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>

namespace equigrad::conformance::cli {
namespace {

bool set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != 0 && std::string(value) != "0";
}

}  // namespace

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
