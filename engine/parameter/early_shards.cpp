#include "engine/parameter/early_shards.hpp"

#include <c10/core/UndefinedTensorImpl.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace equigrad::parameter {
namespace {

// The weak pointer keeps the address from being given to another tensor.
struct Entry {
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> parameter;
  EarlyShard shard;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, Entry> entries;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

void keep_early_shard(const at::Tensor& parameter, EarlyShard shard) {
  auto& [mutex, entries] = registry();
  const std::lock_guard lock(mutex);
  std::erase_if(entries, [](const auto& one) { return one.second.parameter.expired(); });
  entries.insert_or_assign(parameter.unsafeGetTensorImpl(),
                           Entry{c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(
                                     parameter.getIntrusivePtr()),
                                 std::move(shard)});
}

std::optional<EarlyShard> early_shard(const at::Tensor& parameter) {
  auto& [mutex, entries] = registry();
  const std::lock_guard lock(mutex);
  const auto found = entries.find(parameter.unsafeGetTensorImpl());
  if (found == entries.end()) return std::nullopt;
  return found->second.shard;
}

void forget_early_shard(const at::Tensor& parameter) {
  auto& [mutex, entries] = registry();
  const std::lock_guard lock(mutex);
  entries.erase(parameter.unsafeGetTensorImpl());
}

}  // namespace equigrad::parameter
