// `equigrad config check` in a terminal: rows that fit, every key where it is asked for, and
// whether a rank's bytes fit.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigCheck : public InAFolder {
 protected:
  CommandResult check(const std::string& keys, std::vector<std::string> words) const {
    const std::string file = folder_ + "/ds.json";
    std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": 7,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "bf16": {"enabled": true})"
                        << keys << "}";
    words.insert(words.begin(), {"config", "check", file});
    return result_of_words(words);
  }
};

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

const std::string kStage3 = R"(, "zero_optimization": {"stage": 3})";
const std::string kOffloaded = R"(, "zero_optimization": {"stage": 3,
  "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})";

TEST_F(ConfigCheck, NoRowIsWiderThanTheTerminal) {
  for (const char* columns : {"80", "100", "132"}) {
    setenv("COLUMNS", columns, 1);
    for (const auto& words : std::vector<std::vector<std::string>>{
             {}, {"--all"}, {"--world", "8", "--parameters", "70B", "--memory", "80GB"}}) {
      const auto said = check(kStage3, words);
      EXPECT_LE(longest_line(said.out), std::stoul(columns)) << said.out;
      EXPECT_THAT(said.out, AllOf(HasSubstr("zero_optimization.stage"), HasSubstr("total")));
    }
  }
  unsetenv("COLUMNS");
}

// Half of 80 columns for keys; a longer one is alone in its line.
TEST_F(ConfigCheck, ALongKeyLeavesTheColumnOfValuesWhereItIs) {
  constexpr std::size_t kColumn = 2 + 40 + 2;
  setenv("COLUMNS", "80", 1);
  const auto all = check(kStage3, {"--all"}).out;
  unsetenv("COLUMNS");
  EXPECT_THAT(all, HasSubstr("\n  zero_optimization.stage3_max_live_parameters\n" +
                             std::string(kColumn, ' ') + "1000000000\n"));
  std::istringstream lines(all);
  int beside = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool is_key = line.starts_with("  ") && !line.starts_with("   ");
    const auto end = line.find(' ', 2);
    if (!is_key || end == std::string::npos) continue;
    EXPECT_EQ(line.find_first_not_of(' ', end), kColumn) << line;
    ++beside;
  }
  EXPECT_GT(beside, 40);
}

TEST_F(ConfigCheck, AllHasEveryKeyUnderWhatItIs) {
  const auto some = check(kStage3, {}), all = check(kStage3, {"--all"});
  EXPECT_THAT(some.out, AllOf(HasSubstr("The file sets\n"), HasSubstr("What follows from it\n"),
                              HasSubstr("In the file, without effect here\n  steps_per_print"),
                              HasSubstr("other keys have their defaults: --all shows them.\n"),
                              Not(HasSubstr("zero_optimization.leaf_module.classes"))));
  EXPECT_THAT(all.out, AllOf(HasSubstr("\nAll other keys, which have their defaults\n"),
                             HasSubstr("zero_optimization.leaf_module.classes"),
                             HasSubstr("MixtralSparseMoeBlock"), Not(HasSubstr("--all shows"))));
}

TEST_F(ConfigCheck, ABooleanForZeroIsSaidToBeStageOne) {
  EXPECT_THAT(check(R"(, "zero_optimization": true)", {}).out,
              HasSubstr("zero_optimization.stage         1  (\"zero_optimization\": true is "
                        "DeepSpeed's old form of it)"));
}

// 2 + 4 + 8 bytes a parameter between steps, on one rank.
TEST_F(ConfigCheck, MemorySaysWhetherARankFits) {
  const auto fits = check("", {"--parameters", "350M", "--memory", "80GB"});
  EXPECT_EQ(fits.code, kHeld) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("\nIt fits: "));
  for (const char* name : {"--memory", "--fits"}) {
    const auto not_at_all = check("", {"--parameters", "7e9", name, "24GiB"});
    EXPECT_EQ(not_at_all.code, kFailed);
    EXPECT_THAT(not_at_all.out,
                AllOf(HasSubstr("\nIt does NOT fit: "), HasSubstr("25 769 803 776")));
  }
  const auto unsized = check("", {"--memory", "80GB"});
  EXPECT_EQ(unsized.code, kUsage);
  EXPECT_THAT(unsized.err, HasSubstr("Give --parameters or --numels."));
}

TEST_F(ConfigCheck, WithoutAModelsSizeTheBucketsAreSaidToBeThoseOfALargeOne) {
  const auto any = check("", {}), sized = check("", {"--parameters", "1M"});
  EXPECT_THAT(any.out, AllOf(HasSubstr("and bytes of a large model\n"),
                             HasSubstr("--parameters 7B says what")));
  EXPECT_THAT(sized.out, Not(HasSubstr("--parameters 7B says what")));
}

// On a GPU what is on the CPU takes none of its memory.
TEST_F(ConfigCheck, WhatIsOffloadedIsNotCounted) {
  const auto most = [&](const std::string& keys, const std::string& device) {
    const auto said =
        check(keys, {"--parameters", "1G", "--memory", "80GB", "--device", device, "--json", "-"});
    const auto record = nlohmann::json::parse(said.out);
    return std::pair{record.at("most_bytes").get<int64_t>(),
                     record.at("most_bytes_beside").get<int64_t>()};
  };
  const auto whole = most(kStage3, "cuda"), apart = most(kOffloaded, "cuda"),
             on_cpu = most(kOffloaded, "cpu");
  EXPECT_EQ(whole.second, 0);
  EXPECT_EQ(on_cpu.second, 0);
  EXPECT_GE(apart.second, 14'000'000'000);
  EXPECT_LT(apart.second, 14'000'100'000) << "2 + 4 + 8 bytes a parameter, and padding";
  EXPECT_LT(apart.first, whole.first);
  const auto said = check(kOffloaded, {"--parameters", "1G", "--device", "cuda"});
  EXPECT_THAT(said.out, HasSubstr("parameters, master_weights, optimizer_state on cpu"));
  const auto asked =
      check(kOffloaded, {"--parameters", "1G", "--device", "cuda", "--memory", "8GB"});
  EXPECT_THAT(asked.out, HasSubstr("\nBeside, on the CPU: 14 000 "));
}

// "Fits in 80 GB?" is asked of a GPU; without the question bytes are those of a CPU.
TEST_F(ConfigCheck, WhetherItFitsIsAskedOfAGpuUnlessTheDeviceIsSaid) {
  const auto record = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--parameters", "7B", "--world", "8", "--json", "-"});
    const auto said = check(R"(, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu"}})",
                            words);
    auto read = nlohmann::json::parse(said.out);
    read["code"] = said.code;
    return read;
  };
  const auto plain = record({}), asked = record({"--fits", "40GB"}),
             on_gpu = record({"--fits", "40GB", "--device", "cuda"}),
             on_cpu = record({"--device", "cpu", "--fits", "40GB"});
  EXPECT_EQ(plain.at("device"), "cpu");
  EXPECT_EQ(asked.at("device"), "cuda");
  EXPECT_EQ(asked, on_gpu);
  EXPECT_EQ(asked.at("code"), kHeld);
  EXPECT_EQ(asked.at("most_bytes_beside"), 10'500'000'000) << "4 + 8 bytes a parameter, of 8 ranks";
  EXPECT_EQ(on_cpu.at("device"), "cpu");
  EXPECT_EQ(on_cpu.at("code"), kFailed);
  EXPECT_EQ(on_cpu.at("most_bytes_beside"), 0);
  EXPECT_EQ(record({"--memory", "40GB"}), asked) << "the same option";
  EXPECT_THAT(result_of_words({"config", "check", "--help"}).out,
              HasSubstr("(default: cuda with --fits, else cpu)"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
