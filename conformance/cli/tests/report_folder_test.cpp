#include "conformance/cli/report_folder.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace equigrad::conformance::cli {
namespace {

const std::string kCase =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";

// What a shell makes of a command line, a word a line.
std::string words_of_a_shell(const std::string& line) {
  std::string text;
  FILE* pipe = popen(("printf '%s\\n' " + line).c_str(), "r");
  if (pipe == nullptr) return "no shell";
  for (int c; (c = fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  pclose(pipe);
  return text;
}

TEST(ShellWord, IsReadBackAsTheWordThatItWas) {
  for (const std::string word : {"plain-1.0/it,x=y:z+@%", "two words", "it's", "'", "", "$HOME",
                                 "`id`", "a\\b", "\"q\"", "*", "~", "#no", "a;b|c&d", "a\tb"})
    EXPECT_EQ(words_of_a_shell(shell_word(word) + " " + shell_word(word)),
              word + "\n" + word + "\n");
  EXPECT_EQ(shell_word("plain/1"), "plain/1") << "what needs no quotes has none";
}

TEST(ReportFolder, WhatAnEarlierRunLeftIsRemovedAndNothingElse) {
  std::string folder = testing::TempDir() + "equigrad-report-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto there = [&](const std::string& name) {
    return access((folder + "/" + name).c_str(), F_OK) == 0;
  };
  const std::string clean = "fail/" + kCase + "1", mixed = "fail/" + kCase, other = "fail/mine";
  const std::string whole =
      "fail/Required.grad.zero0.bf16.w4.accumulation1.clip-above.adamw.gpt.tensor_backward";
  const std::string contract =
      "fail/Contract.2.two_losses_on_one_forward.zero2.fp32.w2.accumulation1";
  for (const auto& of : {clean, mixed, other, whole, contract}) {
    make_directory(folder + "/" + of);
    write_file(folder + "/" + of + "/rank0.safetensors", "x");
  }
  write_file(folder + "/" + whole + "/rank12.inputs.safetensors", "x");
  for (const char* file : {"config.json", "message.txt", "repro.sh", "program.cpp", "README.md",
                           "CMakeLists.txt", "rank0.first.safetensors"})
    write_file(folder + "/" + contract + "/" + file, "x");
  write_file(folder + "/" + mixed + "/notes.txt", "x");
  for (const char* name : {"index.html", "run.json", "junit.xml", "run.json.old"})
    write_file(folder + "/" + name, "x");
  clear_report_folder(folder);
  for (const char* name : {"index.html", "run.json", "junit.xml"}) EXPECT_FALSE(there(name));
  EXPECT_FALSE(there(whole));
  EXPECT_FALSE(there(contract));
  EXPECT_FALSE(there(mixed + "/rank0.safetensors"));
  EXPECT_TRUE(there(mixed + "/notes.txt"));
  EXPECT_TRUE(there(other + "/rank0.safetensors"));
  EXPECT_TRUE(there(clean + "/rank0.safetensors")) << "no case has this name";
  EXPECT_TRUE(there("run.json.old"));
  clear_report_folder(folder + "/not-there");
  EXPECT_EQ(std::system(("rm -rf '" + folder + "'").c_str()), 0);
}

// "-replay" elsewhere in a path is somebody's name.
TEST(ReportFolder, AReplayHasAFolderOfItsOwnAndOnlyAReplayKeepsItsOwn) {
  EXPECT_EQ(replay_folder("report"), "report-replay");
  EXPECT_EQ(replay_folder("report-replay"), "report-replay");
  EXPECT_EQ(replay_folder("a-replay-of/report"), "a-replay-of/report-replay");
}

}  // namespace
}  // namespace equigrad::conformance::cli
