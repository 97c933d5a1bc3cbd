#include "engine/parallel/split_marks.hpp"

#include <c10/core/UndefinedTensorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <unordered_map>

#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

// The weak pointer keeps the address from being given to another tensor.
struct Mark {
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> parameter;
  Split split;
};

struct Marks {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, Mark> by_tensor;
};

Marks& marks() {
  static Marks all;
  return all;
}

}  // namespace

void mark_split(const at::Tensor& part, const Split& split, int64_t size) {
  const auto expected = local_shape(split, size);
  if (part.sizes().vec() != expected)
    throw Error("parallel.mark_split",
                fmt::format("expected a part of shape [{}], got [{}]. Give the parameter of one "
                            "rank, and the split of the whole.",
                            fmt::join(expected, ", "), fmt::join(part.sizes(), ", ")));
  auto& [mutex, by_tensor] = marks();
  const std::lock_guard lock(mutex);
  std::erase_if(by_tensor, [](const auto& one) { return one.second.parameter.expired(); });
  by_tensor.insert_or_assign(
      part.unsafeGetTensorImpl(),
      Mark{c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(part.getIntrusivePtr()),
           split});
}

std::optional<Split> split_of(const at::Tensor& parameter) {
  auto& [mutex, by_tensor] = marks();
  const std::lock_guard lock(mutex);
  const auto found = by_tensor.find(parameter.unsafeGetTensorImpl());
  if (found == by_tensor.end()) return std::nullopt;
  return found->second.split;
}

}  // namespace equigrad::parallel
