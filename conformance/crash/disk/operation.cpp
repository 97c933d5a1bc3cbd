#include "conformance/crash/disk/operation.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <tuple>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::array kWords = {"make the folder", "create",          "append", "sync",
                               "rename",          "sync the folder", "remove"};

std::string word(Operation::Kind kind) { return kWords.at(static_cast<std::size_t>(kind)); }

std::string named(const std::string& path) { return path.empty() ? "." : path; }

// Operations of `rank` that are done once a rank waits for it in `call`.
std::size_t done_before(const std::vector<Operation>& operations, std::int64_t call) {
  return static_cast<std::size_t>(
      std::count_if(operations.begin(), operations.end(),
                    [call](const Operation& one) { return one.entered <= call; }));
}

}  // namespace

std::string to_text(const Operation& one) {
  std::string text = word(one.kind);
  if (one.kind == Operation::Kind::Append)
    text += " " + std::to_string(one.bytes.size()) + " bytes to";
  text += " " + named(one.path);
  if (one.kind == Operation::Kind::Rename) text += " to " + one.to;
  return text + (one.failed ? ", which failed" : "");
}

std::size_t operations_of(const Log& log) {
  std::size_t count = 0;
  for (const auto& rank : log.by_rank) count += rank.size();
  return count;
}

// What comes before an operation has entered fewer calls than it.
std::vector<Place> in_order(const Log& log) {
  std::vector<Place> places;
  for (std::size_t rank = 0; rank < log.by_rank.size(); ++rank)
    for (std::size_t i = 0; i < log.by_rank[rank].size(); ++i) places.push_back({rank, i});
  std::stable_sort(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    return log.by_rank[a.rank][a.number].entered < log.by_rank[b.rank][b.number].entered;
  });
  return places;
}

Cut first_of(const Log& log, std::size_t count) {
  Cut cut(log.by_rank.size(), 0);
  for (const auto& place : in_order(log)) {
    if (count-- == 0) break;
    ++cut[place.rank];
  }
  return cut;
}

bool is_possible(const Log& log, const Cut& cut) {
  if (cut.size() != log.by_rank.size()) return false;
  for (std::size_t rank = 0; rank < cut.size(); ++rank) {
    if (cut[rank] > log.by_rank[rank].size()) return false;
    if (cut[rank] == 0) continue;
    const auto left = log.by_rank[rank][cut[rank] - 1].left;
    for (std::int64_t call = 0; call < left; ++call) {
      const int root = log.calls.at(static_cast<std::size_t>(call));
      for (std::size_t other = 0; other < cut.size(); ++other) {
        const bool waits = root == kAllWait || root == static_cast<int>(other);
        if (waits && cut[other] < done_before(log.by_rank[other], call)) return false;
      }
    }
  }
  return true;
}

Cut some_cut(const Log& log, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto whole = operations_of(log);
  Cut cut = first_of(log, random() % (whole + 1));
  for (int tries = 0; tries < 64; ++tries) {
    Cut other = cut;
    const auto rank = random() % cut.size();
    other[rank] = random() % (log.by_rank[rank].size() + 1);
    if (is_possible(log, other)) cut = other;
  }
  return cut;
}

std::string to_text(const Cut& cut) {
  std::string text;
  for (const auto count : cut) text += (text.empty() ? "" : "-") + std::to_string(count);
  return text;
}

Cut cut_from(const std::string& text) {
  Cut cut;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find('-', begin), text.size());
    const auto word = text.substr(begin, end - begin);
    if (word.empty() || word.size() > 9 ||
        word.find_first_not_of("0123456789") != std::string::npos)
      throw Error("crash.cut", "expected numbers of operations, such as 7-4, got \"" + text +
                                   "\". Take a point's name as a report has it.");
    cut.push_back(std::stoul(word));
    begin = end + 1;
  }
  return cut;
}

std::string write_operations(const std::vector<Operation>& operations) {
  auto all = nlohmann::json::array();
  for (const auto& one : operations)
    all.push_back({static_cast<int>(one.kind), one.path, one.to,
                   nlohmann::json::binary({one.bytes.begin(), one.bytes.end()}), one.file,
                   one.failed, one.entered, one.left});
  const auto bytes = nlohmann::json::to_cbor(all);
  return {bytes.begin(), bytes.end()};
}

std::vector<Operation> read_operations(const std::string& text) {
  const auto all = nlohmann::json::from_cbor(text, true, false);
  if (!all.is_array())
    throw Error("crash.log", "expected the log of a save, got " + std::to_string(text.size()) +
                                 " bytes of something else. A rank has not written it whole.");
  std::vector<Operation> operations;
  for (const auto& one : all) {
    const auto& bytes = one.at(3).get_binary();
    operations.push_back({.kind = static_cast<Operation::Kind>(one.at(0).get<int>()),
                          .path = one.at(1),
                          .to = one.at(2),
                          .bytes = {bytes.begin(), bytes.end()},
                          .file = one.at(4),
                          .failed = one.at(5),
                          .entered = one.at(6),
                          .left = one.at(7)});
  }
  return operations;
}

}  // namespace equigrad::conformance::crash
