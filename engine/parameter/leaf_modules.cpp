#include "engine/leaf_modules.hpp"

#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/error.hpp"
#include "engine/parameter/leaf_parameters.hpp"

namespace equigrad {
namespace {

// A module has no place for a mark, and may stand on the stack; its parameters tell whether what is
// at its address is still the same module. One without any gathers nothing.
struct Mark {
  const torch::nn::Module* module;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> parameters;

  bool is_of(const std::vector<at::Tensor>& present) const {
    return std::any_of(parameters.begin(), parameters.end(), [&](const auto& weak) {
      const auto known = weak.lock();
      return known && std::any_of(present.begin(), present.end(), [&](const at::Tensor& tensor) {
               return tensor.unsafeGetTensorImpl() == known.get();
             });
    });
  }
  bool is_gone() const {
    return std::all_of(parameters.begin(), parameters.end(),
                       [](const auto& weak) { return weak.expired(); });
  }
};

struct Marks {
  std::mutex mutex;
  std::vector<Mark> all;
};

Marks& marks() {
  static Marks instance;
  return instance;
}

void mark(const torch::nn::Module& module, bool leaf) {
  auto& all = marks().all;
  const std::lock_guard lock(marks().mutex);
  std::erase_if(all, [&](const Mark& one) { return one.is_gone() || one.module == &module; });
  const auto parameters = module.parameters();
  if (!leaf || parameters.empty()) return;
  all.push_back({&module, {}});
  for (const auto& tensor : parameters)
    all.back().parameters.emplace_back(tensor.getIntrusivePtr());
}

struct Listed {
  std::vector<torch::nn::Module*> modules;
  std::vector<LeafCandidate> candidates;
};

Listed listed(torch::nn::Module& model) {
  Listed all{{&model}, {{"", model.name()}}};
  const auto below = model.named_modules("", /*include_self=*/false);
  for (const auto& item : below) {
    all.modules.push_back(item.value().get());
    all.candidates.push_back({item.key(), item.value()->name()});
  }
  return all;
}

LeafModules mark_found(torch::nn::Module& model, bool leaf, LeafModuleConfig which) {
  const auto all = listed(model);
  LeafModules found;
  for (const auto at : find_leaf_modules(all.candidates, which, "leaf_modules")) {
    found.push_back(all.modules[at]);
    mark(*found.back(), leaf);
  }
  return found;
}

}  // namespace

LeafModules set_z3_leaf_modules(torch::nn::Module& model, const Names& classes) {
  return mark_found(model, true, {classes, {}, {}});
}
LeafModules set_z3_leaf_modules_by_name(torch::nn::Module& model, const Names& names) {
  return mark_found(model, true, {{}, names, {}});
}
LeafModules set_z3_leaf_modules_by_suffix(torch::nn::Module& model, const Names& suffixes) {
  return mark_found(model, true, {{}, {}, suffixes});
}
LeafModules unset_z3_leaf_modules(torch::nn::Module& model, const Names& classes) {
  return mark_found(model, false, {classes, {}, {}});
}
LeafModules unset_z3_leaf_modules_by_name(torch::nn::Module& model, const Names& names) {
  return mark_found(model, false, {{}, names, {}});
}
LeafModules unset_z3_leaf_modules_by_suffix(torch::nn::Module& model, const Names& suffixes) {
  return mark_found(model, false, {{}, {}, suffixes});
}

bool z3_leaf_module(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  const std::lock_guard lock(marks().mutex);
  return std::any_of(marks().all.begin(), marks().all.end(), [&](const Mark& one) {
    return one.module == &module && one.is_of(parameters);
  });
}

LeafModules get_z3_leaf_modules(torch::nn::Module& model) {
  auto all = listed(model).modules;
  std::erase_if(all, [](const torch::nn::Module* module) { return !z3_leaf_module(*module); });
  return all;
}

LeafModules mark_leaf_modules(torch::nn::Module& model, bool leaf, const std::string& what,
                              const std::function<bool(const torch::nn::Module&)>& is_one) {
  auto all = listed(model).modules;
  std::erase_if(all, [&](const torch::nn::Module* module) { return !is_one(*module); });
  if (all.empty())
    throw Error("leaf_modules", "expected " + what +
                                    " in the model, got none. Look at "
                                    "named_modules(), or give a base class.");
  for (const auto* module : all) mark(*module, leaf);
  return all;
}

}  // namespace equigrad
