// The options of a run's line without which its cases mean something else.
#include "conformance/cli/made_with.hpp"

#include <gtest/gtest.h>

namespace equigrad::conformance::cli {
namespace {

TEST(MadeWith, ReadsALineAsItIsWritten) {
  EXPECT_EQ(made_with("equigrad run -q"), MadeWith{});
  EXPECT_EQ(made_with("equigrad run zero2 --fault twice --knobs k.json -q"),
            (MadeWith{.fault = "twice", .knobs = "k.json", .model = ""}));
  EXPECT_EQ(made_with("build/equigrad run --fault=twice --model=a=b.so"),
            (MadeWith{.fault = "twice", .knobs = "", .model = "a=b.so"}));
  EXPECT_EQ(made_with("equigrad run --model '/my models/a.so' --fault twice"),
            (MadeWith{.fault = "twice", .knobs = "", .model = "/my models/a.so"}));
  EXPECT_EQ(made_with(R"(equigrad run --model 'it'\''s.so')").model, "it's.so");
  EXPECT_EQ(made_with("equigrad run --fault").fault, "");
}

// equigrad.check stands in somebody's program, whose options are its own.
TEST(MadeWith, OptionsOfAnotherProgramAreItsOwn) {
  EXPECT_EQ(made_with("python3 train.py --model gpt2 --fault none"), MadeWith{});
  EXPECT_EQ(made_with("./my_test --model=gpt2"), MadeWith{});
  EXPECT_EQ(made_with(""), MadeWith{});
}

TEST(MadeWith, WordsAreToPaste) {
  EXPECT_EQ(words_of({}), "");
  const MadeWith made{.fault = "twice", .knobs = "", .model = "/my models/a.so"};
  EXPECT_EQ(words_of(made), " --fault twice --model '/my models/a.so'");
  EXPECT_EQ(made_with("equigrad run" + words_of(made)), made);
}

TEST(MadeWith, AMergedRecordIsThatOfItsParts) {
  reports::Run run;
  run.command = "equigrad report merge a b";
  run.merged_commands = {"equigrad run --fault twice", "equigrad run"};
  const std::vector<MadeWith> parts = {{.fault = "twice", .knobs = "", .model = ""}, {}};
  EXPECT_EQ(made_with(run), parts);
}

}  // namespace
}  // namespace equigrad::conformance::cli
