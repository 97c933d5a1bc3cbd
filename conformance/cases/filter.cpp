#include "conformance/cases/filter.hpp"

#include <fnmatch.h>

#include <algorithm>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Words, and brackets one by one.
std::vector<std::string> tokens_of(const std::string& text) {
  std::vector<std::string> tokens;
  bool goes_on = false;
  for (const char c : text) {
    const bool is_bracket = c == '(' || c == ')';
    if (is_bracket || (!goes_on && !is_space(c)))
      tokens.emplace_back(1, c);
    else if (!is_space(c))
      tokens.back() += c;
    goes_on = !is_bracket && !is_space(c);
  }
  return tokens;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

[[noreturn]] void refuse(const std::string& expected, const std::string& got,
                         const std::string& text) {
  throw Error("filter", "expected " + expected + ", got " + got + " in \"" + text +
                            "\". Write it like 'zero3 and (bf16 or fp16) and not world4', in "
                            "quotes; a word alone is a part of a case's id.");
}

// The first `part` that a digit follows.
void replace_part(std::string& name, const std::string& part, const std::string& by) {
  const auto is_digit = [&](std::size_t i) {
    return i < name.size() && name[i] >= '0' && name[i] <= '9';
  };
  auto at = name.find(part);
  while (at != std::string::npos && !is_digit(at + part.size())) at = name.find(part, at + 1);
  if (at != std::string::npos) name.replace(at, part.size(), by);
}

// With the words of --world and --stages.
std::string spelled_out(std::string name) {
  replace_part(name, ".w", ".world");
  replace_part(name, ".zero", ".stage");
  return name;
}

bool meets(const std::string& word, const std::string& name) {
  return ::fnmatch(("*" + word + "*").c_str(), name.c_str(), FNM_NOESCAPE | FNM_CASEFOLD) == 0;
}

bool meets(const std::string& word, const std::vector<std::string>& names) {
  const auto folded = lower(word);
  const bool is_spelled_out =
      folded.find("world") != std::string::npos || folded.find("stage") != std::string::npos;
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return meets(word, name) || (is_spelled_out && meets(word, spelled_out(name)));
  });
}

}  // namespace

// Takes those off that bind before `kind` does.
void Filter::end_operators(std::vector<Kind>& waiting, Kind kind) {
  for (; !waiting.empty() && waiting.back() <= kind; waiting.pop_back())
    steps_.push_back({waiting.back(), 0});
}

// The shunting-yard: no recursion, however deep the brackets are.
Filter::Filter(const std::string& text) {
  std::vector<Kind> waiting;
  std::string last;        // token
  bool has_ended = false;  // what an operator may follow: a word, or brackets
  for (const auto& token : tokens_of(text)) {
    last = token;
    const auto folded = lower(token);
    const bool is_infix = folded == "and" || folded == "or";
    if (!has_ended && (is_infix || token == ")"))
      refuse("a word before \"" + token + "\"", "none", text);
    if (has_ended && !is_infix && token != ")") {
      end_operators(waiting, Kind::And);
      waiting.push_back(Kind::And);
    }
    if (token == ")") {
      end_operators(waiting, Kind::Or);
      if (waiting.empty()) refuse("a ( for every )", "none", text);
      waiting.pop_back();
    } else if (is_infix) {
      const auto kind = folded == "and" ? Kind::And : Kind::Or;
      end_operators(waiting, kind);
      waiting.push_back(kind);
    } else if (token == "(" || folded == "not") {
      waiting.push_back(token == "(" ? Kind::Open : Kind::Not);
    } else {
      steps_.push_back({Kind::Word, words_.size()});
      words_.push_back(token);
    }
    has_ended = !is_infix && token != "(" && folded != "not";
  }
  if (!has_ended) refuse(last.empty() ? "a word" : "a word behind \"" + last + "\"", "none", text);
  end_operators(waiting, Kind::Or);
  if (!waiting.empty()) refuse("a ) for every (", "none", text);
}

bool Filter::matches(const std::vector<std::string>& names) const {
  std::vector<bool> values;
  for (const auto& step : steps_) {
    if (step.kind == Kind::Word) {
      values.push_back(meets(words_[step.word], names));
      continue;
    }
    const bool last = values.back();
    if (step.kind == Kind::Not) {
      values.back() = !last;
      continue;
    }
    values.pop_back();
    values.back() = step.kind == Kind::And ? values.back() && last : values.back() || last;
  }
  return values.back();
}

std::string filter_problem(const std::string& text) {
  try {
    const Filter filter(text);
    return {};
  } catch (const Error& error) {
    return std::string(error.what()).substr(std::string("[filter] ").size());
  }
}

Filters::Filters(const std::vector<std::string>& texts) : filters_(texts.begin(), texts.end()) {}

bool Filters::match(const std::vector<std::string>& names) const {
  return filters_.empty() || std::any_of(filters_.begin(), filters_.end(),
                                         [&](const Filter& one) { return one.matches(names); });
}

}  // namespace equigrad::conformance
