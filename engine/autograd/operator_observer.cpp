#include "engine/autograd/operator_observer.hpp"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace equigrad::autograd {

// A listener, and whoever is telling it something. Operators of other threads may hold it longer
// than its Observation lives.
struct Watch {
  std::mutex mutex;
  OperatorListener* listener;  // null: the Observation has ended
};

namespace {

struct Entry {
  std::shared_ptr<Watch> watch;
  std::size_t page;
};

// The one thing that engines of a process share: who listens to which storage. It changes when an
// engine comes or goes.
struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Entry> entries;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

thread_local bool silent = false;

using Uses = std::vector<std::pair<std::shared_ptr<Watch>, std::vector<std::size_t>>>;

struct Context final : at::ObserverContext {
  Uses uses;
};

void find(const at::Tensor& tensor, Uses& uses) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto found = registry().entries.find(tensor.storage().unsafeGetStorageImpl());
  if (found == registry().entries.end()) return;
  const auto& [watch, page] = found->second;
  for (auto& [known, pages] : uses) {
    if (known != watch) continue;
    if (std::find(pages.begin(), pages.end(), page) == pages.end()) pages.push_back(page);
    return;
  }
  uses.push_back({watch, {page}});
}

void find(const c10::IValue& value, Uses& uses) {
  if (value.isTensor()) {
    find(value.toTensor(), uses);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) find(element.toTensor(), uses);
    }
  }
}

void tell(const Uses& uses, void (OperatorListener::*what)(const std::vector<std::size_t>&)) {
  for (const auto& [watch, pages] : uses) {
    const std::lock_guard lock(watch->mutex);
    if (watch->listener != nullptr) (watch->listener->*what)(pages);
  }
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
  if (silent) return nullptr;
  Uses uses;
  {
    const std::shared_lock lock(registry().mutex);
    for (const auto& input : function.inputs()) find(input, uses);
  }
  if (uses.empty()) return nullptr;
  tell(uses, &OperatorListener::before);
  auto context = std::make_unique<Context>();
  context->uses = std::move(uses);
  return context;
}

void end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context != nullptr) tell(static_cast<Context*>(context)->uses, &OperatorListener::after);
}

SharedCallback& callback() {
  static SharedCallback instance(
      at::RecordFunctionCallback(start, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  return instance;
}

}  // namespace

Observation::Observation(OperatorListener& listener, const std::vector<at::Tensor>& tensors)
    : watch_(std::make_shared<Watch>()) {
  watch_->listener = &listener;
  auto& shared = registry();
  const std::unique_lock lock(shared.mutex);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    storages_.push_back(tensors[i].storage().unsafeGetStorageImpl());
    shared.entries[storages_.back()] = {watch_, i};
  }
  if (!storages_.empty()) use_.emplace(callback());
}

Observation::~Observation() {
  {
    const std::lock_guard lock(watch_->mutex);
    watch_->listener = nullptr;
  }
  auto& shared = registry();
  const std::unique_lock lock(shared.mutex);
  for (const auto* storage : storages_) {
    const auto found = shared.entries.find(storage);
    if (found != shared.entries.end() && found->second.watch == watch_) {
      shared.entries.erase(found);
    }
  }
}

Silence::Silence() : before_(silent) { silent = true; }
Silence::~Silence() { silent = before_; }
bool Silence::active() { return silent; }

}  // namespace equigrad::autograd
