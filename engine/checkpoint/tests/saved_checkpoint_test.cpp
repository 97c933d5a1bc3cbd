// A checkpoint is read as it was saved, in any cut; what is incomplete or was changed is said so.
#include "engine/checkpoint/saved_checkpoint.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <numeric>

#include "conformance/testing/error_of.hpp"
#include "conformance/testing/saved_folder.hpp"
#include "conformance/testing/scratch_folder.hpp"

namespace equigrad::checkpoint {
namespace {

using conformance::error_of;
using conformance::save_folder;
using conformance::saved_tensor;
using conformance::ScratchFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<float> numbers() {
  std::vector<float> all(10);
  std::iota(all.begin(), all.end(), 1.0F);
  return all;
}

void save(const ScratchFolder& folder, int world_size = 3) {
  save_folder(folder.path(), "tag",
              {saved_tensor<float>("master/w", ElementType::F32, {5, 2}, numbers()),
               saved_tensor<std::uint8_t>("rank0/rng/cpu", ElementType::U8, {3}, {1, 2, 3})},
              {.world_size = world_size});
}

void flip(const Path& file, std::streamoff byte, int bit) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(byte);
  const char before = static_cast<char>(stream.get());
  stream.seekp(byte);
  stream.put(static_cast<char>(before ^ (1 << bit)));
}

TEST(SavedCheckpoint, AnyCutOfATensorIsRead) {
  const ScratchFolder folder;
  const auto all = numbers();
  for (const int world_size : {1, 2, 3, 4}) {
    save(folder, world_size);
    const auto saved = SavedCheckpoint::open(folder.path(), latest_tag(folder.path()));
    saved.verify_all();
    EXPECT_EQ(saved.manifest().world_size, world_size);
    for (std::int64_t begin = 0; begin <= 10; ++begin) {
      for (std::int64_t end = begin; end <= 10; ++end) {
        std::vector<float> got(static_cast<std::size_t>(end - begin) + 1, -1.0F);
        saved.verify("master/w", begin, end);
        saved.read("master/w", begin, end, got.data());
        auto want = std::vector<float>(all.begin() + begin, all.begin() + end);
        want.push_back(-1.0F);  // nothing is written behind
        EXPECT_EQ(got, want) << begin << " to " << end << " of " << world_size;
      }
    }
    ::unlink((folder.path("tag") + "/manifest.json").c_str());
    for (int rank = 0; rank < world_size; ++rank)
      ::unlink(
          (saved.folder() / saved.manifest().files[static_cast<std::size_t>(rank)].name).c_str());
  }
}

// Two parts along dimension 1 of [2, 6, 1], which is two matrices.
TEST(SavedCheckpoint, OfPartsOfATensorGroupTheWholeIsRead) {
  std::vector<float> all(12);
  std::iota(all.begin(), all.end(), 1.0F);
  for (const int world_size : {2, 4, 6}) {
    const ScratchFolder folder;
    auto tensor = saved_tensor<float>("master/w", ElementType::F32, {2, 6, 1}, all);
    tensor.cut = Cut{.dimension = 1, .segments = {2, 4}, .parts = 2};
    save_folder(folder.path(), "tag", {tensor}, {.world_size = world_size});
    const auto saved = SavedCheckpoint::open(folder.path(), "tag");
    saved.verify_all();
    for (std::int64_t begin = 0; begin <= 12; ++begin) {
      for (std::int64_t end = begin; end <= 12; ++end) {
        std::vector<float> got(static_cast<std::size_t>(end - begin) + 1, -1.0F);
        saved.read("master/w", begin, end, got.data());
        auto want = std::vector<float>(all.begin() + begin, all.begin() + end);
        want.push_back(-1.0F);
        EXPECT_EQ(got, want) << begin << " to " << end << " of " << world_size;
      }
    }
    // Element 1 is the first of part 1, in the file of rank 1; who needs it sees that it changed.
    flip(saved.folder() / saved.manifest().files[1].name, saved.manifest().files[1].header_bytes,
         0);
    EXPECT_EQ(error_of([&] { saved.verify("master/w", 0, 1); }), "");
    EXPECT_THAT(error_of([&] { saved.verify("master/w", 1, 2); }),
                HasSubstr("bytes that were saved"));
    EXPECT_THAT(error_of([&] {
                  saved.verify("master/w",
                               {Stretch{.part = 0, .whole = 0, .local = 0, .numel = 1},
                                Stretch{.part = 0, .whole = 1, .local = 1, .numel = 1}});
                }),
                HasSubstr("bytes that were saved"));
    EXPECT_THAT(error_of([&] { saved.verify_all(); }), HasSubstr("bytes that were saved"));
  }
}

TEST(SavedCheckpoint, TagsAreThePlainNamesOfFolders) {
  for (const auto* good : {"global_step12", "a b", "...", "é", "x.saving"})
    EXPECT_EQ(error_of([&] { check_tag(good, "here"); }), "") << good;
  for (const auto* bad : {"", ".", "..", "a/b", "/", "a\\b", "a\nb", "latest"})
    EXPECT_THAT(error_of([&] { check_tag(bad, "here"); }),
                AllOf(HasSubstr("[here]"), HasSubstr("plain name")))
        << bad;
  EXPECT_THAT(error_of([&] { check_tag(std::string(201, 'a'), "here"); }), HasSubstr("plain name"));
}

TEST(SavedCheckpoint, LatestIsATagWithADigestOrWrittenByHand) {
  const auto text = write_latest("step10");
  EXPECT_EQ(text.substr(0, 16), "step10\nxxh3_128 ");
  EXPECT_EQ(read_latest(text, "latest"), "step10");
  EXPECT_EQ(read_latest("step10", "latest"), "step10");
  EXPECT_EQ(read_latest("step10\n", "latest"), "step10");
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    auto flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(error_of([&] { read_latest(flipped, "latest"); }), "") << bit;
  }
}

TEST(SavedCheckpoint, WhatIsNotThereIsSaid) {
  const ScratchFolder folder;
  save(folder);
  const auto open = [&](const std::string& directory, const std::string& tag) {
    return error_of([&] { SavedCheckpoint::open(directory, tag); });
  };
  EXPECT_THAT(open(folder.path("other"), "tag"), HasSubstr("no such folder"));
  EXPECT_THAT(open(folder.path(), "other"), HasSubstr("no such folder"));
  EXPECT_THAT(open(folder.path(), ".."), HasSubstr("plain name"));
  EXPECT_THAT(error_of([&] { latest_tag(folder.path("other")); }), HasSubstr("other/latest"));
  EXPECT_FALSE(newest_tag(folder.path("other")).has_value());
  EXPECT_EQ(newest_tag(folder.path()), latest_tag(folder.path()));
  const auto saved = SavedCheckpoint::open(folder.path(), "tag");
  EXPECT_THAT(error_of([&] { saved.entry("master/v"); }), HasSubstr("master/v"));
  EXPECT_FALSE(saved.has("master/v"));
  const auto first = saved.folder() / saved.manifest().files[0].name;
  std::ofstream(first, std::ios::app) << "x";
  EXPECT_THAT(open(folder.path(), "tag"), AllOf(HasSubstr("bytes in"), HasSubstr("rank-00000")));
  ::unlink(first.c_str());
  EXPECT_THAT(open(folder.path(), "tag"), AllOf(HasSubstr("open"), HasSubstr("rank-00000")));
  ::unlink((saved.folder() / kManifestName).c_str());
  EXPECT_THAT(open(folder.path(), "tag"), HasSubstr("did not come to its end"));
  std::ofstream(saved.folder() / "mp_rank_00_model_states.pt") << "x";
  EXPECT_THAT(open(folder.path(), "tag"), AllOf(HasSubstr("got one of DeepSpeed"),
                                                HasSubstr("import_deepspeed(FROM, None, TO)"),
                                                Not(HasSubstr("did not come to its end"))));
}

TEST(SavedCheckpoint, EveryFlippedBitIsFound) {
  const ScratchFolder folder;
  save(folder, 2);
  const auto whole = SavedCheckpoint::open(folder.path(), "tag");
  std::vector<Path> files{whole.folder() / kManifestName};
  for (const auto& file : whole.manifest().files) files.push_back(whole.folder() / file.name);
  for (const auto& file : files) {
    const auto bytes = MappedFile(file).bytes().size();
    for (std::size_t bit = 0; bit < 8 * bytes; ++bit) {
      flip(file, static_cast<std::streamoff>(bit / 8), static_cast<int>(bit % 8));
      EXPECT_NE(error_of([&] { SavedCheckpoint::open(folder.path(), "tag").verify_all(); }), "")
          << file << " bit " << bit;
      flip(file, static_cast<std::streamoff>(bit / 8), static_cast<int>(bit % 8));
    }
  }
  SavedCheckpoint::open(folder.path(), "tag").verify_all();
}

TEST(SavedCheckpoint, OnlyWhatIsReadIsVerified) {
  const ScratchFolder folder;
  save(folder, 2);
  const auto saved = SavedCheckpoint::open(folder.path(), "tag");
  const auto place = conformance::place_of(saved, "master/w", 7);
  flip(place.file, place.at_byte, 3);
  saved.verify("master/w", 0, 5);  // the other rank's piece
  EXPECT_THAT(error_of([&] { saved.verify("master/w", 4, 6); }),
              AllOf(HasSubstr("master/w"), HasSubstr("rank-00001"), HasSubstr("changed")));
  EXPECT_NE(error_of([&] { saved.verify_all(); }), "");
}

}  // namespace
}  // namespace equigrad::checkpoint
