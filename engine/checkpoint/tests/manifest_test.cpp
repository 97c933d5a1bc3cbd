// Manifests: read as they were written, every bit that was flipped seen, and every claim that the
// files do not keep refused.
#include "engine/checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

Manifest a_manifest() {
  Manifest manifest;
  manifest.id = "3f9a";
  manifest.world_size = 2;
  manifest.engine = {{"stage", 3}, {"lr", 0.1}};
  manifest.client_state = {{"xxh3_128", "00000000000000000000000000000000"}, {"epoch", 7}};
  RankFile first{{"rank-0", 8 + 12, 8, digest_of("a", 1)}, {}};
  first.tensors = {{"master/b", ElementType::F32, {5}, {{0, 0, 3, 0, digest_of("b", 1)}}}};
  RankFile second{{"rank-1", 16 + 8 + 2, 16, digest_of("c", 1)}, {}};
  second.tensors = {{"master/b", ElementType::F32, {5}, {{0, 3, 5, 0, digest_of("d", 1)}}},
                    {"master/a", ElementType::BF16, {}, {{0, 0, 1, 8, digest_of("e", 1)}}}};
  merge(manifest, {read_rank_file(write_rank_file(first)), second});
  return manifest;
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = a_manifest();
  EXPECT_EQ(read_manifest(write_manifest(manifest), "m"), manifest);
}

TEST(Manifest, EveryBitThatIsFlippedIsSeen) {
  std::string text = write_manifest(a_manifest());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_THROW(read_manifest(text, "m"), Error) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace equigrad::checkpoint
