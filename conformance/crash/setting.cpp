#include "conformance/crash/setting.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::array kPrecisions = {"fp32", "bf16", "fp16"};

// In the order of Point::Kind.
constexpr std::array kKinds = {"power", "kill",   "signal-1", "signal-4",
                               "call",  "ENOSPC", "EIO",      "flip"};

// In the order of Flipped.
constexpr std::array kFlipped = {"small", "large", "parts"};

[[noreturn]] void no_point(const std::string& text) {
  throw Error("crash.replay",
              "expected a point, such as zero2.w3.fp16.new.power.7-4-4.s12, got \"" + text +
                  "\". Take it as a report has it.");
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find('.', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// The number behind `prefix`.
std::uint64_t number_in(const std::string& word, const std::string& prefix,
                        const std::string& text) {
  const auto digits = word.starts_with(prefix) ? word.substr(prefix.size()) : "";
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    no_point(text);
  return std::stoull(digits);
}

// "w4s2t2": ranks, and the sizes of groups that are not 1.
void read_ranks(const std::string& word, const std::string& text, Setting& setting) {
  auto rest = word;
  const auto take = [&](char letter, int& size) {
    const auto begin = rest.find(letter);
    if (begin == std::string::npos) return;
    size = static_cast<int>(number_in(rest.substr(begin), std::string(1, letter), text));
    rest.resize(begin);
  };
  take('t', setting.tensor);
  take('s', setting.sequence);
  take('w', setting.world);
  if (!rest.empty()) no_point(text);
}

Setting setting_from(const std::vector<std::string>& words, const std::string& text) {
  Setting setting;
  setting.stage = static_cast<int>(number_in(words[0], "zero", text));
  read_ranks(words[1], text, setting);
  setting.precision = words[2];
  setting.same_tag = words[3].starts_with("same");
  setting.beside = words[3].ends_with("-beside");
  return setting;
}

bool has(const std::vector<int>& all, int one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool is_cut(Point::Kind kind) { return kind == Point::Kind::Power || kind == Point::Kind::Kill; }

Point read_point(const std::string& text) {
  const auto words = split(text);
  Point point;
  if (words.size() == 4 && words[0] == "flip") {
    point.kind = Point::Kind::Flip;
    for (std::size_t of = 0; of < kFlipped.size(); ++of)
      if (words[1] == kFlipped[of]) point.of = static_cast<Flipped>(of);
    point.file = words[2];
    point.at = static_cast<std::int64_t>(number_in(words[3], "", text));
    return point;
  }
  if (words.size() != 7) no_point(text);
  point.setting = setting_from(words, text);
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
    if (words[4] == kKinds[kind]) point.kind = static_cast<Point::Kind>(kind);
  if (is_cut(point.kind)) {
    point.cut = cut_from(words[5]);
    point.seed = number_in(words[6], "s", text);
  } else {
    point.rank = static_cast<int>(number_in(words[5], "r", text));
    point.at = static_cast<std::int64_t>(number_in(words[6], "o", text));
  }
  return point;
}

// Ranks that share a model: pieces of parts, of parts of parts, of whole tensors on a sequence's.
const std::vector<Setting>& shared_models() {
  static const std::vector<Setting> all = {
      {.stage = 1, .world = 2, .precision = "bf16", .tensor = 2},
      {.stage = 2, .world = 4, .precision = "fp32", .same_tag = true, .tensor = 2},
      {.stage = 3, .world = 2, .precision = "fp16", .beside = true, .sequence = 2},
      {.stage = 0, .world = 3, .precision = "fp16", .same_tag = true, .beside = true, .tensor = 3},
      {.stage = 2, .world = 4, .precision = "bf16", .beside = true, .sequence = 2, .tensor = 2}};
  return all;
}

}  // namespace

std::string to_text(const Setting& setting) {
  const auto size_of = [](const char* letter, int size) {
    return size == 1 ? std::string() : letter + std::to_string(size);
  };
  return "zero" + std::to_string(setting.stage) + ".w" + std::to_string(setting.world) +
         size_of("s", setting.sequence) + size_of("t", setting.tensor) + "." + setting.precision +
         (setting.same_tag ? ".same" : ".new") + (setting.beside ? "-beside" : "");
}

void to_json(nlohmann::json& json, const Setting& setting) {
  json = {{"stage", setting.stage},         {"world", setting.world},
          {"precision", setting.precision}, {"same_tag", setting.same_tag},
          {"beside", setting.beside},       {"sequence", setting.sequence},
          {"tensor", setting.tensor}};
}

void from_json(const nlohmann::json& json, Setting& setting) {
  setting = {json.at("stage"),  json.at("world"),    json.at("precision"), json.at("same_tag"),
             json.at("beside"), json.at("sequence"), json.at("tensor")};
}

std::vector<Setting> settings(const std::vector<int>& stages, const std::vector<int>& worlds) {
  std::vector<Setting> all;
  for (const int world : worlds)
    for (const int stage : stages)
      for (const bool same_tag : {false, true}) {
        const auto turn = static_cast<std::size_t>(world + stage + (same_tag ? 1 : 0));
        all.push_back(
            {stage, world, kPrecisions[turn % kPrecisions.size()], same_tag, turn % 2 == 1});
      }
  for (const auto& one : shared_models())
    if (has(stages, one.stage) && has(worlds, one.world)) all.push_back(one);
  return all;
}

std::string to_text(const Point& point) {
  const std::string kind = kKinds.at(static_cast<std::size_t>(point.kind));
  if (point.kind == Point::Kind::Flip)
    return kind + "." + kFlipped[static_cast<std::size_t>(point.of)] + "." + point.file + "." +
           std::to_string(point.at);
  const std::string begin = to_text(point.setting) + "." + kind + ".";
  if (is_cut(point.kind)) return begin + to_text(point.cut) + ".s" + std::to_string(point.seed);
  return begin + "r" + std::to_string(point.rank) + ".o" + std::to_string(point.at);
}

Point point_from(const std::string& text) {
  const auto point = read_point(text);
  const auto& of = point.setting;
  const bool is_grid = of.sequence >= 1 && of.tensor >= 1 &&
                       of.world % (of.sequence * of.tensor) == 0 &&
                       (of.tensor == 1 || of.stage < 3);
  const bool is_of_ranks = of.stage <= 3 && of.world >= 1 && of.world <= 4 && is_grid &&
                           point.rank < of.world &&
                           (!is_cut(point.kind) || point.cut.size() == std::size_t(of.world));
  bool is_known = false;
  for (const std::string precision : kPrecisions) is_known |= precision == of.precision;
  if (!is_known || !is_of_ranks || to_text(point) != text) no_point(text);
  return point;
}

}  // namespace equigrad::conformance::crash
