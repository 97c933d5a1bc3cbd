// The frame of a page: every {{key}} has its value, once, and foreign text is text.
#include "reports/document.hpp"

#include <gmock/gmock.h>

#include <stdexcept>

#include "reports/tests/example_run.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Document, WhatReplacesAKeyIsNotReadAgain) {
  const auto environment = example_environment();
  const std::string command = "{{style}}";
  const std::string page =
      reports::to_html(reports::Document{.origin = {environment, command, 7, 1},
                                         .brand = "Equigrad",
                                         .outcome = "held",
                                         .title = "{{time}} & <b>",
                                         .links = {{"one", "First"}},
                                         .html = reports::section("one", "One", "<p>it</p>\n"),
                                         .data_file = "run.json"});
  EXPECT_THAT(page, HasSubstr("<title>{{time}} &amp; &lt;b&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("<code>{{style}}</code>"));
  EXPECT_THAT(page, HasSubstr("<h1><span aria-hidden=\"true\">✓</span> Held</h1>"));
  EXPECT_THAT(page, HasSubstr("<nav aria-label=\"Sections\"><a href=\"#one\">First</a></nav>"));
  EXPECT_THAT(page, HasSubstr("<dt>Seed</dt><dd>7</dd>"));
  EXPECT_THAT(page, Not(HasSubstr("{{script}}")));
}

TEST(Document, ATemplateOrAValueThatIsNotThereIsAnError) {
  EXPECT_THROW(reports::filled("absent.html"), std::logic_error);
  EXPECT_THROW(reports::filled("page.html", {{"title", "it"}}), std::logic_error);
  EXPECT_THAT(reports::filled("page.css"), HasSubstr(":root{"));
}

TEST(Document, CellsEscapeWhatIsForeign) {
  EXPECT_EQ(reports::number_cells({"<1"}), "<td class=\"n\">&lt;1</td>");
  EXPECT_EQ(reports::cell("<abc", 2), "<td>&lt;a [2 more bytes in the JSON file]</td>");
  EXPECT_EQ(
      reports::table("it", reports::heads({"A"}) + reports::number_heads({"B"}),
                     reports::row("a", "")),
      "<div class=\"wide\"><table>\n<caption>it</caption>\n<thead><tr><th scope=\"col\">A</th>"
      "<th scope=\"col\" class=\"n\">B</th></tr></thead>\n<tbody>\n<tr><th scope=\"row\">a</th>"
      "</tr>\n</tbody></table></div>\n");
}

}  // namespace
}  // namespace equigrad::conformance
