// What a loss of power may leave of a log that was written by hand, and what it must.
#include "conformance/crash/disk/crashed_disk.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using Kind = Operation::Kind;
using ::testing::Contains;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kSeeds = 400;

Log one_rank(std::vector<Operation> operations) { return {{std::move(operations)}, {}}; }

Cut whole(const Log& log) { return first_of(log, operations_of(log)); }

// What may be there after all of the log: by file, or "-" where there is none.
std::set<std::string> left_of(const FolderImage& before, const Log& log, const std::string& path) {
  std::set<std::string> left;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto image = after_power_loss(before, log, whole(log), seed);
    const auto found = image.files.find(path);
    left.insert(found == image.files.end() ? "-" : found->second);
  }
  return left;
}

Operation create(const std::string& path, std::int64_t file = 0) {
  return {.kind = Kind::Create, .path = path, .file = file};
}
Operation append(const std::string& path, const std::string& bytes, std::int64_t file = 0) {
  return {.kind = Kind::Append, .path = path, .bytes = bytes, .file = file};
}
Operation sync(const std::string& path, std::int64_t file = 0) {
  return {.kind = Kind::Sync, .path = path, .file = file};
}
Operation sync_folder(const std::string& path) {
  return {.kind = Kind::SyncDirectory, .path = path};
}
Operation rename(const std::string& from, const std::string& to) {
  return {.kind = Kind::Rename, .path = from, .to = to};
}

TEST(CrashedDisk, WhatIsSyncedWithItsNameIsThere) {
  const auto log = one_rank({create("a"), append("a", "new"), sync("a"), sync_folder("")});
  EXPECT_THAT(left_of({}, log, "a"), UnorderedElementsAre("new"));
}

TEST(CrashedDisk, ANameWhoseFolderIsNotSyncedIsThereOrNotWithAllItsBytes) {
  const auto log = one_rank({create("a"), append("a", "new"), sync("a")});
  EXPECT_THAT(left_of({}, log, "a"), UnorderedElementsAre("new", "-"));
}

// Empty, a part, zeros, anything, or whole: but never longer.
TEST(CrashedDisk, BytesThatAreNotSyncedMayBeAnything) {
  const auto log = one_rank({create("a"), append("a", "new"), sync_folder("")});
  const auto left = left_of({}, log, "a");
  EXPECT_THAT(left, Contains("new"));
  EXPECT_THAT(left, Contains(""));
  EXPECT_THAT(left, Contains(std::string(3, '\0')));
  EXPECT_THAT(left, Not(Contains("-")));
  EXPECT_GT(left.size(), 4u) << "and what nobody wrote";
  for (const auto& bytes : left) EXPECT_LE(bytes.size(), 3u);
}

TEST(CrashedDisk, WhatWasSyncedBeforeStaysInFrontOfWhatWasNot) {
  const auto log =
      one_rank({create("a"), append("a", "one"), sync("a"), sync_folder(""), append("a", "two")});
  for (const auto& bytes : left_of({}, log, "a")) EXPECT_EQ(bytes.substr(0, 3), "one");
}

// Three pages: each is lost or kept by itself.
TEST(CrashedDisk, PagesAreTornOneByOne) {
  const std::string page(4096, 'x');
  const auto log = one_rank({create("a"), append("a", page + page + page), sync_folder("")});
  std::set<std::string> kept;
  for (const auto& bytes : left_of({}, log, "a")) {
    if (bytes.size() != 3 * page.size()) continue;
    std::string which;
    for (std::size_t i = 0; i < 3; ++i)
      which += bytes.substr(i * page.size(), page.size()) == page ? 'x' : '.';
    kept.insert(which);
  }
  EXPECT_EQ(kept.size(), 8u) << ::testing::PrintToString(kept);
}

// A page that was written twice may be as it was after the first time.
TEST(CrashedDisk, APageMayBeAsItWasAfterAnEarlierWrite) {
  const auto log = one_rank({create("a"), append("a", "one"), append("a", "two"), sync_folder("")});
  EXPECT_THAT(left_of({}, log, "a"), Contains(std::string("one\0\0\0", 6)));
  EXPECT_THAT(left_of({}, log, "a"), Contains("one"));
}

// The worst that an unwritten page can hold is what looks right.
TEST(CrashedDisk, AnUnwrittenPageMayHaveWhatAnOlderFileHasThere) {
  const FolderImage before{{}, {{"old", "good old bytes"}}};
  const auto log = one_rank({create("a"), append("a", "good new bytes"), sync_folder("")});
  EXPECT_THAT(left_of(before, log, "a"), Contains("good old bytes"));
}

TEST(CrashedDisk, ARenameHappenedOrDidNotInBothNames) {
  const FolderImage before{{}, {{"a", "old"}}};
  const auto log = one_rank({create("a.saving"), append("a.saving", "new"), sync("a.saving"),
                             sync_folder(""), rename("a.saving", "a")});
  std::set<FolderImage,
           decltype([](const FolderImage& x, const FolderImage& y) { return x.files < y.files; })>
      images;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
    images.insert(after_power_loss(before, log, whole(log), seed));
  std::vector<std::map<std::string, std::string>> files;
  for (const auto& image : images) files.push_back(image.files);
  using Files = std::map<std::string, std::string>;
  EXPECT_THAT(files,
              UnorderedElementsAre(Files{{"a", "new"}}, Files{{"a", "old"}, {"a.saving", "new"}}));
}

// The name is there before the bytes are: a file of no bytes in the place of a good one.
TEST(CrashedDisk, ARenameOfWhatIsNotSyncedLosesBoth) {
  const FolderImage before{{}, {{"a", "old"}}};
  const auto log = one_rank(
      {create("a.saving"), append("a.saving", "new"), rename("a.saving", "a"), sync_folder("")});
  const auto left = left_of(before, log, "a");
  EXPECT_THAT(left, Contains(""));
  EXPECT_THAT(left, Not(Contains("-")));
}

TEST(CrashedDisk, ARemovedFileIsThereUntilItsFolderIsSynced) {
  const FolderImage before{{}, {{"a", "old"}}};
  const Operation remove{.kind = Kind::Remove, .path = "a"};
  EXPECT_THAT(left_of(before, one_rank({remove}), "a"), UnorderedElementsAre("old", "-"));
  EXPECT_THAT(left_of(before, one_rank({remove, sync_folder("")}), "a"), UnorderedElementsAre("-"));
}

// A later change may be there and an earlier one not, where no sync lies between.
TEST(CrashedDisk, NamesMayBeInAnotherOrderThanTheyWereMade) {
  const auto log = one_rank({create("a", 0), create("b", 1)});
  bool later_alone = false, earlier_alone = false;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto image = after_power_loss({}, log, whole(log), seed);
    later_alone |= image.files.contains("b") && !image.files.contains("a");
    earlier_alone |= image.files.contains("a") && !image.files.contains("b");
  }
  EXPECT_TRUE(later_alone);
  EXPECT_TRUE(earlier_alone);
}

TEST(CrashedDisk, AFolderWhoseNameIsLostIsLostWithAllThatIsInIt) {
  const Operation make{.kind = Kind::MakeDirectory, .path = "tag"};
  const auto log =
      one_rank({make, create("tag/a"), append("tag/a", "new"), sync("tag/a"), sync_folder("tag")});
  EXPECT_THAT(left_of({}, log, "tag/a"), UnorderedElementsAre("new", "-"));
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto image = after_power_loss({}, log, whole(log), seed);
    EXPECT_EQ(image.files.contains("tag/a"), image.directories.contains("tag"));
  }
}

// Linux takes pages of a failed sync for written: the next sync does not write them.
TEST(CrashedDisk, WhatAFailedSyncHasLostNoLaterSyncBringsBack) {
  auto failed = sync("a");
  failed.failed = true;
  const auto log = one_rank(
      {create("a"), append("a", "one"), failed, append("a", "two"), sync("a"), sync_folder("")});
  const auto left = left_of({}, log, "a");
  EXPECT_THAT(left, Contains(std::string("\0\0\0two", 6)));
  for (const auto& bytes : left) {
    ASSERT_EQ(bytes.size(), 6u);
    EXPECT_EQ(bytes.substr(3), "two");
  }
}

TEST(CrashedDisk, TheFirstSeedsAreTheExtremes) {
  const FolderImage before{{}, {{"a", "old"}}};
  const auto log = one_rank({create("b"), append("b", "new")});
  const auto at = [&](std::uint64_t seed) {
    return after_power_loss(before, log, whole(log), seed).files;
  };
  using Files = std::map<std::string, std::string>;
  EXPECT_EQ(at(0), (Files{{"a", "old"}}));
  EXPECT_EQ(at(1), (Files{{"a", "old"}, {"b", "new"}}));
  EXPECT_EQ(at(2), (Files{{"a", "old"}, {"b", ""}}));
  EXPECT_EQ(at(3), (Files{{"a", "old"}}));
  EXPECT_EQ(at(4).at("b").size(), 3u);
  EXPECT_EQ(at(77), at(77));
}

TEST(CrashedDisk, AKilledProcessLeavesWhatItDidAndAPartOfWhatItWasWriting) {
  const FolderImage before{{}, {{"a", "old"}}};
  const auto log = one_rank({create("b"), append("b", "new"), rename("b", "a")});
  EXPECT_EQ(after_kill(before, log, {2}, 0).files,
            (std::map<std::string, std::string>{{"a", "old"}, {"b", "new"}}));
  EXPECT_EQ(after_kill(before, log, {3}, 0).files,
            (std::map<std::string, std::string>{{"a", "new"}}));
  std::set<std::string> left;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    left.insert(after_kill(before, log, {1}, seed).files.at("b"));
  EXPECT_THAT(left, UnorderedElementsAre("", "n", "ne", "new"));
}

TEST(CrashedDisk, ALogThatNoFileSystemCanCarryOutIsAnError) {
  const auto log = one_rank({rename("nothing", "a")});
  EXPECT_THROW(after_power_loss({}, log, whole(log), 0), Error);
}

}  // namespace
}  // namespace equigrad::conformance::crash
