// The script for bash, run by bash; those for zsh and fish as far as they can be read.
#include "conformance/cli/completion.hpp"

#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include "conformance/cli/selected_cases.hpp"
#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

using Replies = std::set<std::string>;

class Completion : public InAFolder {
 protected:
  void SetUp() override {
    InAFolder::SetUp();
    const auto script = result_of_words({"completion", "bash"});
    ASSERT_EQ(script.code, kHeld);
    std::ofstream(folder_ + "/script") << script.out;
  }
  // What bash offers for the last of the words.
  Replies of(const std::vector<std::string>& words) const {
    std::string list = "equigrad";
    for (const auto& word : words) list += " '" + word + "'";
    std::ofstream(folder_ + "/ask") << "cd " << folder_ << "\nsource ./script\nCOMP_WORDS=(" << list
                                    << ")\nCOMP_CWORD=" << words.size()
                                    << "\n_equigrad\nprintf '%s\\n' \"${COMPREPLY[@]}\" > out\n";
    EXPECT_EQ(std::system(("bash " + folder_ + "/ask").c_str()), 0);
    std::istringstream lines(text_of(folder_ + "/out"));
    Replies replies;
    for (std::string line; std::getline(lines, line);)
      if (!line.empty()) replies.insert(line);
    return replies;
  }
};

// The long options that --help prints.
Replies options_in_help(std::vector<std::string> command) {
  command.push_back("--help");
  std::istringstream lines(result_of_words(command).out);
  Replies options;
  for (std::string line; std::getline(lines, line);) {
    const auto begin = line.find_first_not_of(' ');
    const auto at = line.find("--");
    if (begin != 2 || at == std::string::npos || (at != 2 && line.substr(2, 1) != "-")) continue;
    std::istringstream names(line.substr(2, line.find_first_of(" {", 2) - 2));
    for (std::string name; std::getline(names, name, ',');)
      if (name.starts_with("--")) options.insert(name);
  }
  return options;
}

TEST_F(Completion, CommandsAndTheirCommandsAreOffered) {
  EXPECT_THAT(of({""}), IsSupersetOf({"run", "list", "config", "explain", "diff", "completion"}));
  EXPECT_THAT(of({"exp"}), ElementsAre("explain"));
  EXPECT_THAT(of({"config", "ch"}), ElementsAre("check"));
  EXPECT_THAT(of({"report", "m"}), ElementsAre("merge"));
}

TEST_F(Completion, OptionsAreThoseOfTheHelp) {
  for (const auto& command : std::vector<std::vector<std::string>>{{"run"},
                                                                   {"list"},
                                                                   {"train"},
                                                                   {"compare"},
                                                                   {"faults"},
                                                                   {"crash"},
                                                                   {"diff"},
                                                                   {"config", "check"},
                                                                   {"checkpoint", "export"},
                                                                   {"report", "merge"}}) {
    auto words = command;
    words.push_back("--");
    const auto want = options_in_help(command);
    EXPECT_GT(want.size(), 1u);
    EXPECT_EQ(of(words), want) << command.back();
  }
  EXPECT_THAT(of({"run", "--sha"}), ElementsAre("--shard"));
  EXPECT_THAT(of({"run", "--fail"}), ElementsAre("--fail-fast", "--failed"));
}

TEST_F(Completion, ValuesAreThoseThatTheParserTakes) {
  EXPECT_THAT(of({"run", "--color", ""}), ElementsAre("always", "auto", "never"));
  EXPECT_THAT(of({"run", "--dtypes", "bf16-m"}),
              ElementsAre("bf16-masters", "bf16-masters-states"));
  EXPECT_THAT(of({"run", "--dtypes", "fp32,bf16-c"}), ElementsAre("fp32,bf16-comm-fp32"));
  EXPECT_THAT(of({"run", "--stages", ""}), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(of({"completion", "z"}), ElementsAre("zsh"));
  EXPECT_THAT(of({"completion", "--"}), Not(Contains("--dtypes")));
  std::ofstream(folder_ + "/some.json") << "{}";
  EXPECT_THAT(of({"run", "--json", "so"}), ElementsAre("some.json"));
  EXPECT_THAT(of({"diff", "so"}), ElementsAre("some.json"));
}

TEST_F(Completion, WordsOfOtherProgramsAreOffered) {
  EXPECT_THAT(of({"bench", "ra"}), ElementsAre("race"));
  EXPECT_THAT(of({"bench", "race", "--su"}), ElementsAre("--suite"));
  EXPECT_THAT(of({"bench", "race", "--suite", "s"}), ElementsAre("scaling", "smoke", "step"));
  EXPECT_THAT(of({"bench", "gate", "--pa"}), ElementsAre("--pairs"));
  EXPECT_THAT(of({"judge", "dd"}), ElementsAre("ddp"));
  EXPECT_THAT(of({"judge", "re"}), ElementsAre("rerun"));
  EXPECT_THAT(of({"judge", "--precisions", "fp32,fp16"}),
              ElementsAre("fp32,fp16-dynamic", "fp32,fp16-static"));
  EXPECT_THAT(of({"judge", "merge", "--wr"}), ElementsAre("--write-baseline"));
}

TEST_F(Completion, FaultsAreThoseThatCanBePlanted) {
  Replies faults;
  for (const auto& [name, words] : faults_by_name()) faults.insert(name);
  EXPECT_GT(faults.size(), 300u);
  EXPECT_EQ(of({"run", "--fault", ""}), faults);
  EXPECT_EQ(of({"repro", "--fault", ""}), faults);
  EXPECT_THAT(of({"run", "--fault", "averaged_tw"}), ElementsAre("averaged_twice"));
  EXPECT_THAT(of({"faults", "averaged_tw"}), ElementsAre("averaged_twice"));
}

TEST_F(Completion, WordsOfFiltersSelectCases) {
  EXPECT_THAT(of({"run", "zero"}), ElementsAre("zero0", "zero1", "zero2", "zero3"));
  EXPECT_THAT(of({"list", "ulys"}), ElementsAre("ulysses2", "ulysses4"));
  const auto cases = default_matrix();
  const auto words = filter_words();
  EXPECT_THAT(words, IsSupersetOf({"Contract", "Generated", "bf16", "w4", "engine_backward"}));
  for (const auto& word : words)
    if (!word.starts_with("Contract") && !word.starts_with("Generated"))
      EXPECT_FALSE(select(cases, {{word}, {}, {}, {}}).empty()) << word;
}

TEST_F(Completion, TheOtherShellsAreWrittenFromTheSameTree) {
  const auto zsh = result_of_words({"completion", "zsh"}).out;
  EXPECT_THAT(zsh, AllOf(HasSubstr("#compdef equigrad\n"), HasSubstr("' run --dtypes') compset"),
                         HasSubstr("compadd -- merge"),
                         HasSubstr("' bench race --suite') compadd -- all targets ")));
  const auto fish = result_of_words({"completion", "fish"}).out;
  EXPECT_THAT(fish, HasSubstr("complete -c equigrad -n '__equigrad_at '\\'' run'\\''' -l dtypes -x "
                              "-a 'fp32 bf16 "));
  EXPECT_THAT(fish, HasSubstr("'__equigrad_at '\\'' judge'\\''' -f -a 'plain ddp "));
  EXPECT_EQ(result_of_words({"completion", "tcsh"}).code, kUsage);
}

}  // namespace
}  // namespace equigrad::conformance::cli
