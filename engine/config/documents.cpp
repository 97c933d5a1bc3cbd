#include "engine/config/documents.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "engine/config/schema.hpp"
#include "engine/config/sections/layer_specs.hpp"

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

Json any_case_schema(const std::vector<std::string>& names) {
  std::string pattern;
  for (const std::string& name : names) pattern += (pattern.empty() ? "" : "|") + any_case(name);
  return {{"type", "string"}, {"pattern", "^(" + pattern + ")$"}};
}

Json number_schema(const Values& values) {
  const bool is_whole = values.type == ValueType::Whole;
  Json schema{{"type", is_whole ? "integer" : "number"}};
  if (is_whole) schema["minimum"] = std::numeric_limits<std::int64_t>::min();
  if (is_whole) schema["maximum"] = std::numeric_limits<std::int64_t>::max();
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

std::string quoted_list(const Json& values) {
  std::string text;
  for (const Json& value : values) text += (text.empty() ? "`" : ", `") + value.dump() + "`";
  return text;
}

std::string number_words(const Values& values, const std::string& word) {
  if (values.expected != nullptr && values.type != ValueType::Pair) return values.expected;
  std::string text = word;
  if (std::isfinite(values.least)) text += ", at least " + text_of_bound(values.least);
  if (std::isfinite(values.most))
    text += (values.is_below_most ? ", below " : ", at most ") + text_of_bound(values.most);
  return text;
}

// What a value may be, for people and for editors.
struct Shape {
  std::string words;
  Json schema;
};

Json spec_schema();

Shape shape_of(const Values& values) {
  switch (values.type) {
    case ValueType::Any:
      return {"anything", not_auto()};
    case ValueType::Whole:
      return {number_words(values, "whole number"), number_schema(values)};
    case ValueType::Number:
      return {number_words(values, "number"), number_schema(values)};
    case ValueType::Boolean:
      return {"true, false", {{"type", "boolean"}}};
    case ValueType::Text:
      return {"text", {{"type", "string"}, {"not", {{"const", "auto"}}}}};
    case ValueType::Choice: {
      const std::vector<std::string> names(values.choice->names.begin(),
                                           values.choice->names.end());
      return {quoted_list(names),
              values.choice->any_case ? any_case_schema(names) : Json{{"enum", names}}};
    }
    case ValueType::DataType: {
      std::vector<std::string> names;
      for (const auto& [name, type] : data_type_names()) names.push_back(name);
      return {quoted_list(kDataTypes), any_case_schema(names)};
    }
    case ValueType::Names:
      return {"list of names", list_schema({{"type", "string"}, {"minLength", 1}}, 0)};
    case ValueType::Classes:
      return {"list of names", list_schema({{"type", "string"}}, 0)};
    case ValueType::PerGroup:
      return {number_words(values, "number, or one for each parameter group"),
              any_of({number_schema(values), list_schema(number_schema(values), 1)})};
    case ValueType::Pair:
      return {number_words(values, "two numbers"), list_schema(number_schema(values), 2, 2)};
    case ValueType::Specs:
      return {"list of specs", list_schema(spec_schema(), 0)};
    case ValueType::Shape: {
      const Json whole = number_schema(of_type(ValueType::Whole));
      return {"whole numbers, one of which may be a list",
              list_schema(any_of({whole, list_schema(whole, 1)}), 1)};
    }
    case ValueType::Norm:
      return {"`2`, `\"inf\"`", {{"enum", {2, "inf"}}}};
    case ValueType::Scale:
      return {
          "number, `\"dynamic\"`",
          any_of({{{"type", "number"}},
                  {{"type", "string"}, {"pattern", "^dynamic$|[0-9]|[iI][nN][fF]|[nN][aA][nN]"}}})};
  }
  return {};
}

// A feature that is there and switched off, as check_keys takes it.
Json off_schema() {
  return Json::parse(R"({"anyOf": [
      {"enum": [false, null]},
      {"type": "object", "required": ["enabled"], "properties": {"enabled": {"const": false}}},
      {"type": "object", "required": ["device"], "not": {"required": ["enabled"]},
       "properties": {"device": {"enum": ["none", null]}}},
      {"type": "object", "not": {"anyOf": [{"required": ["enabled"]}, {"required": ["device"]}]},
       "additionalProperties": {"enum": [false, null]}}]})");
}

Json unsupported_schema(const Row& row) {
  Json accepted = Json::parse(row.accepted);
  if (accepted.empty()) return {{"$ref", "#/$defs/off"}};
  if (accepted[0].is_string())
    return any_of({any_case_schema(accepted.get<std::vector<std::string>>()), {{"type", "null"}}});
  accepted.push_back(nullptr);
  return {{"enum", accepted}};
}

std::string here_of(const Row& row) {
  const std::string here = row.here;
  if (row.treatment == KeyTreatment::NoEffect) return "No effect: " + here + ".";
  if (row.treatment != KeyTreatment::Unsupported) return here;
  return "Not supported." + (here.empty() ? "" : " " + here);
}

std::string description_of(const Row& row) {
  const std::string here = here_of(row);
  return row.words + std::string(here.empty() ? "" : " Here: ") + here;
}

// Whether it, or a key below it, must always be given.
bool is_required(const Row& row) {
  const std::string below = std::string(row.path) + ".";
  const auto& rows = schema().rows();
  return std::any_of(rows.begin(), rows.end(), [&](const Row& one) {
    return (one.path + std::string(".")).starts_with(below) && one.values.is_required &&
           one.field.of == nullptr;
  });
}

Json section_schema(const std::string& name);

Json row_schema(const Row& row) {
  Json schema;
  if (row.treatment == KeyTreatment::Section) {
    const Json accepted = Json::parse(row.accepted);
    schema = section_schema(row.path);
    if (!accepted.empty()) schema = any_of({schema, {{"enum", accepted}}});
  } else if (row.treatment == KeyTreatment::Unsupported) {
    schema = unsupported_schema(row);
  } else if (row.treatment == KeyTreatment::NoEffect) {
    schema = not_auto();
  } else {
    // The section checks its range, where it matters.
    const Values unranged{.type = row.values.type, .choice = row.values.choice};
    schema = shape_of(row.field.set != nullptr ? row.values : unranged).schema;
    const Json usual = default_of_row(row);
    const bool must_be_given = is_required(row) || (row.values.is_required && usual.is_null());
    if (!must_be_given) schema = any_of({schema, {{"type", "null"}}});
    if (!usual.is_null() && !must_be_given && !row.values.is_derived) schema["default"] = usual;
  }
  schema["description"] = description_of(row);
  return schema;
}

// One of a list of layer specs.
Json spec_schema() {
  Json schema{{"type", "object"}, {"additionalProperties", false}};
  for (const Row& row : layer_spec_rows()) {
    schema["properties"][row.path] = row_schema(row);
    if (row.values.is_required) schema["required"].push_back(row.path);
  }
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

std::string words_of(const Row& row) {
  if (row.treatment == KeyTreatment::NoEffect) return "anything";
  if (row.treatment != KeyTreatment::Unsupported) return shape_of(row.values).words;
  const std::string accepted = quoted_list(Json::parse(row.accepted));
  return accepted.empty() ? "off" : accepted;
}

std::string default_words(const Row& row) {
  if (row.treatment != KeyTreatment::Read) return "";
  const Json usual = default_of_row(row);
  if (row.values.is_required && (usual.is_null() || row.field.of == nullptr))
    return "must be given";
  if (row.values.is_derived) return "derived";
  const std::string note = row.default_note;
  return "`" + usual.dump() + "`" + (note.empty() ? "" : " (" + note + ")");
}

std::string table_of(std::span<const Row> rows) {
  std::string lines;
  for (const Row& row : rows)
    lines += "| `" + last_part(row.path) + "` | " + words_of(row) + " | " + default_words(row) +
             " | " + row.words + " | " + here_of(row) + " |\n";
  return lines.empty() ? ""
                       : "| key | values | default | meaning | here |\n"
                         "| --- | --- | --- | --- | --- |\n" +
                             lines;
}

std::string lines_of(const std::string& section) {
  std::vector<Row> rows;
  for (const Row& row : schema().rows())
    if (section_of(row.path) == section && row.treatment != KeyTreatment::Section)
      rows.push_back(row);
  return table_of(rows);
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
      "`null` stands for the default everywhere. Sizes count elements. A key \"No effect\" takes "
      "any "
      "value. A key \"Not supported\" takes only the values of its column, which mean that it is "
      "off; \"off\" is false, an empty section, or one whose `enabled` is false.\n\n" +
      lines_of("");
  for (const Row& row : schema().rows()) {
    if (row.treatment != KeyTreatment::Section) continue;
    page += "\n## `" + std::string(row.path) + "`\n\n" + row.words + "\n";
    const std::string lines = lines_of(row.path);
    if (!lines.empty()) page += "\n" + lines;
    if (section_of(kLayerSpecs) == row.path)
      page += "\nEach of `layer_specs`:\n\n" + table_of(layer_spec_rows());
  }
  return page;
}

}  // namespace equigrad
