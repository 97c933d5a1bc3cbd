// What a broken invariant says, and that every build asks; that an error's text is UTF-8.
#include "engine/error.hpp"

#include <gtest/gtest.h>

namespace equigrad {
namespace {

TEST(Check, ThrowsAnErrorWithoutAFileAndAsksOnce) {
#ifndef NDEBUG
  FAIL() << "expected the flags of the project's own builds";
#endif
  int asked = 0;
  EXPECT_NO_THROW(EQUIGRAD_CHECK(++asked == 1, "test", "one is one"));
  EXPECT_EQ(asked, 1);
  try {
    EQUIGRAD_CHECK(++asked == 3, "engine.step", "two is three");
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[engine.step] broken invariant: two is three. This is a mistake in Equigrad: "
                 "report it, with the configuration.");
  }
  EXPECT_EQ(asked, 2);
}

TEST(ErrorText, IsUtf8WhateverItQuotes) {
  // Bytes that begin nothing, sequences that end early, are too long, half of a pair, or too large.
  for (const std::string bytes :
       {"\xFF", "\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC0\xAF", "\xE0\x80\xAF",
        "\xED\xA0\x80", "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF8\x88"}) {
    std::string shown;
    for (std::size_t i = 0; i < bytes.size(); ++i) shown += "\xEF\xBF\xBD";
    EXPECT_EQ(Error("of " + bytes, "got " + bytes + "a" + bytes).what(),
              "[of " + shown + "] got " + shown + "a" + shown);
  }
}

TEST(ErrorText, KeepsWhatIsUtf8) {
  const std::string text =
      "a\n\x7F \xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF "
      "\xF0\x90\x80\x80 \xF4\x8F\xBF\xBF";
  EXPECT_EQ(Error("w", text).what(), "[w] " + text);
}

}  // namespace
}  // namespace equigrad
