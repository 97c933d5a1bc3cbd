#include "conformance/cli/shard.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {
namespace {

std::optional<Shard> parsed_shard(const std::string& text) {
  const char* const end = text.data() + text.size();
  Shard shard;
  const auto index = std::from_chars(text.data(), end, shard.index);
  if (index.ec != std::errc() || index.ptr == end || *index.ptr != '/') return std::nullopt;
  const auto count = std::from_chars(index.ptr + 1, end, shard.count);
  const bool is_one =
      count.ec == std::errc() && count.ptr == end && shard.index >= 1 && shard.index <= shard.count;
  return is_one ? std::optional(shard) : std::nullopt;
}

// Cases that go to one shard.
struct Piece {
  int64_t cost = 0;
  std::vector<std::string> ids;
};

// Consecutive cases of a twin, as long as a piece costs no more than `most`.
std::vector<Piece> pieces_of(const std::vector<ShardCase>& cases, int64_t most) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bool goes_on = i > 0 && cases[i].together == cases[i - 1].together &&
                         pieces.back().cost + cases[i].cost <= most;
    if (!goes_on) pieces.emplace_back();
    pieces.back().cost += cases[i].cost;
    pieces.back().ids.push_back(cases[i].id);
  }
  return pieces;
}

}  // namespace

std::string shard_problem(const std::string& text) {
  if (parsed_shard(text)) return {};
  return "expected I/N with 1 <= I <= N, such as 2/5, got \"" + text + "\"";
}

Shard shard_of(const std::string& text) { return parsed_shard(text).value(); }

// The dearest piece first, each to the shard that has least to do.
std::set<std::string> ids_of_shard(std::vector<ShardCase> cases, const Shard& shard) {
  const auto count = static_cast<std::size_t>(shard.count);
  if (cases.size() < count)
    throw ConfigError(
        "run", {"expected at least as many cases as shards, got " + std::to_string(cases.size()) +
                " and --shard " + std::to_string(shard.index) + "/" + std::to_string(shard.count) +
                ". Take fewer shards."});
  std::sort(cases.begin(), cases.end(), [](const ShardCase& a, const ShardCase& b) {
    return std::tie(a.together, a.id) < std::tie(b.together, b.id);
  });
  int64_t all = 0;
  for (const auto& one : cases) all += one.cost;
  auto pieces = pieces_of(cases, all / (8 * shard.count));
  if (pieces.size() < count) pieces = pieces_of(cases, 0);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
  std::vector<int64_t> work(count);
  std::set<std::string> ids;
  for (const auto& piece : pieces) {
    const auto least = std::min_element(work.begin(), work.end());
    *least += piece.cost;
    if (least - work.begin() == shard.index - 1) ids.insert(piece.ids.begin(), piece.ids.end());
  }
  return ids;
}

}  // namespace equigrad::conformance::cli
