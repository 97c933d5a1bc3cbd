#include "reports/causes.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::array<const char*, 9> kCauseDimensions = {
    "stage", "precision", "ranks", "style", "model", "optimizer", "clip", "accumulate", "section"};

std::string trimmed(const std::string& line) {
  const auto begin = line.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : line.substr(begin);
}

// Without the spaces in front; those that begin with one of `skipped` are left out.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (auto line = trimmed(text.substr(at, end - at)); !line.empty()) lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

// "first   step 1, all 8 gradients, the first head.bias ..." -> "gradient"
std::string first_wrong(const std::string& line) {
  auto rest = trimmed(line.substr(std::string_view("first ").size()));
  if (rest.starts_with("step "))
    rest = trimmed(rest.substr(std::min(rest.find(", ") + 2, rest.size())));
  // "4 of 8 parameters, the first clipped gradient of ..." -> "clipped gradient"
  const auto count = rest.find_first_not_of("0123456789");
  const auto kind = rest.find(", the first ");
  if (count != 0 && count != std::string::npos && kind != std::string::npos &&
      rest.compare(count, 4, " of ") == 0)
    rest = rest.substr(kind + std::string_view(", the first ").size());
  if (rest.starts_with("all "))
    rest = trimmed(rest.substr(std::min(rest.find(' ', 4), rest.size())));
  rest = rest.substr(0, std::min({rest.find(','), rest.find(" of "), rest.find(" on "),
                                  rest.find(" ["), rest.size()}));
  if (rest.ends_with("gradients") || rest.ends_with("parameters")) rest.pop_back();
  return rest;
}

// "got = 0.5 x want on 12/12 -> one common factor   (residual" -> "one common factor"
std::string looks_like(const std::string& line) {
  auto text = trimmed(line.substr(std::string_view("looks like").size()));
  if (const auto arrow = text.find(" -> "); arrow != std::string::npos)
    text = text.substr(arrow + 4);
  return text.substr(0, text.find("   "));
}

// Of the dimensions that a cause may be limited to, what the cases that ran have, as numbers: a run
// may have thousands of causes.
class Ground {
 public:
  Ground(const Run& run, const std::vector<const Case*>& executed) {
    for (std::size_t at = 0; at < kCauseDimensions.size(); ++at) {
      values_[at] = values(run, kCauseDimensions[at]);
      for (std::size_t i = 0; i < values_[at].size(); ++i)
        if (values_[at][i] != "-") places_[at][values_[at][i]] = i;
    }
    for (const Case* one : executed)
      rows_.push_back({row_of(*one), passed(one->verdict) && !vacuous(*one)});
    for (std::size_t at = 0; at < kCauseDimensions.size(); ++at) {
      std::set<std::size_t> ran;
      for (const auto& row : rows_) ran.insert(row.places[at]);
      ran_[at] = ran.size();
    }
  }

  void limit(Cause& cause) const {
    std::array<std::vector<bool>, kCauseDimensions.size()> wanted;  // by place; empty: no condition
    for (std::size_t at = 0; at < kCauseDimensions.size(); ++at) {
      std::set<std::size_t> wrong;
      for (const Case* one : cause.cases) wrong.insert(place_of(*one, at));
      if (wrong.contains(kNone) || wrong.size() == ran_[at]) continue;
      wanted[at].resize(values_[at].size());
      Condition condition{kCauseDimensions[at], {}};
      for (const auto place : wrong) {
        wanted[at][place] = true;
        condition.values.push_back(values_[at][place]);
      }
      cause.conditions.push_back(std::move(condition));
    }
    cause.executed = static_cast<int64_t>(rows_.size());
    for (const auto& row : rows_)
      if (row.held && meets(row, wanted)) ++cause.alike_held;
  }

 private:
  using Places = std::array<std::size_t, kCauseDimensions.size()>;
  static constexpr std::size_t kNone = std::size_t(-1);
  struct Row {
    Places places;
    bool held;
  };

  std::size_t place_of(const Case& one, std::size_t at) const {
    const auto found = places_[at].find(dimension(one, kCauseDimensions[at]));
    return found == places_[at].end() ? kNone : found->second;
  }
  Places row_of(const Case& one) const {
    Places row;
    for (std::size_t at = 0; at < row.size(); ++at) row[at] = place_of(one, at);
    return row;
  }
  static bool meets(const Row& row, const std::array<std::vector<bool>, Places().size()>& wanted) {
    for (std::size_t at = 0; at < wanted.size(); ++at) {
      if (wanted[at].empty()) continue;
      if (row.places[at] == kNone || !wanted[at][row.places[at]]) return false;
    }
    return true;
  }

  std::array<std::vector<std::string>, kCauseDimensions.size()> values_;  // in their order
  std::array<std::map<std::string, std::size_t>, kCauseDimensions.size()> places_;
  std::array<std::size_t, kCauseDimensions.size()> ran_{};  // values that ran, absence one of them
  std::vector<Row> rows_;
};

size_t place_of(Verdict verdict) {
  return static_cast<size_t>(std::find(kVerdicts.begin(), kVerdicts.end(), verdict) -
                             kVerdicts.begin());
}

}  // namespace

std::string cause_in(const std::string& message) {
  const auto line = message.find("looks like");
  if (line == std::string::npos) return {};
  const auto end = std::min(message.find('\n', line), message.size());
  const auto arrow = message.find(" -> ", line);
  if (arrow == std::string::npos || arrow > end) return {};
  const auto begin = arrow + 4;
  const auto cause = message.substr(begin, std::min(message.find("   ", begin), end) - begin);
  return cause.starts_with("one common factor") ? "" : cause;
}

std::string without_numbers(const std::string& text) {
  std::string words;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit || !words.ends_with('#')) words += is_digit ? '#' : c;
  }
  return words;
}

std::string cause_of(const Case& one) {
  if (const auto cause = cause_in(one.message); !cause.empty() && !vacuous(one)) return cause;
  std::string first, likely, other;
  for (const auto& line : lines_of(message_of(one))) {
    if (line.starts_with("first ") && first.empty())
      first = first_wrong(line);
    else if (line.starts_with("looks like") && likely.empty())
      likely = looks_like(line);
    else if (other.empty() && !line.starts_with("FAIL ") && !line.starts_with("not compared"))
      other = line.substr(0, line.find(", such as "));
  }
  if (!likely.empty()) return likely + (first.empty() ? "" : "; first wrong: " + first);
  return other.empty() ? first : other;
}

std::string headline(const Case& one) {
  const auto cause = clean(cause_of(one));
  return spoken(one.verdict) + "  " + clean(one.id) + (cause.empty() ? "" : ": " + cause);
}

std::vector<Cause> causes(const Run& run) {
  std::vector<const Case*> executed;
  for (const Case& one : run.cases)
    if (passed(one.verdict) || went_wrong(one.verdict)) executed.push_back(&one);
  std::map<std::pair<size_t, std::string>, size_t> places;
  std::vector<Cause> found;
  for (const Case* one : worst_first(wrong_cases(run))) {
    const std::string text = cause_of(*one), key = without_numbers(text);
    const auto [at, is_new] = places.try_emplace({place_of(one->verdict), key}, found.size());
    if (is_new)
      found.push_back({.verdict = one->verdict, .text = text, .cases = {}, .conditions = {}});
    Cause& cause = found[at->second];
    if (cause.text != text) cause.text = replaced(key, {{'#', "N"}});
    cause.cases.push_back(one);
  }
  const Ground ground(run, executed);
  for (Cause& cause : found) ground.limit(cause);
  std::stable_sort(found.begin(), found.end(), [](const Cause& a, const Cause& b) {
    const auto first = place_of(a.verdict), second = place_of(b.verdict);
    return first != second ? first < second : a.cases.size() > b.cases.size();
  });
  return found;
}

std::string where_text(const Cause& cause) {
  const auto number = static_cast<int64_t>(cause.cases.size());
  if (number == cause.executed)
    return number == 1 ? "The only case that ran." : "All " + grouped(number) + " cases that ran.";
  std::string out = count_of(number, "case") + " of " + grouped(cause.executed);
  if (number == 1) return out + ".";
  const char* between = ", only with ";
  for (const Condition& condition : cause.conditions) {
    out += between + condition.dimension + " " + joined(condition.values, ", ");
    between = "; ";
  }
  return out + (cause.alike_held == 0 ? ". No such case held."
                                      : ". " + count_of(cause.alike_held, "such case") + " held.");
}

}  // namespace equigrad::reports
