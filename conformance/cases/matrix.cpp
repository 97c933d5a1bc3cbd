#include "conformance/cases/matrix.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "conformance/cases/filter.hpp"
#include "conformance/cases/gated_model.hpp"
#include "conformance/cases/sequence_model.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

constexpr std::array kStages = {0, 1, 2, 3};
constexpr std::array kStyles = {Style::EngineBackward, Style::ScaleBackward, Style::LossBackward,
                                Style::TensorBackward};
constexpr std::array kWorlds = {1, 2, 3, 4};
constexpr std::array kAccumulations = {1, 3, 4};
constexpr std::array kClips = {Clip::Off, Clip::Below, Clip::Above, Clip::AboveInf};
constexpr std::array kRules = {Rule::Sgd, Rule::AdamW};
constexpr std::array kModels = {"gpt", "irregular", "vision", "conv"};
constexpr std::array kSplitModels = {"gated2",   "gated4",   "ulysses2",
                                     "ulysses4", "dropout2", "gated2x2"};

template <class T, std::size_t n>
T pick(const std::array<T, n>& values, int index) {
  return values[static_cast<std::size_t>(index) % n];
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// The value whose word is `text`.
template <class Values>
auto value_of(const Values& values, const std::string& text, const std::string& id) {
  std::string known;
  for (const auto& value : values) {
    if (word(value) == text) return value;
    known += (known.empty() ? "" : ", ") + word(value);
  }
  throw Error("matrix", "expected one of " + known + " in a case's id, got \"" + text + "\" in " +
                            id + ". See equigrad list.");
}

int number_after(const std::string& prefix, const std::string& text, const std::string& id) {
  if (text.size() == prefix.size() + 1 && text.rfind(prefix, 0) == 0 && text.back() >= '0' &&
      text.back() <= '9')
    return text.back() - '0';
  throw Error("matrix", "expected " + prefix + " and a digit in a case's id, got \"" + text +
                            "\" in " + id + ". See equigrad list.");
}

void add_every_stage_and_style(std::vector<CaseSpec>& cases, CaseSpec spec) {
  for (const int stage : kStages)
    for (const Style style : kStyles) {
      spec.stage = stage;
      spec.style = style;
      if (is_possible(spec)) cases.push_back(spec);
    }
}

// The least number of edits that turn `pattern` into some substring of a text (Sellers 1980). Of
// two texts one after the other, rows for the beginning that they share are made once.
class DistanceToSubstring {
 public:
  explicit DistanceToSubstring(const std::string& pattern)
      : pattern_(pattern), rows_(1, Row(pattern.size() + 1)), best_{pattern.size()} {
    std::iota(rows_[0].begin(), rows_[0].end(), std::size_t{0});
  }
  std::size_t of(const std::string& text) {
    const auto shared = std::mismatch(text.begin(), text.end(), text_.begin(), text_.end()).first;
    rows_.resize(std::max(rows_.size(), text.size() + 1), Row(pattern_.size() + 1));
    best_.resize(rows_.size());
    for (auto at = static_cast<std::size_t>(shared - text.begin()); at < text.size(); ++at)
      add_row(at, text[at]);
    text_ = text;
    return best_[text.size()];
  }

 private:
  using Row = std::vector<std::size_t>;
  void add_row(std::size_t at, char c) {
    const Row& above = rows_[at];
    Row& row = rows_[at + 1];  // whose first number stays 0: a match may start anywhere
    for (std::size_t i = 1; i < row.size(); ++i)
      row[i] =
          std::min({above[i - 1] + (pattern_[i - 1] == c ? 0 : 1), above[i] + 1, row[i - 1] + 1});
    best_[at + 1] = std::min(best_[at], row.back());
  }

  const std::string& pattern_;
  std::string text_;
  std::vector<Row> rows_;          // of so many characters of text_
  std::vector<std::size_t> best_;  // of the rows up to this one
};

template <class T>
bool holds(const std::vector<T>& wanted, const T& value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

bool is_within(const Selection& selection, int stage, const std::string& dtype, int world) {
  return holds(selection.stages, stage) && holds(selection.dtypes, dtype) &&
         holds(selection.worlds, world);
}

}  // namespace

std::string word(Style style) {
  switch (style) {
    case Style::EngineBackward:
      return "engine_backward";
    case Style::ScaleBackward:
      return "scale_backward";
    case Style::LossBackward:
      return "loss_backward";
    case Style::TensorBackward:
      return "tensor_backward";
  }
  return {};
}

std::string word(Clip clip) {
  switch (clip) {
    case Clip::Off:
      return "clip-off";
    case Clip::Below:
      return "clip-below";
    case Clip::Above:
      return "clip-above";
    case Clip::AboveInf:
      return "clip-above-inf";
  }
  return {};
}

std::string word(Rule rule) { return rule == Rule::Sgd ? "sgd" : "adamw"; }

int CaseSpec::tensor() const { return parts_of(model); }

int CaseSpec::sequence() const {
  return is_gated(model) ? static_cast<int>(gated_sizes(model).sequence) : sequence_parts_of(model);
}

bool is_possible(const CaseSpec& spec) {
  return (spec.tensor() == 1 || spec.stage < 3) &&
         spec.world % (spec.tensor() * spec.sequence()) == 0;
}

std::string CaseSpec::id() const {
  return "Required.grad.zero" + std::to_string(stage) + "." + tuple() + "." + word(style);
}

std::string CaseSpec::tuple() const {
  return word(precision) + ".w" + std::to_string(world) + ".accumulation" +
         std::to_string(accumulation) + "." + word(clip) + "." + word(optimizer) + "." + model;
}

std::map<std::string, std::string> CaseSpec::dimensions() const {
  return {{"stage", std::to_string(stage)},
          {"precision", word(precision)},
          {"style", word(style)},
          {"ranks", std::to_string(world)},
          {"accumulate", std::to_string(accumulation)},
          {"clip", word(clip).substr(5)},
          {"optimizer", word(optimizer)},
          {"model", model}};
}

CaseSpec parse_id(const std::string& id) {
  const auto parts = split(id);
  if (parts.size() != 10 || parts[0] != "Required" || parts[1] != "grad")
    throw Error("matrix", "expected an id such as " + CaseSpec{}.id() + ", got \"" + id +
                              "\". See equigrad list.");
  CaseSpec spec;
  spec.stage = number_after("zero", parts[2], id);
  spec.precision = value_of(precisions(), parts[3], id);
  spec.world = number_after("w", parts[4], id);
  spec.accumulation = number_after("accumulation", parts[5], id);
  spec.clip = value_of(kClips, parts[6], id);
  spec.optimizer = value_of(kRules, parts[7], id);
  spec.model = parts[8];
  spec.style = value_of(kStyles, parts[9], id);
  if (!is_possible(spec))
    throw Error("matrix",
                "expected " + std::string(spec.tensor() > 1 ? "stage 0, 1 or 2 and " : "") +
                    "a multiple of " + std::to_string(spec.tensor() * spec.sequence()) +
                    " ranks for the model " + spec.model + ", got " + id + ". See equigrad list.");
  return spec;
}

std::vector<CaseSpec> full_matrix() {
  std::vector<CaseSpec> cases;
  for (const Precision precision : precisions())
    for (const int world : kWorlds)
      for (const int accumulation : kAccumulations)
        for (const Clip clip : kClips)
          for (const Rule rule : kRules) {
            CaseSpec spec{.precision = precision,
                          .world = world,
                          .accumulation = accumulation,
                          .clip = clip,
                          .optimizer = rule};
            for (const char* model : kModels) {
              spec.model = model;
              add_every_stage_and_style(cases, spec);
            }
            for (const char* model : kSplitModels) {
              spec.model = model;
              if (is_possible(spec)) add_every_stage_and_style(cases, spec);
            }
          }
  return cases;
}

namespace {

// Of the m-th split model in the p-th precision: every style comes to every stage.
int stage_of_split(const CaseSpec& spec, int style, int p, int m) {
  const bool has_stage_0 = refusal_keys(spec.precision, 0).empty();
  if (spec.tensor() > 1) return has_stage_0 ? (style + p + m) % 3 : 1 + (style / 2 + p + m) % 2;
  return has_stage_0 ? (style / 2 + (p + m) / 2) % 4 : 1 + (style / 2 + p + m) % 3;
}

// Every split model in every precision, in two styles at two stages, of which the next tuple takes
// the next ones; what stage 0 refuses is at the others.
void add_split_models(std::vector<CaseSpec>& cases) {
  for (int p = 0; p < static_cast<int>(precisions().size()); ++p)
    for (int m = 0; m < static_cast<int>(kSplitModels.size()); ++m) {
      CaseSpec spec{.precision = precisions()[static_cast<std::size_t>(p)],
                    .world = m % 2 == 0 && p / 3 % 2 == 0 ? 2 : 4,
                    .accumulation = pick(kAccumulations, p + m),
                    .clip = pick(kClips, p + 2 * m),
                    .optimizer = pick(kRules, p / 2 + m),
                    .model = pick(kSplitModels, m)};
      for (int style = (p + m) % 2; style < static_cast<int>(kStyles.size()); style += 2) {
        spec.stage = stage_of_split(spec, style, p, m);
        spec.style = pick(kStyles, style);
        cases.push_back(spec);
      }
    }
}

}  // namespace

// In fp32 and bf16 one tuple for every (world, model), whose ids are older than the other modes,
// and one with the infinity norm; in the others one for every accumulation on 1 to 3 ranks, and one
// on 4, which take longest. The GPT takes five times as long as the other models: every world has
// it in fp32 or in bf16, and each other mode in one tuple. The dimensions left step through their
// values at rates found by search: every pair of values of any two dimensions appears, and every
// triple of accumulation, clip and optimizer.
std::vector<CaseSpec> default_matrix() {
  std::vector<CaseSpec> cases;
  const auto add = [&cases](int p, int w, int accumulation, Clip clip, int rule, int model) {
    add_every_stage_and_style(cases, {.precision = precisions()[static_cast<std::size_t>(p)],
                                      .world = pick(kWorlds, w),
                                      .accumulation = pick(kAccumulations, accumulation),
                                      .clip = clip,
                                      .optimizer = pick(kRules, rule),
                                      .model = pick(kModels, model)});
  };
  constexpr std::array kTwoNorm = {Clip::Off, Clip::Below, Clip::Above};
  for (int p = 0; p < 2; ++p) {
    for (int w = 0; w < 4; ++w)
      for (int m = (w + p) % 2; m < 4; ++m)
        add(p, w, m + w + p, pick(kTwoNorm, m + 2 * w + p), w + m / 2, m);
    add(p, p + 1, p + 1, Clip::AboveInf, p, p);
  }
  constexpr int kTuples = 10;  // of a mode
  for (int p = 2; p < static_cast<int>(precisions().size()); ++p)
    for (int tuple = 0; tuple < kTuples; ++tuple) {
      const int w = tuple / 3, a = w < 3 ? tuple % 3 : p % 3;
      const bool has_gpt = tuple == (p + p / 3) % kTuples;
      add(p, w, a, pick(kClips, w + p), a + p, has_gpt ? 0 : 1 + (a + p) % 3);
    }
  add_split_models(cases);
  return cases;
}

bool selects(const Selection& selection, int stage, const std::string& dtype, int world,
             const std::string& id) {
  return is_within(selection, stage, dtype, world) && Filters(selection.filters).match({id});
}

std::vector<CaseSpec> select(const std::vector<CaseSpec>& cases, const Selection& selection) {
  const Filters filters(selection.filters);
  std::vector<CaseSpec> selected;
  for (const auto& spec : cases)
    if (is_within(selection, spec.stage, word(spec.precision), spec.world) &&
        filters.match({spec.id()}))
      selected.push_back(spec);
  return selected;
}

std::vector<std::string> near_matches(const std::vector<CaseSpec>& cases, const std::string& filter,
                                      std::size_t count) {
  std::vector<std::string> ids;
  for (const auto& spec : cases) ids.push_back(spec.id());
  return near_matches(ids, filter, count);
}

std::vector<std::string> near_matches(const std::vector<std::string>& ids,
                                      const std::string& filter, std::size_t count) {
  auto sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  DistanceToSubstring distance(filter);
  std::vector<std::pair<std::size_t, const std::string*>> ranked;
  for (const auto& id : sorted) ranked.emplace_back(distance.of(id), &id);
  count = std::min(count, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                    ranked.end(), [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first < b.first : *a.second < *b.second;
                    });
  std::vector<std::string> nearest;
  for (std::size_t i = 0; i < count; ++i) nearest.push_back(*ranked[i].second);
  return nearest;
}

}  // namespace equigrad::conformance
