// Did you mean: the known name that is nearest to a mistyped one.
//
// Invariants: the answer is one of the candidates: the nearest within an edit distance of a third
// of the name's length (at least 2), the first one on a tie; else the first that begins with the
// name; else empty.
// Units: distances count characters inserted, removed, replaced, or swapped with their neighbour
// (optimal string alignment).
// Depends on: the C++ standard library only.
#pragma once

#include <algorithm>
#include <cstddef>
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
    if (nearest.empty() && candidate.rfind(name, 0) == 0) nearest = candidate;
  return nearest;
}

// " Did you mean "x"?", or nothing; to be appended to an error.
inline std::string did_you_mean(const std::string& name,
                                const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : " Did you mean \"" + nearest + "\"?";
}

}  // namespace equigrad
