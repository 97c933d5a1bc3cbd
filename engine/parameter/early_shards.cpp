#include "engine/parameter/early_shards.hpp"

#include <c10/core/UndefinedTensorImpl.h>
#include <fmt/format.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace equigrad::parameter {
namespace {

// The weak pointer keeps the address from being given to another tensor.
struct Entry {
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> parameter;
  EarlyShard shard;
  c10::Storage empty;  // held, for the same reason
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, Entry> entries;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

// Asked for its data, it throws.
c10::Storage empty_storage(const at::Tensor& parameter, int64_t number) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), parameter.nbytes(),
      at::DataPtr(nullptr, parameter.device()), nullptr, false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(fmt::format(
      "[zero.init] expected an operator within Init's scope, or one of an engine's model, to read "
      "parameter {}, got its data asked for where only this rank's shard is kept. Give the model "
      "to "
      "initialize() first; pointers must not be kept from one operator to another.",
      number));
  return c10::Storage(std::move(storage));
}

}  // namespace

void keep_early_shard(const at::Tensor& parameter, EarlyShard shard) {
  auto& [mutex, entries] = registry();
  const std::lock_guard lock(mutex);
  std::erase_if(entries, [](const auto& one) { return one.second.parameter.expired(); });
  auto* tensor = parameter.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(empty_storage(parameter, shard.number));
  entries.insert_or_assign(tensor,
                           Entry{c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(
                                     parameter.getIntrusivePtr()),
                                 std::move(shard), parameter.storage()});
}

std::optional<EarlyShard> early_shard(const at::Tensor& parameter) {
  auto& [mutex, entries] = registry();
  const std::lock_guard lock(mutex);
  const auto found = entries.find(parameter.unsafeGetTensorImpl());
  if (found == entries.end()) return std::nullopt;
  if (parameter.storage().unsafeGetStorageImpl() != found->second.empty.unsafeGetStorageImpl()) {
    entries.erase(found);
    return std::nullopt;
  }
  return found->second.shard;
}

void give_back(const at::Tensor& parameter, const at::Tensor& whole) {
  parameter.unsafeGetTensorImpl()->set_storage_keep_dtype(whole.storage());
  forget_early_shard(parameter);
}

void forget_early_shard(const at::Tensor& parameter) {
  auto& [mutex, entries] = registry();
  const std::lock_guard lock(mutex);
  entries.erase(parameter.unsafeGetTensorImpl());
}

}  // namespace equigrad::parameter
