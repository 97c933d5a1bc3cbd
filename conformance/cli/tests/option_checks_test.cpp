// Words on the command line that are wrong: what is said of them, and that nothing is run.
#include "conformance/cli/option_checks.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "conformance/cli/bench_options.hpp"
#include "conformance/cli/knobs.hpp"
#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = InAFolder;

const std::string kCase =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";

TEST_F(Words, AMisspeltWordGetsTheOneThatIsNear) {
  EXPECT_THAT(result_of_words({"rum"}).err, HasSubstr("Did you mean \"run\"?"));
  EXPECT_THAT(result_of_words({"run", "--wrold", "2"}).err, HasSubstr("Did you mean \"--world\"?"));
  EXPECT_THAT(result_of_words({"config", "chekc", "a"}).err, HasSubstr("Did you mean \"check\"?"));
  EXPECT_THAT(result_of_words({"train", "--wrold=2"}).err, HasSubstr("Did you mean \"--world\"?"));
  EXPECT_THAT(result_of_words({"train", "--world=2", "--seed=-1"}).err,
              Not(HasSubstr("Did you mean")));
  EXPECT_THAT(result_of_words({"run", "--xyzzyxyzzy"}).err, Not(HasSubstr("Did you mean")));
  EXPECT_THAT(result_of_words({"run", "--stages", "7"}).err, Not(HasSubstr("Did you mean")));
}

TEST_F(Words, HelpOfACommandThatThereIsNotIsRefused) {
  const auto said = result_of_words({"check", "--help"});
  EXPECT_EQ(said.code, kUsage);
  EXPECT_EQ(said.out, "");
  EXPECT_THAT(said.err, HasSubstr("a model of your own is checked by equigrad run --model"));
  EXPECT_THAT(result_of_words({"rum", "--help"}).err, HasSubstr("Did you mean \"run\"?"));
}

TEST_F(Words, WrongOnesAreAnAnnotationOfAJob) {
  setenv("GITHUB_ACTIONS", "true", 1);
  const auto words = result_of_words({"run", "--bogus"});
  const auto file = result_of_words({"diff", "/no/such", "/no/such"});
  const auto help = result_of_words({"run", "--help"});
  for (const int other : {0, 1, 3, 4, 130})
    EXPECT_EQ(result_of([&] { return annotated(other); }).err, "") << other;
  unsetenv("GITHUB_ACTIONS");
  EXPECT_THAT(words.err, HasSubstr("::error title=equigrad::Wrong words"));
  EXPECT_THAT(file.err, HasSubstr("::error title=equigrad::Wrong words"));
  EXPECT_EQ(help.err, "");
}

TEST_F(Words, AWordThatIsNoCommandIsNamedWithThoseThatThereAre) {
  const auto said = result_of_words({"bogus"});
  EXPECT_EQ(said.code, kUsage);
  EXPECT_THAT(said.err, HasSubstr("expected a command, got \"bogus\": run, list, repro, "));
  EXPECT_THAT(result_of_words({"check", "libmine.so"}).err,
              HasSubstr("checked by equigrad run --model libmine.so"));
  EXPECT_THAT(result_of_words({"config", "xyzzy"}).err,
              HasSubstr("expected a command, got \"xyzzy\": check, keys, schema.\n"));
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"config", "keys"}, {"--xyzzyxyzzy"}, {"rum"}, {"run", "--xyzzyxyzzy"}})
    EXPECT_THAT(result_of_words(words).err, Not(HasSubstr("expected a command, got")))
        << words.size();
  EXPECT_THAT(result_of_words({}).err, HasSubstr("expected a command, got none: run, list, repro"));
  EXPECT_THAT(result_of_words({"config"}).err,
              HasSubstr("expected a command, got none: check, keys, schema.\n"));
}

TEST_F(Words, KeysOfKnobsThatAreNoneAreRefusedBeforeAnythingIsRun) {
  const auto with = [&](const std::string& filter, const std::string& knobs) {
    return result_of_words({"run", filter, "-q", "--report", folder_ + "/it", "--knobs", knobs});
  };
  const auto said = with(kCase, R"({"zero_optimization": {"reduce_bukcet_size": 7}})");
  EXPECT_EQ(said.code, kUsage);
  EXPECT_THAT(said.err, HasSubstr("Did you mean \"reduce_bucket_size\"?"));
  EXPECT_THAT(said.out, Not(HasSubstr("FAILED")));
  EXPECT_EQ(with(kCase, R"({"gradient_clipping": "much"})").code, kUsage);
  EXPECT_EQ(with(kCase, "7").code, kUsage);
  // Keys that go with one stage or one precision only are for the cases to say.
  for (const char* some :
       {R"({"zero_optimization": {"stage3_max_live_parameters": 7}})", R"({"optimizer": {}})",
        R"({"fp16": {"min_loss_scale": 1}})", R"({"bf16": {"check_grad_overflow": true}})"})
    EXPECT_EQ(knobs_problem(some), "") << some;
}

TEST_F(Words, KnobsThatCasesDifferInAreRefused) {
  for (const auto& [knobs, key] : std::vector<std::pair<std::string, std::string>>{
           {R"({"zero_optimization": {"stage": 3}})", "zero_optimization.stage"},
           {R"({"bf16": {"enabled": true}})", "bf16.enabled"},
           {R"({"bfloat16": {"enabled": true}})", "bfloat16.enabled"},
           {R"({"bf16": {"bf16_optimizer_states": true}})", "bf16.bf16_optimizer_states"},
           {R"({"fp16": {"hysteresis": 3}})", "fp16.hysteresis"},
           {R"({"bf16": null})", "bf16"},
           {R"({"zero_optimization": null})", "zero_optimization"},
           {R"({"zero_optimization": {"offload_optimizer": null}})",
            "zero_optimization.offload_optimizer"},
           {R"({"prescale_gradients": true})", "prescale_gradients"},
           {R"({"data_types": {"grad_accum_dtype": "fp32"}})", "data_types.grad_accum_dtype"},
           {R"({"gradient_accumulation_steps": 2})", "gradient_accumulation_steps"},
           {R"({"optimizer": {"params": {"lr": 1}}})", "optimizer.params.lr"}}) {
    const auto said = result_of_words({"run", kCase, "-q", "--report", folder_, "--knobs", knobs});
    EXPECT_EQ(said.code, kUsage) << knobs;
    EXPECT_THAT(said.err, HasSubstr(key + ": expected a key that changes nothing, got "));
  }
}

TEST_F(Words, KnobsGoIntoCasesOfTheMatrixAlone) {
  const std::string of_contract = "Contract.1.loss_backward.zero0.fp32.w2.accumulation1";
  for (const std::string& other : {of_contract, std::string("Generated")}) {
    const auto said = result_of_words(
        {"run", other, "-q", "--report", folder_ + "/it", "--knobs", R"({"steps_per_print": 7})"});
    EXPECT_EQ(said.code, kUsage) << other;
    EXPECT_THAT(said.err, HasSubstr("0 of the selected cases can have --knobs"));
  }
  const auto both = result_of_words({"run", kCase, of_contract, "-q", "--report", folder_ + "/it",
                                     "--knobs", R"({"steps_per_print": 7})"});
  EXPECT_EQ(both.code, kHeld) << both.err;
  EXPECT_THAT(both.out, HasSubstr("the keys of --knobs go into cases of the matrix"));
  EXPECT_THAT(both.out, Not(HasSubstr("# contract")));
}

TEST_F(Words, PlacesThatCannotBeWrittenAreRefusedBeforeAnythingIsRun) {
  for (const auto& place :
       std::vector<std::vector<std::string>>{{"--junit", folder_ + "/none/a.xml"},
                                             {"--json", folder_ + "/none/a.json"},
                                             {"--report", "/dev/null/report"}}) {
    std::vector<std::string> words = {"run", kCase, "-q", "--report", folder_ + "/it"};
    words.insert(words.end(), place.begin(), place.end());
    if (place[0] == "--report") words.erase(words.begin() + 3, words.begin() + 5);
    const auto said = result_of_words(words);
    EXPECT_EQ(said.code, kUsage) << said.err;
    EXPECT_THAT(said.err, HasSubstr("Choose another place."));
    EXPECT_EQ(said.out, "");
  }
}

TEST_F(Words, AListThatTookAFilterSaysWhereItStands) {
  const auto said = result_of_words({"run", "--dtypes", "fp32", "gpt"});
  EXPECT_EQ(said.code, kUsage);
  EXPECT_THAT(said.err, HasSubstr("A FILTER stands before such a list, or behind --"));
  EXPECT_THAT(result_of_words({"list", "--stages", "2", "zero3"}).err, HasSubstr("A FILTER"));
  for (const auto& words : std::vector<std::vector<std::string>>{{"run", "--stages", "7"},
                                                                 {"run", "--stages", "7", "-q"},
                                                                 {"train", "--world", "99", "x"},
                                                                 {"crash", "--stages", "7", "x"}}) {
    EXPECT_EQ(result_of_words(words).code, kUsage);
    EXPECT_THAT(result_of_words(words).err, Not(HasSubstr("A FILTER")));
  }
}

TEST_F(Words, NumbersThatAreNoneSayWhatIsExpected) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"run", "--seed", "-1"}, {"repro", kCase, "--seed", "-1"}, {"faults", "--clean", "-1"}})
    EXPECT_THAT(result_of_words(words).err,
                HasSubstr("expected a whole number of at least 0, got \"-1\""));
  EXPECT_EQ(result_of_words({"run", "--seed", "-1"}).code, kUsage);
  EXPECT_THAT(result_of_words({"train", "--steps", "-5"}).err,
              HasSubstr("expected a whole number of at least 1, got \"-5\""));
  EXPECT_THAT(result_of_words({"run", "--timeout-scale", "0"}).err,
              HasSubstr("expected a number above 0, got \"0\""));
  for (const std::string one : {"-1", "-0.5", "nan", "inf", "1e999", "10m", ""}) {
    const auto said = result_of_words({"faults", "--minutes", one});
    EXPECT_EQ(said.code, kUsage) << one;
    EXPECT_THAT(said.err, HasSubstr("expected a number of at least 0, got \"" + one + "\""));
  }
  const auto zero = result_of_words({"faults", "--minutes", "0", "no_such_fault"}).err;
  EXPECT_THAT(zero, Not(HasSubstr("--minutes")));
}

// An unsigned number would take -1 for the largest one.
TEST_F(Words, SeedsThatARecordHasAsNumbersAreAtMostWhatAllReadersHave) {
  const std::string most = "9007199254740992";
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"crash", "--seed"}, {"run", "--generate-seed"}})
    for (const std::string seed : {"-1", "9007199254740993", "-18446744073709551610",
                                   "18446744073709551615", "1.5", "all"}) {
      const auto said = result_of_words({words[0], words[1], seed});
      EXPECT_EQ(said.code, kUsage) << seed;
      EXPECT_THAT(said.err, HasSubstr("expected a whole number from 0 to " + most + ", got \"" +
                                      seed + "\""));
    }
  for (const auto& seed : {std::string("0"), most})
    EXPECT_THAT(
        result_of_words({"crash", "--seed", seed, "--replay", "zero9", "--report", folder_}).err,
        AllOf(HasSubstr("zero2.w3.fp16.new.power.7-4-4.s12"), Not(HasSubstr("--seed"))));
}

TEST_F(Words, EachOptionOfScaleSetsItsOwnNumber) {
  CLI::App app;
  BenchOptions options;
  add_bench(app, options);
  app.parse(
      "scale --ranks 2,4 --accumulation 3 --ranks-per-host 4 --compute-ms 5 --within-us 6 "
      "--within-gb 7 --between-us 8 --between-gb 9");
  const auto& scale = options.scale;
  EXPECT_EQ(scale.worlds, (std::vector<int>{2, 4}));
  EXPECT_EQ(
      (std::vector<double>{static_cast<double>(scale.accumulation),
                           static_cast<double>(scale.ranks_per_host), scale.compute_ms,
                           scale.within_us, scale.within_gb, scale.between_us, scale.between_gb}),
      (std::vector<double>{3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(Words, WhatIsRequiredShowsNoDefault) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"report", "merge"}, {"compare"}, {"baseline", "update"}, {"checkpoint", "export"}}) {
    auto help = words;
    help.emplace_back("--help");
    EXPECT_THAT(result_of_words(help).out,
                AllOf(HasSubstr(" REQUIRED"), Not(ContainsRegex("=[^ ]+ REQUIRED"))))
        << words[0];
  }
}

TEST_F(Words, DataThatAreNotThereAreAUsageErrorThatNamesTheFolder) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"train", "--data-dir", folder_ + "/none"},
           {"train", "--data", "images", "--data-dir", folder_ + "/none"},
           {"run", kCase, "-q", "--report", folder_ + "/it", "--data-dir", folder_ + "/none"}}) {
    const auto said = result_of_words(words);
    EXPECT_EQ(said.code, kUsage) << said.err;
    EXPECT_THAT(said.err, HasSubstr(folder_ + "/none"));
  }
}

TEST_F(Words, ParametersAreCountedAsPeopleWriteThem) {
  const auto file = folder_ + "/zero3.json";
  std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3}})";
  const auto digits = result_of_words({"config", "check", file, "--parameters", "7000000000"});
  EXPECT_EQ(digits.code, kHeld) << digits.err;
  EXPECT_THAT(digits.out, HasSubstr("7 000 000 000 parameters"));
  for (const char* one : {"7e9", "7B", "7000M"})
    EXPECT_EQ(result_of_words({"config", "check", file, "--parameters", one}).out, digits.out)
        << one;
  for (const auto& [one, count] :
       std::vector<std::pair<std::string, std::string>>{{"10k", "10 000"},
                                                        {"10K", "10 000"},
                                                        {"3M", "3 000 000"},
                                                        {"1.5G", "1 500 000 000"},
                                                        {"2T", "2 000 000 000 000"},
                                                        {"12", "12"}})
    EXPECT_THAT(result_of_words({"config", "check", file, "--parameters", one}).out,
                HasSubstr("\n" + count + " parameters in "))
        << one;
  for (const char* one : {"7X", "1.5", "-7", "", "2e15", "nan", "B"})
    EXPECT_EQ(result_of_words({"config", "check", file, "--parameters", one}).code, kUsage) << one;
}

TEST_F(Words, AConfigurationIsCheckedForTheRanksThatItsBatchSizesSay) {
  const auto file = folder_ + "/three.json";
  const auto check = [&](const std::string& all, const std::string& optimizer,
                         const std::vector<std::string>& more) {
    std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps":
        4, "train_batch_size": )"
                        << all << optimizer << "}";
    std::vector<std::string> words = {"config", "check", file};
    words.insert(words.end(), more.begin(), more.end());
    return result_of_words(words);
  };
  const std::string adam = R"(, "optimizer": {"type": "AdamW"})";
  const auto two = check("32", adam, {});
  EXPECT_EQ(two.code, kHeld) << two.err;
  EXPECT_THAT(two.out, AllOf(StartsWith("For 2 ranks, as the three batch sizes say.\n\n"),
                             HasSubstr("What a rank of 2 holds")));
  EXPECT_THAT(check("16", adam, {}).out, StartsWith("The file sets"));
  EXPECT_THAT(check("32", adam, {"--world", "4"}).err,
              HasSubstr("or start 2 ranks, with which they agree."));
  EXPECT_EQ(check("33", adam, {}).code, kUsage);
  const auto split = check("32", adam + R"(, "sequence_parallel_size": 3)", {});
  EXPECT_EQ(split.code, kHeld) << split.err;
  EXPECT_THAT(split.out,
              StartsWith("For 6 ranks, as the three batch sizes and the sizes of groups say.\n"));
  const std::string tensor = R"(, "tensor_parallel": {"autotp_size": 2})";
  EXPECT_THAT(check("16", adam + tensor, {}).out, StartsWith("For 2 ranks, as"));
  EXPECT_THAT(check("32", adam + tensor + R"(, "sequence_parallel_size": 2)", {}).out,
              StartsWith("For 8 ranks, as"));
  const std::string huge = "4611686018427387904";  // whose product is 0 in 64 bits
  const auto beyond = check("32",
                            adam + R"(, "tensor_parallel": {"autotp_size": )" + huge +
                                R"(}, "sequence_parallel_size": )" + huge,
                            {});
  EXPECT_EQ(beyond.code, kUsage);
  EXPECT_THAT(beyond.err, HasSubstr(huge));
  const auto without = check("16", "", {});
  EXPECT_EQ(without.code, kHeld) << without.err;
  EXPECT_THAT(without.out, StartsWith("No optimizer in the file: initialize() is to be given one"));
}

TEST_F(Words, AConfigurationIsShownAsFarAsItWasWritten) {
  const auto file = folder_ + "/zero3.json";
  std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 4, "steps_per_print": 10,
      "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3}})";
  const auto shown = result_of_words({"config", "check", file, "--world", "2"}).out;
  EXPECT_THAT(shown, StartsWith("The file sets\n  train_micro_batch_size_per_gpu "));
  EXPECT_THAT(shown, ContainsRegex("What follows from it\n  train_batch_size +8  \\(micro x"));
  EXPECT_THAT(shown, ContainsRegex("without effect here\n  steps_per_print +10  \\(it only"));
  EXPECT_THAT(shown, ContainsRegex("\n[0-9]+ other keys have their defaults"));
  EXPECT_THAT(shown, ContainsRegex("what DeepSpeed does\n  gradient_clipping +0.0  \\(off"));
  EXPECT_THAT(shown, Not(HasSubstr("fp16.hysteresis")));
  const auto all = result_of_words({"config", "check", file, "--world", "2", "--all"}).out;
  EXPECT_THAT(all, HasSubstr("fp16.hysteresis"));
  // What does not fit the width goes on further to the right.
  const auto rows = [](const std::string& text) {
    std::istringstream stream(text);
    std::ptrdiff_t count = 0;
    for (std::string line; std::getline(stream, line) && !line.starts_with("What a rank");)
      count += line.starts_with("  ") && line[2] != ' ' ? 1 : 0;
    return count;
  };
  const auto others = rows(all) - rows(shown);
  EXPECT_GT(others, 50);
  EXPECT_THAT(shown, HasSubstr("\n" + std::to_string(others) + " other keys have"));
}

TEST_F(Words, WhetherAModelFitsIsAnswered) {
  const auto file = folder_ + "/zero3.json";
  std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3}})";
  const std::vector<std::string> check = {"config", "check", file, "--parameters", "1B"};
  const auto with = [&](const std::string& size) {
    auto words = check;
    words.insert(words.end(), {"--fits", size});
    return result_of_words(words);
  };
  EXPECT_EQ(with("80GB").code, kHeld);
  EXPECT_THAT(with("80GB").out, HasSubstr("\nIt fits: "));
  EXPECT_THAT(with("80GB").out, HasSubstr(", of 80 000 000 000.\n"));
  EXPECT_EQ(with("1GiB").code, kFailed);
  EXPECT_THAT(with("1GiB").out, HasSubstr("\nIt does NOT fit: "));
  EXPECT_EQ(with("much").code, kUsage);
  EXPECT_EQ(with("0").code, kUsage);
  auto record = check;
  record.insert(record.end(), {"--fits", "1GiB", "--json", "-"});
  EXPECT_EQ(result_of_words(record).code, kFailed);
  EXPECT_THAT(result_of_words(record).out, HasSubstr("\"fits\": false"));
  record.back() = folder_ + "/record.json";
  EXPECT_EQ(result_of_words(record).code, kFailed);
  const auto out = with("80GB").out;
  auto most = out.substr(out.find("It fits: ") + 9);
  most = most.substr(0, most.find(" bytes"));
  std::erase(most, ' ');
  EXPECT_EQ(with(most).code, kHeld);
  EXPECT_THAT(with(most).out, HasSubstr("\nIt fits: "));
  EXPECT_EQ(with(std::to_string(std::stoll(most) - 1)).code, kFailed);
  EXPECT_EQ(result_of_words({"config", "check", file, "--fits", "80GB"}).code, kUsage);
}

}  // namespace
}  // namespace equigrad::conformance::cli
