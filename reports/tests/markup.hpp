// Markup: a strict reader of XML, enough to prove that a report is well formed.
//
// It takes a document apart into elements with attributes and text, and throws std::runtime_error
// where a real parser would stop: unbalanced tags, unknown entities, stray < or &, characters that
// XML 1.0 forbids. It knows elements, attributes, text, comments, CDATA and one prologue; no DTD.
//
// Depends on: the C++ standard library only.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace equigrad::conformance {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // all text inside, unescaped
  std::vector<Element> children;

  std::vector<const Element*> all(const std::string& wanted) const {
    std::vector<const Element*> found;
    for (const Element& child : children) {
      if (child.name == wanted) found.push_back(&child);
      for (const Element* inner : child.all(wanted)) found.push_back(inner);
    }
    return found;
  }
};

class MarkupReader {
 public:
  explicit MarkupReader(std::string_view text) : rest_(text) {}

  Element document() {
    if (starts("<?xml")) after("?>");
    spaces();
    Element root = element();
    spaces();
    require(rest_.empty(), "the end");
    return root;
  }

 private:
  void require(bool holds, const std::string& what) const {
    if (!holds) {
      throw std::runtime_error("expected " + what + " at: " + std::string(rest_.substr(0, 60)));
    }
  }
  bool starts(std::string_view prefix) const { return rest_.substr(0, prefix.size()) == prefix; }
  void skip(std::string_view expected) {
    require(starts(expected), std::string(expected));
    rest_.remove_prefix(expected.size());
  }
  std::string_view after(std::string_view end) {
    const size_t at = rest_.find(end);
    require(at != std::string_view::npos, std::string(end));
    const std::string_view before = rest_.substr(0, at);
    rest_.remove_prefix(at + end.size());
    return before;
  }
  void spaces() {
    while (!rest_.empty() && std::string_view(" \n\t").find(rest_[0]) != std::string_view::npos) {
      rest_.remove_prefix(1);
    }
  }
  std::string name() {
    const size_t length = rest_.find_first_of(" \n\t=/>\"'<&");
    require(length != 0 && length != std::string_view::npos, "a name");
    const std::string found(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return found;
  }
  std::string character() {
    if (starts("&")) {
      static const std::map<std::string, std::string, std::less<>> kEntities = {
          {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"#39", "'"}};
      skip("&");
      const auto entity = kEntities.find(after(";").substr(0, 8));
      require(entity != kEntities.end(), "a known entity");
      return entity->second;
    }
    require(rest_[0] != '<' && legal(rest_[0]), "a legal character");
    const std::string one(1, rest_[0]);
    rest_.remove_prefix(1);
    return one;
  }
  static bool legal(char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t';
  }
  void attribute(Element& into) {
    const std::string key = name();
    skip("=\"");
    std::string value;
    while (!starts("\"")) {
      require(!rest_.empty(), "a closing quote");
      value += character();
    }
    skip("\"");
    require(into.attributes.emplace(key, value).second, "each attribute once");
  }
  Element element() {
    skip("<");
    Element into;
    into.name = name();
    for (spaces(); !starts(">") && !starts("/>"); spaces()) attribute(into);
    if (starts("/>")) {
      skip("/>");
      return into;
    }
    skip(">");
    while (!starts("</")) {
      require(!rest_.empty(), "</" + into.name);
      if (starts("<![CDATA[")) {
        skip("<![CDATA[");
        for (const char c : after("]]>")) {
          require(legal(c), "a legal character");
          into.text += c;
        }
      } else if (starts("<!--")) {
        after("-->");
      } else if (starts("<")) {
        into.children.push_back(element());
      } else {
        into.text += character();
      }
    }
    skip("</" + into.name + ">");
    return into;
  }

  std::string_view rest_;
};

inline Element read_markup(std::string_view text) { return MarkupReader(text).document(); }

}  // namespace equigrad::conformance
