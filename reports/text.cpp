#include "reports/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace equigrad::reports {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid UTF-8 sequence at the front of text, 0 if there is none.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  unsigned code = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = (code << 6) | (byte(i) & 0x3Fu);
  }
  const std::array<unsigned, 5> smallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool noncharacter = (code & 0xFFFEu) == 0xFFFEu;
  return code < smallest[length] || code > 0x10FFFF || surrogate || noncharacter ? 0 : length;
}

// Escape sequences hide in C1 controls (U+0080 to U+009F) as well as below U+0020.
bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1)
    return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(sequence[1]) < 0xA0;
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

// How many bytes of `text` a line of so many columns takes, with the space that ends it.
std::size_t bytes_of_line(const std::string& text, std::size_t columns) {
  std::size_t behind_break = 0, width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins_character(text[i]) && width++ == columns)
      return text[i] == ' ' ? i + 1 : behind_break != 0 ? behind_break : i;
    const bool in_number = i + 1 < text.size() && is_digit(text[i + 1]);
    if (text[i] == ' ' || (text[i] == ',' && !in_number)) behind_break = i + 1;
  }
  return text.size();
}

std::string nonfinite(double value) {
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

std::string clean(std::string_view foreign) {
  std::string out;
  out.reserve(foreign.size());
  while (!foreign.empty()) {
    const size_t length = sequence_length(foreign);
    const std::string_view sequence = foreign.substr(0, length == 0 ? 1 : length);
    foreign.remove_prefix(sequence.size());
    if (sequence == "\r") continue;
    out += length == 0 || is_control(sequence) ? kReplacement : sequence;
  }
  return out;
}

std::string replaced(std::string_view text, const Replacements& by) {
  std::string out;
  for (const char c : text) {
    const auto found = by.find(c);
    out += found == by.end() ? std::string_view(&c, 1) : found->second;
  }
  return out;
}

std::string escape_xml(std::string_view foreign) {
  static const Replacements kMarkup = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  return replaced(clean(foreign), kMarkup);
}

std::string escape_markdown(std::string_view foreign) {
  static const Replacements kMarkup = [] {
    Replacements by = {{'\n', " "}, {'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}};
    for (const std::string_view escaped : {"\\\\", "\\`", "\\*", "\\_", "\\{", "\\}", "\\[", "\\]",
                                           "\\(", "\\)", "\\#", "\\|", "\\!", "\\~", "\\@"})
      by[escaped[1]] = escaped;
    return by;
  }();
  return replaced(clean(foreign), kMarkup);
}

std::string markdown_cells(const std::vector<std::string>& cells) {
  std::string out = " |";
  for (const std::string& one : cells) out += " " + one + " |";
  return out;
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string anchor(std::string_view id) {
  std::string out;
  bool changed = id.empty();
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : id) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    out += plain ? c : '-';
    changed = changed || !plain;
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return changed ? out + "." + std::to_string(hash) : out;
}

std::string shortest(double value) {
  if (!std::isfinite(value)) return nonfinite(value);
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

std::string formatted(const char* format, double value) {
  if (!std::isfinite(value)) return nonfinite(value);
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, value);
  return {buffer.data(), static_cast<size_t>(length)};
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return nonfinite(value);
  if (value == 0) return "0";
  const double size = std::fabs(value);
  if (size >= 100 && size < 1e6) return grouped(std::llround(value));
  if (size >= 1 && size < 100) return formatted("%.1f", value);
  return formatted(size >= 0.1 && size < 1 ? "%.2f" : "%.2g", value);
}

std::string grouped_digits(std::string digits) {
  const size_t start = digits.starts_with('-') ? 1 : 0;
  for (size_t at = digits.size(); at > start + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto scaled = static_cast<double>(bytes);
  size_t unit = 0;
  for (scaled /= 1024; scaled >= 1024 && unit + 1 < kUnits.size(); ++unit) scaled /= 1024;
  return formatted(scaled < 10 ? "%.2f " : scaled < 100 ? "%.1f " : "%.0f ", scaled) + kUnits[unit];
}

std::string seconds_text(double seconds) {
  return formatted(seconds < 10 ? "%.2f s" : "%.1f s", seconds);
}

std::string scale_text(double scale) {
  if (!(scale > 0)) return "none";
  int exponent = 0;
  const double fraction = std::frexp(scale, &exponent);
  return fraction == 0.5 ? "2^" + std::to_string(exponent - 1) : shortest(scale);
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out.append(i == 0 ? "" : between).append(words[i]);
  return out;
}

std::string glyph(Verdict verdict) {
  // In the order of the enumeration.
  constexpr std::array<const char*, kVerdicts.size()> kGlyphs = {"=", "≈", "✗", "–", "!", "◷", "·"};
  return kGlyphs.at(static_cast<size_t>(verdict));
}

std::string spoken(Verdict verdict) { return replaced(word(verdict), {{'_', " "}}); }

std::string upper_case(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return out;
}

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string wrapped(const std::string& line, std::size_t columns, const std::string& front) {
  const auto first_word = std::min(line.find_first_not_of(' '), line.size());
  std::string lines, start = line.substr(0, first_word), rest = line.substr(first_word);
  do {
    const auto bytes =
        bytes_of_line(rest, columns > start.size() ? columns - start.size() : std::size_t{1});
    const std::string full = start + rest.substr(0, bytes);
    lines += full.substr(0, full.find_last_not_of(' ') + 1) + "\n";
    rest.erase(0, bytes);
    start = front;
  } while (!rest.empty());
  return lines;
}

std::string fitted(const std::string& text, std::size_t columns, const std::string& whole) {
  if (columns == 0) return text;
  std::string lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const bool stays = !whole.empty() && line.find(whole) != std::string::npos;
    const auto begin = std::min(line.find_first_not_of("# "), line.size());
    lines += stays ? line + "\n" : wrapped(line, columns, line.substr(0, begin) + "    ");
  }
  return lines;
}

std::string dimension(const Case& one, const std::string& key) {
  const auto found = one.dimensions.find(key);
  return found == one.dimensions.end() ? "-" : found->second;
}

std::string counts_text(const Counts& sum) {
  std::string out = count_of(sum.total(), "case") + ": " + grouped(sum.equal) + " equal, " +
                    grouped(sum.within) + " within bounds, " + grouped(sum.failed) + " failed";
  if (sum.crashed > 0) out += ", " + grouped(sum.crashed) + " crashed";
  if (sum.timed_out > 0) out += ", " + grouped(sum.timed_out) + " timed out";
  return out + ", " + grouped(sum.skipped) + " skipped, " + grouped(sum.not_run) + " not run";
}

std::string elements_text(const Counts& sum, double seconds) {
  return grouped(sum.compared) + " elements compared, " + grouped(sum.differing) +
         " differing where none may, in " + seconds_text(seconds);
}

std::string replay_line(const std::string& replay) {
  return replay.empty() ? "" : "# replay: " + clean(replay) + "\n";
}

std::string words_of(const SelfCheck& check) {
  return check.what.empty() ? check.fault : check.what;
}

std::string environment_line(const Environment& env) {
  return escape_markdown("equigrad " + env.version + ", commit " + env.commit + ", torch " +
                         env.torch + ", " + env.compiler + ", " + env.device + ", " + env.cpu) +
         " x" + std::to_string(env.cores);
}

std::string engine_text(const Run& run) {
  if (run.engine_failure.empty()) return {};
  return "The engine failed where no fault was planted: " + clean(run.engine_failure) + ".";
}

std::string planted_text(const Run& run) {
  if (run.planted.empty()) return {};
  int64_t ran = 0, idle = 0, unseen = 0;
  for (const Case& one : run.cases) {
    ran += one.acted.has_value() || went_wrong(one.verdict);
    idle += one.acted == false;
    unseen += one.acted == true && passed(one.verdict);
  }
  if (idle + unseen == 0) return {};
  const std::string fault = "The planted fault \"" + clean(run.planted) + "\" ";
  if (ran == 1)
    return fault + (idle == 1 ? "never acted in this case, so it could not show it."
                              : "acted in this case, which held: nothing there sees it.");
  if (idle == ran) return fault + "never acted in these cases, so none of them could show it.";
  const std::string acted =
      fault + "acted in " + grouped(ran - idle) + " of " + count_of(ran, "case");
  if (unseen == 0) return acted + ", each of which failed.";
  return acted + ", of which " + grouped(unseen) + " held: nothing there sees it.";
}

namespace {

std::string outcome_sentence(const Run& run) {
  const Counts sum = counts(run);
  const int64_t stopped = sum.crashed + sum.timed_out;
  switch (outcome(run)) {
    case Outcome::Held:
      return "Every case that ran held: 0 differing bits in the exact and cross lanes.";
    case Outcome::Failed:
      return (run.engine_failure.empty() ? "" : engine_text(run) + " ") +
             count_of(sum.failed, "case") + " of " + grouped(sum.executed()) + " failed" +
             (stopped == 0 ? "." : "; " + grouped(stopped) + " more crashed or timed out.");
    case Outcome::Void:
      return "The run is void: it caught " +
             std::to_string(std::count_if(run.self_checks.begin(), run.self_checks.end(),
                                          [](const SelfCheck& check) { return check.caught; })) +
             " of the " + count_of(static_cast<int64_t>(run.self_checks.size()), "fault") +
             " that it planted. It must catch all of them, and at least " +
             std::to_string(kRequiredSelfChecks) + ", or its results prove nothing.";
    case Outcome::Broken:
      if (!run.failure.empty()) return "The run ended before its first case: " + clean(run.failure);
      return count_of(stopped, "case") + " crashed or timed out; no comparison failed.";
    case Outcome::Inconclusive:
      if (sum.compared == 0) return "Inconclusive: nothing was compared.";
      return "Inconclusive: " + count_of(sum.vacuous, "case") +
             " passed without comparing anything.";
    case Outcome::Interrupted:
      return "The run was interrupted; this report is partial.";
  }
  return {};
}

}  // namespace

std::string outcome_text(const Run& run) {
  const std::string planted = planted_text(run);
  return outcome_sentence(run) + (planted.empty() ? "" : " " + planted);
}

std::string message_of(const Case& one) {
  if (vacuous(one)) return "passed without comparing anything";
  if (!one.message.empty()) return one.message;
  if (went_wrong(one.verdict)) return spoken(one.verdict) + " without a message";
  return passed(one.verdict) ? "" : "no reason given";
}

std::string message_with_replay(const Case& one) {
  return message_of(one) + (one.replay.empty() ? "" : "\nreplay: " + one.replay);
}

}  // namespace equigrad::reports
