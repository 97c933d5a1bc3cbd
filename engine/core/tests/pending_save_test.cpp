// What a save leaves behind, whether it comes to its end or not.
#include "engine/core/pending_save.hpp"

#include <gmock/gmock.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "conformance/crash/disk/forwarding_storage.hpp"
#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/checkpoint/zero_to_fp32.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::core {
namespace {

using checkpoint::ElementType;
using conformance::error_of;
using conformance::ScratchFolder;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

PieceSource piece(int rank, double value) {
  return {{.name = "rank" + std::to_string(rank) + "/buffer/b",
           .type = ElementType::F32,
           .shape = {2},
           .begin = 0,
           .end = 2},
          [value] { return at::full({2}, value); }};
}

std::unique_ptr<PendingSave> begun(RankContext& context, const std::string& directory,
                                   const std::string& id) {
  return std::make_unique<PendingSave>(
      *context.group(),
      std::shared_ptr<checkpoint::Storage>(std::shared_ptr<void>(), &checkpoint::disk()),
      SaveAgreement{.directory = directory, .tag = "a", .id = id},
      SaveWords{.engine = {{"stage", 1}}, .client_state = nullptr});
}

TEST(PendingSave, LeavesItsOwnFilesAndNoOthers) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(2,
                     [&folder](RankContext& context) {
                       for (const auto* id : {"one", "two"}) {
                         const auto save = begun(context, folder.path(), id);
                         save->write({piece(context.rank(), 3)});
                         save->finish();
                       }
                     }),
            "");
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("a", "latest", "zero_to_fp32.py"));
  EXPECT_THAT(names_in(folder.path("a")),
              UnorderedElementsAre("manifest.json", "rank-00000-of-00002-two.safetensors",
                                   "rank-00001-of-00002-two.safetensors"));
  const auto saved = checkpoint::SavedCheckpoint::open(folder.path(), "a");
  saved.verify_all();
  float got[2] = {};
  saved.read("rank1/buffer/b", 0, 2, got);
  EXPECT_EQ(got[1], 3.0F);
}

// Rank 1 does not hear what all others have heard: rank 0 names its file all the same.
class Deaf final : public conformance::faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    auto pending = ForwardingCommunicator::all_gather(output, input);
    if (calls-- != 1) return pending;
    pending->wait();
    throw comm::CommunicationError("test", "a peer is gone");
  }
  int calls = 0;  // until it hears nothing; 0: never
};

TEST(PendingSave, ARankThatLosesItsPeersLeavesItsFileToTheManifestThatMayNameIt) {
  const ScratchFolder folder;
  const auto on_rank = [&folder](RankContext& context) {
    Deaf deaf(context.group());
    PendingSave save(
        deaf, std::shared_ptr<checkpoint::Storage>(std::shared_ptr<void>(), &checkpoint::disk()),
        SaveAgreement{.directory = folder.path(), .tag = "a", .id = "one"},
        SaveWords{.engine = {{"stage", 1}}, .client_state = nullptr});
    save.write({piece(context.rank(), 3)});
    deaf.calls = context.rank() == 1 ? 2 : 0;  // the sizes of what is said, and what is said
    save.finish();
  };
  const auto failed = on_ranks(2, on_rank, {.timeout = std::chrono::seconds(20)});
  EXPECT_THAT(failed, HasSubstr("a peer is gone"));
  const auto saved = checkpoint::SavedCheckpoint::open(folder.path(), "a");
  EXPECT_NO_THROW(saved.verify_all());
}

// Looks whether files have their names for good before a manifest is begun that names them, and
// fails once the manifest has its own where it is told to.
class Strict final : public conformance::crash::ForwardingStorage {
 public:
  Strict(std::shared_ptr<checkpoint::Storage> storage, bool fails)
      : ForwardingStorage(std::move(storage)), fails_(fails) {}
  std::unique_ptr<checkpoint::OutputFile> create(const checkpoint::Path& file) override {
    if (file.extension() == ".safetensors") is_synced_ = false;
    if (file.filename() == "manifest.json.saving") EXPECT_TRUE(is_synced_);
    return ForwardingStorage::create(file);
  }
  void sync_directory(const checkpoint::Path& directory) override {
    is_synced_ = true;
    if (fails_ && std::filesystem::exists(directory / "manifest.json"))
      throw Error("test", "the folder cannot be synced");
    ForwardingStorage::sync_directory(directory);
  }

 private:
  bool fails_;
  bool is_synced_ = false;
};

TEST(PendingSave, TheManifestIsBegunWhenItsFilesHaveTheirNamesForGoodAndKeepsThem) {
  for (const bool fails : {false, true}) {
    const ScratchFolder folder;
    EXPECT_EQ(on_ranks(1,
                       [&folder, fails](RankContext& context) {
                         PendingSave save(
                             *context.group(),
                             std::make_shared<Strict>(conformance::crash::real_disk(), fails),
                             SaveAgreement{.directory = folder.path(), .tag = "a", .id = "one"},
                             SaveWords{.engine = {{"stage", 1}}, .client_state = nullptr});
                         save.write({piece(0, 3)});
                         if (fails)
                           EXPECT_THAT(error_of([&] { save.finish(); }),
                                       HasSubstr("cannot be synced"));
                         else
                           save.finish();
                       }),
              "");
    EXPECT_NO_THROW(checkpoint::SavedCheckpoint::open(folder.path(), "a").verify_all()) << fails;
  }
}

TEST(PendingSave, AnotherOneToItsTagIsRefusedUntilItHasEnded) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(2,
                     [&folder](RankContext& context) {
                       auto save = begun(context, folder.path(), "one");
                       EXPECT_THAT(error_of([&] { begun(context, folder.path(), "two"); }),
                                   HasSubstr("no other job"));
                       save->write({piece(context.rank(), 3)});
                       save->finish();
                       save.reset();
                       EXPECT_NO_THROW(begun(context, folder.path(), "two"));
                     }),
            "");
  checkpoint::SavedCheckpoint::open(folder.path(), "a").verify_all();
}

TEST(PendingSave, TheScriptOfAnEarlierVersionGoes) {
  const ScratchFolder folder;
  const auto script = folder.path(std::string(checkpoint::kZeroToFp32Name));
  std::filesystem::create_directories(folder.path());
  ASSERT_TRUE(std::ofstream(script) << "print(1)\n");
  EXPECT_EQ(on_ranks(1, [&folder](RankContext& context) { begun(context, folder.path(), "one"); }),
            "");
  std::ostringstream text;
  text << std::ifstream(script).rdbuf();
  EXPECT_EQ(text.str(), checkpoint::zero_to_fp32_script());
}

// Of the calling thread.
int scheduling_policy() { return ::sched_getscheduler(0); }

// Remembers how eager the thread is that makes a rank's file.
class Watched final : public conformance::crash::ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<checkpoint::OutputFile> create(const checkpoint::Path& file) override {
    if (file.extension() == ".safetensors") policy_of_writer = scheduling_policy();
    return ForwardingStorage::create(file);
  }
  std::atomic<int> policy_of_writer = -1;
};

TEST(PendingSave, WhatIsWrittenBesideTrainingGivesWayToIt) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(1,
                     [&folder](RankContext& context) {
                       const auto own = scheduling_policy();
                       const auto watched =
                           std::make_shared<Watched>(conformance::crash::real_disk());
                       PendingSave save(
                           *context.group(), watched,
                           SaveAgreement{.directory = folder.path(), .tag = "a", .id = "one"},
                           SaveWords{.engine = {{"stage", 1}}, .client_state = nullptr});
                       watched->policy_of_writer = -1;
                       save.write_beside({piece(0, 3)});
                       save.finish();
                       EXPECT_EQ(watched->policy_of_writer, SCHED_IDLE);
                       EXPECT_EQ(scheduling_policy(), own) << "who trains is as before";
                     }),
            "");
}

TEST(PendingSave, GivenUpItHasNeverBeen) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(2,
                     [&folder](RankContext& context) {
                       begun(context, folder.path(), "one");  // not even written
                       const auto save = begun(context, folder.path(), "two");
                       save->write_beside({piece(context.rank(), 3)});
                     }),
            "");
  EXPECT_THAT(names_in(folder.path("a")), UnorderedElementsAre());
}

TEST(PendingSave, AnErrorOnOneRankLeavesWhatWasThere) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(2,
                     [&folder](RankContext& context) {
                       auto save = begun(context, folder.path(), "old");
                       save->write({piece(context.rank(), 1)});
                       save->finish();
                       save.reset();
                       for (const bool beside : {false, true}) {
                         save = begun(context, folder.path(), "new");
                         auto source = piece(context.rank(), 2);
                         if (context.rank() == 1) source.header.end = 1;  // not what comes
                         beside ? save->write_beside({source}) : save->write({source});
                         EXPECT_THAT(error_of([&] { save->finish(); }),
                                     HasSubstr("as large as it was announced"));
                         save.reset();
                       }
                     }),
            "");
  EXPECT_THAT(names_in(folder.path("a")),
              UnorderedElementsAre("manifest.json", "rank-00000-of-00002-old.safetensors",
                                   "rank-00001-of-00002-old.safetensors"));
  checkpoint::SavedCheckpoint::open(folder.path(), "a").verify_all();
}

}  // namespace
}  // namespace equigrad::core
