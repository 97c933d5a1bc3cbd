// The storages that stand between a save and the disk: what they record, refuse and leave out.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "conformance/crash/disk/careless_storage.hpp"
#include "conformance/crash/disk/crashed_disk.hpp"
#include "conformance/crash/disk/folder_image.hpp"
#include "conformance/crash/disk/interrupted_storage.hpp"
#include "conformance/crash/disk/recording_storage.hpp"
#include "engine/checkpoint/rank_writer.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Storages : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "equigrad-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { remove_folder(folder_); }

  std::shared_ptr<RecordingStorage> recording(std::shared_ptr<Storage> behind = real_disk()) {
    return std::make_shared<RecordingStorage>(std::move(behind), folder_,
                                              [this] { return calls_; });
  }
  Path at(const std::string& path) const { return Path(folder_ + "/" + path); }

  std::string folder_;
  std::pair<std::int64_t, std::int64_t> calls_ = {0, 0};
};

void write(Storage& storage, const Path& file, const std::string& text) {
  const auto output = storage.create(file);
  output->append(text.data(), text.size());
  output->sync();
}

std::vector<std::string> texts(const std::vector<Operation>& operations) {
  std::vector<std::string> all;
  for (const auto& one : operations) all.push_back(to_text(one));
  return all;
}

TEST_F(Storages, WhatIsDoneIsRecordedAndDone) {
  const auto storage = recording();
  storage->make_directories(at("a/b"));
  calls_ = {3, 2};
  write(*storage, at("a/b/file"), "text");
  storage->rename(at("a/b/file"), at("a/b/other"));
  storage->sync_directory(at("a/b"));
  storage->remove(at("a/b/other"));
  storage->make_directories(at("a/b"));
  EXPECT_THAT(texts(storage->operations()),
              ElementsAre("make the folder a", "sync the folder .", "make the folder a/b",
                          "sync the folder a", "create a/b/file", "append 4 bytes to a/b/file",
                          "sync a/b/file", "rename a/b/file to a/b/other", "sync the folder a/b",
                          "remove a/b/other"));
  EXPECT_EQ(storage->operations()[4].entered, 3);
  EXPECT_EQ(storage->operations()[4].left, 2);
  EXPECT_EQ(storage->operations()[0].entered, 0);
  EXPECT_EQ(read_folder(folder_), (FolderImage{{"a", "a/b"}, {}}));
}

TEST_F(Storages, ARecordWithoutALossGivesTheFolderThatIsThere) {
  write_folder({{"tag"}, {{"tag/old", "old"}, {"latest", "x"}}}, folder_);
  const auto before = read_folder(folder_);
  const auto storage = recording();
  checkpoint::replace_file(*storage, at("latest"), "tag");
  write(*storage, at("tag/new"), std::string(10'000, 'n'));
  storage->remove(at("tag/old"));
  const Log log{{storage->operations()}, {}};
  const auto whole = first_of(log, operations_of(log));
  EXPECT_EQ(after_kill(before, log, whole, 0), read_folder(folder_));
  EXPECT_EQ(after_power_loss(before, log, whole, 1), read_folder(folder_));
}

TEST_F(Storages, AnotherFolderIsNoneOfTheRecords) {
  EXPECT_THROW(recording()->create(Path(folder_ + "x/file")), Error);
}

TEST_F(Storages, WhatIsRefusedIsNotInTheRecordButAFailedSync) {
  Interruption full{.at = 2, .happens = [](const std::string& did, const std::string& path) {
                      refuse(EIO, did, path);
                    }};
  const auto storage = recording(std::make_shared<InterruptedStorage>(real_disk(), full));
  EXPECT_THROW(write(*storage, at("file"), "text"), Error);
  EXPECT_THAT(texts(storage->operations()),
              ElementsAre("create file", "append 4 bytes to file", "sync file, which failed"));
}

TEST_F(Storages, OneOperationIsRefusedAndOfWhatIsWrittenHalfIsThere) {
  Interruption interruption{.at = 1,
                            .happens = [](const std::string& did, const std::string& path) {
                              refuse(ENOSPC, did, path);
                            }};
  InterruptedStorage storage(real_disk(), interruption);
  const auto output = storage.create(at("file"));
  try {
    output->append("text", 4);
    FAIL() << "it is not refused";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()),
                AllOf(HasSubstr("write \"" + folder_ + "/file\""), HasSubstr("No space left")));
  }
  EXPECT_EQ(read_bytes(folder_ + "/file"), "te");
  output->append("text", 4);
  EXPECT_EQ(storage.operations(), 3);
}

TEST_F(Storages, ADiskThatIsFullStaysFullAndLetsFilesGo) {
  Interruption interruption{
      .at = 0, .stays = true, .happens = [](const std::string& did, const std::string& path) {
        refuse(ENOSPC, did, path);
      }};
  write_folder({{}, {{"old", "old"}}}, folder_);
  InterruptedStorage storage(real_disk(), interruption);
  EXPECT_THROW(storage.create(at("file")), Error);
  EXPECT_THROW(storage.make_directories(at("folder")), Error);
  EXPECT_NO_THROW(storage.rename(at("old"), at("older")));
  EXPECT_NO_THROW(storage.remove(at("older")));
  EXPECT_EQ(read_folder(folder_), FolderImage{});
}

// A save as the engine's, of one tensor: rank file, manifest, latest, the rest.
class CarelessSave : public Storages {
 protected:
  void save(Storage& storage, const std::string& id) {
    storage.make_directories(at("tag"));
    checkpoint::RankWriter writer(
        storage, at("tag/" + checkpoint::rank_file_name(0, 1, id)),
        {{.name = "t", .type = checkpoint::ElementType::U8, .shape = {8}, .begin = 0, .end = 8}});
    writer.write(id.data(), id.size());
    checkpoint::Manifest manifest;
    manifest.id = id;
    checkpoint::merge(manifest, {writer.finish()});
    storage.sync_directory(at("tag"));
    checkpoint::replace_file(storage, at("tag/manifest.json"),
                             checkpoint::write_manifest(manifest));
    checkpoint::replace_file(storage, at("latest"), checkpoint::write_latest("tag"));
    for (const auto& [path, bytes] : read_folder(folder_).files)
      if (name_of(path).starts_with("rank-") && path.find(id) == std::string::npos)
        storage.remove(at(path));
  }
  // What a save behind another one does through a careless storage.
  std::vector<std::string> done_by(const std::string& name) {
    save(*careless(name, real_disk(), folder_), "aaaaaaaa");
    const auto storage = recording();
    save(*careless(name, storage, folder_), "bbbbbbbb");
    return texts(as_done(name, storage->operations()));
  }
};

const std::string kFile = "tag/rank-00000-of-00001-bbbbbbbb.safetensors";

TEST_F(CarelessSave, WithoutACarelessnessItIsTheProtocol) {
  EXPECT_THAT(
      done_by(""),
      ElementsAre("create " + kFile, HasSubstr("append"), HasSubstr("append"), "sync " + kFile,
                  "sync the folder tag", "remove tag/manifest.json.saving",
                  "create tag/manifest.json.saving", HasSubstr("append"),
                  "sync tag/manifest.json.saving",
                  "rename tag/manifest.json.saving to tag/manifest.json", "sync the folder tag",
                  "remove latest.saving", "create latest.saving", HasSubstr("append"),
                  "sync latest.saving", "rename latest.saving to latest", "sync the folder .",
                  "remove tag/rank-00000-of-00001-aaaaaaaa.safetensors"));
}

TEST_F(CarelessSave, EachLeavesOutWhatItSays) {
  EXPECT_THAT(done_by("rank_file_not_synced"), Not(Contains("sync " + kFile)));
}
TEST_F(CarelessSave, TheFolderIsNotSyncedBeforeTheCommit) {
  const auto done = done_by("names_not_synced_before_the_commit");
  EXPECT_EQ(done[4], "remove tag/manifest.json.saving");
  EXPECT_THAT(done, Contains("sync the folder tag"));
}
TEST_F(CarelessSave, TheFolderIsNotSyncedAfterTheCommit) {
  const auto done = done_by("names_not_synced_after_the_commit");
  EXPECT_EQ(std::count(done.begin(), done.end(), "sync the folder tag"), 1);
  EXPECT_EQ(done[4], "sync the folder tag");
}
TEST_F(CarelessSave, TheManifestIsNotSynced) {
  EXPECT_THAT(done_by("manifest_not_synced"), Not(Contains("sync tag/manifest.json.saving")));
}
TEST_F(CarelessSave, TheManifestIsSyncedAfterItsRename) {
  const auto done = done_by("manifest_synced_after_the_rename");
  EXPECT_EQ(done[8], "rename tag/manifest.json.saving to tag/manifest.json");
  EXPECT_EQ(done[9], "sync tag/manifest.json.saving");
}
TEST_F(CarelessSave, TheManifestIsWrittenInItsPlace) {
  const auto done = done_by("manifest_in_place");
  EXPECT_THAT(done, Contains("create tag/manifest.json"));
  EXPECT_THAT(done, Not(Contains("rename tag/manifest.json.saving to tag/manifest.json")));
}
TEST_F(CarelessSave, LatestComesFirst) {
  const auto done = done_by("latest_first");
  EXPECT_EQ(done[4], "rename latest.saving to latest");
  EXPECT_THAT(done, Contains("create " + kFile));
}
TEST_F(CarelessSave, LatestIsNotSynced) {
  EXPECT_THAT(done_by("latest_not_synced"), Not(Contains("sync latest.saving")));
}
TEST_F(CarelessSave, LatestIsWrittenInItsPlace) {
  EXPECT_THAT(done_by("latest_in_place"),
              AllOf(Contains("create latest"), Contains("remove latest"),
                    Not(Contains("rename latest.saving to latest"))));
}
TEST_F(CarelessSave, TheNameOfLatestIsNotSynced) {
  EXPECT_THAT(done_by("latest_name_not_synced"), Not(Contains("sync the folder .")));
}
TEST_F(CarelessSave, OldFilesGoFirst) {
  const auto done = done_by("old_files_removed_first");
  EXPECT_EQ(done[6], "remove tag/rank-00000-of-00001-aaaaaaaa.safetensors");
}
TEST_F(CarelessSave, NamesHaveNoIdAndTheManifestSaysSo) {
  const auto done = done_by("names_without_id");
  EXPECT_EQ(done[0], "remove tag/rank-00000-of-00001.safetensors");
  EXPECT_EQ(done[1], "create tag/rank-00000-of-00001.safetensors");
  const auto manifest = checkpoint::read_manifest(read_bytes(folder_ + "/tag/manifest.json"), "it");
  EXPECT_EQ(manifest.files.at(0).name, "rank-00000-of-00001.safetensors");
}

TEST_F(CarelessSave, ANewFoldersNameIsNotSynced) {
  const auto storage = recording();
  save(*careless("new_folder_not_synced", storage, folder_), "bbbbbbbb");
  EXPECT_EQ(texts(storage->operations())[1], "sync the folder .");
  EXPECT_EQ(texts(as_done("new_folder_not_synced", storage->operations()))[1], "create " + kFile);
}

TEST_F(CarelessSave, AnErrorOfASyncIsIgnored) {
  Interruption interruption{
      .at = 4,
      .happens = [](const std::string& did, const std::string& path) { refuse(EIO, did, path); }};
  const auto broken = std::make_shared<InterruptedStorage>(real_disk(), interruption);
  EXPECT_NO_THROW(save(*careless("error_of_sync_ignored", broken, folder_), "bbbbbbbb"));
  EXPECT_EQ(broken->operations(), 18);
}

class CarelessOfParts : public CarelessSave {
 protected:
  // A tensor of two parts, of a rank each, as the manifest tells it.
  checkpoint::TensorEntry told_by(const std::string& name) {
    remove_folder(folder_ + "/tag");
    const auto storage = careless(name, real_disk(), folder_);
    storage->make_directories(at("tag"));
    checkpoint::Manifest manifest;
    manifest.id = "aaaaaaaa";
    manifest.world_size = 2;
    std::vector<checkpoint::RankFile> files;
    for (const int part : {0, 1}) {
      checkpoint::RankWriter writer(*storage,
                                    at("tag/" + checkpoint::rank_file_name(part, 2, manifest.id)),
                                    {{.name = "t",
                                      .type = checkpoint::ElementType::U8,
                                      .shape = {2, 8},
                                      .begin = 0,
                                      .end = 8,
                                      .cut = checkpoint::Cut{1, {2, 6}, 2},
                                      .part = part}});
      writer.write("abcdefgh", 8);
      files.push_back(writer.finish());
    }
    checkpoint::merge(manifest, files);
    checkpoint::replace_file(*storage, at("tag/manifest.json"),
                             checkpoint::write_manifest(manifest));
    const auto text = read_bytes(folder_ + "/tag/manifest.json");
    return *checkpoint::read_manifest(text, "it").find("t");
  }
};

TEST_F(CarelessOfParts, EachTellsWhatItSays) {
  const auto right = told_by("");
  auto exchanged = told_by("parts_in_each_others_place");
  EXPECT_EQ(exchanged.pieces.at(0).file, 1u);
  EXPECT_EQ(exchanged.pieces.at(0).part, 0);
  std::swap(exchanged.pieces.at(0).file, exchanged.pieces.at(1).file);
  EXPECT_EQ(exchanged, right);
  const auto uncut = told_by("cut_not_told");
  EXPECT_FALSE(uncut.cut.has_value());
  EXPECT_EQ(uncut.pieces.at(1).begin, 8);
  EXPECT_EQ(uncut.pieces.at(1).end, 16);
  auto unpacked = told_by("packing_not_told");
  EXPECT_EQ(unpacked.cut->segments, (std::vector<std::int64_t>{8}));
  unpacked.cut = right.cut;
  EXPECT_EQ(unpacked, right);
}

TEST(Careless, ThereAreEnoughAndEachHasAName) {
  EXPECT_GE(carelessnesses().size(), 18u);
  for (const auto& one : carelessnesses()) {
    EXPECT_EQ(carelessness(one.name).what, one.what);
    EXPECT_FALSE(one.what.empty());
  }
  EXPECT_THROW(carelessness("careful"), Error);
}

}  // namespace
}  // namespace equigrad::conformance::crash
