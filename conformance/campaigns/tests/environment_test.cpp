// The time of a record is UTC wherever it was made.
#include "conformance/campaigns/environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <string>

namespace equigrad::conformance {
namespace {

std::string utc(std::time_t time) {
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&time));
  return text;
}

TEST(Environment, TheTimeIsUtcInEveryZone) {
  ASSERT_EQ(setenv("TZ", "EST5", 1), 0);
  tzset();
  const auto before = utc(std::time(nullptr));
  const auto said = environment_here().time;
  const auto after = utc(std::time(nullptr));
  unsetenv("TZ");
  tzset();
  EXPECT_LE(before, said);
  EXPECT_LE(said, after);
}

}  // namespace
}  // namespace equigrad::conformance
