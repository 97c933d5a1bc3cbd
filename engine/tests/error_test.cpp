// What a broken invariant says, and that every build asks.
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

}  // namespace
}  // namespace equigrad
