#include "engine/profile/session.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace equigrad::profile {

Session::Session(std::vector<layout::ModuleEntry> modules,
                 const std::vector<at::Tensor>& parameters)
    : modules_(std::move(modules)) {
  for (const auto& tensor : parameters) parameters_[tensor.unsafeGetTensorImpl()] = tensor;
  std::unordered_map<std::string, int64_t> by_name;
  for (const auto& entry : modules_) {
    // "a.b.c" is in "a.b", or in "a" if there is no module "a.b"; the model is in none.
    auto parent = kNone;
    auto name = entry.name;
    while (!name.empty() && parent == kNone) {
      const auto dot = name.rfind('.');
      name = dot == std::string::npos ? "" : name.substr(0, dot);
      const auto found = by_name.find(name);
      parent = found == by_name.end() ? (name.empty() ? 0 : kNone) : found->second;
    }
    by_name.emplace(entry.name, static_cast<int64_t>(parents_.size()));
    parents_.push_back(parent);
  }
}

void Session::begin() {
  thread_ = std::this_thread::get_id();
  owners_.clear();
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    for (const auto* identity : modules_[i].parameters) {
      const auto found = parameters_.find(identity);
      if (found == parameters_.end()) continue;
      const auto& tensor = found->second;
      if (!tensor.has_storage() || tensor.numel() == 0) continue;
      owners_.emplace(tensor.storage().unsafeGetStorageImpl(), static_cast<int64_t>(i));
      if (!tensor.device().is_cpu()) device_ = tensor.device();
    }
  }
  const std::lock_guard lock(mutex_);
  operators_.clear();
  unknown_.clear();
  span_ns_[0] = span_ns_[1] = 0;
  span_begin_ns_ = kNone;
}

int64_t Session::owner_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return kNone;
  const auto found = owners_.find(tensor.storage().unsafeGetStorageImpl());
  return found == owners_.end() ? kNone : found->second;
}

int64_t Session::module_of(c10::ArrayRef<c10::IValue> inputs) const {
  for (const auto& input : inputs) {
    if (input.isTensor()) {
      if (const auto owner = owner_of(input.toTensor()); owner != kNone) return owner;
    } else if (input.isList()) {
      for (const c10::IValue& element : input.toListRef()) {
        if (!element.isTensor()) break;
        if (const auto owner = owner_of(element.toTensor()); owner != kNone) return owner;
      }
    }
  }
  return kNone;
}

void Session::wait() const {
  if (!device_) return;
  c10::impl::VirtualGuardImpl(device_->type()).synchronizeDevice(device_->index());
}

void Session::close_span() {
  if (span_begin_ns_ != kNone) span_ns_[span_backward_ ? 1 : 0] += span_end_ns_ - span_begin_ns_;
  span_begin_ns_ = kNone;
}

void Session::add(const Operator& made, int64_t begin_ns, int64_t end_ns) {
  const std::lock_guard lock(mutex_);
  if (span_begin_ns_ != kNone && span_backward_ != made.backward) close_span();
  if (span_begin_ns_ == kNone) span_begin_ns_ = begin_ns;
  span_backward_ = made.backward;
  span_end_ns_ = end_ns;
  operators_.push_back(made);
  operators_.back().time_ns = end_ns - begin_ns;
}

// The deepest module that contains both.
int64_t Session::common(int64_t a, int64_t b) const {
  std::unordered_set<int64_t> above;
  for (; a != kNone; a = parents_[static_cast<std::size_t>(a)]) above.insert(a);
  while (above.count(b) == 0) b = parents_[static_cast<std::size_t>(b)];
  return b;
}

void Session::add_unknown(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++unknown_[name];
}

// Operators that say nothing of their module wait for the next one that does.
void Session::resolve_phase(bool backward, const std::unordered_map<int64_t, int64_t>& made_by,
                            std::vector<int64_t>& resolved) const {
  std::vector<std::size_t> waiting;
  int64_t last = 0;
  const auto settle = [&](int64_t next) {
    for (const auto i : waiting) resolved[i] = common(last, next);
    waiting.clear();
    last = next;
  };
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    const auto& made = operators_[i];
    if (made.backward != backward) continue;
    auto module = made.module;
    if (module == kNone && backward) {
      const auto found = made_by.find(made.sequence);
      if (found != made_by.end()) module = found->second;
    }
    if (module == kNone) {
      waiting.push_back(i);
      continue;
    }
    settle(module);
    resolved[i] = module;
  }
  settle(0);
}

// The module of every operator.
std::vector<int64_t> Session::resolve() const {
  std::vector<int64_t> resolved(operators_.size(), kNone);
  std::unordered_map<int64_t, int64_t> made_by;  // node -> module
  resolve_phase(false, made_by, resolved);
  // An operator that makes no node shows the number of the next one that does: the last counts.
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    if (!operators_[i].backward && operators_[i].sequence != kNone) {
      made_by[operators_[i].sequence] = resolved[i];
    }
  }
  resolve_phase(true, made_by, resolved);
  return resolved;
}

void Session::describe_modules(FlopsReport& report) const {
  std::vector<std::unordered_map<const void*, int64_t>> tensors(modules_.size());
  for (std::size_t i = modules_.size(); i-- > 0;) {
    for (const auto* identity : modules_[i].parameters) {
      const auto found = parameters_.find(identity);
      if (found != parameters_.end()) tensors[i].emplace(identity, found->second.numel());
    }
    auto& module = report.modules[i];
    module.name = modules_[i].name;
    module.type = modules_[i].type;
    for (const auto& [tensor, numel] : tensors[i]) module.params_numel += numel;
    for (auto at = parents_[i]; at != kNone; at = parents_[static_cast<std::size_t>(at)]) {
      ++module.depth;
    }
    if (parents_[i] != kNone) {
      tensors[static_cast<std::size_t>(parents_[i])].insert(tensors[i].begin(), tensors[i].end());
    }
  }
}

FlopsReport Session::report() const {
  const std::lock_guard lock(mutex_);
  FlopsReport report;
  report.modules.resize(modules_.size());
  describe_modules(report);
  const auto resolved = resolve();
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    auto& module = report.modules[static_cast<std::size_t>(resolved[i])];
    auto& own = operators_[i].backward ? module.own_backward : module.own_forward;
    own += {operators_[i].cost.flops, operators_[i].cost.macs, operators_[i].time_ns};
  }
  for (std::size_t i = modules_.size(); i-- > 0;) {
    auto& module = report.modules[i];
    module.forward += module.own_forward;
    module.backward += module.own_backward;
    if (parents_[i] == kNone) continue;
    auto& parent = report.modules[static_cast<std::size_t>(parents_[i])];
    parent.forward += module.forward;
    parent.backward += module.backward;
  }
  for (const auto& [name, count] : unknown_) report.unknown.push_back({name, count});
  int64_t span_ns[2] = {span_ns_[0], span_ns_[1]};
  if (span_begin_ns_ != kNone) span_ns[span_backward_ ? 1 : 0] += span_end_ns_ - span_begin_ns_;
  report.forward_ns = span_ns[0];
  report.backward_ns = span_ns[1];
  return report;
}

}  // namespace equigrad::profile
