#include "engine/zero_init.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/config.hpp"
#include "engine/layout/partition.hpp"
#include "engine/parameter/early_shards.hpp"
#include "engine/parameter/operator_observer.hpp"

namespace equigrad::zero {
namespace {

constexpr int64_t kIdleOperators = 8;

enum class Say : int64_t { Partition, Fetch, End, Abandoned };

std::exception_ptr& kept_failure() {
  static std::exception_ptr failure;
  return failure;
}

const char* word(int64_t say) {
  constexpr const char* kWords[] = {"the partition of parameter", "the use of parameter", "the end",
                                    "an exception"};
  return kWords[say];
}

}  // namespace

class Init::State {
 public:
  explicit State(std::shared_ptr<comm::Communicator> communicator);
  ~State();

  void finish();
  void abandon() noexcept;

 private:
  // A tensor that an operator made.
  struct Made {
    c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor;
    c10::StorageImpl* storage;
    int64_t last_use;
    int64_t number = -1;  // of a parameter, by the order in which they were partitioned
    bool partitioned = false;
    int pins = 0;
  };
  using Storages = std::vector<const c10::StorageImpl*>;
  struct Context final : at::ObserverContext {
    Storages read;  // the inputs are gone when the operator ends
  };

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);

  template <class Values, class Fn>
  void for_each(const Values& values, Fn fn);
  Storages before(const at::RecordFunction& function);
  void after(const at::RecordFunction& function, const Storages& read);
  void add(const at::Tensor& tensor);
  void touch(const c10::StorageImpl* storage, int pins);
  void partition_idle(int64_t idle_operators);
  void partition(Made& made, const at::Tensor& tensor);
  void fetch(Made& made, const at::Tensor& tensor);
  void agree(Say say, int64_t number, int64_t numel);

  static thread_local State* current;

  std::shared_ptr<comm::Communicator> communicator_;
  at::CallbackHandle callback_ = 0;
  std::vector<Made> made_;
  int64_t clock_ = 0;
  int64_t parameters_ = 0;
  std::exception_ptr failure_;
};

thread_local Init::State* Init::State::current = nullptr;

Init::State::State(std::shared_ptr<comm::Communicator> communicator)
    : communicator_(std::move(communicator)) {
  if (current != nullptr) {
    throw Error("zero.init", "expected one Init at a time, got another that lives. End it first.");
  }
  current = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(start, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

Init::State::~State() {
  at::removeCallback(callback_);
  current = nullptr;
}

std::unique_ptr<at::ObserverContext> Init::State::start(const at::RecordFunction& function) {
  if (current == nullptr || parameter::Silence::active()) return nullptr;
  auto context = std::make_unique<Context>();
  context->read = current->before(function);
  return context;
}

void Init::State::end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr || current == nullptr) return;
  current->after(function, static_cast<Context*>(context)->read);
}

template <class Values, class Fn>
void Init::State::for_each(const Values& values, Fn fn) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      fn(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) fn(tensor);
    }
  }
}

// Ranks say what they do before they do it.
void Init::State::agree(Say say, int64_t number, int64_t numel) {
  if (communicator_->world_size() == 1) return;
  const auto all = comm::exchange(
      *communicator_, at::tensor({static_cast<int64_t>(say), number, numel}, at::kLong));
  const auto* words = all.const_data_ptr<int64_t>();
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const int64_t* said = words + 3 * rank;
    if (said[0] == static_cast<int64_t>(say) && said[1] == number && said[2] == numel) continue;
    if (say == Say::Abandoned) return;
    throw Error("zero.init",
                fmt::format("expected every rank to make the same model, got {} {} of {} elements "
                            "here and {} {} of {} elements on rank {}. Run the same constructors, "
                            "with the same options, on every rank.",
                            word(static_cast<int64_t>(say)), number, numel, word(said[0]), said[1],
                            said[2], rank));
  }
}

Init::State::Storages Init::State::before(const at::RecordFunction& function) {
  const parameter::Silence silence;
  const at::NoGradGuard no_grad;
  ++clock_;
  Storages read;
  for_each(function.inputs(), [&read](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage())
      read.push_back(tensor.storage().unsafeGetStorageImpl());
  });
  try {
    for (const auto* storage : read) touch(storage, 1);
    if (!failure_) partition_idle(kIdleOperators);
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  return read;
}

void Init::State::after(const at::RecordFunction& function, const Storages& read) {
  const parameter::Silence silence;
  for (const auto* storage : read) touch(storage, -1);
  for_each(function.outputs(), [this](const at::Tensor& tensor) { add(tensor); });
}

void Init::State::touch(const c10::StorageImpl* storage, int pins) {
  for (auto& made : made_) {
    if (made.storage != storage) continue;
    made.last_use = clock_;
    made.pins += pins;
    const auto owner = made.tensor.lock();
    if (made.partitioned && owner) fetch(made, at::Tensor(owner));
  }
}

// It may become a parameter.
void Init::State::add(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.is_floating_point()) return;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (tensor.numel() == 0 || tensor.is_view() || !tensor.is_contiguous() ||
      storage->nbytes() != tensor.nbytes()) {
    return;
  }
  const auto known = [&](const Made& made) {
    return made.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  };
  if (std::any_of(made_.begin(), made_.end(), known)) return;
  made_.push_back(
      {c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
       storage, clock_});
}

void Init::State::partition_idle(int64_t idle_operators) {
  std::erase_if(made_, [](const Made& made) { return made.tensor.expired(); });
  for (auto& made : made_) {
    const at::Tensor tensor(made.tensor.lock());
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    if (storage != made.storage) {  // set_data: another type, another device
      parameter::forget_early_shard(tensor);
      made.storage = storage;
      made.partitioned = false;
      made.last_use = clock_;
    }
    const bool idle =
        !made.partitioned && made.pins <= 0 && clock_ - made.last_use >= idle_operators;
    if (idle && tensor.requires_grad() && tensor.is_leaf() && tensor.is_contiguous() &&
        storage->nbytes() == tensor.nbytes()) {
      partition(made, tensor);
    }
  }
}

void Init::State::partition(Made& made, const at::Tensor& tensor) {
  if (made.number < 0) made.number = parameters_++;
  agree(Say::Partition, made.number, tensor.numel());
  const auto values = tensor.detach().to(communicator_->device());
  if (communicator_->world_size() > 1) communicator_->broadcast(values.view({-1}), 0)->wait();
  const layout::Partition slices(tensor.numel(), communicator_->world_size());
  const auto mine = slices.range(communicator_->rank());
  const auto shard = at::zeros({slices.shard_numel()}, values.options());
  shard.narrow(0, 0, mine.numel()).copy_(values.view({-1}).narrow(0, mine.begin, mine.numel()));
  parameter::keep_early_shard(tensor, {shard, communicator_->rank(), communicator_->world_size()});
  made.storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  made.partitioned = true;
}

void Init::State::fetch(Made& made, const at::Tensor& tensor) {
  made.partitioned = false;
  auto whole = at::empty({tensor.numel()}, tensor.options().requires_grad(false));
  try {
    if (failure_) throw Error("zero.init", "an earlier gather failed");
    const auto early = parameter::early_shard(tensor);
    agree(Say::Fetch, made.number, tensor.numel());
    const auto rows =
        at::empty({communicator_->world_size() * early->shard.numel()}, early->shard.options());
    communicator_->all_gather(rows, early->shard)->wait();
    whole.copy_(rows.narrow(0, 0, tensor.numel()));
  } catch (...) {  // the operator runs in any case: it reads NaN, and finish() throws
    if (!failure_) failure_ = std::current_exception();
    whole.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  parameter::forget_early_shard(tensor);
  made.storage->set_data_ptr_noswap(
      whole.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor.device())));
}

void Init::State::finish() {
  const parameter::Silence silence;
  const at::NoGradGuard no_grad;
  if (failure_) std::rethrow_exception(failure_);
  for (auto& made : made_) made.pins = 0;
  partition_idle(0);
  agree(Say::End, parameters_, 0);
}

void Init::State::abandon() noexcept {
  const parameter::Silence silence;
  try {
    if (!failure_) agree(Say::Abandoned, 0, 0);
  } catch (...) {
  }
}

Init::Init(const std::string& config, std::shared_ptr<comm::Communicator> communicator)
    : exceptions_(std::uncaught_exceptions()) {
  const auto checked = load_config(config, communicator->world_size());
  if (checked.zero.stage != 3) return;
  communicator->rendezvous().meet_to_initialize();
  state_ = std::make_unique<State>(std::move(communicator));
}

Init::~Init() {
  if (!state_) return;
  try {
    if (std::uncaught_exceptions() > exceptions_)
      state_->abandon();
    else
      finish();
  } catch (...) {
    kept_failure() = std::current_exception();
  }
}

void Init::finish() {
  if (const auto state = std::exchange(state_, nullptr)) state->finish();
}

void rethrow_init_failure() {
  if (kept_failure()) std::rethrow_exception(std::exchange(kept_failure(), nullptr));
}

}  // namespace equigrad::zero
