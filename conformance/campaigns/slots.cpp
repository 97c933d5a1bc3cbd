#include "conformance/campaigns/slots.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace equigrad::conformance {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The first number in a file; none in a control group's file means that there is no limit.
int64_t number_in(const std::string& path, int64_t otherwise) {
  int64_t value = 0;
  return std::ifstream(path) >> value ? value : otherwise;
}

// The number behind `key` in a file of lines "key number ...".
int64_t number_behind(const std::string& key, const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  for (int64_t value = 0; file >> word >> value; file.ignore(std::numeric_limits<int>::max(), '\n'))
    if (word == key) return value;
  return otherwise;
}

int64_t free_on_the_machine() {
  const int64_t kib = number_behind("MemAvailable:", "/proc/meminfo", 0);
  return kib == 0 ? kNoLimit : kib << 10;
}

// Version 2 of control groups, then version 1. Inside a container both show its own limit here.
int64_t free_in_the_group() {
  const std::string two = "/sys/fs/cgroup/memory.", one = "/sys/fs/cgroup/memory/memory.";
  const int64_t limit =
      std::min(number_in(two + "max", kNoLimit), number_in(one + "limit_in_bytes", kNoLimit));
  if (limit == kNoLimit) return kNoLimit;
  const int64_t used = number_in(two + "current", number_in(one + "usage_in_bytes", 0));
  // Files that nobody reads at the moment are counted as used, but are given up when asked for.
  const int64_t files = number_behind("inactive_file", two + "stat",
                                      number_behind("total_inactive_file", one + "stat", 0));
  return std::max<int64_t>(limit - used + files, 1);
}

}  // namespace

std::size_t slots_for(unsigned cores, int64_t memory_bytes, int ranks_a_slot) {
  const std::size_t wanted = std::max(cores, 1u) + 1;
  if (memory_bytes <= 0) return wanted;
  const int64_t fitting = memory_bytes / (kRankBytes * std::max(ranks_a_slot, 1));
  return std::clamp<std::size_t>(static_cast<std::size_t>(fitting), 1, wanted);
}

int64_t available_memory_bytes() {
  const int64_t least = std::min(free_on_the_machine(), free_in_the_group());
  return least == kNoLimit ? 0 : least;
}

}  // namespace equigrad::conformance
