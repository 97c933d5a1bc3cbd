#include "engine/config/schema.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

std::string joined(Words names, const char* quote) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0                  ? ""
             : i + 1 == names.size() ? " or "
                                     : ", ") +
            (quote + std::string(names[i])) + quote;
  return text;
}

std::optional<std::size_t> index_of(const std::string& name, Words names, bool any_case) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (any_case ? lower(name) == lower(names[i]) : name == names[i]) return i;
  return std::nullopt;
}

std::string suggestion(const std::string& given, const Choice& choice) {
  std::vector<std::string> names(choice.names.begin(), choice.names.end());
  if (choice.any_case)
    for (std::string& name : names) name = lower(name);
  const auto nearest =
      index_of(nearest_name(choice.any_case ? lower(given) : given, names), choice.names, true);
  if (!nearest) return choice.otherwise;
  const Words& shown = choice.suggested.empty() ? choice.names : choice.suggested;
  return " Did you mean \"" + std::string(shown[*nearest]) + "\"?";
}

// Empty, or what is wrong with `given`, which becomes the name as it is in the table.
std::string problem_of_choice(const Choice& choice, Json& given) {
  const std::string name = given.get<std::string>();
  if (const auto index = index_of(name, choice.names, choice.any_case)) {
    given = choice.names[*index];
    return "";
  }
  const bool is_refused = index_of(name, choice.refused, choice.any_case).has_value();
  return "expected " + joined(choice.names, choice.is_quoted ? "\"" : "") + ", got \"" + name +
         "\"" + (is_refused ? choice.why_refused : "." + suggestion(name, choice));
}

std::string problem_of_data_type(Json& given) {
  const std::string name = given.get<std::string>();
  const auto found = data_type_names().find(lower(name));
  if (found != data_type_names().end()) {
    given = name_of(found->second);
    return "";
  }
  return R"(expected "fp32", "bf16" or "fp16", got ")" + name + "\". Use one of the three.";
}

bool is_list_of(const Json& value, bool (*is_one)(const Json&)) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_one);
}

bool is_number(const Json& value) { return value.is_number(); }

// "dynamic", or a number, which apex also takes in quotes.
bool become_scale(Json& given) {
  if (given == Json("dynamic")) return true;
  if (given.is_string()) {
    const std::string text = given.get<std::string>();
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0') given = value;
  } else if (given.is_number()) {
    given = given.get<double>();
  }
  return given.is_number();
}

// Of values that are neither one number, true or false, nor a text.
std::string problem_of_others(ValueType type, Json& given) {
  const auto unless = [&](bool is_right, const char* expected, const char* remedy) {
    return is_right ? "" : std::string("expected ") + expected + ", got " + shown(given) + remedy;
  };
  switch (type) {
    case ValueType::Names:
      return unless(is_list_of(given, [](const Json& one) { return one.is_string() && one != ""; }),
                    "a list of names", R"(. Write ["experts"].)");
    case ValueType::Classes:
      return unless(is_list_of(given, [](const Json& one) { return one.is_string(); }),
                    "a list of class names", R"(. Write ["torch.nn.Linear"].)");
    case ValueType::PerGroup:
      return unless(given.is_number() || (!given.empty() && is_list_of(given, is_number)),
                    "a number, or a list with one for each parameter group",
                    ". Write 1e-3 or [1e-3, 1e-4].");
    case ValueType::Pair:
      return unless(given.size() == 2 && is_list_of(given, is_number), "two numbers",
                    ". Write [0.9, 0.999].");
    case ValueType::Norm:
      return unless(given == Json("inf") || (given.is_number() && given == Json(2)), "2 or \"inf\"",
                    ". Use one of the two.");
    case ValueType::Scale: {
      return unless(become_scale(given), "\"dynamic\" or a number", ". Use one of the two.");
    }
    default:
      return "";
  }
}

std::string number_text(const Json& number) {
  return number.is_number_integer() ? number.dump() : text_of(number.get<double>());
}

bool is_below(const Json& value, double bound) {
  return value.is_number_integer() ? value < Json(static_cast<std::int64_t>(bound))
                                   : value.get<double>() < bound;
}

bool is_above(const Json& value, double bound) {
  return value.is_number_integer() ? value > Json(static_cast<std::int64_t>(bound))
                                   : value.get<double>() > bound;
}

void check_number(const Values& values, const std::string& which, const Json& value,
                  std::vector<std::string>& problems) {
  const std::string got = ", got " + number_text(value) + ". ";
  const bool has_least = std::isfinite(values.least), has_most = std::isfinite(values.most);
  const bool is_nan = std::isnan(value.get<double>());
  const bool is_low = has_least && is_below(value, values.least);
  const bool is_high = has_most && (is_above(value, values.most) ||
                                    (values.is_below_most && value == Json(values.most)));
  if (values.expected != nullptr) {
    if (is_low || is_high || is_nan)
      problems.push_back("expected " + which + values.expected + got + values.remedy);
    return;
  }
  const bool is_whole = values.type == ValueType::Whole;
  const auto remedy = [&](const char* usual) { return values.remedy ? values.remedy : usual; };
  if (is_low)
    problems.push_back(
        "expected at least " + Json(static_cast<std::int64_t>(values.least)).dump() + got +
        (is_whole ? remedy("Give a larger whole number.") : "Give a positive number, or 0."));
  if (is_high) {
    const std::string most =
        values.most == 0x1p53 ? "2^53" : Json(static_cast<std::int64_t>(values.most)).dump();
    problems.push_back("expected " +
                       (values.is_below_most ? "it below " : "at most " + std::string()) + most +
                       got + remedy("Give a smaller whole number."));
  }
  if (values.is_fp32 && !std::isfinite(static_cast<float>(value.get<double>())))
    problems.push_back("expected a number that fp32 can hold" + got + "Give a finite number.");
}

std::string name_in_list(const Values& values, std::size_t index) {
  return values.type == ValueType::Pair ? "number " + std::to_string(index + 1) + " to be " : "";
}

}  // namespace

Schema::Schema(const std::vector<Section>& sections) : sections_(sections) {
  for (const Section& section : sections_)
    for (const Row& row : section.rows) {
      indices_.emplace(row.path, rows_.size());
      rows_.push_back(row);
    }
}

const Row* Schema::find(const std::string& path) const {
  const auto found = indices_.find(path);
  return found == indices_.end() ? nullptr : &rows_[found->second];
}

const Row* Schema::switch_of(const std::string& section) const {
  const Row* enabled = find(section + ".enabled");
  return enabled != nullptr ? enabled : find(section + ".device");
}

const Schema& schema() {
  static const Schema table({batch_section(), optimizer_section(), zero_section(),
                             offload_section(), averaging_section(), amp_section(),
                             precision_section(), scheduler_section(), features_section()});
  return table;
}

std::string section_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

Json default_of_row(const Row& row) {
  return row.field.get != nullptr ? row.field.get(EngineConfig{}) : Json::parse(row.fallback);
}

bool is_off_switch(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none");
}

Json read_value(const Row& row, ConfigReader& reader) {
  const std::string path = row.path;
  const Json usual = default_of_row(row);
  const Values& values = row.values;
  const bool is_choice = values.type == ValueType::Choice;
  const char* example = is_choice                            ? values.choice->names[0]
                        : values.type == ValueType::DataType ? "fp32"
                                                             : "";
  if (!reader.has(path)) return usual;
  Json given;
  switch (values.type) {
    case ValueType::Whole:
      given = reader.integer(path, usual.is_null() ? 0 : usual.get<std::int64_t>());
      break;
    case ValueType::Number:
      given = reader.number(path, usual);
      break;
    case ValueType::Boolean:
      given = reader.boolean(path, usual == Json(true));
      break;
    case ValueType::Text:
    case ValueType::Choice:
    case ValueType::DataType:
      given = reader.text(path, usual.is_null() ? example : usual.get<std::string>());
      break;
    default:
      given = *reader.find(path);
  }
  if (reader.is_bad(path)) return usual;
  const std::string wrong = is_choice ? problem_of_choice(*values.choice, given)
                            : values.type == ValueType::DataType
                                ? problem_of_data_type(given)
                                : problem_of_others(values.type, given);
  if (wrong.empty()) return given;
  reader.problem(path, wrong);
  return usual;
}

std::vector<std::string> range_problems(const Values& values, const Json& value) {
  std::vector<std::string> problems;
  if (value.is_null() && values.is_required && values.type == ValueType::PerGroup)
    problems.emplace_back(
        "expected a number, or a list with one for each parameter group, got none. Add the key.");
  const Json all = value.is_array() ? value : Json::array({value});
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].is_number()) check_number(values, name_in_list(values, i), all[i], problems);
  return problems;
}

std::string text_of(double value) {
  return std::isfinite(value) ? Json(value).dump() : std::to_string(value);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

const std::map<std::string, DataType>& data_type_names() {
  static const std::map<std::string, DataType> names{
      {"fp32", DataType::Fp32},           {"float32", DataType::Fp32},
      {"float", DataType::Fp32},          {"torch.float32", DataType::Fp32},
      {"bf16", DataType::Bf16},           {"bfloat16", DataType::Bf16},
      {"torch.bfloat16", DataType::Bf16}, {"fp16", DataType::Fp16},
      {"float16", DataType::Fp16},        {"half", DataType::Fp16},
      {"torch.float16", DataType::Fp16}};
  return names;
}

}  // namespace equigrad
