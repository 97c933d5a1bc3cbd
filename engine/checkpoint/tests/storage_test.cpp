// The file system as a save and a load see it, and errors that name the file.
#include "engine/checkpoint/storage.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "conformance/testing/error_of.hpp"
#include "conformance/testing/scratch_folder.hpp"

namespace equigrad::checkpoint {
namespace {

using conformance::error_of;
using conformance::ScratchFolder;
using testing::AllOf;
using testing::HasSubstr;

std::string text_of(const Path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const Path& file, std::string_view text) {
  const auto output = disk().create(file);
  output->append(text.data(), text.size());
  output->sync();
}

TEST(Storage, WhatIsAppendedIsThereInItsOrder) {
  const ScratchFolder folder;
  disk().make_directories(folder.path("a/b/c"));
  disk().make_directories(folder.path("a/b/c"));  // is there
  {
    const auto output = disk().create(folder.path("a/b/c/file"));
    output->append("one", 3);
    output->append("", 0);
    output->append("two", 3);
  }
  EXPECT_EQ(text_of(folder.path("a/b/c/file")), "onetwo");
}

TEST(Storage, CreatingNeverOverwrites) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  write(folder.path("file"), "first");
  EXPECT_THAT(error_of([&] { disk().create(folder.path("file")); }),
              AllOf(HasSubstr("create"), HasSubstr(folder.path("file")), HasSubstr("exists")));
  EXPECT_EQ(text_of(folder.path("file")), "first");
}

TEST(Storage, ErrorsNameTheFileAndTheSystemsWords) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  write(folder.path("file"), "");
  EXPECT_THAT(error_of([&] { disk().make_directories(folder.path("file/below")); }),
              AllOf(HasSubstr("make the folder"), HasSubstr("file")));
  EXPECT_THAT(error_of([&] { disk().create(folder.path("none/file")); }),
              AllOf(HasSubstr("none/file"), HasSubstr("No such file")));
  EXPECT_THAT(error_of([&] { disk().rename(folder.path("none"), folder.path("to")); }),
              AllOf(HasSubstr("rename"), HasSubstr("none"), HasSubstr("to")));
  EXPECT_THAT(error_of([&] { disk().sync_directory(folder.path("file")); }),
              HasSubstr("open the folder"));
  EXPECT_THAT(error_of([&] { disk().remove(folder.path()); }), HasSubstr("remove"));
  EXPECT_THAT(error_of([&] { write("/dev/full", "more"); }), HasSubstr("/dev/full"));
  disk().remove(folder.path("never there"));
}

TEST(Storage, AReplacedFileIsTheOldOneOrTheNew) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  replace_file(disk(), folder.path("latest"), "old");
  EXPECT_EQ(text_of(folder.path("latest")), "old");
  const MappedFile before(folder.path("latest"));
  write(folder.path("latest.saving"), "left over by a save that did not end");
  replace_file(disk(), folder.path("latest"), "new, and longer");
  EXPECT_EQ(text_of(folder.path("latest")), "new, and longer");
  EXPECT_FALSE(std::filesystem::exists(folder.path("latest.saving")));
  EXPECT_EQ(before.bytes().size(), 3);  // who had it open keeps what it opened
  EXPECT_EQ(static_cast<char>(before.bytes()[0]), 'o');
}

TEST(Storage, WhatCannotTakeItsPlaceIsTakenAway) {
  const ScratchFolder folder;
  disk().make_directories(folder.path("latest"));  // a folder is in the way
  EXPECT_THAT(error_of([&] { replace_file(disk(), folder.path("latest"), "new"); }),
              HasSubstr("rename"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("latest.saving")));
}

TEST(Storage, AFolderIsLockedAgainstOthersWhileTheLockLives) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  auto held = disk().lock(folder.path());
  EXPECT_THAT(error_of([&] { disk().lock(folder.path()); }),
              AllOf(HasSubstr("no other job"), HasSubstr(folder.path())));
  held.reset();
  EXPECT_NE(disk().lock(folder.path()), nullptr);
}

TEST(Storage, AMappedFileIsItsBytes) {
  const ScratchFolder folder;
  disk().make_directories(folder.path());
  write(folder.path("some"), "abc");
  write(folder.path("none"), "");
  MappedFile some(folder.path("some"));
  const MappedFile none(folder.path("none"));
  EXPECT_EQ(none.bytes().size(), 0);
  std::vector<MappedFile> moved;
  moved.push_back(std::move(some));
  moved.reserve(10);
  EXPECT_EQ(moved[0].bytes().size(), 3);
  EXPECT_EQ(static_cast<char>(moved[0].bytes()[2]), 'c');
  EXPECT_THAT(error_of([&] { MappedFile(folder.path()); }), HasSubstr("something else"));
  EXPECT_THAT(error_of([&] { MappedFile(folder.path("gone")); }), HasSubstr("gone"));
}

}  // namespace
}  // namespace equigrad::checkpoint
