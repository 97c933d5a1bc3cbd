#include "engine/layout/parameter_table.hpp"

#include <limits>

#include "engine/config/suggest.hpp"
#include "engine/error.hpp"

namespace equigrad::layout {
namespace {

constexpr const char* kWhere = "layout.parameter_table";

std::int64_t product(const Registration& registration) {
  std::int64_t numel = 1;
  for (const std::int64_t size : registration.shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel))
      throw Error(kWhere,
                  "expected a shape whose sizes are at least 0 and whose product fits in "
                  "64 bits, got size " +
                      std::to_string(size) + " for parameter \"" + registration.name +
                      "\". Give the tensor's own sizes.");
  }
  return numel;
}

void check_tied(const Entry& entry, const Registration& again) {
  const std::string names = "\"" + entry.name + "\" and \"" + again.name + "\"";
  if (entry.group != again.group)
    throw Error(kWhere, "expected a tied parameter in one group, got " + names + " in groups " +
                            std::to_string(entry.group) + " and " + std::to_string(again.group) +
                            ". Leave it in one of them.");
  if (entry.shape != again.shape || entry.trainable != again.trainable ||
      entry.element_bytes != again.element_bytes)
    throw Error(kWhere, "expected the names of a tied parameter to agree, got " + names +
                            " with different shapes, types or requires_grad. Register one tensor.");
}

}  // namespace

ParameterTable::ParameterTable(const std::vector<Registration>& registrations) {
  std::map<const void*, std::size_t> index_by_identity;
  for (const Registration& registration : registrations) {
    if (registration.name.empty())
      throw Error(kWhere, "expected a name for every parameter, got an empty one after " +
                              std::to_string(index_by_name_.size()) +
                              " others. Name it as the module does.");
    if (registration.identity == nullptr)
      throw Error(kWhere, "expected an identity for parameter \"" + registration.name +
                              "\", got null. Give the address of its tensor.");
    const auto [tied, is_new] =
        index_by_identity.try_emplace(registration.identity, entries_.size());
    if (!index_by_name_.try_emplace(registration.name, tied->second).second)
      throw Error(kWhere, "expected every name once, got \"" + registration.name +
                              "\" twice. Rename one of the parameters.");
    const std::int64_t numel = product(registration);
    if (is_new) {
      entries_.push_back({.name = registration.name,
                          .numel = numel,
                          .shape = registration.shape,
                          .trainable = registration.trainable,
                          .group = registration.group,
                          .lower_precision = registration.lower_precision,
                          .aliases = {},
                          .element_bytes = registration.element_bytes});
    } else {
      Entry& entry = entries_[tied->second];
      check_tied(entry, registration);
      entry.lower_precision = entry.lower_precision && registration.lower_precision;
      entry.aliases.push_back(registration.name);
    }
  }
  EQUIGRAD_CHECK(
      index_by_name_.size() == registrations.size() && entries_.size() == index_by_identity.size(),
      kWhere, "one entry per identity, one index per name");
}

std::size_t ParameterTable::index_of(const std::string& name) const {
  const auto found = index_by_name_.find(name);
  if (found != index_by_name_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, index] : index_by_name_) names.push_back(known);
  throw Error(kWhere, "expected the name of one of " + std::to_string(entries_.size()) +
                          " parameters, got \"" + name + "\"." + did_you_mean(name, names));
}

}  // namespace equigrad::layout
