// How wide a terminal is, and a drawing that shows the course.
#include "conformance/cli/terminal_text.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace equigrad::conformance::cli {
namespace {

TEST(TerminalText, AWidthIsTheTerminalsOrWhatColumnsSays) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto with = [&](const char* said) {
    said == nullptr ? unsetenv("COLUMNS") : setenv("COLUMNS", said, 1);
    return columns_of(ends[1]);
  };
  EXPECT_EQ(with("72"), 72U);
  EXPECT_EQ(with("3"), 40U);
  EXPECT_EQ(with("many"), 100U);
  EXPECT_EQ(with("-1"), 100U);
  EXPECT_EQ(with(nullptr), 100U);
  EXPECT_EQ(limit_of_columns(ends[1]), 0U) << "a pipe takes lines of any width";
  EXPECT_EQ(with("3"), 40U);
  EXPECT_EQ(limit_of_columns(ends[1]), 40U);
  unsetenv("COLUMNS");
  close(ends[0]);
  close(ends[1]);
}

TEST(TerminalText, NumbersAreDrawnFromTheHighestToTheLowest) {
  EXPECT_EQ(drawn({4, 3, 2, 1}, 10, 4),
            "        4 | *\n"
            "          |  *\n"
            "          |   *\n"
            "        1 |    *\n");
  EXPECT_EQ(drawn({4, 2, 2, 0, 0, 0}, 3, 3),
            "        3 | *\n"
            "          |  *\n"
            "        0 |   *\n");
  EXPECT_EQ(drawn({1, NAN, 1, 1}, 10, 2), "        1 | * **\n        1 |\n");
  EXPECT_EQ(drawn({1, 2}, 10, 4), "");
  EXPECT_EQ(drawn({1, INFINITY, NAN, 2}, 10, 4), "");
}

}  // namespace
}  // namespace equigrad::conformance::cli
