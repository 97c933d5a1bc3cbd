#include "engine/parameter/leaf_parameters.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "engine/config/suggest.hpp"
#include "engine/error.hpp"

namespace equigrad {
namespace {

const std::string kSection = "zero_optimization.leaf_module";

void erase_all(std::string& text, const std::string& what, const std::string& with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

// models::(anonymous namespace)::MoEImpl -> models.MoE
std::string class_name(std::string written) {
  erase_all(written, "(anonymous namespace)::", "");
  erase_all(written, "::", ".");
  if (written.ends_with("Impl")) written.resize(written.size() - 4);
  return written;
}

// models.MoE<int> -> MoE
std::string bare(const std::string& name) {
  const std::string plain = name.substr(0, name.find('<'));
  std::string last = plain.substr(plain.rfind('.') + 1);
  if (plain.size() != name.size() && last.ends_with("Impl")) last.resize(last.size() - 4);
  return last;
}

class Search {
 public:
  using Path = std::vector<std::string>;
  Search(const std::vector<LeafCandidate>& candidates, std::string where)
      : candidates_(candidates), where_(std::move(where)), found_(candidates.size(), false) {}

  // `shown` gives what candidates could be called.
  void entry(const std::string& kind, const std::string& entry, bool must_match,
             const std::function<bool(const LeafCandidate&)>& is_one,
             const std::function<Path(const LeafCandidate&)>& shown) {
    bool any = false;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (!is_one(candidates_[i])) continue;
      any = found_[i] = true;
    }
    if (any || !must_match) return;
    std::vector<std::string> names;
    for (const auto& candidate : candidates_)
      for (const auto& name : shown(candidate))
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    std::string hint = did_you_mean(entry, names);
    if (hint.empty()) {
      hint = " The model has";
      for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 8); ++i)
        hint += (i == 0 ? " \"" : ", \"") + names[i] + "\"";
      hint += names.size() > 8 ? ", and others." : ".";
    }
    throw Error(where_, "expected " + kind + " of the model, got \"" + entry + "\"." + hint);
  }

  std::vector<std::size_t> found() const {
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (found_[i]) positions.push_back(i);
    return positions;
  }

 private:
  const std::vector<LeafCandidate>& candidates_;
  std::string where_;
  std::vector<bool> found_;
};

bool is_inside(const std::string& name, const std::string& of) {
  return of.empty() || name == of || name.starts_with(of + ".");
}

}  // namespace

std::vector<std::size_t> find_leaf_modules(const std::vector<LeafCandidate>& candidates,
                                           const LeafModuleConfig& config,
                                           const std::string& where) {
  using Path = std::vector<std::string>;
  Search search(candidates, where);
  const auto& defaults = LeafModuleConfig{}.classes;
  const auto path = [](const LeafCandidate& one) { return Path{one.name}; };
  for (const auto& written : config.classes) {
    const std::string name = class_name(written);
    // In C++ nothing has the package of a class of Python.
    const bool is_default = std::find(defaults.begin(), defaults.end(), written) != defaults.end();
    search.entry(
        "the class of a module", written, config.classes != defaults,
        [&](const LeafCandidate& one) {
          const std::string type = class_name(one.type);
          return name == type || (is_default ? bare(name) : name) == bare(type);
        },
        [](const LeafCandidate& one) {
          return Path{bare(class_name(one.type)), class_name(one.type)};
        });
  }
  for (const auto& name : config.names)
    search.entry(
        "the name of a module", name, true,
        [&](const LeafCandidate& one) { return one.name == name; }, path);
  for (const auto& suffix : config.name_suffixes)
    search.entry(
        "the end of the name of a module", suffix, true,
        [&](const LeafCandidate& one) { return one.name.ends_with(suffix); }, path);
  return search.found();
}

std::vector<std::vector<std::size_t>> leaf_parameters(
    const std::vector<layout::ModuleEntry>& modules, const std::vector<at::Tensor>& tensors,
    const LeafModuleConfig& config) {
  std::vector<LeafCandidate> candidates;
  for (const auto& module : modules) candidates.push_back({module.name, module.type});
  std::map<const void*, std::size_t> position;
  for (std::size_t i = 0; i < tensors.size(); ++i) position[tensors[i].unsafeGetTensorImpl()] = i;
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::size_t> leaf_of(tensors.size(), kNone);  // leaves that share one become one
  std::size_t leaves = 0;
  for (const auto at : find_leaf_modules(candidates, config, kSection)) {
    const std::size_t leaf = leaves++;
    for (const auto& module : modules) {
      if (!is_inside(module.name, modules[at].name)) continue;
      for (const auto* identity : module.parameters) {
        const auto found = position.find(identity);
        if (found == position.end()) continue;
        const std::size_t before = std::exchange(leaf_of[found->second], leaf);
        if (before != kNone && before != leaf)
          std::replace(leaf_of.begin(), leaf_of.end(), before, leaf);
      }
    }
  }
  std::vector<std::vector<std::size_t>> groups(leaves);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (leaf_of[i] != kNone) groups[leaf_of[i]].push_back(i);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

}  // namespace equigrad
