#include "engine/config/schema.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

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
      index_of(likely_name(choice.any_case ? lower(given) : given, names), choice.names, true);
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

bool become_data_type(Json& given) {
  const auto found = data_type_names().find(lower(given.get<std::string>()));
  if (found == data_type_names().end()) return false;
  given = name_of(found->second);
  return true;
}

// Also of a number that is written as a float, such as 5e8.
bool become_whole(Json& given) {
  constexpr double kExactInDouble = 0x1p53;
  if (given.is_number_float()) {
    const double number = given.get<double>();
    if (number != std::trunc(number) || std::fabs(number) > kExactInDouble) return false;
  } else if (given.is_number_unsigned()) {
    if (given.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
      return false;
  } else if (!given.is_number_integer()) {
    return false;
  }
  given = given.get<std::int64_t>();
  return true;
}

bool become_number(Json& given) {
  if (given.is_number()) given = given.get<double>();
  return given.is_number();
}

// "dynamic", or a number, which apex also takes in quotes.
bool become_scale(Json& given) {
  if (given == Json("dynamic")) return true;
  if (given.is_string()) {
    const std::string text = given.get<std::string>();
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0') given = value;
  }
  return become_number(given);
}

bool is_list_of(const Json& value, bool (*is_one)(const Json&)) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_one);
}

bool is_number(const Json& value) { return value.is_number(); }

bool is_object(const Json& value) { return value.is_object(); }

bool is_shape(const Json& value) {
  const auto is_whole = [](const Json& one) {
    Json copy = one;
    return one.is_number_integer() && become_whole(copy);
  };
  const auto is_entry = [](const Json& one) { return one.is_number_integer(); };
  return !value.empty() && value.is_array() &&
         std::all_of(value.begin(), value.end(), [&](const Json& one) {
           return is_whole(one) || (!one.empty() && is_list_of(one, is_entry) &&
                                    std::all_of(one.begin(), one.end(), is_whole));
         });
}

// Empty, or how `given` is not of the type; else it becomes the value as a field would hold it.
// `usual` is the default.
std::string problem_of_type(const Values& values, const Json& usual, Json& given) {
  const auto unless = [&](bool is_right, const char* expected, const std::string& remedy) {
    return is_right ? "" : std::string("expected ") + expected + ", got " + shown(given) + remedy;
  };
  const auto unless_text = [&](const std::string& example) {
    return unless(
        given.is_string(), "a text in quotes",
        ". Write it as \"" + (usual.is_null() ? example : usual.get<std::string>()) + "\".");
  };
  switch (values.type) {
    case ValueType::Any:
      return "";
    case ValueType::Whole:
      return unless(
          become_whole(given), "a whole number",
          ". Write it without quotes, such as " + (usual.is_null() ? "0" : usual.dump()) + ".");
    case ValueType::Number:
      return unless(become_number(given), "a number",
                    ". Write it without quotes, such as " + usual.dump() + ".");
    case ValueType::Boolean:
      return unless(given.is_boolean(), "true or false", ". Write it without quotes.");
    case ValueType::Text:
      return unless_text("");
    case ValueType::Choice: {
      const std::string wrong = unless_text(values.choice->names[0]);
      return wrong.empty() ? problem_of_choice(*values.choice, given) : wrong;
    }
    case ValueType::DataType: {
      const std::string wrong = unless_text("fp32");
      return !wrong.empty() || become_data_type(given)
                 ? wrong
                 : "expected \"fp32\", \"bf16\" or \"fp16\", got \"" + given.get<std::string>() +
                       "\". Use one of the three.";
    }
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
      return unless(given == Json("inf") || given == Json(2), "2 or \"inf\"",
                    ". Use one of the two.");
    case ValueType::Specs:
      return unless(is_list_of(given, is_object), "a list of specs",
                    R"(. Write [{"patterns": [".*\\.o_proj"]}].)");
    case ValueType::Shape:
      return unless(is_shape(given), "a list of whole numbers", ". Write [2, -1].");
    case ValueType::Scale:
      return unless(become_scale(given), "\"dynamic\" or a number", ". Use one of the two.");
  }
  return "";
}

// What is wrong with one number; `which` of a list it is.
void check_number(const Values& values, const std::string& which, const Json& value,
                  std::vector<std::string>& problems) {
  const bool is_integer = value.is_number_integer();
  const auto number = value.get<double>();
  // Of the value's own type, for 64 bits are not exact in a double.
  const auto bound = [&](double limit) {
    return is_integer ? Json(static_cast<std::int64_t>(limit)) : Json(limit);
  };
  const std::string got = ", got " + (is_integer ? value.dump() : text_of(number)) + ". ";
  const bool is_low = std::isfinite(values.least) && value < bound(values.least);
  const bool is_high =
      std::isfinite(values.most) &&
      (value > bound(values.most) || (values.is_below_most && value == Json(values.most)));
  if (values.expected != nullptr) {
    if (is_low || is_high || std::isnan(number))
      problems.push_back("expected " + which + values.expected + got + values.remedy);
    return;
  }
  const auto remedy = [&](const char* usual) { return values.remedy ? values.remedy : usual; };
  if (is_low)
    problems.push_back("expected at least " + text_of_bound(values.least) + got +
                       (values.type == ValueType::Whole ? remedy("Give a larger whole number.")
                                                        : "Give a positive number, or 0."));
  if (is_high)
    problems.push_back("expected " + std::string(values.is_below_most ? "it below " : "at most ") +
                       text_of_bound(values.most) + got + remedy("Give a smaller whole number."));
  if (values.is_fp32 && !std::isfinite(static_cast<float>(number)))
    problems.push_back("expected a number that fp32 can hold" + got + "Give a finite number.");
}

}  // namespace

Schema::Schema(const std::vector<Section>& sections) : sections_(sections) {
  std::string section;
  for (const Section& part : sections_)
    for (Row row : part.rows) {
      const std::string path = *row.path == '.' ? section + row.path : row.path;
      if (row.treatment == KeyTreatment::Section) section = path;
      row.path = indices_.emplace(path, rows_.size()).first->first.c_str();
      rows_.push_back(row);
    }
  auto begin = rows_.begin();
  for (Section& part : sections_) {
    part.rows = {begin, part.rows.size()};
    begin += static_cast<std::ptrdiff_t>(part.rows.size());
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
                             precision_section(), scheduler_section(), parallel_section(),
                             features_section()});
  return table;
}

std::string section_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

Json default_of_row(const Row& row) {
  return row.field.get != nullptr ? row.field.get(EngineConfig{}) : Json::parse(row.field.fallback);
}

bool is_off_switch(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none");
}

Json read_value(const Row& row, ConfigReader& reader) {
  const Json usual = default_of_row(row);
  if (!reader.has(row.path)) return usual;
  Json given = *reader.find(row.path);
  const std::string wrong = problem_of_type(row.values, usual, given);
  if (wrong.empty()) return given;
  reader.problem(row.path, wrong);
  return usual;
}

std::vector<std::string> range_problems(const Values& values, const Json& value) {
  std::vector<std::string> problems;
  if (value.is_null() && values.is_required && values.type == ValueType::PerGroup)
    problems.emplace_back(
        "expected a number, or a list with one for each parameter group, got none. Add the key.");
  const Json all = value.is_array() ? value : Json::array({value});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_pair = values.type == ValueType::Pair;
    const std::string which = is_pair ? "number " + std::to_string(i + 1) + " to be " : "";
    if (all[i].is_number()) check_number(values, which, all[i], problems);
  }
  return problems;
}

std::string joined(Words names, const char* quote) {
  std::string text;
  for (const char* const& name : names) {
    const char* between = &name == &names.back() ? " or " : ", ";
    text += (text.empty() ? "" : between) + (quote + std::string(name)) + quote;
  }
  return text;
}

std::string text_of_bound(double bound) {
  return bound == 0x1p53 ? "2^53" : std::to_string(static_cast<std::int64_t>(bound));
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
