// Did you mean: the known name that is nearest to a mistyped one.
//
// Invariants: nearest_name() is one of the candidates: the nearest within an edit distance of a
// third of the name's length (at least 2), the first one on a tie; else the first that begins with
// the name; else empty. likely_name() asks before whether one is short for the other: the name's
// words are among the candidate's ("warmup_steps", "warmup_num_steps"), the one is the other's
// initials ("learning_rate", "lr"), or three letters or more begin it; and behind, whether one ends
// the name ("fusedadam", "adam"), as a word of it where it has several.
// Units: distances count characters inserted, removed, replaced, or swapped with their neighbour
// (optimal string alignment).
// Depends on: the C++ standard library only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace equigrad {

inline std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> table(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      std::size_t& cell = table[i][j];
      if (i == 0 || j == 0) {
        cell = i + j;
        continue;
      }
      cell = std::min({table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), table[i - 1][j] + 1,
                       table[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cell = std::min(cell, table[i - 2][j - 2] + 1);
    }
  }
  return table[a.size()][b.size()];
}

// Of a name in snake_case.
inline std::vector<std::string> words_of_name(const std::string& name) {
  std::vector<std::string> words;
  std::istringstream stream(name);
  for (std::string word; std::getline(stream, word, '_');)
    if (!word.empty()) words.push_back(word);
  return words;
}

// Whether all words of the name are the candidate's, or the one is the other's initials.
inline bool is_short_for(const std::string& name, const std::string& candidate) {
  const auto words = words_of_name(name), others = words_of_name(candidate);
  const auto initials = [](const std::vector<std::string>& of) {
    std::string letters;
    for (const auto& word : of) letters += word[0];
    return letters;
  };
  if (words.size() > 1 && initials(words) == candidate) return true;
  if (others.size() > 1 && initials(others) == name) return true;
  return words.size() > 1 && std::all_of(words.begin(), words.end(), [&](const std::string& word) {
           return std::find(others.begin(), others.end(), word) != others.end();
         });
}

inline std::string nearest_name(const std::string& name,
                                const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestName = 256;  // the table is quadratic
  if (name.empty() || name.size() > kLongestName) return "";
  std::string nearest;
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(name.size(), candidate.size());
    if (longer - std::min(name.size(), candidate.size()) >= best) continue;  // so is the distance
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  for (const std::string& candidate : candidates)
    if (nearest.empty() && candidate.starts_with(name)) nearest = candidate;
  return nearest;
}

inline std::string likely_name(const std::string& name,
                               const std::vector<std::string>& candidates) {
  constexpr std::size_t kShort = 3;  // a beginning or an end of fewer letters says nothing
  for (const std::string& candidate : candidates)
    if (is_short_for(name, candidate) || (name.size() >= kShort && candidate.starts_with(name)))
      return candidate;
  std::string likely = nearest_name(name, candidates);
  if (!likely.empty()) return likely;
  for (const std::string& candidate : candidates) {
    if (candidate.size() < std::max(kShort, likely.size() + 1) || !name.ends_with(candidate))
      continue;
    const bool has_words = name.find('_') != std::string::npos;
    if (!has_words || name[name.size() - candidate.size() - 1] == '_') likely = candidate;
  }
  return likely;
}

// " Did you mean "x"?", or nothing; to be appended to an error.
inline std::string did_you_mean(const std::string& name,
                                const std::vector<std::string>& candidates) {
  const std::string likely = likely_name(name, candidates);
  return likely.empty() ? "" : " Did you mean \"" + likely + "\"?";
}

}  // namespace equigrad
