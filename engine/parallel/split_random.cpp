#include "engine/parallel/split_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/checkpoint/digest.hpp"
#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

constexpr uint64_t kKindBits = 0xffffff0000000000;
constexpr uint64_t kCudaStep = 4;  // torch counts its offsets in fours

uint64_t kind_of(RandomParts of) {
  return of == RandomParts::Tensor ? 0x9d3a6b0000000000 : 0x9d3a6c0000000000;
}

uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

uint32_t bijection(uint32_t word) {
  word = (word ^ (word >> 16)) * 0x85ebca6bU;
  word = (word ^ (word >> 13)) * 0xc2b2ae35U;
  return word ^ (word >> 16);
}

bool draws(c10::Device device) { return device.is_cpu() || device.is_cuda(); }

bool is_in(const at::Generator& generator, RandomParts of) {
  return (generator.current_seed() & kKindBits) == kind_of(of);
}

at::Generator default_generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

uint64_t draw(at::Generator& generator) {
  if (generator.device().is_cpu()) return generator.get<at::CPUGeneratorImpl>()->random64();
  const uint64_t seed = generator.current_seed(), offset = generator.get_offset();
  generator.set_offset(offset + kCudaStep);
  return mix(seed) ^ offset;
}

// Of a generator that is in a region: whether it has given a number since it was seeded.
bool has_given(const at::Generator& generator) {
  if (!generator.device().is_cpu()) return generator.get_offset() != 0;
  const auto data = generator.get<at::CPUGeneratorImpl>()->engine().data();
  return data.left_ != 1 || data.next_ != 0;
}

void assign(at::Generator& generator, const at::Generator& from) {
  if (!generator.device().is_cpu()) {
    generator.set_current_seed(from.current_seed());
    generator.set_offset(from.get_offset());
    return;
  }
  auto* const to = generator.get<at::CPUGeneratorImpl>();
  auto* const of = from.get<at::CPUGeneratorImpl>();
  to->set_engine(of->engine());
  to->set_next_float_normal_sample(of->next_float_normal_sample());
  to->set_next_double_normal_sample(of->next_double_normal_sample());
}

// Whether the device's generator is in another state.
bool is_elsewhere(const at::Generator& than, c10::Device device) {
  auto generator = default_generator(device);
  const std::lock_guard lock(generator.mutex());
  return !than.get_state().equal(generator.get_state());
}

enum class Left { None, PutBack, Unknown };

// Per device and kind the last region that was entered.
class Entered {
 public:
  bool enter(c10::Device device, RandomParts of, int64_t rank) {
    const std::lock_guard guard(mutex_);
    auto generator = default_generator(device);
    const std::lock_guard lock(generator.mutex());
    if (is_in(generator, of)) return false;
    auto& region = find(device, of);
    region.before = generator.clone();
    region.seed = split_seed(draw(generator), rank, of);
    generator.set_current_seed(region.seed);
    return true;
  }

  Left leave(RandomParts of) {
    const std::lock_guard guard(mutex_);
    auto left = Left::None;
    for (auto& region : regions_)
      if (region.of == of) left = std::max(left, leave(region));
    return left;
  }

  bool has_drawn_since(RandomParts of) {
    const std::lock_guard guard(mutex_);
    return std::any_of(regions_.begin(), regions_.end(), [of](const Region& region) {
      if (region.of != of || !region.before.defined()) return false;
      auto behind = region.before.clone();
      if (region.has_trace) draw(behind);
      return is_elsewhere(behind, region.device);
    });
  }

  int64_t drawn_of(c10::Device device) {
    const std::lock_guard guard(mutex_);
    return find(device, RandomParts::Tensor).drawn;
  }

 private:
  struct Region {
    c10::Device device;
    RandomParts of;
    at::Generator before;  // a copy of the generator where it was entered, before k
    uint64_t seed = 0;
    bool has_trace = false;  // when it was left: a number was drawn in it
    int64_t drawn = 0;       // regions in which a number was drawn
  };

  Region& find(c10::Device device, RandomParts of) {
    for (auto& region : regions_)
      if (region.device == device && region.of == of) return region;
    return regions_.emplace_back(Region{.device = device, .of = of, .before = {}});
  }

  static Left leave(Region& region) {
    auto generator = default_generator(region.device);
    const std::lock_guard lock(generator.mutex());
    if (!is_in(generator, region.of)) return Left::None;
    if (generator.current_seed() != region.seed) return Left::Unknown;
    region.has_trace = has_given(generator);
    assign(generator, region.before);
    if (region.has_trace) {
      draw(generator);
      ++region.drawn;
    }
    return Left::PutBack;
  }

  std::mutex mutex_;
  std::vector<Region> regions_;
};

Entered& entered() {
  static Entered all;
  return all;
}

Left leave_both(RandomParts of) {
  if (of == RandomParts::Sequence) entered().leave(RandomParts::Tensor);
  return entered().leave(of);
}

}  // namespace

uint64_t split_seed(uint64_t drawn, int64_t rank, RandomParts of) {
  const uint64_t mixed = mix(drawn);
  const auto low = static_cast<uint32_t>(mixed) + static_cast<uint32_t>(rank);
  return kind_of(of) | (mixed & ~kKindBits & 0xffffffff00000000) | bijection(low);
}

bool enter_split_random(const Group& group, c10::Device device, RandomParts of) {
  if (size_of(group) == 1 || !draws(device)) return false;
  return entered().enter(device, of, group->rank());
}

bool leave_split_random(RandomParts of) {
  const auto left = leave_both(of);
  if (left == Left::Unknown)
    throw Error("parallel.random",
                "expected the random numbers of the region that was entered last, got those of an "
                "earlier one: activation checkpointing computes again from behind a column-"
                "parallel layer to behind a row-parallel one. Let it begin before the one, or end "
                "before the other.");
  return left == Left::PutBack;
}

bool abandon_split_random(RandomParts of) noexcept { return leave_both(of) == Left::PutBack; }

bool has_drawn_since_split_random(RandomParts of) { return entered().has_drawn_since(of); }

RandomWatch::RandomWatch(c10::Device device) {
  std::vector<c10::Device> devices = {c10::kCPU};
  if (draws(device) && !device.is_cpu()) devices.push_back(device);
  for (const auto& each : devices) {
    auto generator = default_generator(each);
    const std::lock_guard lock(generator.mutex());
    starts_.push_back({generator.clone(), entered().drawn_of(each)});
  }
}

bool RandomWatch::has_drawn() const {
  return std::any_of(starts_.begin(), starts_.end(), [](const Start& start) {
    const auto device = start.generator.device();
    auto without = start.generator.clone();
    const int64_t regions = entered().drawn_of(device) - start.regions;
    for (int64_t region = 0; region < regions; ++region) draw(without);
    return is_elsewhere(without, device);
  });
}

bool RandomWatch::check_same(const Group& group) const {
  if (size_of(group) == 1) return has_drawn();
  std::vector<int64_t> words = {has_drawn() ? 1 : 0};
  for (const auto& start : starts_) {
    const auto state = start.generator.get_state();
    const auto digest = checkpoint::digest_of(state.const_data_ptr(), state.nbytes());
    words.push_back(static_cast<int64_t>(digest.high));
    words.push_back(static_cast<int64_t>(digest.low));
  }
  const auto said = comm::exchange(*group, at::tensor(words, at::kLong));
  const auto states = said.narrow(1, 1, said.size(1) - 1);
  std::vector<int64_t> all, other;
  for (int64_t rank = 0; rank < said.size(0); ++rank) {
    all.push_back(group->name_of(rank));
    if (!states[rank].equal(states[0])) other.push_back(group->name_of(rank));
  }
  const bool has_any_drawn = said.select(1, 0).any().item<bool>();
  if (other.empty() || !has_any_drawn) return has_any_drawn;
  throw Error(
      "engine.forward",
      fmt::format("expected one state of torch's random numbers on ranks {}, which are one tensor "
                  "group and draw the same for what each of them has whole, such as its dropout, "
                  "got another one on rank{} {} than on {}. Give them one seed, such as "
                  "torch.manual_seed(seed + engine.data_parallel_rank), and let none of them draw "
                  "alone.",
                  fmt::join(all, ", "), other.size() == 1 ? "" : "s", fmt::join(other, ", "),
                  all[0]));
}

}  // namespace equigrad::parallel
