#include "conformance/cases/covering.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace equigrad::conformance {
namespace {

// The pairs of values of a case, each as a number.
class Pairs {
 public:
  std::vector<std::size_t> of(const CaseSpec& spec) {
    std::vector<std::size_t> values;
    for (const auto& value : spec.dimensions()) values.push_back(number_of(values_, value));
    std::vector<std::size_t> pairs;
    for (std::size_t a = 0; a < values.size(); ++a)
      for (std::size_t b = a + 1; b < values.size(); ++b)
        pairs.push_back(number_of(pairs_, std::pair(values[a], values[b])));
    return pairs;
  }
  std::size_t count() const { return pairs_.size(); }

 private:
  template <class Key>
  static std::size_t number_of(std::map<Key, std::size_t>& numbers, const Key& key) {
    return numbers.emplace(key, numbers.size()).first->second;
  }

  std::map<std::pair<const std::string, std::string>, std::size_t> values_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> pairs_;
};

struct Candidate {
  const CaseSpec* spec;
  std::vector<std::size_t> pairs;
};

// How often the selection has each pair.
class Cover {
 public:
  explicit Cover(std::size_t pairs) : times_(pairs) {}
  void add(const Candidate& one) {
    for (const auto pair : one.pairs) ++times_[pair];
  }
  void remove(const Candidate& one) {
    for (const auto pair : one.pairs) --times_[pair];
  }
  auto missing(const Candidate& one) const { return count(one, 0); }
  bool needs(const Candidate& one) const { return count(one, 1) > 0; }

 private:
  std::ptrdiff_t count(const Candidate& one, int times) const {
    return std::count_if(one.pairs.begin(), one.pairs.end(),
                         [&](std::size_t pair) { return times_[pair] == times; });
  }
  std::vector<int> times_;
};

}  // namespace

int tells(const CaseSpec& spec) {
  return 4 * (spec.model == "irregular") + 2 * (spec.world > 1) + 2 * (spec.accumulation > 1) +
         (spec.world == 2) + (spec.clip != Clip::Off) + (spec.optimizer == Rule::AdamW) +
         (spec.stage > 0) + (spec.stage == 3);
}

std::size_t every_value_first(std::vector<CaseSpec>& cases, std::size_t end) {
  std::set<std::pair<const std::string, std::string>> seen;
  const auto fresh = [&](const CaseSpec& spec) {
    const auto values = spec.dimensions();
    return std::count_if(values.begin(), values.end(),
                         [&](const auto& value) { return !seen.contains(value); });
  };
  const auto last = cases.begin() + static_cast<std::ptrdiff_t>(end);
  auto next = cases.begin();
  for (; next != last; ++next) {
    const auto best = std::max_element(next, last, [&](const auto& one, const auto& other) {
      return std::pair(fresh(one), tells(one)) < std::pair(fresh(other), tells(other));
    });
    if (fresh(*best) == 0) break;
    for (const auto& value : best->dimensions()) seen.insert(value);
    std::rotate(next, best, best + 1);
  }
  return static_cast<std::size_t>(next - cases.begin());
}

std::vector<CaseSpec> covering_of(const std::vector<CaseSpec>& matrix,
                                  const std::vector<CaseSpec>& given) {
  Pairs pairs;
  std::vector<Candidate> candidates, chosen;
  for (const auto& spec : matrix)
    if (!spec.is_refused()) candidates.push_back({&spec, pairs.of(spec)});
  for (const auto& spec : given) chosen.push_back({&spec, pairs.of(spec)});
  Cover cover(pairs.count());
  for (const auto& one : chosen) cover.add(one);
  for (;;) {
    const auto rank = [&](const Candidate& one) {
      return std::pair(cover.missing(one), tells(*one.spec));
    };
    const auto best = std::max_element(
        candidates.begin(), candidates.end(),
        [&](const auto& one, const auto& other) { return rank(one) < rank(other); });
    if (best == candidates.end() || cover.missing(*best) == 0) break;
    cover.add(*best);
    chosen.push_back(*best);
  }
  std::vector<CaseSpec> selection = given;
  for (std::size_t i = given.size(); i < chosen.size(); ++i) {
    if (cover.needs(chosen[i]))
      selection.push_back(*chosen[i].spec);
    else
      cover.remove(chosen[i]);
  }
  return selection;
}

}  // namespace equigrad::conformance
