#include "engine/layout/module_tree.hpp"

#include <map>

namespace equigrad::layout {

std::vector<ModuleEntry> modules_of(
    const std::vector<std::pair<std::string, const void*>>& parameters) {
  std::map<std::string, std::vector<const void*>> by_module{{"", {}}};
  for (const auto& [name, identity] : parameters) {
    const auto last = name.rfind('.');
    by_module[last == std::string::npos ? "" : name.substr(0, last)].push_back(identity);
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      by_module.try_emplace(name.substr(0, dot));
  }
  // A parent's name sorts before its children's.
  std::vector<ModuleEntry> modules;
  for (auto& [name, identities] : by_module)
    modules.push_back({name, "Module", std::move(identities)});
  return modules;
}

}  // namespace equigrad::layout
