// Scan: the classes and functions of a source, by its braces.
//
// Reads C++ as this project's formatter writes it, without a compiler: comments, texts and
// directives are blanked first, then every `{` is told by what stands before it.
//
// Invariants: lines keep their numbers. What is neither a namespace, a class nor a function is an
// initialiser or a block, and belongs to the function or class around it.
// Units: lines from 1.
// Errors: none; unbalanced braces end the scan.
// Depends on: the C++ standard library only.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace equigrad::conformance::architecture {

struct ScannedFunction {
  std::size_t line;   // of its first word
  std::size_t lines;  // to its closing brace; rows of tables and lines of texts are not counted
};

struct ScannedClass {
  std::string name;
  std::size_t line = 0;
  bool is_struct = false;
  std::size_t members = 0;
  std::size_t booleans = 0;                // members of type bool
  std::set<std::string> public_functions;  // overloads and operators count once
  std::size_t constructor_parameters = 0;  // of the longest
};

struct Scanned {
  std::vector<ScannedFunction> functions;
  std::vector<ScannedClass> classes;
};

namespace scan_detail {

struct Blanked {
  std::string text;
  std::vector<bool> in_text;  // by line: it is the inside of a text that spans lines
};

// The place behind the text or character that begins at `i`.
inline std::size_t behind_text(const std::string& line, std::size_t i) {
  std::size_t j = i + 1;
  while (j < line.size() && line[j] != line[i]) j += line[j] == '\\' ? 2 : 1;
  return std::min(j + 1, line.size());
}

inline bool is_directive(const std::string& line) {
  const auto first = line.find_first_not_of(' ');
  return first != std::string::npos && line[first] == '#';
}

// The source with comments, directives and texts blanked, line by line.
inline Blanked blanked(const std::vector<std::string>& lines) {
  static const std::regex raw(R"=(^R"([a-z]*)\()=");
  Blanked result;
  std::string closing;  // of the raw text we are in
  bool in_directive = false;
  for (const std::string& line : lines) {
    in_directive = closing.empty() && (in_directive || is_directive(line));
    result.in_text.push_back(!closing.empty() && line.find(closing) == std::string::npos);
    for (std::size_t i = in_directive ? line.size() : 0; i < line.size();) {
      const std::string tail = line.substr(i);
      std::smatch match;
      if (!closing.empty()) {
        const auto end = line.find(closing, i);
        if (end == std::string::npos) break;
        i = end + closing.size();
        closing.clear();
      } else if (tail.starts_with("//")) {
        break;
      } else if (std::regex_search(tail, match, raw)) {
        closing = ")" + match[1].str() + "\"";
        i += static_cast<std::size_t>(match.length());
        result.text += "\"\"";
      } else if (tail[0] == '"' ||
                 (tail[0] == '\'' &&
                  (i == 0 || std::isalnum(static_cast<unsigned char>(line[i - 1])) == 0))) {
        i = behind_text(line, i);
        result.text += "\"\"";
      } else {
        result.text += line[i++];
      }
    }
    result.text += '\n';
    in_directive = in_directive && line.ends_with('\\');
  }
  return result;
}

inline std::string squeezed(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space) result += c;
    if (space && !result.empty() && result.back() != ' ') result += ' ';
  }
  while (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

// `a, b<c, d>, e(f, g)` -> 3
inline std::size_t count_of_list(const std::string& list) {
  std::size_t count = list.find_first_not_of(' ') == std::string::npos ? 0 : 1;
  int depth = 0;
  for (const char c : list) {
    if (c == '(' || c == '<' || c == '{' || c == '[') ++depth;
    if (c == ')' || c == '>' || c == '}' || c == ']') --depth;
    if (c == ',' && depth == 0) ++count;
  }
  return count;
}

enum class Kind { Namespace, Class, Function, Other };

inline Kind kind_of(const std::string& head, Kind around) {
  static const std::regex name_space(R"((^|\s)namespace\b|^extern ""$)");
  static const std::regex type(
      R"(^(template ?<.*> ?)?(requires.*\) ?)?(class|struct|union) [^()]*$)");
  static const std::regex function(
      R"(\)( (const|noexcept|override|final|mutable|try))*( -> [^()]+)?$)");
  static const std::regex initialisers(R"(\)( noexcept)? : .*[)}]$)");
  if (around == Kind::Function || around == Kind::Other) return Kind::Other;
  if (std::regex_search(head, name_space)) return Kind::Namespace;
  if (std::regex_search(head, type)) return Kind::Class;
  const bool assigned = std::regex_search(head, std::regex(R"([^=!<>]=[^=])")) &&
                        head.find("operator") == std::string::npos &&
                        head.find('=') < head.find('(');
  if (assigned) return Kind::Other;
  if (std::regex_search(head, function) || std::regex_search(head, initialisers)) {
    return Kind::Function;
  }
  return Kind::Other;
}

// One declaration or definition in the body of a class.
inline void note(ScannedClass& of, std::string head, bool is_public) {
  static const std::regex attribute(R"(\[\[\w+\]\] ?)"), angles(R"(<[^<>]*>)");
  static const std::regex skipped(
      R"(^(using|friend|class|struct|enum|union|typedef|static_assert)\b)");
  head = std::regex_replace(squeezed(head), attribute, "");
  if (head.starts_with("template")) {
    head = std::regex_replace(head, std::regex(R"(^template ?<.*?> (requires\(.*?\) )?)"), "");
  }
  if (head.empty() || std::regex_search(head, skipped)) return;
  std::string flat = head;
  for (std::string before; before != flat;) {
    before = flat;
    flat = std::regex_replace(flat, angles, "");
  }
  const auto open = flat.find('(');
  const auto assigned = std::min(flat.find('='), flat.find('{'));
  if (open == std::string::npos || assigned < open) {
    if (head.starts_with("static")) return;
    ++of.members;
    if (flat.starts_with("bool ") || flat.starts_with("mutable bool ")) ++of.booleans;
    return;
  }
  std::size_t begin = open;
  while (begin > 0 && (std::isalnum(static_cast<unsigned char>(flat[begin - 1])) != 0 ||
                       flat[begin - 1] == '_' || flat[begin - 1] == '~')) {
    --begin;
  }
  const std::string name = flat.substr(begin, open - begin);
  const bool removed = flat.ends_with("delete") || flat.ends_with("default");
  if (name == of.name && !removed) {
    int depth = 0;
    auto end = open;
    for (; end < flat.size(); ++end) {
      if (flat[end] == '(') ++depth;
      if (flat[end] == ')' && --depth == 0) break;
    }
    of.constructor_parameters =
        std::max(of.constructor_parameters, count_of_list(flat.substr(open + 1, end - open - 1)));
  }
  const bool special = name == of.name || name.starts_with("~") || name.empty() ||
                       flat.find("operator") != std::string::npos;
  if (is_public && !special) of.public_functions.insert(name);
}

}  // namespace scan_detail

namespace scan_detail {

class Scanner {
 public:
  explicit Scanner(const std::vector<std::string>& lines)
      : lines_(lines), source_(blanked(lines)) {}

  Scanned run() {
    for (std::size_t i = 0; i < source_.text.size() && !scopes_.empty(); ++i) {
      const char c = source_.text[i];
      if (c == '\n') ++line_;
      if (head_.find_first_not_of(" \n") == std::string::npos) head_line_ = line_;
      if (c == '(') ++parentheses_;
      if (c == ')') --parentheses_;
      if (c == '{') {
        open();
      } else if (c == '}') {
        close();
      } else if (c == ';' && parentheses_ == 0) {
        note_head();
        head_.clear();
      } else if (c == ':' && source_.text[i + 1] != ':' && is_access()) {
        scopes_.back().is_public = head_.find("public") != std::string::npos;
        head_.clear();
      } else {
        head_ += c;
      }
    }
    return std::move(result_);
  }

 private:
  struct Scope {
    Kind kind;
    std::size_t line;
    std::size_t index;  // of its class
    bool is_public;
  };

  bool is_access() const {
    static const std::regex access(R"(\b(public|private|protected) *$)");
    return scopes_.back().kind == Kind::Class && std::regex_search(head_, access);
  }

  void note_head() {
    const Scope& scope = scopes_.back();
    if (scope.kind == Kind::Class) note(result_.classes[scope.index], head_, scope.is_public);
  }

  void open() {
    const std::string before = squeezed(head_);
    const Kind kind = parentheses_ > 0 ? Kind::Other : kind_of(before, scopes_.back().kind);
    if (kind == Kind::Function) note_head();
    if (kind == Kind::Class) {
      std::smatch match;
      std::regex_search(before, match, std::regex(R"((class|struct|union) (\w+))"));
      result_.classes.push_back(
          {.name = match[2], .line = head_line_, .is_struct = match[1] != "class"});
    }
    const bool is_public = kind == Kind::Class && result_.classes.back().is_struct;
    scopes_.push_back({.kind = kind,
                       .line = head_line_,
                       .index = result_.classes.empty() ? 0 : result_.classes.size() - 1,
                       .is_public = is_public});
    if (kind == Kind::Other) {
      head_ += '{';
    } else {
      head_.clear();
    }
  }

  void close() {
    const Scope scope = scopes_.back();
    scopes_.pop_back();
    if (scopes_.empty()) return;
    if (scope.kind == Kind::Function) {
      result_.functions.push_back({.line = scope.line, .lines = counted(scope.line)});
    }
    const Kind around = scopes_.back().kind;
    if (scope.kind == Kind::Other && around != Kind::Function && around != Kind::Other) {
      head_ += '}';
    } else {
      head_.clear();
    }
  }

  // Lines from `begin` to here without rows of tables and lines of texts, which are data.
  std::size_t counted(std::size_t begin) const {
    static const std::regex row(R"(^ +\{.*\},?$)");
    std::size_t count = 0;
    for (std::size_t at = begin; at <= line_ && at <= lines_.size(); ++at) {
      if (!source_.in_text[at - 1] && !std::regex_search(lines_[at - 1], row)) ++count;
    }
    return count;
  }

  const std::vector<std::string>& lines_;
  Blanked source_;
  Scanned result_;
  std::vector<Scope> scopes_{{.kind = Kind::Namespace, .line = 1, .index = 0, .is_public = true}};
  std::string head_;
  std::size_t line_ = 1, head_line_ = 1;
  int parentheses_ = 0;
};

}  // namespace scan_detail

inline Scanned scan(const std::vector<std::string>& lines) {
  return scan_detail::Scanner(lines).run();
}

}  // namespace equigrad::conformance::architecture
