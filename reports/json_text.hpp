// JsonText: what all JSON documents have in common: fields, numbers, the environment, lines.
//
// A record has a list of fields, from which it is written and read (kFields), or functions
// to_json(Json&, const Record&), which nlohmann finds by the record's type.
//
// Invariants: keys stay in the order in which they were given. A float is a number that reads back
//   to the same double; NaN and infinities are the strings "nan", "inf", "-inf". 64-bit numbers are
//   given as decimal strings by the callers: not every reader has them.
// Units: none.   Errors: std::runtime_error or nlohmann's for a value of another type.
// Depends on: record.hpp, text.hpp, nlohmann-json.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "reports/record.hpp"

// Null where there is no value.
template <class Value>
struct nlohmann::adl_serializer<std::optional<Value>> {
  static void to_json(auto& json, const std::optional<Value>& value) {
    if (value) json = *value;
  }
  static void from_json(const auto& json, std::optional<Value>& value) {
    if (!json.is_null()) value = json.template get<Value>();
  }
};

namespace equigrad::reports {

using Json = nlohmann::ordered_json;

// A key and the member that it holds. A key that is optional is left out where the member is empty
// or 0.
template <class Record, class Value>
struct Field {
  const char* key;
  Value Record::*member;
  bool is_optional = false;
};
template <class Record, class Value>
Field(const char*, Value Record::*) -> Field<Record, Value>;
template <class Record, class Value>
Field(const char*, Value Record::*, bool) -> Field<Record, Value>;

// A tuple of Field, in the order in which they are written.
template <class Record>
inline constexpr auto kFields = nullptr;
template <class Record>
concept HasFields = !std::is_null_pointer_v<std::remove_cv_t<decltype(kFields<Record>)>>;

template <>
inline constexpr auto kFields<Environment> = std::tuple(
    Field{"version", &Environment::version}, Field{"commit", &Environment::commit},
    Field{"torch", &Environment::torch}, Field{"compiler", &Environment::compiler},
    Field{"device", &Environment::device}, Field{"cpu", &Environment::cpu},
    Field{"cores", &Environment::cores}, Field{"threads_per_rank", &Environment::threads_per_rank},
    Field{"os", &Environment::os}, Field{"time", &Environment::time});

template <class Value>
void read(const Json& json, Value& value) {
  json.get_to(value);
}
void read(const Json& json, double& value);

void to_json(Json& json, Verdict verdict);
void from_json(const Json& json, Verdict& read);

std::runtime_error no_whole_number(uint64_t largest, const Json& got);

// Whole numbers from 0 to the type's largest; nlohmann's own reading cuts off what is more.
template <std::integral Whole>
requires(!std::is_same_v<Whole, bool>) void read(const Json& json, Whole& value) {
  if (!json.is_number_unsigned() || !std::in_range<Whole>(json.get<uint64_t>()))
    throw no_whole_number(std::numeric_limits<Whole>::max(), json);
  value = json.get<Whole>();
}

template <class Value>
void read(const Json& json, std::map<std::string, Value>& values) {
  values.clear();
  for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) read(value, values[key]);
}

// Adds to an object.
template <HasFields Record>
void add_fields(Json& json, const Record& record) {
  const auto write = [&](const auto& field) {
    Json value = record.*field.member;
    const bool is_empty = value.empty() || value == "" || value == 0;
    if (!field.is_optional || !is_empty) json[field.key] = std::move(value);
  };
  std::apply([&](const auto&... field) { (write(field), ...); }, kFields<Record>);
}

template <HasFields Record>
void to_json(Json& json, const Record& record) {
  add_fields(json, record);
}

template <HasFields Record>
void from_json(const Json& json, Record& record) {
  const auto read_field = [&](const auto& field) {
    if (!field.is_optional || json.contains(field.key))
      read(json.at(field.key), record.*field.member);
  };
  std::apply([&](const auto&... field) { (read_field(field), ...); }, kFields<Record>);
}

// A line for each value, or for each member of the document and each object in a list, so that two
// documents can be compared line by line; ends with a newline. Bytes that are not UTF-8 become
// U+FFFD.
std::string document_lines(Json document);
std::string indented_lines(Json document);

}  // namespace equigrad::reports
