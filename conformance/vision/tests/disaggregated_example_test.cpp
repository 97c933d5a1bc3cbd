// The example as a launcher starts it: it learns, and its parameters have the
// bits of the two models trained in one process.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <utility>

#include "conformance/on_rank/program.hpp"
#include "conformance/testing/port.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "conformance/vision/reference_pair.hpp"
#include "examples/cpp_disaggregated/album.hpp"

namespace equigrad::conformance::vision {
namespace {

using testing::HasSubstr;

// What the ranks of the example say, one after another.
std::string run_example(int encoders, int writers, int steps, int expected_code) {
  const Port port;
  const ScratchFolder folder;
  EXPECT_EQ(::mkdir(folder.path().c_str(), 0700), 0);
  const auto images = find_data("", false).images;
  const auto where = images.substr(0, images.rfind('/'));
  std::string script;
  for (int rank = 0; rank < encoders + writers; ++rank) {
    std::ostringstream line;
    line << "RANK=" << rank << " LOCAL_RANK=" << rank << " WORLD_SIZE=" << encoders + writers
         << " MASTER_ADDR=127.0.0.1 MASTER_PORT=" << port.number() << " '"
         << std::getenv("EQUIGRAD_DISAGGREGATED") << "' '" << where << "' " << encoders << " "
         << steps << " > '" << folder.path() << "/" << rank << "' 2>&1 & p" << rank << "=$!\n";
    script += line.str();
  }
  script += "code=0\n";
  for (int rank = 0; rank < encoders + writers; ++rank)
    script += "wait $p" + std::to_string(rank) + " || code=$?\n";
  const int status = std::system((script + "exit $code").c_str());
  std::string said;
  for (int rank = 0; rank < encoders + writers; ++rank) {
    std::ifstream file(folder.path() + "/" + std::to_string(rank));
    said += {std::istreambuf_iterator<char>(file), {}};
  }
  EXPECT_EQ(WEXITSTATUS(status), expected_code) << said;
  return said;
}

// "encoder 0123456789abcdef", as the example says it.
std::string digest_line(const std::string& what, const reference::TensorMap& all,
                        const reference::Model& model) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const auto& [name, parameter] : reference::unique_parameters(model)) {
    const auto whole = all.at(name).contiguous();
    const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (std::size_t i = 0; i < whole.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3u;
  }
  std::ostringstream line;
  line << what << " " << std::hex << std::setfill('0') << std::setw(16) << digest << "\n";
  return line.str();
}

void expect_the_bits_of_one_process(int encoders, int writers, int steps, int expected_code) {
  constexpr int64_t kBatch = 12, kMicroBatches = 2;
  const auto images = find_data("", false).images;
  const disaggregated::Album album(images.substr(0, images.rfind('/')));
  Setting setting;
  setting.ranks = encoders;
  setting.other_ranks = writers;
  setting.encoder_stage = 2;
  setting.language_stage = 3;
  setting.accumulation = kMicroBatches;
  setting.images = kBatch / encoders;
  ReferencePair pair(setting, [&](int64_t step, int64_t index) {
    const auto batch = album.rows(step * kMicroBatches + index, kBatch, 0, kBatch);
    return reference::Batch{batch.images, batch.text};
  });
  PairRecord last;
  for (int step = 0; step < steps; ++step) last = pair.step();
  const auto said = run_example(encoders, writers, steps, expected_code);
  EXPECT_THAT(said, HasSubstr(digest_line("encoder", last.encoder.parameters, *make_encoder(1))));
  EXPECT_THAT(said,
              HasSubstr(digest_line("captioner", last.language.parameters, *make_captioner(1))));
}

TEST(DisaggregatedExample, HasTheBitsOfOneProcess) {
  for (const auto& [encoders, writers] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 1}})
    expect_the_bits_of_one_process(encoders, writers, 3, 1);  // too few to be right
}

TEST(DisaggregatedExample, LearnsToCaptionWhatItHasNotSeen) {
  const auto said = run_example(1, 2, 300, 0);
  std::smatch match;
  ASSERT_TRUE(std::regex_search(said, match,
                                std::regex("(\\d+) of 500 captions of unseen images are right\n")))
      << said;
  EXPECT_GE(std::stoi(match[1]), 350) << said;
  std::cout << match[0];
}

TEST(DisaggregatedExample, SaysWhatItExpects) {
  const std::string program = std::getenv("EQUIGRAD_DISAGGREGATED");
  EXPECT_EQ(WEXITSTATUS(std::system(("'" + program + "' 2>/dev/null").c_str())), 2);
}

}  // namespace
}  // namespace equigrad::conformance::vision
