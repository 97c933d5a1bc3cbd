// Columns that stand under each other, and those that are left out where they do not fit.
#include "reports/table.hpp"

#include <gmock/gmock.h>

namespace equigrad::conformance {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<reports::TableRow> example() {
  return {{"name", "bytes", "most", "what"}, {"a", "1 000", "7", "one"}, {"long name", "2"}};
}

TEST(Table, ATableHasItsFirstColumnAndTheNamedOnesToTheLeft) {
  EXPECT_EQ(reports::aligned({{"name", "bytes", "most"}, {"a", "1 000"}, {"long name", "2", "3"}}),
            "name       bytes  most\n"
            "a          1 000\n"
            "long name      2     3\n");
  EXPECT_EQ(
      reports::aligned({{"name", "what", "most"}, {"a", "≈", "3"}, {"b", "one", "4"}}, {"what"}),
      "name  what  most\n"
      "a     ≈        3\n"
      "b     one      4\n");
}

TEST(Table, ColumnsAreLeftOutInTheirOrderUntilALineFits) {
  EXPECT_EQ(reports::line_width(example()), 9u + 2 + 5 + 2 + 4 + 2 + 4);
  const auto left_out = [](std::size_t columns) {
    auto rows = example();
    return reports::narrow(rows, columns, {"what", "none", "bytes"});
  };
  EXPECT_THAT(left_out(0), IsEmpty());
  EXPECT_THAT(left_out(28), IsEmpty());
  EXPECT_THAT(left_out(27), ElementsAre("what"));
  EXPECT_THAT(left_out(22), ElementsAre("what"));
  EXPECT_THAT(left_out(21), ElementsAre("what", "bytes"));
  EXPECT_THAT(left_out(3), ElementsAre("what", "bytes"));
  auto rows = example();
  reports::narrow(rows, 21, {"what", "none", "bytes"});
  EXPECT_EQ(reports::aligned(rows),
            "name       most\n"
            "a             7\n"
            "long name\n");
}

}  // namespace
}  // namespace equigrad::conformance
