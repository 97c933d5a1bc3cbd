#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "engine/comm/backend.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/launch.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/comm/wait_notice.hpp"
#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

// torchrun's agent serves the store at MASTER_PORT itself and says so.
bool agent_serves_the_store() {
  const char* said = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return said != nullptr && std::string(said) == "True";
}

std::string place_of(const LaunchEnvironment& launch) {
  return fmt::format("{}:{}", launch.master_addr, launch.master_port);
}

std::string whom(const LaunchEnvironment& launch) {
  return fmt::format("rank {}/{}] [comm.connect", launch.rank, launch.world_size);
}

c10::intrusive_ptr<c10d::Store> tcp_store(const LaunchEnvironment& launch,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.isServer = launch.rank == 0 && !agent_serves_the_store();
  options.numWorkers = static_cast<std::size_t>(launch.world_size);
  options.waitWorkers = false;  // it does not say for whom: meet()
  options.timeout = timeout;
  options.multiTenant = true;  // a second engine of this process meets at the same place
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.master_addr, options);
  } catch (const c10::Error& error) {
    const auto told = fmt::format(
        "expected a store at {} (from {}), got: {}. See that rank 0 runs, that the port "
        "is free, and that all ranks name the same place.",
        place_of(launch), launch.source, error.what_without_backtrace());
    if (options.isServer) throw Error("comm.connect", told);
    throw CommunicationError(whom(launch), told);  // rank 0, or the launcher, has not come
  }
}

// "rank 1", "ranks 1, 3"; of many the first.
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  const std::size_t named = std::min(ranks.size(), kMost);
  return fmt::format(
      "rank{} {}{}", ranks.size() == 1 ? "" : "s",
      fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      named == ranks.size() ? "" : fmt::format(" and {} more", ranks.size() - kMost));
}

// Where the ranks of a launch meet before they connect: each leaves a key in the store, and rank 0
// says when all have come, or who never came.
class Meeting {
 public:
  Meeting(c10d::Store& store, const LaunchEnvironment& launch, std::chrono::milliseconds timeout)
      : store_(store),
        launch_(launch),
        timeout_(timeout),
        end_(Clock::now() + timeout + (launch.rank == 0 ? kNone : kForTheAnswer)) {
    for (int rank = 0; rank < launch.world_size; ++rank) missing_.push_back(rank);
  }

  void wait(WaitNotice& notice) {
    try {
      store_.set(here(launch_.rank), "1");
      launch_.rank == 0 ? wait_for_all(notice) : wait_for_rank_0(notice);
    } catch (const c10::Error& error) {
      fail(fmt::format("lost the store: {}", error.what_without_backtrace()));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  // Rank 0 decides at the end of its time; how long the others wait for that beyond theirs, and it
  // for them to have heard.
  static constexpr std::chrono::milliseconds kNone{0}, kForTheAnswer{2'000};
  static constexpr const char* kAbsent = "equigrad/absent";  // their names, or nothing
  static std::string here(int rank) { return "equigrad/here/" + std::to_string(rank); }
  static std::string told(int rank) { return "equigrad/told/" + std::to_string(rank); }

  void look() {
    std::erase_if(missing_, [this](int rank) { return store_.check({here(rank)}); });
  }

  void wait_for_all(WaitNotice& notice) {
    for (look(); !missing_.empty() && Clock::now() < end_; look()) {
      notice.wait_for(ranks_text(missing_) + " at " + place_of(launch_));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    notice.wait_for("");
    const auto absent = missing_.empty() ? std::string() : ranks_text(missing_);
    store_.set(kAbsent, absent);
    if (absent.empty()) return;
    wait_until_told();
    never_came(absent);
  }

  // The store may go with this process.
  void wait_until_told() {
    const auto end = Clock::now() + kForTheAnswer;
    for (int rank = 1; rank < launch_.world_size; ++rank) {
      if (std::find(missing_.begin(), missing_.end(), rank) != missing_.end()) continue;
      while (!store_.check({told(rank)}) && Clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  void wait_for_rank_0(WaitNotice& notice) {
    notice.wait_for("");  // rank 0 speaks
    while (!store_.check({kAbsent})) {
      if (Clock::now() >= end_) {
        look();
        if (missing_.empty()) fail("no answer of rank 0, which has come");
        never_came(ranks_text(missing_));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const auto absent = store_.get_to_str(kAbsent);
    if (absent.empty()) return;
    store_.set(told(launch_.rank), "1");
    never_came(absent);
  }

  [[noreturn]] void never_came(const std::string& absent) const {
    fail(fmt::format("none of {} within {} ms", absent, timeout_.count()));
  }

  [[noreturn]] void fail(const std::string& got) const {
    throw CommunicationError(
        whom(launch_),
        fmt::format("expected {} ranks at {} (from {}), got {}. See that every rank was started, "
                    "still runs, and names the same place; communication_timeout_s is the time "
                    "they have.",
                    launch_.world_size, place_of(launch_), launch_.source, got));
  }

  c10d::Store& store_;
  const LaunchEnvironment& launch_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point end_;
  std::vector<int> missing_;  // not seen yet
};

// The place where this engine's ranks meet, of the engines that this process makes.
c10::intrusive_ptr<c10d::Store> meet(const LaunchEnvironment& launch, int connection,
                                     std::chrono::milliseconds timeout) {
  WaitNotice notice(
      fmt::format("{} at {}", agent_serves_the_store() ? "the launcher's store" : "rank 0's store",
                  place_of(launch)),
      timeout);
  auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("equigrad/{}", connection),
                                                      tcp_store(launch, timeout));
  Meeting(*store, launch, timeout).wait(notice);
  return store;
}

int device_index_of(const LaunchEnvironment& launch) {
  if (launch.local_rank) return *launch.local_rank;
  throw Error("comm.connect",
              "expected LOCAL_RANK, the rank among those of this machine, which chooses the CUDA "
              "device, got RANK and WORLD_SIZE without it. Export it, from 0, or keep the model on "
              "the CPU.");
}

// Where the ranks of this launch meet for one set of groups.
c10::intrusive_ptr<c10d::Store> store_of(const LaunchEnvironment& launch,
                                         std::chrono::milliseconds timeout) {
  static std::atomic<int> connections{
      0};  // engines of a process are made in one order on all ranks
  if (launch.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  return meet(launch, connections++, timeout);
}

// Rank 0 may be who serves the store, and it is not of every group that others still connect.
void rank_0_leaves_last(c10d::Store& store, int rank, int world_size) {
  const auto made = [](int of) { return "equigrad/made/" + std::to_string(of); };
  try {
    store.set(made(rank), "1");
    for (int of = 0; rank == 0 && of < world_size; ++of) store.get(made(of));
  } catch (const c10::Error& error) {
    throw CommunicationError(
        fmt::format("rank {}/{}] [comm.connect", rank, world_size),
        fmt::format("expected {} ranks that have connected all groups of the mesh, got: {}. See "
                    "that every rank still runs; communication_timeout_s is the time they have.",
                    world_size, error.what_without_backtrace()));
  }
}

}  // namespace

std::shared_ptr<Communicator> connect(const LaunchEnvironment& launch, c10::DeviceType device,
                                      std::chrono::milliseconds timeout) {
  const int device_index = device == c10::kCUDA ? device_index_of(launch) : 0;
  const auto store = store_of(launch, timeout);
  if (device == c10::kCUDA)
    return nccl_over(store, launch.rank, launch.world_size, device_index, timeout);
  return gloo_over(store, launch.rank, launch.world_size, timeout);
}

Mesh connect_mesh(const LaunchEnvironment& launch, c10::DeviceType device,
                  std::chrono::milliseconds timeout, const MeshSizes& sizes) {
  std::optional<int> device_index;
  if (device == c10::kCUDA) device_index = device_index_of(launch);
  if (sizes.world_size() != launch.world_size)
    static_cast<void>(mesh_sizes(launch.world_size, sizes.sequence, sizes.tensor));
  return mesh_over(store_of(launch, timeout), launch.rank, sizes, device_index, timeout);
}

Mesh connect_part(const LaunchEnvironment& launch, c10::DeviceType device,
                  std::chrono::milliseconds timeout, int first, const MeshSizes& sizes) {
  const int rank = launch.rank - first, end = first + sizes.world_size();
  if (first < 0 || launch.rank < first || launch.rank >= end || end > launch.world_size)
    throw Error("comm.mesh",
                fmt::format("expected ranks of {} that this one is of, got ranks {} to {} on rank "
                            "{}. Give each rank its own part of the launch.",
                            launch.world_size, first, end - 1, launch.rank));
  std::optional<int> device_index;
  if (device == c10::kCUDA) device_index = device_index_of(launch);
  const auto all = store_of(launch, timeout);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("part/{}", first), all);
  auto mesh = mesh_over(store, rank, sizes, device_index, timeout);
  rank_0_leaves_last(*all, launch.rank, launch.world_size);
  return mesh;
}

Mesh mesh_over(const c10::intrusive_ptr<c10d::Store>& store, int rank, const MeshSizes& sizes,
               std::optional<int> device_index, std::chrono::milliseconds timeout) {
  auto mesh =
      make_mesh(rank, sizes,
                [&](const std::string& group, int of, int size) -> std::shared_ptr<Communicator> {
                  const auto place = c10::make_intrusive<c10d::PrefixStore>(group, store);
                  if (device_index) return nccl_over(place, of, size, *device_index, timeout);
                  return gloo_over(place, of, size, timeout);
                });
  rank_0_leaves_last(*store, rank, sizes.world_size());
  return mesh;
}

Mesh connect_gloo_mesh(int rank, const MeshSizes& sizes, const std::string& rendezvous,
                       std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::FileStore>(rendezvous, sizes.world_size());
  store->setTimeout(timeout);
  return mesh_over(store, rank, sizes, std::nullopt, timeout);
}

}  // namespace equigrad::comm
