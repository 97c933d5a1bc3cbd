#include "engine/config/pattern.hpp"

#include <optional>

#include "engine/error.hpp"

namespace equigrad {
namespace {

constexpr const char* kRemedy = ". Write it with what Python and ECMAScript have in common.";

std::string expected(const std::string& what, const std::string& text) {
  return "expected " + what + ", got \"" + text + "\"" + kRemedy;
}

// Letters after a backslash that mean the same in both.
bool is_common_escape(char letter) {
  const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
  return !is_letter || std::string("dDwWsSbBtnrfvxu").find(letter) != std::string::npos;
}

// What one of the two languages lacks, or reads otherwise: \A \Z, []], [[:x:]],
// a*+; the library refuses (?i), (?P<name>) and (?<= itself.
std::string problem_between_languages(const std::string& text) {
  bool in_class = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const char after = i + 2 < text.size() ? text[i + 2] : '\0';
    if (text[i] == '\\') {
      if (!is_common_escape(next)) return expected(std::string("no \\") + next, text);
      ++i;
    } else if (in_class) {
      if (text[i] == '[' && (next == ':' || next == '.' || next == '='))
        return expected("no class of a class's name", text);
      in_class = text[i] != ']';
    } else if (text[i] == '[') {
      in_class = true;
      const bool is_negated = next == '^';
      if ((is_negated ? after : next) == ']') return expected("no ] right after [", text);
      if (is_negated) ++i;
    } else if (std::string("*+?}").find(text[i]) != std::string::npos &&
               (next == '*' || next == '+')) {
      return expected("no repetition of a repetition", text);
    }
  }
  return "";
}

// Nothing, if the library refuses it.
std::optional<std::regex> compiled(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string problem_of_pattern(const std::string& text) {
  if (text.empty())
    return R"(expected a regular expression, got "". Write ".*\\.o_proj\\.weight$".)";
  if (text.size() > kLongestPattern)
    return "expected at most " + std::to_string(kLongestPattern) + " characters, got " +
           std::to_string(text.size()) + ". Cut it into several patterns.";
  const std::string problem = problem_between_languages(text);
  if (!problem.empty()) return problem;
  return compiled(text) ? "" : expected("a regular expression", text);
}

Pattern::Pattern(const std::string& text) : text_(text) {
  const std::string problem = problem_of_pattern(text);
  if (!problem.empty()) throw Error("pattern", problem);
  regex_ = *compiled(text);
}

bool Pattern::matches(const std::string& name) const {
  return std::regex_search(name, regex_, std::regex_constants::match_continuous);
}

}  // namespace equigrad
