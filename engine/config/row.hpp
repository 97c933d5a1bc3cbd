// Row: a key of the configuration and all that is known of it: what it is called, which values it
// takes, where its value is kept, what DeepSpeed means by it, and what it does here.
//
// Invariants: rows are constants: no code runs before main for them. A number is written once: the
// default of a row with a field is that field's in EngineConfig{}.
// Units: as in config.hpp.
// Errors: none; schema.hpp words them.
// Depends on: engine/config/config.hpp, engine/config/json.hpp. For the sources of the
// configuration only.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "engine/config/config.hpp"
#include "engine/config/json.hpp"

namespace equigrad {

using Words = std::span<const char* const>;

// Section: looked into. Read: honoured. NoEffect: accepted, though it changes nothing here.
// Unsupported: refused, unless it says what is true here anyway.
enum class KeyTreatment { Section, Read, NoEffect, Unsupported };

// One of some words.
struct Choice {
  Words names;                   // those of an enumeration in the order of its enumerators
  Words refused{};               // known, but not accepted
  const char* why_refused = "";  // goes on after the name that was given
  Words suggested{};             // instead of `names`, one for each
  const char* otherwise = "";    // where no name is near
  bool any_case = false, is_quoted = true;
};

enum class ValueType {
  Any,
  Whole,
  Number,
  Boolean,
  Text,
  Choice,
  DataType,  // by any name that DeepSpeed takes for it
  Names,     // a list of texts, none of them empty
  Classes,   // a list of texts
  PerGroup,  // a number, or one for each parameter group
  Pair,      // two numbers
  Norm,      // 2 or "inf"
  Specs,     // a list of layer specs (sections/layer_specs.hpp)
  Shape,     // whole numbers, or lists of them
  Scale      // a number, also in quotes, or "dynamic"
};

// What a value may be. The range is that of every number in it.
struct Values {
  ValueType type = ValueType::Any;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool is_below_most = false;      // and not `most` itself
  bool is_fp32 = false;            // rounded to fp32, it stays finite
  bool is_required = false;        // the key has no default
  bool is_derived = false;         // where the key is absent, from other keys
  const char* expected = nullptr;  // words for the range; null: by its bounds
  const char* remedy = nullptr;    // null: what the type suggests
  const Choice* choice = nullptr;

  constexpr Values saying(const char* range, const char* what_to_do) const {
    Values values = *this;
    values.expected = range;
    values.remedy = what_to_do;
    return values;
  }
};

constexpr Values of_type(ValueType type) { return {.type = type}; }

constexpr Values boolean() { return of_type(ValueType::Boolean); }

constexpr Values number() { return of_type(ValueType::Number); }

constexpr Values one_of(const Choice& choice) {
  return {.type = ValueType::Choice, .choice = &choice};
}

constexpr Values at_least(int least) {
  return {.type = ValueType::Whole, .least = static_cast<double>(least)};
}

constexpr Values between(double least, double most, ValueType type = ValueType::Number) {
  return {.type = type, .least = least, .most = most};
}

// A scalar of an update, which is rounded once to fp32.
constexpr Values not_negative() {
  return {.type = ValueType::Number, .least = 0.0, .is_fp32 = true};
}

// Where a row's value is in an EngineConfig, and which configurations have such a key (null: all).
// Without `set`, the row's section stores and checks it; without `get`, there is only the default,
// as JSON.
struct Field {
  using Get = Json (*)(const EngineConfig&);
  using Set = void (*)(EngineConfig&, const Json&);
  using Of = bool (*)(const EngineConfig&);
  constexpr Field(const char* fallback = "null", Of of = nullptr) : fallback(fallback), of(of) {}
  constexpr Field(Get get, Set set, Of of = nullptr) : get(get), set(set), of(of) {}

  Get get = nullptr;
  Set set = nullptr;
  const char* fallback = "null";
  Of of = nullptr;
};

struct Row {
  const char* path;  // "section.key", or ".key" of the section before it
  KeyTreatment treatment = KeyTreatment::Read;
  Values values{};
  Field field{};
  const char* words = "";  // what DeepSpeed means by it; of our own keys, what we do
  // Read: how it differs here, or empty. NoEffect: why. Unsupported: what to do instead, or empty.
  const char* here = "";
  // Unsupported: the values that are accepted, as a JSON array. Section: those that may stand in
  // its place.
  const char* accepted = "[]";
  const char* default_note = "";  // what the default means

  constexpr Row noting(const char* note) const {
    Row row = *this;
    row.default_note = note;
    return row;
  }
};

constexpr Row section(const char* path, const char* words, const char* accepted = "[]") {
  return {.path = path, .treatment = KeyTreatment::Section, .words = words, .accepted = accepted};
}

constexpr Row key(const char* path, Values values, Field field, const char* words,
                  const char* here = "") {
  return {.path = path, .values = values, .field = field, .words = words, .here = here};
}

constexpr Row no_effect(const char* path, const char* words, const char* why) {
  return {.path = path, .treatment = KeyTreatment::NoEffect, .words = words, .here = why};
}

constexpr Row unsupported(const char* path, const char* words, const char* accepted = "[]",
                          const char* remedy = "") {
  return {.path = path,
          .treatment = KeyTreatment::Unsupported,
          .words = words,
          .here = remedy,
          .accepted = accepted};
}

// The words of enumerations, in the order of their enumerators.
inline constexpr const char* kReductionOrders[] = {"pinned", "native", "exact"};
inline constexpr const char* kDataTypes[] = {"fp32", "bf16", "fp16"};
inline constexpr const char* kWarmupTypes[] = {"log", "linear"};
constexpr const char* name_of(ReductionOrder order) {
  return kReductionOrders[static_cast<int>(order)];
}
constexpr const char* name_of(DataType type) { return kDataTypes[static_cast<int>(type)]; }
constexpr const char* name_of(SchedulerConfig::WarmupType type) {
  return kWarmupTypes[static_cast<int>(type)];
}

// Values of fields as JSON, and back: an enumerator is its word, and a list of rates that has one
// number is the number.
template <class Value>
Json json_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>)
    return name_of(value);
  else
    return value;
}
template <class Value>
Json json_of(const std::optional<Value>& value) {
  return value ? json_of(*value) : Json();
}
inline Json json_of(const SchedulerConfig::PerGroup& value) {
  if (value.empty()) return nullptr;
  return value.size() == 1 ? Json(value[0]) : Json(value);
}

template <class Value>
void assign(Value& to, const Json& value) {
  if constexpr (std::is_enum_v<Value>)
    for (int i = 0; value != json_of(to = static_cast<Value>(i)); ++i) continue;
  else
    to = value.get<Value>();
}
template <class Value>
void assign(std::optional<Value>& to, const Json& value) {
  assign(to.emplace(), value);
}
inline void assign(SchedulerConfig::PerGroup& to, const Json& value) {
  to = (value.is_array() ? value : Json::array({value})).get<SchedulerConfig::PerGroup>();
}

// The field that pointers to members lead to: field<&EngineConfig::zero, &ZeroConfig::stage>.
template <auto... kMembers>
inline constexpr Field field{
    [](const EngineConfig& config) { return json_of((config.*....*kMembers)); },
    [](EngineConfig& config, const Json& value) { assign((config.*....*kMembers), value); }};

// The same field, for a row whose section stores the value.
template <auto... kMembers>
inline constexpr Field default_of{field<kMembers...>.get, nullptr};

}  // namespace equigrad
