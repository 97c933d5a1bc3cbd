// ParameterTable: every parameter once, in registration order, whatever it is called.
//
// A tensor that is registered under several names (tied weights) has one entry: the first name
// names it, the later ones are aliases, and all of them find it.
//
// A tied parameter is of lower precision if it is so under every name.
//
// Invariants: one entry per identity; names and aliases are unique; index = position in entries();
// numel is the product of shape.
// Units: numel counts elements, element_bytes bytes; an empty parameter has numel 0, a scalar has
// shape [] and numel 1.
// Errors: equigrad::Error for an empty or duplicate name, for a tied parameter whose registrations
// disagree (group, shape, trainable, type), for an unknown name (with a suggestion).
// Depends on: engine/error.hpp, engine/config/suggest.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace equigrad::layout {

// A parameter of at least this many elements is sent alone (a weight: if it can be received where
// it stays): copying it into a larger message and out of it would cost more than a collective
// saves.
inline constexpr std::int64_t kAloneNumel = std::int64_t{1} << 17;

// One parameter as the model registers it.
struct Registration {
  std::string name;
  const void* identity = nullptr;  // the same for every name of a tied parameter
  std::vector<std::int64_t> shape;
  bool trainable = true;
  std::size_t group = 0;
  bool lower_precision = false;    // is sent in a type of fewer bits (autocast's safe modules)
  std::int64_t element_bytes = 0;  // of a type of its own (integers); 0: the model's
};

struct Entry {
  std::string name;
  std::int64_t numel = 0;
  std::vector<std::int64_t> shape;
  bool trainable = true;
  std::size_t group = 0;
  bool lower_precision = false;
  std::vector<std::string> aliases;
  std::int64_t element_bytes = 0;  // as registered
  bool operator==(const Entry&) const = default;
};

class ParameterTable {
 public:
  explicit ParameterTable(const std::vector<Registration>& registrations);

  std::size_t size() const { return entries_.size(); }
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry& operator[](std::size_t index) const { return entries_.at(index); }
  // Index by name or alias.
  std::size_t index_of(const std::string& name) const;
  bool contains(const std::string& name) const { return index_by_name_.count(name) != 0; }

 private:
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> index_by_name_;
};

}  // namespace equigrad::layout
