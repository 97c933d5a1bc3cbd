#include "conformance/check/check_cases.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "conformance/cases/device.hpp"
#include "conformance/cases/filter.hpp"
#include "conformance/cases/precision_modes.hpp"
#include "engine/error.hpp"
#include "reports/merge.hpp"

namespace equigrad::conformance {
namespace {

constexpr std::array kStyles = {Style::EngineBackward, Style::ScaleBackward, Style::LossBackward,
                                Style::TensorBackward};

template <class Value, class Words>
Value value_named(const char* option, const std::string& name, const std::vector<Value>& values,
                  Words words) {
  std::string all;
  for (const Value value : values) {
    if (words(value) == name) return value;
    all += (all.empty() ? "" : ", ") + words(value);
  }
  throw CheckRefused("check", std::string("expected ") + option + " to be of " + all + ", got \"" +
                                  name + "\". Correct the name.");
}

Style style_named(const std::string& name) {
  return value_named<Style>("styles", name, {kStyles.begin(), kStyles.end()},
                            [](Style style) { return word(style); });
}

void require_positive(const char* option, const std::vector<int>& values, int least, int most) {
  if (values.empty())
    throw CheckRefused("check",
                       std::string("expected values for ") + option + ", got none. Give some.");
  for (const int value : values)
    if (value < least || value > most)
      throw CheckRefused("check", std::string("expected ") + option + " from " +
                                      std::to_string(least) + " to " + std::to_string(most) +
                                      ", got " + std::to_string(value) + ". Correct the value.");
}

void require_options(const CheckOptions& options) {
  require_positive("ranks", options.ranks, 1, 64);
  require_positive("accumulation", options.accumulation, 1, 1024);
  require_positive("steps", {options.steps}, 1, 1000);
  if (!options.stages.empty()) require_positive("stages", options.stages, 0, 3);
  if (options.device != "cpu" && options.device != "cuda")
    throw CheckRefused("check", "expected the device cpu or cuda, got \"" + options.device +
                                    "\". CUDA_VISIBLE_DEVICES says which ones of CUDA.");
  const bool is_plain =
      !options.name.empty() && options.name.find_first_not_of(
                                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789-_") == std::string::npos;
  if (!is_plain)
    throw CheckRefused("check", "expected a name of letters, digits, - and _, got \"" +
                                    options.name + "\". It stands in the names of cases.");
}

void add(CheckCases& to, const CheckOptions& options, CheckCase one) {
  one.spec.model = options.name;
  one.seed = options.seed;
  one.steps = options.steps;
  if (one.spec.is_refused()) {
    ++to.not_run[word(one.spec.precision) + " is not defined at stage " +
                 std::to_string(one.spec.stage)];
    return;
  }
  if (options.device == "cuda" && sums_exactly(one.spec.precision)) {
    ++to.not_run[kNoExactSumsOnCuda];
    return;
  }
  to.cases.push_back(std::move(one));
}

void add_own(CheckCases& to, const CheckOptions& options) {
  const auto names =
      options.precisions.empty() ? std::vector<std::string>{"fp32"} : options.precisions;
  const auto stages = options.stages.empty() ? std::vector<int>{0, 1, 2, 3} : options.stages;
  for (const auto& name : names) {
    const auto precision = value_named<Precision>("precisions", name, precisions(),
                                                  [](Precision one) { return word(one); });
    for (const int world : options.ranks)
      for (const int accumulation : options.accumulation)
        for (const auto& clip : options.clips)
          for (const auto& rule : options.optimizers)
            for (const int stage : stages)
              add(to, options,
                  {{.stage = stage,
                    .precision = precision,
                    .style = Style::EngineBackward,
                    .world = world,
                    .accumulation = accumulation,
                    .clip = value_named<Clip>("clips", clip,
                                              {Clip::Off, Clip::Below, Clip::Above, Clip::AboveInf},
                                              [](Clip one) { return word(one); }),
                    .optimizer = value_named<Rule>("optimizers", rule, {Rule::Sgd, Rule::AdamW},
                                                   [](Rule one) { return word(one); }),
                    .model = options.name}});
  }
}

// A path, or the text itself.
std::string text_of(const std::string& config) {
  const auto first = config.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && config[first] == '{') return config;
  std::ifstream file(config);
  if (!file)
    throw CheckRefused("check",
                       "expected a DeepSpeed configuration as JSON or a file that has it, got \"" +
                           config + "\". Correct the path.");
  return {std::istreambuf_iterator<char>(file), {}};
}

void add_configured(CheckCases& to, const CheckOptions& options) {
  const auto given = text_of(options.config);
  parse_config(given, options.ranks.front());  // its errors come first, about what was written
  const auto config = comparable_config(given, to.notes);
  const auto names = options.precisions.empty() ? std::vector<std::string>{""} : options.precisions;
  for (const auto& name : names)
    for (const int world : options.ranks) {
      const auto own_stage = spec_of_config(config, world).stage;
      const auto stages = options.stages.empty() ? std::vector<int>{own_stage} : options.stages;
      for (const int stage : stages) {
        auto one = CheckCase{.spec = {}, .config = config_with(config, stage, name)};
        one.spec = spec_of_config(one.config, world);
        if (!name.empty())
          one.spec.precision = value_named<Precision>("precisions", name, precisions(),
                                                      [](Precision of) { return word(of); });
        add(to, options, std::move(one));
      }
    }
}

bool matches(const CheckCase& one, const std::vector<std::string>& filters) {
  return selects({.filters = filters, .stages = {}, .dtypes = {}, .worlds = {}}, one.spec.stage,
                 word(one.spec.precision), one.spec.world, one.spec.id());
}

std::ptrdiff_t count_of(const CheckCases& cases, const std::vector<std::string>& filters) {
  return std::count_if(cases.cases.begin(), cases.cases.end(),
                       [&](const CheckCase& one) { return matches(one, filters); });
}

void require_filter(const std::string& text) {
  const auto problem = filter_problem(text);
  if (!problem.empty()) throw CheckRefused("check", problem);
}

std::string nearest(const CheckCases& cases, const std::string& filter) {
  std::vector<std::string> ids;
  for (const auto& one : cases.cases) ids.push_back(one.spec.id());
  return near_matches(ids, filter, 1).front();
}

[[noreturn]] void refuse_word(const CheckCases& cases, const std::string& word) {
  throw CheckRefused("check", "expected a part of a case's name, such as " + nearest(cases, word) +
                                  ", got \"" + word + "\". Correct it.");
}

bool matches_in_a_style(const CheckCase& one, const std::vector<std::string>& filters) {
  return std::any_of(kStyles.begin(), kStyles.end(), [&](Style style) {
    auto in_style = one;
    in_style.spec.style = style;
    return matches(in_style, filters);
  });
}

// Of filters with several words each word has a case, also one behind `not`.
void require_words(const CheckCases& cases, const std::vector<std::string>& filters) {
  for (const auto& filter : filters) {
    require_filter(filter);
    const auto words = Filter(filter).words();
    for (const auto& word : words)
      if (words.size() > 1 &&
          std::none_of(cases.cases.begin(), cases.cases.end(),
                       [&](const CheckCase& one) { return matches_in_a_style(one, {word}); }))
        refuse_word(cases, word);
  }
}

void keep_matching(CheckCases& cases, const std::vector<std::string>& filters, const char* others) {
  const auto left_out =
      std::erase_if(cases.cases, [&](const CheckCase& one) { return !matches(one, filters); });
  if (left_out > 0) cases.not_run[others] += static_cast<int64_t>(left_out);
}

}  // namespace

CheckCases cases_without_styles(const CheckOptions& options) {
  require_options(options);
  CheckCases cases;
  if (options.config.empty())
    add_own(cases, options);
  else
    add_configured(cases, options);
  if (cases.cases.empty())
    throw CheckRefused("check", "expected a case, got none: " + cases.not_run.begin()->first +
                                    ". Add stages or precisions.");
  return cases;
}

void add_styles(CheckCases& cases, const CheckOptions& options, bool gives_loss) {
  std::vector<Style> styles;
  for (const auto& name : options.styles) styles.push_back(style_named(name));
  if (styles.empty() && gives_loss)
    styles = {Style::EngineBackward, Style::ScaleBackward, Style::LossBackward};
  if (styles.empty()) styles = {Style::TensorBackward};
  for (const Style style : styles)
    if (!gives_loss && style != Style::TensorBackward && style != Style::LossBackward)
      throw CheckRefused("check", "expected a loss for the call style " + word(style) +
                                      ", got an output and its gradient. Choose tensor_backward.");
  for (auto& [reason, count] : cases.not_run) count *= static_cast<int64_t>(styles.size());
  std::vector<CheckCase> all;
  for (const auto& one : cases.cases)
    for (const Style style : styles) {
      all.push_back(one);
      all.back().spec.style = style;
    }
  cases.cases = std::move(all);
}

void keep_possible(CheckCases& cases, const std::vector<std::string>& filters) {
  require_words(cases, filters);
  const auto is_possible = [&](const CheckCase& one) { return matches_in_a_style(one, filters); };
  if (std::none_of(cases.cases.begin(), cases.cases.end(), is_possible)) return;
  const auto left_out =
      std::erase_if(cases.cases, [&](const CheckCase& one) { return !is_possible(one); });
  if (left_out > 0) cases.not_run[reports::kNotSelected] += static_cast<int64_t>(left_out);
}

void keep_selected(CheckCases& cases, const std::vector<std::string>& filters) {
  if (filters.empty()) return;
  for (const auto& filter : filters) {
    if (count_of(cases, {filter}) > 0) continue;
    if (Filter(filter).words().size() == 1) refuse_word(cases, filter);
    throw CheckRefused("check", "expected a filter that has cases, got \"" + filter +
                                    "\", whose words have some, but not together. Correct it.");
  }
  keep_matching(cases, filters, reports::kNotSelected);
}

void keep_only(CheckCases& cases, const std::string& glob) {
  if (glob.empty()) return;
  require_filter(glob);
  if (count_of(cases, {glob}) == 0)
    throw CheckRefused("check", "expected EQUIGRAD_CHECK_ONLY to match a case such as " +
                                    nearest(cases, glob) + ", got \"" + glob +
                                    "\". Correct it, or unset it.");
  keep_matching(cases, {glob}, "not selected by EQUIGRAD_CHECK_ONLY");
}

const CheckCase& widest_of(const std::vector<CheckCase>& cases) {
  return *std::max_element(cases.begin(), cases.end(), [](const CheckCase& a, const CheckCase& b) {
    return std::pair(a.spec.world, a.spec.accumulation) <
           std::pair(b.spec.world, b.spec.accumulation);
  });
}

}  // namespace equigrad::conformance
