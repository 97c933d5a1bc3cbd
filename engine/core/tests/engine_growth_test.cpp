// Nothing grows: neither over a thousand passes of one engine, nor over a hundred engines that were
// made and destroyed, nor by seventy that are alive at once.
//
// Memory is counted where it is handed out, by malloc and free of this program: what the C library
// keeps in its lists, by thread and as it pleases, is nobody's.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "conformance/on_rank/caller_state.hpp"
#include "conformance/testing/small_run.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/memory/ledger.hpp"

namespace {

// c10d's record of the last 2,000 collectives, which fills in the first hundreds of passes.
const bool has_no_record = setenv("TORCH_FR_BUFFER_SIZE", "0", 1) == 0;

std::atomic<int64_t> live_blocks = 0, live_bytes = 0;

void* handed_out(void* block) {
  if (block != nullptr) {
    ++live_blocks;
    live_bytes += static_cast<int64_t>(malloc_usable_size(block));
  }
  return block;
}
void* taken_back(void* block) {
  if (block != nullptr) {
    --live_blocks;
    live_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  }
  return block;
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* block);

void* malloc(std::size_t bytes) { return handed_out(__libc_malloc(bytes)); }
void* calloc(std::size_t count, std::size_t bytes) {
  return handed_out(__libc_calloc(count, bytes));
}
void* realloc(void* block, std::size_t bytes) {
  return handed_out(__libc_realloc(taken_back(block), bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return handed_out(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  *block = memalign(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) { __libc_free(taken_back(block)); }
}

namespace equigrad {
namespace {

using conformance::CallerState;
using conformance::expect_equal;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::ranks::RankContext;

int64_t entries(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return std::distance(begin(all), end(all));
}

int64_t lines(const char* path) {
  std::ifstream file(path);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

// Of anonymous memory: pages of libraries come in as code runs for the first time.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("RssAnon:", 0) == 0) return std::stoll(line.substr(8)) * 1024;
  return -1;
}

// What this process has of the kernel and of malloc.
struct Held {
  int64_t files, maps, threads, resident_bytes, blocks, bytes;

  static Held now() {
    const int64_t blocks = live_blocks, bytes = live_bytes;
    return {.files = entries("/proc/self/fd"),
            .maps = lines("/proc/self/maps"),
            .threads = entries("/proc/self/task"),
            .resident_bytes = equigrad::resident_bytes(),
            .blocks = blocks,
            .bytes = bytes};
  }
  std::string text() const {
    return "files " + std::to_string(files) + " maps " + std::to_string(maps) + " threads " +
           std::to_string(threads) + " resident " + std::to_string(resident_bytes) + " blocks " +
           std::to_string(blocks) + " bytes " + std::to_string(bytes);
  }
};

constexpr int kLooks = 10, kMostLooks = 500;

// Collectives that are under way hold memory a little longer than the call, which comes and goes:
// the least of a few passes is what stays. With `early`, of as many as it takes to hold no more
// blocks, which a leak never does. Every rank makes as many passes.
template <class Pass>
Held least_of(comm::Communicator& group, const Pass& pass, std::optional<Held> early = {}) {
  std::optional<Held> least;
  for (int look = 1;; ++look) {
    pass();
    const bool is_more = early && least && least->blocks > early->blocks && look < kMostLooks;
    auto wanting = at::full({1}, look < kLooks || is_more ? 1.0F : 0.0F);
    group.all_reduce_sum(wanting)->wait();
    if (look > kLooks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto held = Held::now();
    if (!least) least = held;
    least->files = std::min(least->files, held.files);
    least->maps = std::min(least->maps, held.maps);
    least->threads = std::min(least->threads, held.threads);
    least->resident_bytes = std::min(least->resident_bytes, held.resident_bytes);
    least->blocks = std::min(least->blocks, held.blocks);
    least->bytes = std::min(least->bytes, held.bytes);
    if (wanting.item<float>() == 0) return *least;
  }
}

// What the loader and the C library make when something is called for the first time is not of the
// passes: every look is taken once before it counts.
template <class Pass>
void rehearse(comm::Communicator& group, const Pass& pass) {
  const auto early = least_of(group, pass);
  static_cast<void>(least_of(group, pass, early));
}

template <class Fn>
void at_each_stage(Fn fn) {
  const auto on_rank = [fn](RankContext& context) {
    for (const int stage : {0, 1, 2, 3}) {
      context.note("stage " + std::to_string(stage));
      SCOPED_TRACE("stage " + std::to_string(stage));
      fn(context, stage);
    }
  };
  EXPECT_EQ(conformance::ranks::on_ranks(2, on_rank, {.timeout = std::chrono::minutes(8)}), "");
}

// What malloc keeps of freed blocks by thread: 7 of each of 64 sizes, 32 bytes and 16 more each.
// What lies beside malloc's blocks, as a mapping does, has no other reason to grow.
int64_t resident_allowance(int64_t threads) {
  int64_t bytes = 0;
  for (int64_t size = 0; size < 64; ++size) bytes += 7 * (32 + 16 * size);
  return threads * bytes;
}

// Of blocks not one more. Their bytes are those that malloc found fit, which may be a few more than
// were asked for; a list that grows by a number a pass has twice as many.
void expect_no_more(const Held& late, const Held& early, int64_t passes) {
  const auto text = "before: " + early.text() + "\nafter:  " + late.text();
  EXPECT_EQ(late.files, early.files) << text;
  EXPECT_EQ(late.threads, early.threads) << text;
  // Heaps of malloc may be cut into more mappings; what leaves one a pass behind has as many more.
  EXPECT_LT(late.maps, early.maps + passes) << text;
  EXPECT_LE(late.blocks, early.blocks) << text;
  EXPECT_LE(late.bytes, early.bytes + passes * static_cast<int64_t>(sizeof(int64_t)) / 2) << text;
  EXPECT_LE(late.resident_bytes, early.resident_bytes + resident_allowance(early.threads)) << text;
}

void expect_same(const memory::Ledger& late, const memory::Ledger& early) {
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<memory::Category>(i);
    const char* name = memory::kCategoryNames[static_cast<std::size_t>(i)];
    EXPECT_EQ(late.bytes(category), early.bytes(category)) << name;
    EXPECT_EQ(late.peak_bytes(category), early.peak_bytes(category)) << name;
  }
}

TEST(EngineGrowth, AThousandPassesHoldNoMoreThanTen) {
  at_each_stage([](RankContext& context, int stage) {
    ASSERT_TRUE(has_no_record);
    SmallRun run(context, {.stage = stage, .accumulation = 2, .clipping = 0.5});
    int64_t passes = 0;
    const auto window = [&] {
      for (int i = 0; i < 2; ++i) run.train(passes++);
    };
    for (int i = 0; i < 5; ++i) window();
    rehearse(*run.group, window);
    const auto early = least_of(*run.group, window);
    const memory::Ledger ledger = run.engine->ledger();
    const int64_t first = passes;
    while (passes < 1000) window();
    const auto late = least_of(*run.group, window, early);
    expect_no_more(late, early, passes - first);
    expect_same(run.engine->ledger(), ledger);
  });
}

TEST(EngineGrowth, AHundredEnginesLeaveNothingBehind) {
  at_each_stage([](RankContext& context, int stage) {
    const auto one = [&] {
      SmallRun run(context, {.stage = stage});
      run.train(0);
    };
    one();
    const CallerState before;
    rehearse(*context.group(), one);
    const auto early = least_of(*context.group(), one);
    for (int i = 0; i < 80; ++i) one();
    const auto late = least_of(*context.group(), one, early);
    EXPECT_EQ(CallerState().changes(before), "");
    expect_no_more(late, early, 90);
  });
}

TEST(EngineGrowth, SeventyEnginesAtOnceAreAsOneAlone) {
  at_each_stage([](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage};
    std::map<std::string, at::Tensor> want;
    {
      SmallRun alone(context, options);
      for (int64_t micro = 0; micro < 2; ++micro) alone.train(micro);
      want = alone.all();
    }
    std::vector<std::unique_ptr<SmallRun>> many;
    for (int i = 0; i < 70; ++i) many.push_back(std::make_unique<SmallRun>(context, options));
    for (int64_t micro = 0; micro < 2; ++micro)
      for (auto& one : many) one->train(micro);
    for (std::size_t i = 0; i < many.size(); ++i)
      expect_equal(many[i]->all(), want, "engine " + std::to_string(i));
  });
}

}  // namespace
}  // namespace equigrad
