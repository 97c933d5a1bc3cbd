#include "engine/autograd/operator_observer.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/autograd/interpreter_lock.hpp"

namespace equigrad::autograd {

// A listener, and whoever is telling it something. Operators of other threads may hold it longer
// than its Observation lives.
struct Watch {
  std::mutex mutex;
  OperatorListener* listener;  // null: the Observation has ended
  uint64_t number;             // in order of creation, which is the same on all ranks
};

namespace {

struct Entry {
  std::shared_ptr<Watch> watch;
  std::size_t page;
  at::Tensor tensor;
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
  const auto& watch = found->second.watch;
  const auto page = found->second.page;
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

// A listener may wait for other ranks.
void tell(const Uses& uses, void (OperatorListener::*what)(const std::vector<std::size_t>&)) {
  const WithoutInterpreter without;
  for (const auto& [watch, pages] : uses) {
    const std::lock_guard lock(watch->mutex);
    if (watch->listener != nullptr) (watch->listener->*what)(pages);
  }
}

std::unique_ptr<at::ObserverContext> begin(Uses uses) {
  if (uses.empty()) return nullptr;
  tell(uses, &OperatorListener::before);
  auto context = std::make_unique<Context>();
  context->uses = std::move(uses);
  return context;
}

// ---- Code of torch.compile: its kernels are no operators. ----------------------------------
constexpr std::string_view kRegion = "Torch-Compiled Region";
constexpr std::string_view kForward = "CompiledFunction", kBackward = "CompiledFunctionBackward";
constexpr std::size_t kMostPasses = 65536;  // whose backward is still to come

// What compiled forwards read, by (thread, sequence number), which their backward names too. Their
// backwards are watched from the first of them until the last Observation has ended.
struct CompiledPasses {
  using Key = std::pair<uint64_t, int64_t>;
  std::mutex mutex;
  std::map<Key, Uses> uses;
  std::deque<Key> order;
  std::optional<SharedCallback::Use> use;

  void forget() {
    const std::lock_guard lock(mutex);
    uses.clear();
    order.clear();
    use.reset();
  }
};

CompiledPasses& compiled_passes() {
  static CompiledPasses instance;
  return instance;
}

// A region that needs no gradient calls nothing that names its inputs. With gradients off it may
// read every parameter, else those that need none.
void find_of_region(Uses& uses) {
  std::map<std::pair<uint64_t, std::size_t>, const Entry*> sorted;  // as on every rank
  for (const auto& [storage, entry] : registry().entries)
    if (!at::GradMode::is_enabled() || !entry.tensor.requires_grad())
      sorted[{entry.watch->number, entry.page}] = &entry;
  for (const auto& [place, entry] : sorted) find(entry->tensor, uses);
}

void keep_for_backward(const at::RecordFunction& function, const Uses& uses);

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
  if (silent) return nullptr;
  const std::string_view name = function.name();
  Uses uses;
  {
    const std::shared_lock lock(registry().mutex);
    for (const auto& input : function.inputs()) find(input, uses);
    if (name.starts_with(kRegion)) find_of_region(uses);
  }
  if (name == kForward && !uses.empty()) keep_for_backward(function, uses);
  return begin(std::move(uses));
}

std::unique_ptr<at::ObserverContext> start_backward(const at::RecordFunction& function) {
  if (silent || function.name() != kBackward) return nullptr;
  Uses uses;
  {
    auto& passes = compiled_passes();
    const std::lock_guard lock(passes.mutex);
    const auto pass = passes.uses.find({function.forwardThreadId(), function.seqNr()});
    if (pass != passes.uses.end()) uses = pass->second;
  }
  return begin(std::move(uses));
}

void end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context != nullptr) tell(static_cast<Context*>(context)->uses, &OperatorListener::after);
}

SharedCallback& operator_callback() {
  static SharedCallback instance(
      at::RecordFunctionCallback(start, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  return instance;
}

SharedCallback& backward_callback() {
  static SharedCallback instance(
      at::RecordFunctionCallback(start_backward, end).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  return instance;
}

void keep_for_backward(const at::RecordFunction& function, const Uses& uses) {
  auto& passes = compiled_passes();
  const std::lock_guard lock(passes.mutex);
  if (!passes.use) passes.use.emplace(backward_callback());
  const CompiledPasses::Key key{at::RecordFunction::currentThreadId(), function.seqNr()};
  if (passes.uses.insert_or_assign(key, uses).second) passes.order.push_back(key);
  if (passes.order.size() <= kMostPasses) return;
  passes.uses.erase(passes.order.front());
  passes.order.pop_front();
}

}  // namespace

Observation::Observation(OperatorListener& listener, const std::vector<at::Tensor>& tensors)
    : watch_(std::make_shared<Watch>()) {
  static std::atomic<uint64_t> created = 0;
  watch_->listener = &listener;
  watch_->number = created++;
  std::vector<at::Tensor> gone;  // dropped without the lock: that may run code of the caller's
  auto& shared = registry();
  const std::unique_lock lock(shared.mutex);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    storages_.push_back(tensors[i].storage().unsafeGetStorageImpl());
    auto& entry = shared.entries[storages_.back()];
    gone.push_back(std::exchange(entry, {watch_, i, tensors[i]}).tensor);
  }
  if (!storages_.empty()) use_.emplace(operator_callback());
}

Observation::~Observation() {
  {
    const std::lock_guard lock(watch_->mutex);
    watch_->listener = nullptr;
  }
  std::vector<at::Tensor> gone;
  auto& shared = registry();
  const std::unique_lock lock(shared.mutex);
  for (const auto* storage : storages_) {
    const auto found = shared.entries.find(storage);
    if (found != shared.entries.end() && found->second.watch == watch_) {
      gone.push_back(std::move(found->second.tensor));
      shared.entries.erase(found);
    }
  }
  if (shared.entries.empty()) compiled_passes().forget();
}

Silence::Silence() : before_(silent) { silent = true; }
Silence::~Silence() { silent = before_; }
bool Silence::active() { return silent; }

}  // namespace equigrad::autograd
