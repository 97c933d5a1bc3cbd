#include "engine/memory/malloc_policy.hpp"

#include <cstdlib>
#include <limits>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace equigrad {
namespace {

bool user_has_said() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"})
    if (std::getenv(name) != nullptr) return true;
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::string(tunables).find("glibc.malloc.") != std::string::npos)
    return true;
  const char* wanted = std::getenv("EQUIGRAD_KEEP_MEMORY");
  return wanted != nullptr && std::string(wanted) == "0";
}

}  // namespace

bool keep_freed_memory() {
  static const bool keeps = [] {
    if (user_has_said()) return false;
#ifdef __GLIBC__
    constexpr int kNever = std::numeric_limits<int>::max();
    // A large threshold for mmap is refused by some versions, so it comes first: refused, nothing
    // has changed. The other one is never refused.
    return mallopt(M_MMAP_THRESHOLD, kNever) == 1 && mallopt(M_TRIM_THRESHOLD, kNever) == 1;
#else
    return false;
#endif
  }();
  return keeps;
}

}  // namespace equigrad
