// One rank's file is a safetensors file of its pieces, and its table says where each lies.
#include "engine/checkpoint/rank_writer.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "conformance/testing/scratch_folder.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using conformance::ScratchFolder;
using testing::HasSubstr;

TEST(RankWriter, NamesSortByRankAndNumber) {
  EXPECT_EQ(rank_file_name(3, 16, "ab12"), "rank-00003-of-00016-ab12.safetensors");
  EXPECT_EQ(rank_file_name(123456, 200000, "x"), "rank-123456-of-200000-x.safetensors");
}

TEST(RankWriter, PiecesLieWhereTheTableAndTheHeaderSay) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  const std::vector<float> master{1, 2, 3};
  const std::vector<std::uint8_t> state{7, 8};
  RankWriter writer(
      disk(), folder.path("rank.safetensors"),
      {{.name = "master/w", .type = ElementType::F32, .shape = {5, 2}, .begin = 4, .end = 7},
       {.name = "rank0/rng/cpu", .type = ElementType::U8, .shape = {2}, .begin = 0, .end = 2}});
  writer.write(master.data(), 12);
  writer.write(state.data(), 2);
  const auto written = writer.finish();

  const MappedFile file(folder.path("rank.safetensors"));
  EXPECT_EQ(written.file.name, "rank.safetensors");
  ASSERT_EQ(written.file.bytes, static_cast<std::int64_t>(file.bytes().size()));
  const auto header = read_header(file.bytes(), written.file.bytes, "the file");
  ASSERT_EQ(header.tensors.size(), 2);
  EXPECT_EQ(header.header_bytes, written.file.header_bytes);
  EXPECT_EQ(written.file.header,
            digest_of(file.bytes().data(), static_cast<std::size_t>(header.header_bytes)));
  EXPECT_EQ(header.tensors[0].shape, std::vector<std::int64_t>{3});
  ASSERT_EQ(written.tensors.size(), 2);
  const auto& piece = written.tensors[0].pieces.at(0);
  EXPECT_EQ(written.tensors[0].shape, (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(piece.begin, 4);
  EXPECT_EQ(piece.end, 7);
  EXPECT_EQ(piece.digest, digest_of(master.data(), 12));
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(written.tensors[i].pieces.at(0).offset_bytes, header.tensors[i].offset_bytes);
  const auto* bytes = file.bytes().data() + header.header_bytes;
  EXPECT_EQ(std::memcmp(bytes + header.tensors[0].offset_bytes, master.data(), 12), 0);
  EXPECT_EQ(std::memcmp(bytes + header.tensors[1].offset_bytes, state.data(), 2), 0);
}

TEST(RankWriter, APieceOfAnotherSizeOrNumberIsAMistake) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  const float value = 1;
  RankWriter writer(disk(), folder.path("rank.safetensors"),
                    {{.name = "a", .type = ElementType::F32, .shape = {1}, .begin = 0, .end = 1}});
  const auto broken = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(broken([&] { writer.finish(); }), HasSubstr("every piece has come"));
  EXPECT_THAT(broken([&] { writer.write(&value, 3); }), HasSubstr("as large as"));
  writer.write(&value, 4);
  EXPECT_THAT(broken([&] { writer.write(&value, 4); }), HasSubstr("was announced"));
}

}  // namespace
}  // namespace equigrad::checkpoint
