// Xml: a report read by pugixml, and what pugixml lets pass asked as well.
//
// Invariants: one root; no unknown entity, no stray & or <, no attribute twice; characters that
//   XML 1.0 allows. Anything else fails the test.
// Depends on: pugixml, GoogleTest, reports/text.hpp.
#pragma once

#include <gtest/gtest.h>

#include <pugixml.hpp>
#include <regex>
#include <string>
#include <vector>

#include "reports/text.hpp"

namespace equigrad::conformance {

inline pugi::xml_document read_xml(const std::string& text) {
  static const std::regex kForeign("&(?!(amp|lt|gt|quot|#39);)|<");
  pugi::xml_document document;
  const unsigned raw = (pugi::parse_default & ~pugi::parse_escapes) | pugi::parse_fragment;
  const auto read = document.load_string(text.c_str(), raw);
  EXPECT_TRUE(read) << read.description()
                    << " at: " << text.substr(static_cast<std::size_t>(read.offset), 60);
  EXPECT_TRUE(document.first_child() == document.last_child()) << "more than one root";
  for (const auto& found : document.select_nodes("//text() | //@*")) {
    const auto attribute = found.attribute();
    if (found.node().type() == pugi::node_cdata) continue;
    const std::string value = attribute ? attribute.value() : found.node().value();
    EXPECT_FALSE(std::regex_search(value, kForeign)) << value.substr(0, 60);
    EXPECT_TRUE(!attribute || found.parent().attribute(attribute.name()) == attribute)
        << attribute.name() << " twice";
  }
  EXPECT_EQ(reports::clean(text), text) << "characters that XML does not allow";
  document.load_string(text.c_str());
  return document;
}

// Below `node`, at any depth.
inline std::vector<pugi::xml_node> all(const pugi::xml_node& node, const std::string& name) {
  std::vector<pugi::xml_node> nodes;
  for (const auto& found : node.select_nodes((".//" + name).c_str())) nodes.push_back(found.node());
  return nodes;
}

inline std::string text_in(const pugi::xml_node& node) {
  return pugi::xpath_query("string()").evaluate_string(node);
}

}  // namespace equigrad::conformance
