#include "conformance/cases/dropped_out.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/dropout.h>

#include <cstdint>
#include <mutex>

#include "reference/models/data.hpp"

namespace equigrad::conformance {
namespace {

constexpr double kHalf = 0.5;  // exact in every type

at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

at::Tensor state() {
  auto drawing = generator();
  const std::lock_guard lock(drawing.mutex());
  return drawing.get_state();
}

void restore(const at::Tensor& state) {
  auto drawing = generator();
  const std::lock_guard lock(drawing.mutex());
  drawing.set_state(state);
}

void begin_with(uint64_t seed) {
  auto drawing = generator();
  const std::lock_guard lock(drawing.mutex());
  drawing.set_current_seed(seed);
}

uint64_t number() {
  auto drawing = generator();
  const std::lock_guard lock(drawing.mutex());
  return drawing.get<at::CPUGeneratorImpl>()->random64();
}

uint32_t seed_of_part(uint64_t k, uint64_t part) {
  uint64_t mixed = (k ^ (k >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  mixed ^= mixed >> 31;
  auto low = static_cast<uint32_t>(mixed + part);
  low = (low ^ (low >> 16)) * 0x85ebca6bU;
  low = (low ^ (low >> 13)) * 0xc2b2ae35U;
  return low ^ (low >> 16);
}

}  // namespace

DrawsOfBatch::DrawsOfBatch(const at::Tensor& tokens) : before_(state()) {
  uint64_t seed = 0;
  const auto flat = tokens.detach().to(at::kLong).flatten().contiguous();
  for (int64_t i = 0; i < flat.numel(); ++i)
    seed = reference::hash(seed ^ static_cast<uint64_t>(flat.const_data_ptr<int64_t>()[i]));
  begin_with(seed & 0xffffffff);
}

DrawsOfBatch::~DrawsOfBatch() { restore(before_); }

at::Tensor dropped_out(const at::Tensor& whole) { return at::dropout(whole, kHalf, true); }

std::vector<at::Tensor> dropped_out_in_parts(const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1) return {dropped_out(parts[0])};
  const uint64_t k = number();
  const auto behind = state();
  std::vector<at::Tensor> dropped;
  for (const auto& part : parts) {
    begin_with(seed_of_part(k, dropped.size()));
    dropped.push_back(dropped_out(part));
  }
  restore(behind);
  return dropped;
}

}  // namespace equigrad::conformance
