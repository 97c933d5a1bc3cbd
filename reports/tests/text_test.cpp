#include "reports/text.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace equigrad::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Text, GoodTextIsLeftAlone) {
  EXPECT_EQ(reports::clean("tab\tline\nüñ≈日本🙂"), "tab\tline\nüñ≈日本🙂");
}

TEST(Text, ControlCharactersAndBrokenUtf8BecomeTheReplacementCharacter) {
  EXPECT_EQ(reports::clean("a\x1b[31mb"), "a�[31mb");
  EXPECT_EQ(reports::clean(std::string_view("a\0b", 3)), "a�b");
  EXPECT_EQ(reports::clean("a\x7f\x62"), "a�b");
  EXPECT_EQ(reports::clean("a\xC2\x9B\x62"), "a�b") << "C1 control";
  EXPECT_EQ(reports::clean("a\xFF\x62"), "a�b") << "never a byte of UTF-8";
  EXPECT_EQ(reports::clean("a\xC0\xAF"), "a��") << "overlong slash";
  EXPECT_EQ(reports::clean("a\xE0\x80\xAF"), "a���") << "overlong slash in three bytes";
  EXPECT_EQ(reports::clean("a\xED\xA0\x80"), "a���") << "surrogate";
  EXPECT_EQ(reports::clean("a\xEF\xBF\xBF"), "a���") << "not legal in XML";
  EXPECT_EQ(reports::clean("a\xF4\x90\x80\x80"), "a����") << "beyond U+10FFFF";
  EXPECT_EQ(reports::clean("a\xE2\x82"), "a��") << "cut off";
  EXPECT_EQ(reports::clean("a\r\nb"), "a\nb");
}

TEST(Text, IsWrappedBehindSpacesAndCommasOrWhereItMust) {
  EXPECT_EQ(reports::wrapped("one two three", 100, "  "), "one two three\n");
  EXPECT_EQ(reports::wrapped("one two three", 8, "  "), "one two\n  three\n");
  EXPECT_EQ(reports::wrapped("  key  [\"a\",\"bb\",\"c\"]", 14, "    "),
            "  key  [\"a\",\n    \"bb\",\"c\"]\n");
  EXPECT_EQ(reports::wrapped("abcdefgh", 3, " "), "abc\n de\n fg\n h\n");
  EXPECT_EQ(reports::wrapped("", 3, " "), "\n");
  EXPECT_EQ(reports::wrapped("one, two", 4, ""), "one,\ntwo\n");
  EXPECT_EQ(reports::wrapped("one two six", 7, "# "), "one two\n# six\n") << "it fits";
  EXPECT_EQ(reports::wrapped("of 1,234,567 cases", 8, "# "), "of\n# 1,234,\n# 567\n# cases\n")
      << "a number that is too wide";
  EXPECT_EQ(reports::wrapped("of 1,234 cases", 9, "# "), "of 1,234\n# cases\n");
}

TEST(Text, ALineIsCountedInCharactersAndNoneIsCut) {
  EXPECT_EQ(reports::wrapped("\u00e9\u00e9\u00e9\u00e9", 4, ""), "\u00e9\u00e9\u00e9\u00e9\n");
  EXPECT_EQ(reports::wrapped("\u00e9\u00e9\u00e9\u00e9", 3, ""), "\u00e9\u00e9\u00e9\n\u00e9\n");
}

TEST(Text, MarkupIsEscaped) {
  EXPECT_EQ(reports::escape_xml("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

TEST(Text, AnchorsKeepCaseNamesAndStayDifferentForAnythingElse) {
  EXPECT_EQ(reports::anchor("Required.grad.zero3.clip-above"), "Required.grad.zero3.clip-above");
  const std::set<std::string> anchors = {reports::anchor("a b"), reports::anchor("a-b"),
                                         reports::anchor("a\"b"), reports::anchor("")};
  EXPECT_EQ(anchors.size(), 4u);
  for (const std::string& one : anchors) {
    EXPECT_EQ(one.find_first_of(" \"'<>"), std::string::npos) << one;
    EXPECT_FALSE(one.empty());
  }
}

TEST(Text, ShortestNumbersReadBackToTheSameBits) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 93.0625}) {
    const double back = std::strtod(reports::shortest(value).c_str(), nullptr);
    EXPECT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(value));
  }
  EXPECT_EQ(reports::shortest(-0.0), "-0");
  EXPECT_EQ(reports::shortest(std::nan("")), "nan");
  EXPECT_EQ(reports::shortest(kInfinity), "inf");
  EXPECT_EQ(reports::shortest(-kInfinity), "-inf");
}

TEST(Text, TableNumbersAreShort) {
  EXPECT_EQ(reports::short_number(0), "0");
  EXPECT_EQ(reports::short_number(0.3125), "0.31");
  EXPECT_EQ(reports::short_number(0.9), "0.90");
  EXPECT_EQ(reports::short_number(0.0042), "0.0042");
  EXPECT_EQ(reports::short_number(12.34), "12.3");
  EXPECT_EQ(reports::short_number(199.9), "200");
  EXPECT_EQ(reports::short_number(4096), "4,096");
  EXPECT_EQ(reports::short_number(4194304), "4.2e+06");
  EXPECT_EQ(reports::short_number(kInfinity), "inf");
}

TEST(Text, LargeCountsAreGroupedByThousands) {
  EXPECT_EQ(reports::grouped(0), "0");
  EXPECT_EQ(reports::grouped(999), "999");
  EXPECT_EQ(reports::grouped(1000), "1,000");
  EXPECT_EQ(reports::grouped(-123456), "-123,456");
  EXPECT_EQ(reports::grouped(-1234567), "-1,234,567");
  EXPECT_EQ(reports::grouped(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Text, BytesHaveABinaryUnit) {
  EXPECT_EQ(reports::bytes_text(1023), "1023 B");
  EXPECT_EQ(reports::bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(reports::bytes_text(236708), "231 KiB");
  EXPECT_EQ(reports::bytes_text(int64_t{3} << 40), "3.00 TiB");
}

TEST(Text, EveryVerdictHasItsOwnGlyphAndWord) {
  std::set<std::string> glyphs;
  std::set<std::string> words;
  for (int i = 0; i <= static_cast<int>(reports::Verdict::NotRun); ++i) {
    glyphs.insert(reports::glyph(static_cast<reports::Verdict>(i)));
    words.insert(reports::spoken(static_cast<reports::Verdict>(i)));
  }
  EXPECT_EQ(glyphs.size(), 7u);
  EXPECT_EQ(words.size(), 7u);
}

// A fault that was asked for and changed nothing is no proof that anything sees it.
TEST(Text, APlantedFaultThatDidNotActOrWasNotSeenIsTold) {
  using reports::Verdict;
  constexpr std::nullopt_t kCannotSay = std::nullopt;
  const auto told = [](std::vector<std::pair<Verdict, std::optional<bool>>> cases) {
    reports::Run run;
    run.planted = "word_lost";
    for (const auto& [verdict, acted] : cases) {
      run.cases.push_back({.id = "a", .verdict = verdict, .acted = acted});
    }
    return reports::planted_text(run);
  };
  EXPECT_EQ(told({{Verdict::Equal, false}}),
            "The planted fault \"word_lost\" never acted in this case, so it could not show it.");
  EXPECT_EQ(
      told({{Verdict::Equal, true}}),
      "The planted fault \"word_lost\" acted in this case, which held: nothing there sees it.");
  EXPECT_EQ(told({{Verdict::Failed, true}, {Verdict::Crashed, kCannotSay}}), "");
  EXPECT_EQ(
      told({{Verdict::Within, false}, {Verdict::Failed, false}, {Verdict::NotRun, kCannotSay}}),
      "The planted fault \"word_lost\" never acted in these cases, so none of them could show it.");
  EXPECT_EQ(
      told({{Verdict::Equal, false}, {Verdict::Crashed, kCannotSay}, {Verdict::Failed, true}}),
      "The planted fault \"word_lost\" acted in 2 of 3 cases, each of which failed.");
  EXPECT_EQ(told({{Verdict::Equal, true}, {Verdict::Equal, false}, {Verdict::Failed, true}}),
            "The planted fault \"word_lost\" acted in 2 of 3 cases, of which 1 held: nothing there "
            "sees it.");
  reports::Run run;
  run.cases = {{.id = "a", .verdict = Verdict::Equal}};
  EXPECT_EQ(reports::planted_text(run), "");
}

}  // namespace
}  // namespace equigrad::conformance
