// `equigrad train`: the twin follows the command, not the engine's parser; and every way to end.
#include <gmock/gmock.h>
#include <signal.h>

#include "conformance/cli/cli.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TrainCommand small() {
  TrainCommand command;
  command.steps = 2;
  command.layers = 1;
  command.dim = 16;
  command.heads = 2;
  command.context = 8;
  return command;
}

struct CommandResult {
  int code;
  std::string out, err;
};

// `spoil` may change an engine rank's request, and its answer to the second "compare".
using Spoil = std::function<void(json& request, ranks::RankContext& context)>;
using Change = std::function<void(json& answer, int rank)>;
CommandResult train(const Spoil& spoil, const Change& change,
                    const TrainCommand& command = small()) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = train_command(command, [=](const json& request, ranks::RankContext& context) {
    static int compared = 0;
    json changed = request;
    const bool engine = request.at("part") == "engine";
    if (engine && spoil) spoil(changed, context);
    auto answer = serve(changed, context);
    if (engine && request.at("verb") == "compare" && ++compared == 2 && change)
      change(answer, context.rank());
    return answer;
  });
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

// At step 2, on rank 1.
template <class Fn>
Spoil at_the_second_step(Fn fn) {
  return [fn](json& request, ranks::RankContext& context) {
    static int steps = 0;
    if (request.at("verb") == "step" && ++steps == 2 && context.rank() == 1) fn(context);
  };
}

TEST(Train, HoldsWithColumnsThatSayWhatTheyAre) {
  const auto result = train(nullptr, nullptr);
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("loss      twin's      compared    differing"));
  EXPECT_THAT(result.out, HasSubstr("twin built from the command's options"));
  EXPECT_THAT(result.out, HasSubstr("HELD  2 steps, "));
}

TEST(Train, AnotherRateIsTheEnginesAndTheTwins) {
  auto command = small();
  command.lr = 0.02;
  EXPECT_THAT(train_config(command), HasSubstr("\"lr\": 0.02"));
  const auto result = train(nullptr, nullptr, command);
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
}

TEST(Train, TheRecordOnStdoutIsAloneThere) {
  auto command = small();
  command.json = "-";
  command.steps = 3;
  const auto result = train(nullptr, nullptr, command);
  EXPECT_EQ(result.code, kHeld) << result.err;
  const auto record = json::parse(result.out);
  EXPECT_EQ(record.at("verdict"), "HELD");
  EXPECT_EQ(record.at("steps").size(), 3U);
  EXPECT_GT(record.at("tokens_per_second").get<double>(), 0);
  EXPECT_THAT(result.err, HasSubstr("HELD  3 steps, "));
}

TEST(Train, AConfigurationThatTheEngineMisreadsIsSeen) {
  const std::vector<std::pair<std::string, std::string>> misread = {
      {"\"lr\": 0.001", "\"lr\": 0.0011"},
      {"\"weight_decay\": 0.01", "\"weight_decay\": 0.02"},
      {"\"gradient_clipping\": 1.0", "\"gradient_clipping\": 0.0"},
      {"AdamW", "SGD"}};
  for (const auto& [right, wrong] : misread) {
    const auto result = train(
        [right = right, wrong = wrong](json& request, ranks::RankContext&) {
          std::string config = request.at("config");
          const auto at = config.find(right);
          if (at == std::string::npos) throw Error("test", "expected " + right + " in " + config);
          request["config"] = config.replace(at, right.size(), wrong);
        },
        nullptr);
    EXPECT_EQ(result.code, kFailed) << wrong << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("# first difference: rank 0: ")) << wrong;
  }
}

TEST(Train, AShardThatIsNotHeldIsSeen) {
  const auto result = train(nullptr, [](json& answer, int rank) {
    if (rank == 1) answer["cover"].erase(0);
  });
  EXPECT_EQ(result.code, kFailed);
  EXPECT_THAT(result.out, HasSubstr("# first difference: shards: "));
  EXPECT_THAT(result.out, HasSubstr("is held by 1 of 2 ranks"));
}

TEST(Train, ARankThatDiesIsTheMachinesAndAnEngineThatThrowsIsAFailure) {
  const auto died = train(at_the_second_step([](auto&) { raise(SIGKILL); }), nullptr);
  EXPECT_EQ(died.code, kInfrastructure) << died.out;
  EXPECT_THAT(died.err, HasSubstr("rank 1/2 died: signal 9"));
  EXPECT_THAT(died.out, HasSubstr("BROKEN  1 steps of 2, "));
  EXPECT_THAT(died.out, HasSubstr("tokens/s on average"));
  const auto lost = train(at_the_second_step([](auto&) {
                            throw comm::CommunicationError("rank 1/2] [comm.all_gather",
                                                           "expected all, got: none.");
                          }),
                          nullptr);
  EXPECT_EQ(lost.code, kInfrastructure) << lost.out;
  const auto thrown = train(
      at_the_second_step([](auto&) { throw Error("engine.step", "expected calm."); }), nullptr);
  EXPECT_EQ(thrown.code, kFailed) << thrown.out;
  EXPECT_THAT(thrown.err, HasSubstr("[engine.step] expected calm."));
}

TEST(Train, ADifferenceWinsOverARankThatDiesLater) {
  const auto result = train(
      [](json& request, ranks::RankContext& context) {
        static int steps = 0;
        std::string config = request.at("config");
        config.replace(config.find("0.001"), 5, "0.002");
        request["config"] = config;
        if (request.at("verb") == "step" && ++steps == 2 && context.rank() == 1) raise(SIGKILL);
      },
      nullptr);
  EXPECT_EQ(result.code, kFailed) << result.out;
}

TEST(Train, SizesThatDoNotFitAreUsageErrors) {
  auto command = small();
  command.dim = 15;
  EXPECT_THROW(train_command(command), ConfigError);
  command = small();
  command.data = "captions";
  command.json = "-";
  EXPECT_THROW(train_command(command), ConfigError);
  command = small();
  command.data = "images";
  command.micro_batch = 3;
  EXPECT_THROW(train_command(command), ConfigError);
}

}  // namespace
}  // namespace equigrad::conformance::cli
