// JSON from a disk: what is refused.
#include "engine/checkpoint/strict_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

TEST(StrictJson, GivesMembersInTheTextsOrder) {
  std::string order;
  read_members(R"({"b": 1, "a": [2, {"x": 3}], "": "c"})", "m", 3,
               [&](const std::string& key, Json&& value) { order += key + value.dump() + ';'; });
  EXPECT_EQ(order, R"(b1;a[2,{"x":3}];"c";)");
}

TEST(StrictJson, RefusesWhatAPlainParserHides) {
  for (const std::string text :
       {"", "1", "[]", "[{}]", "null", R"({"a": 1, "a": 1})", R"({"a": {"b": 1, "b": 2}})",
        R"({"a": 1e999})", R"({"a": NaN})", R"({"a": 1} 2)", R"({"a": [[[1]]]})", R"({"a": 1,})",
        R"({"a": /* b */ 1})", "{\"a\": \"\xff\"}"})
    EXPECT_THROW(read_object(text, "m", 3), Error) << text;
  EXPECT_THROW(read_object(std::string("{}\0x", 4), "m", 3), Error);
}

}  // namespace
}  // namespace equigrad::checkpoint
