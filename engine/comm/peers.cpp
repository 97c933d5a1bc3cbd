#include "engine/comm/peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace equigrad::comm {
namespace {

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The machine since it was started, and the space of its process numbers.
std::string this_machine() {
  char space[64] = {};
  const auto length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  std::string boot = contents_of("/proc/sys/kernel/random/boot_id");
  boot = boot.substr(0, boot.find('\n'));
  return length <= 0 || boot.empty() ? "" : boot + "/" + space;
}

struct Status {
  char state = 0;       // 0: there is no such process
  std::string started;  // tells it from a later one with its number
};

// The state is the first word behind the name, which may hold anything; the start is the 20th.
Status status_of(const std::string& process) {
  const auto text = contents_of("/proc/" + process + "/stat");
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream words(text.substr(name_end + 1));
  Status status;
  words >> status.state;
  for (int word = 0; word < 19; ++word) words >> status.started;
  return status;
}

}  // namespace

std::string introduction() {
  const auto process = std::to_string(getpid());
  return this_machine() + " " + process + " " + status_of(process).started;
}

int Peers::local_ranks(int world_size) const {
  std::vector<std::string> machines;  // by host
  std::size_t local = 0;              // ranks of the first one
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    const auto machine = processes_[rank].substr(0, processes_[rank].find(' '));
    if (machine.empty()) return world_size;
    const bool is_new = machines.empty() || machine != machines.back();
    const bool is_known = std::find(machines.begin(), machines.end(), machine) != machines.end();
    if (is_new && is_known) return world_size;  // its ranks do not follow each other
    if (is_new && machines.size() == 1) local = rank;
    if (is_new && local != 0 && rank % local != 0) return world_size;
    if (is_new) machines.push_back(machine);
    if (!is_new && local != 0 && rank % local == 0) return world_size;
  }
  const auto world = static_cast<std::size_t>(world_size);
  return local == 0 || world != machines.size() * local ? world_size : static_cast<int>(local);
}

bool Peers::are_here(int world_size) const {
  const auto here = this_machine();
  return !here.empty() && processes_.size() == static_cast<std::size_t>(world_size) &&
         std::all_of(processes_.begin(), processes_.end(),
                     [&](const auto& one) { return one.starts_with(here + " "); });
}

std::vector<int> Peers::ended() const {
  const auto here = this_machine();
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < processes_.size() && !here.empty(); ++rank) {
    std::istringstream words(processes_[rank]);
    std::string machine, process, started;
    if (!(words >> machine >> process >> started) || machine != here) continue;
    const auto status = status_of(process);
    if (status.state == 0 || status.state == 'Z' || status.state == 'X' ||
        status.started != started)
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace equigrad::comm
