// `equigrad compare`: pairs are pairs, what is measured is of the right run, and every way to end.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "engine/config/config.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPlain = R"({"train_micro_batch_size_per_gpu": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 3}})";

std::string ready(const std::string& name) {
  return std::string(build_info::source_directory()) + "/conformance/cases/configs/" + name +
         ".json";
}

// `spoil` may change a rank's request, and then its answer, which is null at first.
using Spoil = std::function<void(json& request, json& answer, ranks::RankContext& context)>;

class Compare : public InAFolder {
 protected:
  void SetUp() override {
    InAFolder::SetUp();
    command_.steps = 12;
    command_.seeds = 2;
    command_.final_steps = 3;
    command_.layers = 1;
    command_.dim = 16;
    command_.heads = 2;
    command_.context = 8;
    command_.quiet = true;
    command_.report = folder_ + "/report";
    command_.configs = {config("a", kPlain), config("b", std::string("// commented\n") + kPlain)};
  }
  std::string config(const std::string& name, const std::string& text) {
    write_file(folder_ + "/" + name + ".json", text);
    return folder_ + "/" + name + ".json";
  }
  // Sets code_, out_, err_ and report_.
  void compare(const Spoil& spoil = nullptr) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    code_ = compare_command(command_, [=](const json& request, ranks::RankContext& context) {
      json changed = request, answer;  // null before it is given
      if (spoil) spoil(changed, answer, context);
      answer = serve(changed, context);
      if (spoil) spoil(changed, answer, context);
      return answer;
    });
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    report_ = json::parse(text_of(command_.report + "/compare.json"));
  }
  // Of run `index`, in the order of running: A B, B A.
  const json& run(std::size_t index) const { return report_.at("runs").at(index); }

  CompareCommand command_;
  std::string out_, err_;
  int code_ = -1;
  json report_;
};

// With a margin of 0.05 and no spread at all, alike means equivalent, if the little model learns.
TEST_F(Compare, AConfigurationBesideItselfIsEquivalentToTheLastBit) {
  command_.steps = 60;
  command_.final_steps = 10;
  compare();
  EXPECT_EQ(code_, kHeld) << out_ << err_;
  ASSERT_EQ(report_.at("runs").size(), 4u);
  for (const std::size_t pair : {0u, 2u}) {
    EXPECT_EQ(run(pair).at("losses"), run(pair + 1).at("losses"));
    EXPECT_EQ(run(pair).at("seed"), run(pair + 1).at("seed"));
    EXPECT_EQ(run(pair).at("losses").size(), 60u);
  }
  EXPECT_NE(run(0).at("losses"), run(2).at("losses"));  // seeds are different runs
  EXPECT_EQ(run(0).at("configuration"), "A");
  EXPECT_EQ(run(2).at("configuration"), "B");  // turns alternate
  EXPECT_EQ(report_.at("quantities").at(0).at("B_minus_A").at("mean"), 0.0);
  EXPECT_THAT(out_, HasSubstr("EQUIVALENT  "));
  EXPECT_TRUE(out_.ends_with("\n# report: " + command_.report + "/compare.html\n")) << out_;
  EXPECT_THAT(out_, HasSubstr("margin: 0.05 nats, the default: state your own with --margin"));
  EXPECT_THAT(text_of(command_.report + "/compare.html"), HasSubstr("<section id=\"compare\""));
  EXPECT_THAT(text_of(command_.report + "/compare.md"),
              HasSubstr("## Equigrad compare: equivalent"));
  EXPECT_THAT(text_of(command_.report + "/index.html"), HasSubstr("<a href=\"compare.html\">"));
}

TEST_F(Compare, ALearningRateThatIsTooHighIsDifferent) {
  std::string wild = kPlain;
  wild.replace(wild.find("0.01"), 4, "10.0");
  command_.configs[1] = config("wild", wild);
  command_.steps = 60;
  command_.final_steps = 10;
  command_.seeds = 4;
  command_.margin_is_stated = true;
  compare();
  EXPECT_EQ(code_, kFailed) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("DIFFERENT  The final losses differ: B - A is +"));
  EXPECT_THAT(out_, HasSubstr("0.05 nats, as stated"));
}

TEST_F(Compare, AConfigurationThatDoesNotLearnIsInconclusive) {
  std::string still = kPlain;
  still.replace(still.find("0.01"), 4, "0.00");
  command_.configs = {config("still", still), config("still2", still)};
  compare();
  EXPECT_EQ(code_, kInconclusive) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("A has not learned"));
  // Weights stand still, so that a loss says which batch it is of: another one at every step, and
  // another one on every rank.
  const auto both = run(0).at("losses");
  EXPECT_NE(both.at(0), both.at(1));
  command_.world = 1;
  compare();
  EXPECT_NE(run(0).at("losses").at(0), both.at(0));
}

// Without safe modules autocast changes nothing but what the guard does.
TEST_F(Compare, TheForwardRunsUnderAutocast) {
  auto autocast = json::parse(kPlain);
  autocast["torch_autocast"] = {
      {"enabled", true}, {"dtype", "bfloat16"}, {"lower_precision_safe_modules", json::array()}};
  command_.configs[1] = config("autocast", autocast.dump());
  compare();
  EXPECT_NE(run(0).at("losses").at(0), run(1).at("losses").at(0)) << out_ << err_;
}

TEST_F(Compare, TheReadyConfigurationsDifferInPrecisionOnlyAndHoldWhatTheySay) {
  auto fp32 = load_config(ready("fp32_masters"), 2), bf16 = load_config(ready("bf16_masters"), 2);
  EXPECT_EQ(fp32.zero.stage, 3);
  EXPECT_EQ(fp32.precision.master, DataType::Fp32);
  EXPECT_EQ(bf16.precision.master, DataType::Bf16);
  EXPECT_EQ(bf16.precision.optimizer_state, DataType::Bf16);
  EXPECT_TRUE(bf16.precision.autocast.enabled);
  bf16.precision = fp32.precision;
  EXPECT_EQ(fp32, bf16);
  command_.configs = {ready("fp32_masters"), ready("bf16_masters")};
  compare();
  EXPECT_NE(code_, kFailed) << out_ << err_;
  for (const char* what : {"master_weights", "optimizer_state"}) {
    const int64_t a = run(0).at("held").at(what), b = run(1).at("held").at(what);
    EXPECT_GT(b, 0) << what;
    EXPECT_EQ(a, 2 * b) << what;
  }
  EXPECT_EQ(run(0).at("losses").at(0), run(1).at("losses").at(0));  // the same weights and batch
  EXPECT_GT(run(0).at("process_peak_bytes"), run(0).at("process_growth_bytes"));
  EXPECT_GT(run(0).at("held_peak_bytes"), run(0).at("held_bytes"));
  EXPECT_GT(run(0).at("step_s"), 0);
}

// Losses, bytes and seconds are put together as they must be.
TEST_F(Compare, ValuesAreOfAllRanks) {
  compare([](const json& request, json& answer, ranks::RankContext& context) {
    if (answer.is_null()) return;
    const bool second = context.rank() == 1;
    if (request.at("verb") == "steps") {
      for (auto& loss : answer.at("losses")) loss = second ? "3" : "1";
      for (auto& seconds : answer.at("seconds")) seconds = second ? 7.0 : 5.0;
    }
    if (request.at("verb") == "finish") {
      answer["held_peak_bytes"] = second ? 100 : 400;
      answer["held_bytes"] = second ? 30 : 20;
      answer["held"] = {{"of_rank", context.rank()}};
    }
  });
  EXPECT_EQ(run(0).at("losses").at(11), 2.0);
  EXPECT_EQ(run(0).at("step_s"), 7.0);
  EXPECT_EQ(run(0).at("held_peak_bytes"), 400);
  EXPECT_EQ(run(0).at("held_bytes"), 30);
  EXPECT_EQ(run(0).at("held").at("of_rank"), 1);
}

TEST_F(Compare, ALossThatIsNotFiniteIsKeptAndDiverges) {
  std::string other = kPlain;
  other.replace(other.find("0.01"), 4, "0.02");
  command_.configs[1] = config("other", other);
  compare([](const json& request, json& answer, ranks::RankContext& context) {
    if (request.at("verb") == "steps" && !answer.is_null() && context.rank() == 1 &&
        request.at("config").get<std::string>().find("0.01") == std::string::npos)
      answer.at("losses").at(1) = "nan";
  });
  EXPECT_EQ(code_, kFailed) << out_;
  EXPECT_EQ(run(1).at("losses").at(1), "nan");
  EXPECT_THAT(out_, HasSubstr("DIFFERENT  B diverged with seed 1234: its loss is not finite at "
                              "step 2, and that of A is."));
}

// In the second run, at its second request for steps.
Spoil at_the_second_run(std::function<void(ranks::RankContext&)> fn) {
  return [fn](const json& request, const json& answer, ranks::RankContext& context) {
    static int asked = 0;
    if (!answer.is_null() || request.at("verb") != "steps" || context.rank() != 1) return;
    if (request.at("config").get<std::string>().find("0.02") != std::string::npos && ++asked == 2)
      fn(context);
  };
}

TEST_F(Compare, ARankThatDiesIsTheMachinesAndAnEngineThatThrowsIsAFailure) {
  std::string other = kPlain;
  other.replace(other.find("0.01"), 4, "0.02");
  command_.configs[1] = config("other", other);
  compare(at_the_second_run([](auto&) { raise(SIGKILL); }));
  EXPECT_EQ(code_, kInfrastructure) << out_;
  EXPECT_THAT(out_, HasSubstr("BROKEN  B with seed 1234, step 11: "));
  EXPECT_THAT(out_, HasSubstr("signal 9"));
  ASSERT_EQ(report_.at("runs").size(), 2u);
  EXPECT_EQ(run(0).at("complete"), true);
  EXPECT_EQ(run(1).at("complete"), false);
  EXPECT_EQ(run(1).at("losses").size(), 10u);
  compare(
      at_the_second_run([](auto&) { throw Error("engine.step", "expected calm, got <none>."); }));
  EXPECT_EQ(code_, kFailed) << out_;
  EXPECT_THAT(out_, HasSubstr("FAILED  B with seed 1234, step 11: "));
  EXPECT_THAT(text_of(command_.report + "/compare.html"),
              HasSubstr("expected calm, got &lt;none&gt;"));
}

TEST_F(Compare, WhatMakesNoPairsIsAUsageError) {
  command_.configs.pop_back();
  EXPECT_THROW(compare_command(command_), ConfigError);
  auto twice = json::parse(kPlain);
  twice["train_micro_batch_size_per_gpu"] = 4;
  command_.configs.push_back(config("twice", twice.dump()));
  EXPECT_THROW(compare_command(command_), ConfigError);
  twice = json::parse(kPlain);
  twice["gradient_accumulation_steps"] = 2;
  command_.configs[1] = config("twice", twice.dump());
  EXPECT_THROW(compare_command(command_), ConfigError);
  command_.configs[1] = command_.configs[0];
  command_.final_steps = 7;
  EXPECT_THROW(compare_command(command_), ConfigError);
  command_.final_steps = 3;
  command_.dim = 15;
  EXPECT_THROW(compare_command(command_), ConfigError);
  command_.dim = 16;
  command_.data = "images";  // come in fours
  EXPECT_THROW(compare_command(command_), ConfigError);
}

}  // namespace
}  // namespace equigrad::conformance::cli
