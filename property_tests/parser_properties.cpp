// Parsers of texts that anybody may have written: every file of the corpus, every front of each,
// and each with bytes replaced at random. The fuzzers of the preset `fuzz` go on from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "property_tests/parsers/parsers.hpp"

namespace equigrad::property_tests {
namespace {

struct Seed {
  std::string file, bytes;
};

// By name.
std::vector<Seed> corpus(const Parser& parser) {
  std::vector<Seed> seeds;
  const std::string folder =
      std::string(EQUIGRAD_SOURCE_DIR "/property_tests/parsers/corpus/") + parser.name;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().filename(), {std::istreambuf_iterator<char>(file), {}}});
  }
  std::sort(seeds.begin(), seeds.end(),
            [](const Seed& a, const Seed& b) { return a.file < b.file; });
  return seeds;
}

class EveryParser : public testing::TestWithParam<Parser> {};

// A file whose name begins with "no_" is refused, another one taken.
TEST_P(EveryParser, TakesItsCorpusOrRefusesIt) {
  std::size_t taken = 0, refused = 0;
  for (const Seed& seed : corpus(GetParam())) {
    const bool is_refused = seed.file.starts_with("no_");
    EXPECT_EQ(GetParam().takes(seed.bytes), !is_refused) << seed.file;
    ++(is_refused ? refused : taken);
  }
  EXPECT_GE(taken, 2U);
  EXPECT_GE(refused, 2U);
}

TEST_P(EveryParser, SurvivesEveryFrontOfItsCorpus) {
  for (const Seed& seed : corpus(GetParam()))
    for (std::size_t bytes = 0; bytes < seed.bytes.size(); bytes += 1 + seed.bytes.size() / 500)
      EXPECT_NO_THROW(GetParam().takes(seed.bytes.substr(0, bytes))) << seed.file << ": " << bytes;
}

TEST_P(EveryParser, SurvivesBytesThatAreReplacedOrDoubled) {
  std::mt19937 random(1);
  const std::string_view likely = "\"{}[],:0123456789-.eE\\/\n\x00\xff truefalsn";
  for (const Seed& seed : corpus(GetParam())) {
    if (seed.bytes.empty()) continue;
    for (int i = 0; i < 300; ++i) {
      std::string bytes = seed.bytes;
      for (int edits = 1 + i % 3; edits > 0; --edits) {
        const std::size_t at = random() % bytes.size();
        if (random() % 4 == 0)
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40));
        else
          bytes[at] = likely[random() % likely.size()];
      }
      EXPECT_NO_THROW(GetParam().takes(bytes)) << seed.file << ": " << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryParser, testing::ValuesIn(parsers().begin(), parsers().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace equigrad::property_tests
