// Filters of several words on the command line, and the same in the box of a report's page.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "conformance/cases/filter.hpp"
#include "conformance/cases/matrix.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using FilterWords = InAFolder;

std::ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST_F(FilterWords, AndOrNotAndBracketsChooseCases) {
  const auto listed = [](const std::string& filter) {
    return result_of_words({"list", filter, "--stages", "3"}).out;
  };
  const auto of = [](const std::string& filter) {
    return select(default_matrix(), {{filter}, {3}, {}, {}}).size();
  };
  const auto some = listed("required and bf16 and not world4");
  EXPECT_THAT(some, Not(HasSubstr(".w4.")));
  EXPECT_EQ(static_cast<std::size_t>(lines(some)),
            of("Required.grad.zero3.*bf16") - of("Required.grad.zero3.*bf16*.w4."));
  EXPECT_EQ(lines(listed("Required.grad.zero3.bf16")) + lines(listed("Required.grad.zero3.fp16.")),
            lines(listed("required and (zero3.bf16 or zero3.fp16.)")));
  EXPECT_EQ(lines(result_of_words({"list", "zero3 and conv", "zero0 and conv"}).out),
            lines(result_of_words({"list", "conv and (zero0 or zero3)"}).out));
}

TEST_F(FilterWords, AWordThatSelectsNothingIsRefusedWhereverItStands) {
  for (const char* filter : {"zero3 and bf61", "zero3 or bf61", "zero3 and not bf61"})
    for (const char* command : {"run", "list"}) {
      const auto said = result_of_words({command, filter});
      EXPECT_EQ(said.code, kUsage) << filter;
      EXPECT_EQ(said.out, "");
      EXPECT_THAT(said.err, HasSubstr("0 cases selected by \"bf61\"; near it are"));
    }
  const auto never = result_of_words({"run", "zero3 and zero2"});
  EXPECT_EQ(never.code, kUsage);
  EXPECT_THAT(never.err, HasSubstr("each of its words has cases, all of it has none"));
  const auto fault = result_of_words({"faults", "averaged and not avaraged"});
  EXPECT_EQ(fault.code, kUsage);
  EXPECT_THAT(fault.err, HasSubstr("0 faults selected by \"avaraged\""));
}

TEST_F(FilterWords, AFilterWithoutItsQuotesSaysHowItIsWritten) {
  const auto said = result_of_words({"run", "zero3", "and", "bf16"});
  EXPECT_EQ(said.code, kUsage);
  EXPECT_THAT(said.err, HasSubstr("expected a word before \"and\""));
  EXPECT_THAT(said.err, HasSubstr("in quotes"));
}

// A filter of words, operators and brackets, some of which are none.
std::string drawn(std::mt19937& random) {
  static const std::vector<std::string> tokens = {
      "zero3", "bf16", "gpt",    "world4", "stage2",  "and",    "and",   "or", "or",
      "not",   "(",    ")",      "w[12]",  "w[!12].", "*adam*", "ZERO?", ".",  "clip-",
      "[",     "x[",   "w[4-1]", "]",      "a+b",     "$",      "[]1]",  "{2}"};
  std::string text;
  for (auto left = 1 + random() % 7; left > 0; --left)
    text += tokens[random() % tokens.size()] + " ";
  return text;
}

// 4,000 drawn filters over 40 ids, in Node, where that is installed.
TEST_F(FilterWords, TheBoxOfThePageReadsThemAsTheCommandDoes) {
  if (std::system("command -v node > /dev/null") != 0) return;
  std::mt19937 random(1);
  std::vector<std::string> ids, filters, want;
  const auto cases = default_matrix();
  for (int i = 0; i < 40; ++i) ids.push_back(cases[random() % cases.size()].id());
  std::size_t valid = 0;
  for (int i = 0; i < 4000; ++i) {
    filters.push_back(drawn(random));
    std::string found = "refused";
    if (filter_problem(filters.back()).empty()) {
      ++valid;
      found.clear();
      for (const auto& id : ids) found += Filter(filters.back()).matches({id}) ? '1' : '0';
    }
    want.push_back(found);
  }
  EXPECT_GT(valid, 500u);
  const std::string source = build_info::source_directory();
  std::ofstream(folder_ + "/it.js")
      << text_of(source + "/reports/templates/filter.js") << "var ids=" << nlohmann::json(ids)
      << ",filters=" << nlohmann::json(filters)
      << ";\nfilters.forEach(function(text){var f=equigradFilter(text);console.log(typeof f==="
         "'string'?'refused':ids.map(function(i){return f(i)?'1':'0';}).join(''));});\n";
  ASSERT_EQ(std::system(("node " + folder_ + "/it.js > " + folder_ + "/out").c_str()), 0);
  std::ifstream out(folder_ + "/out");
  for (std::size_t i = 0; i < filters.size(); ++i) {
    std::string got;
    std::getline(out, got);
    ASSERT_EQ(got, want[i]) << filters[i];
  }
}

}  // namespace
}  // namespace equigrad::conformance::cli
