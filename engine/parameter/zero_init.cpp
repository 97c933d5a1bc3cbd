#include "engine/zero_init.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
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

#include "engine/agreement/coordinator.hpp"
#include "engine/autograd/interpreter_lock.hpp"
#include "engine/autograd/operator_observer.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/config/config.hpp"
#include "engine/layout/partition.hpp"
#include "engine/parameter/early_shards.hpp"

namespace equigrad::zero {
namespace {

constexpr int64_t kIdleOperators = 8;

enum class Say : int64_t { Partition, Gather, End, Abandoned };

std::exception_ptr& kept_failure() {
  static std::exception_ptr failure;
  return failure;
}

std::string told(int64_t say, int64_t number, int64_t numel) {
  switch (static_cast<Say>(say)) {
    case Say::Partition:
      return fmt::format("parameter {} of {} elements to partition", number, numel);
    case Say::Gather:
      return fmt::format("parameter {} of {} elements to use again", number, numel);
    case Say::End:
      return fmt::format("the end, with {} parameters", number);
    case Say::Abandoned:
      return "an exception";
  }
  return "a word that is none";
}

template <class Values, class Fn>
void for_each_tensor(const Values& values, Fn fn) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) fn(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) fn(element.toTensor());
      }
    }
  }
}

// All of its storage, and nobody else's.
bool may_leave(const at::Tensor& tensor) {
  return tensor.requires_grad() && tensor.is_leaf() && tensor.is_non_overlapping_and_dense() &&
         tensor.numel() != 0 && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

}  // namespace

class Init::State {
 public:
  explicit State(std::shared_ptr<comm::Communicator> communicator);
  ~State();

  void finish();
  void abandon() noexcept;

 private:
  // A tensor that an operator made or used, and which may be a parameter.
  struct Candidate {
    c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor;
    int64_t last_use;
  };
  struct Context final : at::ObserverContext {};

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);

  void before(const at::RecordFunction& function);
  void after(const at::RecordFunction& function);
  void use(const at::Tensor& tensor);
  void partition_idle(int64_t idle_operators);
  void partition(const at::Tensor& tensor);
  void gather(const at::Tensor& tensor, const parameter::EarlyShard& early);
  void agree(Say say, int64_t number, int64_t numel);

  static thread_local State* current;

  std::shared_ptr<comm::Communicator> communicator_;
  at::CallbackHandle callback_ = 0;
  std::vector<Candidate> candidates_;
  int depth_ = 0;  // of operators that operators run
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
  if (current == nullptr || autograd::Silence::active()) return nullptr;
  const autograd::WithoutInterpreter without;  // ranks are waited for
  current->before(function);
  return std::make_unique<Context>();
}

void Init::State::end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr || current == nullptr) return;
  const autograd::WithoutInterpreter without;
  current->after(function);
}

// Ranks say what they do before they do it.
void Init::State::agree(Say say, int64_t number, int64_t numel) {
  if (communicator_->world_size() == 1) return;
  const auto word = static_cast<int64_t>(say);
  const auto all =
      comm::exchange(*communicator_, at::tensor({word, number, numel}, at::kLong)).contiguous();
  const auto* words = all.const_data_ptr<int64_t>();
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const int64_t* said = words + 3 * rank;
    if (said[0] == word && said[1] == number && said[2] == numel) continue;
    if (say == Say::Abandoned) return;
    throw Error(
        "zero.init",
        fmt::format("expected every rank to make the same model, got {} here and {} on rank {}. "
                    "Run the same constructors, with the same options, on every rank.",
                    told(word, number, numel), told(said[0], said[1], said[2]), rank));
  }
}

void Init::State::before(const at::RecordFunction& function) {
  const autograd::Silence silence;
  const at::NoGradGuard no_grad;
  const bool outermost = depth_++ == 0;
  if (outermost) ++clock_;
  for_each_tensor(function.inputs(), [this](const at::Tensor& tensor) { use(tensor); });
  // Only between operators of the model's own: what those run may hold pointers.
  if (!outermost || failure_) return;
  try {
    partition_idle(kIdleOperators);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void Init::State::after(const at::RecordFunction& function) {
  --depth_;
  const autograd::Silence silence;
  for_each_tensor(function.outputs(), [this](const at::Tensor& tensor) { use(tensor); });
}

void Init::State::use(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.is_meta() || !tensor.is_floating_point()) return;
  if (const auto early = parameter::early_shard(tensor)) gather(tensor, *early);
  const auto known =
      std::find_if(candidates_.begin(), candidates_.end(), [&tensor](const Candidate& candidate) {
        return candidate.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl();
      });
  if (known != candidates_.end()) {
    known->last_use = clock_;
    return;
  }
  candidates_.push_back(
      {c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
       clock_});
}

void Init::State::partition_idle(int64_t idle_operators) {
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    if (candidate.tensor.expired()) return true;
    if (clock_ - candidate.last_use < idle_operators) return false;
    const at::Tensor tensor(candidate.tensor.lock());
    if (!may_leave(tensor)) return tensor.storage().use_count() == 1;  // no parameter
    partition(tensor);
    return true;
  });
}

void Init::State::partition(const at::Tensor& tensor) {
  agree(Say::Partition, parameters_, tensor.numel());
  const auto values = tensor.detach().to(communicator_->device()).reshape({-1});
  if (communicator_->world_size() > 1) communicator_->broadcast(values, 0)->wait();
  const layout::Partition slices(tensor.numel(), communicator_->world_size());
  const auto mine = slices.range(communicator_->rank());
  const auto shard = at::zeros({slices.shard_numel()}, values.options());
  shard.narrow(0, 0, mine.numel()).copy_(values.narrow(0, mine.begin, mine.numel()));
  parameter::keep_early_shard(
      tensor, {shard, parameters_++, communicator_->rank(), communicator_->world_size()});
}

void Init::State::gather(const at::Tensor& tensor, const parameter::EarlyShard& early) {
  auto whole =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false));
  try {
    if (failure_) std::rethrow_exception(failure_);
    agree(Say::Gather, early.number, tensor.numel());
    const auto rows =
        at::empty({communicator_->world_size() * early.shard.numel()}, early.shard.options());
    communicator_->all_gather(rows, early.shard)->wait();
    whole.copy_(rows.narrow(0, 0, tensor.numel()).view(tensor.sizes()));
  } catch (...) {  // the operator runs in any case: it reads NaN, and finish() throws
    if (!failure_) failure_ = std::current_exception();
    whole.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  parameter::give_back(tensor, whole);
}

void Init::State::finish() {
  const autograd::Silence silence;
  const at::NoGradGuard no_grad;
  if (failure_) std::rethrow_exception(failure_);
  partition_idle(0);
  agree(Say::End, parameters_, 0);
}

void Init::State::abandon() noexcept {
  const autograd::Silence silence;
  try {
    if (!failure_) agree(Say::Abandoned, 0, 0);
  } catch (...) {
  }
}

Init::Init(const std::string& config, std::shared_ptr<comm::Communicator> communicator)
    : exceptions_(std::uncaught_exceptions()) {
  const auto checked = load_config(config, communicator->world_size());
  if (checked.zero.stage != 3) return;
  agreement::coordinator_of(*communicator).meet_to_initialize();
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
