#include "engine/profile/flops_profiler.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/autograd/graph_tasks.hpp"
#include "engine/autograd/operator_observer.hpp"
#include "engine/error.hpp"
#include "engine/profile/flop_formulas.hpp"
#include "engine/profile/session.hpp"

namespace equigrad::profile {
namespace {

constexpr std::string_view kNodePrefix = "autograd::engine::evaluate_function: ";
constexpr std::string_view kAccumulate = "AccumulateGrad";

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using Sessions = std::vector<std::shared_ptr<Session>>;

// The profilers that run; RecordFunction's callbacks carry no data of their own.
struct Registry {
  std::mutex mutex;
  Sessions sessions;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

// Where this thread is.
struct Here {
  bool covered = false;      // inside of an operator that has been counted whole
  int64_t operators = 0;     // seen so far
  bool in_node = false;      // of autograd's graph
  bool counts = false;       // the node is one of the model, not the end of a gradient's way
  int64_t sequence = kNone;  // of the node
};

thread_local Here here;

enum class Kind { Node, Counted, Open };

struct Context final : at::ObserverContext {
  Kind kind = Kind::Node;
  Here before;  // of a node
  std::string name;
  bool composite = false;
  int64_t operators = 0;
  Operator made;
  int64_t begin_ns = 0;
  std::vector<std::pair<std::shared_ptr<Session>, int64_t>> marks;  // and module
};

bool is_composite(const c10::OperatorName& name) {
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  return handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

std::unique_ptr<at::ObserverContext> enter_node(std::string_view name) {
  auto context = std::make_unique<Context>();
  context->before = here;
  here.covered = false;
  here.in_node = true;
  here.sequence = kNone;
  here.counts = name.find(kAccumulate) == std::string_view::npos;
  return context;
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    here.sequence = function.seqNr();
    return nullptr;
  }
  const std::string_view name = function.name();
  if (name.substr(0, kNodePrefix.size()) == kNodePrefix) return enter_node(name);
  const auto operator_name = function.operator_name();
  if (!operator_name || here.covered || autograd::Silence::active()) return nullptr;
  ++here.operators;
  const bool backward = autograd::current_graph_task() != -1;
  // Outside of a node, a graph task runs what waits for its end; that is no part of the model.
  if (backward && !(here.in_node && here.counts)) return nullptr;
  auto context = std::make_unique<Context>();
  context->name = name;
  const auto cost = cost_of(context->name, function.inputs());
  context->kind = cost ? Kind::Counted : Kind::Open;
  context->composite = !cost && is_composite(*operator_name);
  context->operators = here.operators;
  context->made = {backward, kNone, backward ? here.sequence : function.seqNr(),
                   cost.value_or(Cost{}), 0};
  Sessions sessions;
  {
    const std::lock_guard lock(registry().mutex);
    sessions = registry().sessions;
  }
  for (auto& session : sessions) {
    if (!backward && session->thread() != std::this_thread::get_id()) continue;
    context->marks.emplace_back(session, session->module_of(function.inputs()));
  }
  here.covered = cost.has_value();
  for (const auto& [session, module] : context->marks) session->wait();
  context->begin_ns = now_ns();
  return context;
}

void end(const at::RecordFunction& /*function*/, at::ObserverContext* observed) {
  if (observed == nullptr) return;
  auto& context = static_cast<Context&>(*observed);
  if (context.kind == Kind::Node) {
    const auto operators = here.operators;
    here = context.before;
    here.operators = operators;
    return;
  }
  if (context.kind == Kind::Counted) here.covered = false;
  const bool ran_others = here.operators != context.operators;
  const bool unknown = context.kind == Kind::Open && !(context.composite && ran_others);
  for (const auto& [session, module] : context.marks) {
    session->wait();
    if (unknown) session->add_unknown(context.name);
    // The time of an operator that ran others is in theirs.
    if (context.kind == Kind::Open && ran_others) continue;
    context.made.module = module;
    session->add(context.made, context.begin_ns, now_ns());
  }
}

autograd::SharedCallback& callback() {
  static autograd::SharedCallback instance(
      at::RecordFunctionCallback(start, end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  return instance;
}

void list_modules(const torch::nn::Module& module, const std::string& name,
                  std::vector<layout::ModuleEntry>& entries) {
  entries.push_back({name, module.name(), {}});
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    entries.back().parameters.push_back(item.value().unsafeGetTensorImpl());
  }
  for (const auto& child : module.named_children()) {
    list_modules(*child.value(), name.empty() ? child.key() : name + "." + child.key(), entries);
  }
}

}  // namespace

std::vector<layout::ModuleEntry> modules_of(const torch::nn::Module& model) {
  std::vector<layout::ModuleEntry> entries;
  list_modules(model, "", entries);
  return entries;
}

FlopsProfiler::FlopsProfiler(std::vector<layout::ModuleEntry> modules,
                             const std::vector<at::Tensor>& parameters)
    : session_(std::make_shared<Session>(std::move(modules), parameters)) {}

FlopsProfiler::FlopsProfiler(const torch::nn::Module& model)
    : FlopsProfiler(modules_of(model), model.parameters()) {}

FlopsProfiler::~FlopsProfiler() {
  if (running_) stop();
}

void FlopsProfiler::start() {
  if (running_) {
    throw Error("profile.start",
                "expected a profiler that is idle, got one that runs. Call stop().");
  }
  session_->begin();
  const std::lock_guard lock(registry().mutex);
  registry().sessions.push_back(session_);
  running_.emplace(callback());
}

void FlopsProfiler::stop() {
  if (!running_) {
    throw Error("profile.stop",
                "expected a profiler that runs, got one that is idle. Call start().");
  }
  const std::lock_guard lock(registry().mutex);
  auto& sessions = registry().sessions;
  sessions.erase(std::find(sessions.begin(), sessions.end(), session_));
  running_.reset();
}

FlopsReport FlopsProfiler::report() const { return session_->report(); }

}  // namespace equigrad::profile
