#include "engine/config/documents.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "engine/config/schema.hpp"

namespace equigrad {
namespace {

constexpr double kInfiniteInFp32 = 3.4028235677973366e38;  // rounds to infinity, as all beyond it

Json not_auto() { return {{"not", {{"const", "auto"}}}}; }

// A pattern that a text matches whatever the case of its letters.
std::string any_case(const std::string& word) {
  std::string pattern;
  for (const char c : word) {
    const char up = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const char low = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (up != low)
      pattern += std::string("[") + low + up + "]";
    else
      pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  }
  return pattern;
}

template <class Names>
Json any_case_schema(const Names& names) {
  std::string pattern;
  for (const std::string name : names) pattern += (pattern.empty() ? "" : "|") + any_case(name);
  return {{"type", "string"}, {"pattern", "^(" + pattern + ")$"}};
}

Json number_schema(const Values& values) {
  const bool is_whole = values.type == ValueType::Whole;
  Json schema{{"type", is_whole ? "integer" : "number"}};
  if (is_whole) {
    schema["minimum"] = std::numeric_limits<std::int64_t>::min();
    schema["maximum"] = std::numeric_limits<std::int64_t>::max();
  }
  const auto bound = [&](double value) {
    return is_whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
  };
  if (values.is_fp32) schema["exclusiveMinimum"] = -kInfiniteInFp32;
  if (values.is_fp32) schema["exclusiveMaximum"] = kInfiniteInFp32;
  if (std::isfinite(values.least)) schema["minimum"] = bound(values.least);
  if (std::isfinite(values.most))
    schema[values.is_below_most ? "exclusiveMaximum" : "maximum"] = bound(values.most);
  return schema;
}

Json list_schema(const Json& items, int least, int most = 0) {
  Json schema{{"type", "array"}, {"items", items}, {"minItems", least}};
  if (most != 0) schema["maxItems"] = most;
  return schema;
}

Json any_of(const std::vector<Json>& schemas) { return {{"anyOf", schemas}}; }

Json values_schema(const Values& values) {
  switch (values.type) {
    case ValueType::Any:
      return not_auto();
    case ValueType::Whole:
    case ValueType::Number:
      return number_schema(values);
    case ValueType::Boolean:
      return {{"type", "boolean"}};
    case ValueType::Text:
      return {{"type", "string"}, {"not", {{"const", "auto"}}}};
    case ValueType::Choice: {
      if (values.choice->any_case) return any_case_schema(values.choice->names);
      const Words& names = values.choice->names;
      return {{"enum", std::vector<std::string>(names.begin(), names.end())}};
    }
    case ValueType::DataType: {
      std::vector<std::string> names;
      for (const auto& [name, type] : data_type_names()) names.push_back(name);
      return any_case_schema(names);
    }
    case ValueType::Names:
      return list_schema({{"type", "string"}, {"minLength", 1}}, 0);
    case ValueType::Classes:
      return list_schema({{"type", "string"}}, 0);
    case ValueType::PerGroup:
      return any_of({number_schema(values), list_schema(number_schema(values), 1)});
    case ValueType::Pair:
      return list_schema(number_schema(values), 2, 2);
    case ValueType::Norm:
      return {{"enum", {2, "inf"}}};
    case ValueType::Scale:
      return any_of(
          {{{"type", "number"}},
           {{"type", "string"}, {"pattern", "^dynamic$|[0-9]|[iI][nN][fF]|[nN][aA][nN]"}}});
  }
  return {};
}

// A feature that is there and switched off, as check_keys takes it.
Json off_schema() {
  const Json off{{"enum", {false, nullptr}}};
  const Json has_enabled{{"required", {"enabled"}}}, has_device{{"required", {"device"}}};
  return any_of({off,
                 {{"type", "object"},
                  {"required", {"enabled"}},
                  {"properties", {{"enabled", {{"const", false}}}}}},
                 {{"type", "object"},
                  {"not", has_enabled},
                  {"required", {"device"}},
                  {"properties", {{"device", {{"enum", {"none", nullptr}}}}}}},
                 {{"type", "object"},
                  {"not", any_of({has_enabled, has_device})},
                  {"additionalProperties", off}}});
}

Json unsupported_schema(const Row& row) {
  const Json accepted = Json::parse(row.accepted);
  if (accepted.empty()) return {{"$ref", "#/$defs/off"}};
  if (accepted[0].is_string())
    return any_of({any_case_schema(accepted.get<std::vector<std::string>>()), {{"type", "null"}}});
  Json values = accepted;
  values.push_back(nullptr);
  return {{"enum", values}};
}

std::string here_of(const Row& row) {
  const std::string here = row.here;
  switch (row.treatment) {
    case KeyTreatment::NoEffect:
      return "No effect: " + here + ".";
    case KeyTreatment::Unsupported:
      return "Not supported." + (here.empty() ? "" : " " + here);
    default:
      return here;
  }
}

std::string description_of(const Row& row) {
  const std::string here = here_of(row);
  return row.words + std::string(here.empty() ? "" : " Here: ") + here;
}

bool is_required(const Row& row) {
  const std::string below = std::string(row.path) + ".";
  const auto needs = [](const Row& one) { return one.values.is_required && one.of == nullptr; };
  const auto& rows = schema().rows();
  return needs(row) || std::any_of(rows.begin(), rows.end(), [&](const Row& one) {
           return std::string(one.path).starts_with(below) && needs(one);
         });
}

Json section_schema(const std::string& name);

Json row_schema(const Row& row) {
  Json schema;
  Values values = row.values;
  if (row.treatment == KeyTreatment::Section) {
    schema = section_schema(row.path);
  } else if (row.treatment == KeyTreatment::Unsupported) {
    schema = unsupported_schema(row);
  } else if (row.treatment == KeyTreatment::NoEffect) {
    schema = not_auto();
  } else {
    // The section checks its range, where it matters.
    if (row.field.set == nullptr) values = {.type = values.type, .choice = values.choice};
    schema = values_schema(values);
    const Json usual = default_of_row(row);
    const bool must_be_given = is_required(row) || (row.values.is_required && usual.is_null());
    if (!must_be_given) schema = any_of({schema, {{"type", "null"}}});
    if (!usual.is_null() && !must_be_given && !row.values.is_derived) schema["default"] = usual;
  }
  schema["description"] = description_of(row);
  return schema;
}

// What is not supported may say anything in a section that is off.
Json section_schema(const std::string& name) {
  Json schema{{"type", {"object", "null"}}, {"additionalProperties", false}};
  const Row* of_switch = equigrad::schema().switch_of(name);
  Json on = Json::object();
  for (const Row& row : equigrad::schema().rows()) {
    if (section_of(row.path) != name) continue;
    const std::string key = last_part(row.path);
    const bool only_on = of_switch != nullptr && row.treatment == KeyTreatment::Unsupported;
    if (only_on) on[key] = row_schema(row);
    schema["properties"][key] =
        only_on ? Json{{"description", description_of(row)}, {"not", {{"const", "auto"}}}}
                : row_schema(row);
    if (!is_required(row)) continue;
    schema["required"].push_back(key);
    schema["type"] = "object";
  }
  if (on.empty()) return schema;
  schema["if"]["properties"][last_part(of_switch->path)]["enum"] = {false, "none", nullptr};
  schema["else"]["properties"] = on;
  return schema;
}

std::string quoted_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : ", ") + ("`" + Json(word).dump() + "`");
  return text;
}

std::string number_words(const Values& values, const std::string& word) {
  if (values.expected != nullptr && values.type != ValueType::Pair) return values.expected;
  const auto bound = [](double value) {
    return value == 0x1p53 ? "2^53" : Json(static_cast<std::int64_t>(value)).dump();
  };
  std::string text = word;
  if (std::isfinite(values.least)) text += ", at least " + bound(values.least);
  if (std::isfinite(values.most))
    text += (values.is_below_most ? ", below " : ", at most ") + bound(values.most);
  return text;
}

std::string words_of(const Row& row) {
  const Values& values = row.values;
  if (row.treatment == KeyTreatment::NoEffect) return "anything";
  if (row.treatment == KeyTreatment::Unsupported) {
    std::string text;
    for (const Json& one : Json::parse(row.accepted))
      text += (text.empty() ? "" : ", ") + ("`" + one.dump() + "`");
    return text.empty() ? "off" : text;
  }
  switch (values.type) {
    case ValueType::Whole:
      return number_words(values, "whole number");
    case ValueType::Number:
      return number_words(values, "number");
    case ValueType::Boolean:
      return "true, false";
    case ValueType::Text:
      return "text";
    case ValueType::Choice: {
      const Words& names = values.choice->names;
      return quoted_list({names.begin(), names.end()});
    }
    case ValueType::DataType:
      return quoted_list({std::begin(kDataTypes), std::end(kDataTypes)});
    case ValueType::Names:
    case ValueType::Classes:
      return "list of names";
    case ValueType::PerGroup:
      return number_words(values, "number, or one for each parameter group");
    case ValueType::Pair:
      return number_words(values, "two numbers");
    case ValueType::Norm:
      return "`2`, `\"inf\"`";
    case ValueType::Scale:
      return "number, `\"dynamic\"`";
    case ValueType::Any:
      return "anything";
  }
  return "";
}

std::string default_words(const Row& row) {
  if (row.treatment != KeyTreatment::Read) return "";
  const Json usual = default_of_row(row);
  if (row.values.is_required && (usual.is_null() || row.of == nullptr)) return "must be given";
  if (row.values.is_derived) return "derived";
  const std::string note = row.default_note;
  return "`" + usual.dump() + "`" + (note.empty() ? "" : " (" + note + ")");
}

std::string lines_of(const std::string& section) {
  std::string lines;
  for (const Row& row : schema().rows()) {
    if (section_of(row.path) != section || row.treatment == KeyTreatment::Section) continue;
    lines += "| `" + last_part(row.path) + "` | " + words_of(row) + " | " + default_words(row) +
             " | " + row.words + " | " + here_of(row) + " |\n";
  }
  return lines.empty() ? ""
                       : "| key | values | default | meaning | here |\n"
                         "| --- | --- | --- | --- | --- |\n" +
                             lines;
}

}  // namespace

std::string json_schema() {
  Json schema = section_schema("");
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "Equigrad's configuration";
  schema["$defs"]["off"] = off_schema();
  schema["anyOf"] = {{{"required", {"train_batch_size"}}},
                     {{"required", {"train_micro_batch_size_per_gpu"}}}};
  return schema.dump(2) + "\n";
}

std::string markdown_page() {
  std::string page =
      "# Configuration\n\n"
      "Every key of DeepSpeed's JSON file that this engine knows, what it means, and what it does "
      "here. A key that is not on this page is an error. The page is what `equigrad config keys` "
      "prints; the table behind it is in `engine/config/sections/`. `equigrad config check FILE` "
      "says what a file means, and `equigrad config schema` prints a JSON Schema.\n\n"
      "`null` stands for the default everywhere. Sizes count elements. A key without effect is "
      "accepted with anything, and one that is not supported only with what holds here anyway; "
      "\"off\" is false, an empty section, or one whose `enabled` is false.\n\n" +
      lines_of("");
  for (const Row& row : schema().rows()) {
    if (row.treatment != KeyTreatment::Section) continue;
    page += "\n## `" + std::string(row.path) + "`\n\n" + row.words + "\n";
    const std::string lines = lines_of(row.path);
    if (!lines.empty()) page += "\n" + lines;
  }
  return page;
}

}  // namespace equigrad
