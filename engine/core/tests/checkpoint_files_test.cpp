// What the files of a checkpoint are refused for: a folder that may only be read, changed bytes.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "conformance/testing/scratch_folder.hpp"
#include "conformance/testing/small_run.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::ScratchFolder;
using conformance::SmallRun;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

// A folder that this user may not write in: root has no such folders.
TEST(CheckpointFiles, AFolderThatMayOnlyBeReadIsNamedAndTrainingGoesOn) {
  constexpr uid_t kNobody = 65534;
  const ScratchFolder folder;
  const auto path = folder.path("closed");
  fs::create_directories(path);
  for (const auto& one : {folder.path(), path})
    fs::permissions(one, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                             fs::perms::others_exec);
  at_every_stage(2, [&path](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage}), other(context, {.stage = stage});
    it.train(0);
    other.train(0);
    const bool is_root = ::geteuid() == 0;
    if (is_root) ASSERT_EQ(::seteuid(kNobody), 0);
    const auto said = error_of([&] { it.engine->save_checkpoint(path, "a"); });
    if (is_root) ASSERT_EQ(::seteuid(0), 0);
    EXPECT_THAT(said, AllOf(HasSubstr(path), HasSubstr("Permission denied")));
    EXPECT_TRUE(fs::is_empty(path));
    it.train(1);
    other.train(1);
    expect_equal(it.all(), other.all(), "training goes on");
  });
  for (const auto& one : {folder.path(), path}) fs::permissions(one, fs::perms::owner_all);
}

// Of tensors; the manifest and the headers keep theirs.
TEST(CheckpointFiles, DigestsOfTensorsAreCheckedUnlessNobodyWantsIt) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage});
    const auto path = folder.path("stage" + std::to_string(stage));
    it.engine->save_checkpoint(path, "a");
    const auto flip = [&](int64_t place, std::ios::seekdir from) {
      if (context.rank() == 0) {
        const auto name =
            checkpoint::SavedCheckpoint::open(path, "a").manifest().files.front().name;
        std::fstream file(fs::path(path) / "a" / name,
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(place, from);
        const auto byte = static_cast<char>(file.get() ^ 1);
        file.seekp(place, from);
        file.put(byte);
      }
      it.group->broadcast(at::zeros({1}), 0)->wait();
    };
    const auto load = [&](bool checks) {
      return error_of([&] { it.engine->load_checkpoint(path, "a", {.check_digests = checks}); });
    };
    flip(-1, std::ios::end);
    EXPECT_THAT(load(true), HasSubstr("bytes that were saved"));
    EXPECT_EQ(load(false), "");
    const auto refuses = [](const std::string&) { throw Error("test", "the caller refuses it"); };
    EXPECT_THAT(error_of([&] {
                  it.engine->load_checkpoint(path, "a", {.check_digests = false, .check = refuses});
                }),
                HasSubstr("the caller refuses it"));
    flip(-1, std::ios::end);
    EXPECT_EQ(load(true), "");
    flip(20, std::ios::beg);
    EXPECT_THAT(load(false), HasSubstr("the header that was saved"));
  });
}

}  // namespace
}  // namespace equigrad
