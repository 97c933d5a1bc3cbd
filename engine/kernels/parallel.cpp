#include "engine/kernels/parallel.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace equigrad::kernels {
namespace {

// No kernel's block is cut, and no line of a cache has two writers.
constexpr int64_t kStepNumel = 2048;

std::atomic<int64_t> on_other_threads{0};
std::atomic<pid_t> with_threads{0};  // the process whose loops have had some

bool may_have_threads() {
  const pid_t here = getpid();
  pid_t owner = 0;
  return with_threads.compare_exchange_strong(owner, here) || owner == here;
}

int64_t numel_of_part(int64_t numel) {
  if (at::in_parallel_region()) return numel;
  const auto parts = std::min<int64_t>(at::get_num_threads(), numel / kGrainNumel);
  if (parts <= 1) return numel;
  return ((numel + parts - 1) / parts + kStepNumel - 1) / kStepNumel * kStepNumel;
}

}  // namespace

void run_parts(int64_t numel, Part part) {
  const int64_t width = numel_of_part(numel);
  if (width >= numel || !may_have_threads()) return part(0, numel);
  // A byte stands for a part: the iterator gives out addresses. Made by no operator, so that nobody
  // who watches operators sees one.
  const at::TensorBase parts = at::detail::empty_cpu({(numel + width - 1) / width}, at::kByte);
  const auto* first = static_cast<const char*>(parts.const_data_ptr());
  const auto caller = std::this_thread::get_id();
  auto iterator = at::TensorIterator::borrowing_nullary_op(parts);
  const auto run = [&](char** data, const int64_t*, int64_t count, int64_t) {
    if (std::this_thread::get_id() != caller) on_other_threads += count;
    for (int64_t index = *data - first, end = index + count; index < end; ++index)
      part(index * width, std::min((index + 1) * width, numel));
  };
  iterator.for_each(run, /*grain_size=*/1);
}

int64_t parts_on_other_threads() { return on_other_threads; }

}  // namespace equigrad::kernels
