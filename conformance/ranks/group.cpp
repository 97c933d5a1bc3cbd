// The part of RankContext that needs torch and the engine's communicator.
#include <ATen/Parallel.h>

#include <algorithm>

#include "conformance/ranks/rank_context.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::ranks {

void use_one_thread() {
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
}

std::shared_ptr<comm::Communicator> RankContext::group(int world) {
  if (world == 0) world = world_size();
  if (world < 1 || world > world_size() || rank_ >= world)
    throw Error("ranks.group", "expected a world of " + std::to_string(rank_ + 1) + " to " +
                                   std::to_string(world_size()) + " ranks, got " +
                                   std::to_string(world) + ". Ask for one that holds this rank.");
  std::string name = "group";
  for (int rank = 0; rank < world; ++rank) name += "-" + members_[static_cast<std::size_t>(rank)];
  return connected(name, rank_, world);
}

std::shared_ptr<comm::Communicator> RankContext::group(const std::string& name, int rank,
                                                       int size) {
  if (name == "world") return group(size);
  std::string file = name + "-of";
  std::replace(file.begin(), file.end(), '/', '-');
  for (const auto& member : members_) file += "-" + member;
  return connected(file + "-in-" + std::to_string(size), rank, size);
}

std::shared_ptr<comm::Communicator> RankContext::connected(const std::string& name, int rank,
                                                           int size) {
  auto& group = groups_[name];
  if (!group) {
    note("rendezvous of " + std::to_string(size) + " ranks");
    try {
      group = comm::connect_gloo(rank, size, directory_ + "/" + name, timeout_);
    } catch (const std::exception& error) {
      const std::string text = error.what();  // LibTorch appends a backtrace, from the second line
      throw comm::CommunicationError(
          "ranks.group", "expected to reach all " + std::to_string(size) +
                             " ranks over Gloo, got: " + text.substr(0, text.find('\n')) +
                             " equigrad doctor tries it with two.");
    }
  }
  return group;
}

}  // namespace equigrad::conformance::ranks
