#include "conformance/diagnosis/shrink.hpp"

#include <algorithm>
#include <array>
#include <set>

namespace equigrad::conformance {
namespace {

// All values of a dimension, from the simplest one on, as candidates that differ from `from` there
// alone. What is as complex as `from` itself, or more so, is left out by the caller.
using Values = std::vector<Candidate> (*)(const Candidate& from);
using Word = std::string (*)(const Candidate& of);

struct Dimension {
  std::string before, behind;  // of a value in words: "" "4" " ranks"; "model " "gpt" ""
  Values values;
  Word word;
};

template <class Value, class Change>
std::vector<Candidate> with_each(const Candidate& from, const std::vector<Value>& values,
                                 const Change& change) {
  std::vector<Candidate> candidates;
  for (const auto& value : values) {
    auto candidate = from;
    change(candidate, value);
    if (is_possible(candidate.spec)) candidates.push_back(candidate);
  }
  return candidates;
}

std::vector<int> counts(int first, int last) {
  std::vector<int> values;
  for (int value = first; value <= last; ++value) values.push_back(value);
  return values;
}

// By parameters: 1, 2, 3 and 4 of a few elements, and those of the zoo; then what is split.
const std::vector<std::string>& models() {
  static const std::vector<std::string> names = {
      "linear1", "linear2", "linear3", "linear4", "irregular", "vision",   "conv",     "gpt",
      "gated",   "gated2",  "gated4",  "ulysses", "ulysses2",  "ulysses4", "gated2x2", "dropout2"};
  return names;
}

std::vector<Candidate> steps(const Candidate& from) {
  return with_each(from, counts(1, from.steps), [](Candidate& to, int n) { to.steps = n; });
}
std::vector<Candidate> model(const Candidate& from) {
  return with_each(from, models(), [](Candidate& to, const auto& name) { to.spec.model = name; });
}
std::vector<Candidate> ranks(const Candidate& from) {
  return with_each(from, counts(1, from.spec.world),
                   [](Candidate& to, int n) { to.spec.world = n; });
}
std::vector<Candidate> micro_batches(const Candidate& from) {
  return with_each(from, counts(1, from.spec.accumulation),
                   [](Candidate& to, int n) { to.spec.accumulation = n; });
}
std::vector<Candidate> precision(const Candidate& from) {
  return with_each(from, precisions(),
                   [](Candidate& to, Precision value) { to.spec.precision = value; });
}
std::vector<Candidate> clip(const Candidate& from) {
  return with_each(from, std::vector<Clip>{Clip::Off, Clip::Below, Clip::Above, Clip::AboveInf},
                   [](Candidate& to, Clip value) { to.spec.clip = value; });
}
std::vector<Candidate> optimizer(const Candidate& from) {
  return with_each(from, std::vector<Rule>{Rule::Sgd, Rule::AdamW},
                   [](Candidate& to, Rule value) { to.spec.optimizer = value; });
}
std::vector<Candidate> style(const Candidate& from) {
  return with_each(from,
                   std::vector<Style>{Style::EngineBackward, Style::ScaleBackward,
                                      Style::LossBackward, Style::TensorBackward},
                   [](Candidate& to, Style value) { to.spec.style = value; });
}
std::vector<Candidate> stage(const Candidate& from) {
  return with_each(from, counts(0, from.spec.stage),
                   [](Candidate& to, int n) { to.spec.stage = n; });
}

// First what makes every further candidate quick.
const std::vector<Dimension>& dimensions() {
  static const std::vector<Dimension> all = {
      {"", " steps", steps, [](const Candidate& c) { return std::to_string(c.steps); }},
      {"model ", "", model, [](const Candidate& c) { return c.spec.model; }},
      {"", " ranks", ranks, [](const Candidate& c) { return std::to_string(c.spec.world); }},
      {"", " micro-batches", micro_batches,
       [](const Candidate& c) { return std::to_string(c.spec.accumulation); }},
      {"", "", precision, [](const Candidate& c) { return word(c.spec.precision); }},
      {"", "", clip, [](const Candidate& c) { return word(c.spec.clip); }},
      {"", "", optimizer, [](const Candidate& c) { return word(c.spec.optimizer); }},
      {"", "", style, [](const Candidate& c) { return word(c.spec.style); }},
      {"stage ", "", stage, [](const Candidate& c) { return std::to_string(c.spec.stage); }}};
  return all;
}

}  // namespace

bool is_model(const std::string& name) {
  const bool is_linear =
      name.size() == 7 && name.starts_with("linear") && name[6] >= '1' && name[6] <= '7';
  return is_linear || std::find(models().begin(), models().end(), name) != models().end();
}

std::string Candidate::name() const { return spec.id() + " --steps " + std::to_string(steps); }

Shrunk shrink(const Candidate& failing, const Fails& fails) {
  Shrunk shrunk{failing};
  std::set<std::string> tried = {failing.name()};
  for (bool again = true; again;) {
    again = false;
    for (const auto& dimension : dimensions())
      for (const auto& candidate : dimension.values(shrunk.smallest)) {
        if (dimension.word(candidate) == dimension.word(shrunk.smallest)) break;
        if (!tried.insert(candidate.name()).second) continue;
        const auto failed = fails(candidate);
        if (!failed) {
          shrunk.stopped = true;
          return shrunk;
        }
        ++shrunk.tried;
        if (!*failed) continue;
        shrunk.smallest = candidate;
        again = true;
        break;
      }
  }
  return shrunk;
}

std::string path_between(const Candidate& from, const Candidate& to) {
  std::string path;
  for (const auto& dimension : dimensions()) {
    const std::string was = dimension.word(from), is = dimension.word(to);
    if (was == is) continue;
    path += (path.empty() ? "" : ", ") + dimension.before + was + dimension.behind + " -> " + is;
  }
  return path;
}

}  // namespace equigrad::conformance
