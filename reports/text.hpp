// Text: how numbers and foreign strings are written, the same in every writer.
//
// Messages, tensor names and replay lines come from elsewhere and may hold anything. clean() makes
// them printable; the escape functions then make them safe for one format each.
//
// Invariants: clean() returns valid UTF-8 without control characters other than newline and tab,
//   so its result is legal in XML 1.0 and harmless in a terminal. shortest() reads back to the
//   same double. Output never depends on the locale.
// Errors: none; what cannot be shown becomes U+FFFD.
// Depends on: the C++ standard library only.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

std::string clean(std::string_view foreign);
// Each character that is a key becomes its value.
using Replacements = std::map<char, std::string_view>;
std::string replaced(std::string_view text, const Replacements& by);
std::string escape_xml(std::string_view foreign);  // cleaned; for text and quoted attributes
// Cleaned, on one line; for a cell or a line of Markdown, in which nothing of it is markup.
std::string escape_markdown(std::string_view foreign);
// " | a | b |": the cells of a row behind its first, already escaped.
std::string markdown_cells(const std::vector<std::string>& cells);
std::string first_line(std::string_view text);

// Words for files and links: letters, digits, '.', '_' and '-' stay; a name that had anything else
// gets a hash of itself at the end, so that different names stay different.
std::string anchor(std::string_view id);

std::string shortest(double value);                       // round trip; "nan", "inf", "-inf"
std::string formatted(const char* format, double value);  // printf's; or nan, inf, -inf
std::string short_number(double value);    // two significant digits, for tables: 0.31, 2.4e+06
std::string bytes_text(int64_t bytes);     // 1.21 MiB
std::string seconds_text(double seconds);  // 93.1 s
std::string scale_text(double scale);      // "2^16"; "none" for 0

std::string grouped_digits(std::string digits);  // 1234567 -> 1,234,567
std::string grouped(std::integral auto value) { return grouped_digits(std::to_string(value)); }
// 1 case, 3 cases
std::string count_of(std::integral auto count, std::string_view noun) {
  return grouped(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}
// The words with something between them.
std::string joined(const std::vector<std::string>& words, std::string_view between);

std::string glyph(Verdict verdict);   // one character that tells verdicts apart without colour
std::string spoken(Verdict verdict);  // "timed out": for people; word() is for programs

std::string upper_case(std::string_view word);  // ASCII

std::size_t width_of(const std::string& text);  // characters of UTF-8, each taken to be one wide
// In lines of at most so many columns, broken behind a space or a comma that is not in a number, or
// where there is none in the middle; all but the first begin with `front`. Ends in a newline.
std::string wrapped(const std::string& line, std::size_t columns, const std::string& front);
// Every line of the text so; what goes on in the next begins there as it began, four spaces further
// in. 0: every line fits. Lines that have `whole`, if that is not empty, are to be pasted: they
// stay.
std::string fitted(const std::string& text, std::size_t columns, const std::string& whole = "");

// "-" where the case does not have this dimension.
std::string dimension(const Case& one, const std::string& key);

// The table headline every writer repeats: "512 cases: 480 equal, 32 within bounds".
std::string counts_text(const Counts& sum);

// "59,177 elements compared, 0 differing where none may, in 93.1 s"
std::string elements_text(const Counts& sum, double seconds);
// The last line of a verdict on a terminal; nothing where nothing repeats it.
std::string replay_line(const std::string& replay);
std::string words_of(const SelfCheck& check);  // what was done, or the fault's name

// What it was built from and ran on, in Markdown.
std::string environment_line(const Environment& env);

// That the engine failed where no fault was planted, and at what; empty where it did not.
std::string engine_text(const Run& run);
// Where a fault that was asked for did not act, or acted and was not seen; empty: all failed by it.
std::string planted_text(const Run& run);
// Sentences that say what the outcome means for this run.
std::string outcome_text(const Run& run);

// That it compared nothing; or the case's message, or words for why it brought none.
std::string message_of(const Case& one);
std::string message_with_replay(const Case& one);  // and the line that repeats it, if there is one

}  // namespace equigrad::reports
