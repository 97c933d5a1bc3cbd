#include "perf/worker/allocations.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

namespace equigrad::perf {
namespace {

// Sizes by address. The mutex costs time: counted runs are not timed.
std::mutex g_mutex;
std::unordered_map<void*, int64_t> g_sizes_bytes;
Allocations g_counts;
c10::Allocator* g_plain = nullptr;

struct Watch {
  std::function<void(int64_t)> note;
  std::thread::id thread;
  int64_t most_bytes = 0;
  bool is_new = false;

  // With the mutex held.
  void tell() {
    if (!note || !is_new || std::this_thread::get_id() != thread) return;
    is_new = false;
    note(most_bytes);
  }
  void see(int64_t live_bytes) {
    if (live_bytes > most_bytes) is_new = true;
    most_bytes = std::max(most_bytes, live_bytes);
  }
};
Watch g_watch;

void give_back(void* block) {
  {
    const std::lock_guard lock(g_mutex);
    g_watch.tell();
    const auto found = g_sizes_bytes.find(block);
    if (found != g_sizes_bytes.end()) {
      g_counts.live_bytes -= found->second;
      --g_counts.live_count;
      g_sizes_bytes.erase(found);
    }
  }
  g_plain->raw_deallocate(block);
}

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = g_plain->raw_allocate(bytes);
    if (block != nullptr) {
      const std::lock_guard lock(g_mutex);
      g_watch.tell();
      const auto size_bytes = static_cast<int64_t>(bytes);
      g_sizes_bytes[block] = size_bytes;
      ++g_counts.count;
      ++g_counts.live_count;
      g_counts.bytes += size_bytes;
      g_counts.live_bytes += size_bytes;
      g_watch.see(g_counts.live_bytes);
    }
    return {block, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

void install_allocation_counter() {
  static Counting counting;
  if (g_plain != nullptr) return;
  g_plain = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&counting, /*priority=*/100);
}

Allocations allocations() {
  const std::lock_guard lock(g_mutex);
  return g_counts;
}

void watch_most(std::function<void(int64_t)> note) {
  const std::lock_guard lock(g_mutex);
  g_watch = {std::move(note), std::this_thread::get_id(), 0, false};
  g_watch.see(g_counts.live_bytes);
}

void unwatch() {
  const std::lock_guard lock(g_mutex);
  g_watch.tell();
  g_watch = {};
}

}  // namespace equigrad::perf
