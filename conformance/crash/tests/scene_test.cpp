// What is demanded of a loss: each way to break it is told, and nothing else is.
#include "conformance/crash/scene.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

namespace equigrad::conformance::crash {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Scene scene() {
  Scene scene;
  scene.setting.world = 2;
  scene.old_tag = "one";
  scene.new_tag = "two";
  scene.old_digests = {"old0", "old1"};
  scene.new_digests = {"new0", "new1"};
  scene.next_digests = {"next0", "next1"};
  return scene;
}

json said(const std::string& digest, const std::string& next, int steps) {
  return {{"loaded", true},
          {"client_state", json{{"steps", steps}}.dump()},
          {"digest", digest},
          {"next", next}};
}

std::vector<json> old_one() { return {said("old0", "new0", 2), said("old1", "new1", 2)}; }
std::vector<json> new_one() { return {said("new0", "next0", 3), said("new1", "next1", 3)}; }

TEST(Scene, TheOldCheckpointAndTheNewOneAreWhatMayBeLeft) {
  const auto is_old = judge_by_engines(scene(), old_one(), {});
  EXPECT_EQ(is_old.wrong, "");
  EXPECT_EQ(is_old.left, Tally::Left::Old);
  const auto is_new = judge_by_engines(scene(), new_one(), {.must_be_new = true});
  EXPECT_EQ(is_new.wrong, "");
  EXPECT_EQ(is_new.left, Tally::Left::New);
}

TEST(Scene, AfterASaveThatHasEndedTheOldOneIsWrong) {
  EXPECT_THAT(judge_by_engines(scene(), old_one(), {.must_be_new = true}).wrong,
              HasSubstr("had ended"));
}

// One rank of the one, one of the other; ranks in each other's place; a bit of neither.
TEST(Scene, AMixtureIsWrong) {
  for (const auto& mixture :
       {std::vector{old_one()[0], new_one()[1]}, std::vector{new_one()[0], old_one()[1]},
        std::vector{old_one()[1], old_one()[0]},
        std::vector{old_one()[0], said("else", "new1", 2)}})
    EXPECT_THAT(judge_by_engines(scene(), mixture, {}).wrong, HasSubstr("neither"));
}

TEST(Scene, WhatDoesNotLoadIsWrongWhicheverRankSaysSo) {
  for (const std::size_t rank : {0U, 1U}) {
    auto all = old_one();
    all[rank] = {{"threw", "no manifest"}, {"changed", false}};
    EXPECT_THAT(judge_by_engines(scene(), all, {}).wrong, HasSubstr("no manifest"));
    all = old_one();
    all[rank]["loaded"] = false;
    EXPECT_THAT(judge_by_engines(scene(), all, {}).wrong, HasSubstr("no latest"));
  }
}

TEST(Scene, WhatGoesOnInAnotherWayIsWrong) {
  for (const std::size_t rank : {0U, 1U}) {
    auto all = old_one();
    all[rank]["next"] = "else";
    EXPECT_THAT(judge_by_engines(scene(), all, {}).wrong, HasSubstr("next step"));
    all = new_one();
    all[rank]["next"] = "new" + std::to_string(rank);
    EXPECT_THAT(judge_by_engines(scene(), all, {}).wrong, HasSubstr("next step"));
    all = new_one();
    all[rank]["client_state"] = R"({"steps": 2})";
    EXPECT_THAT(judge_by_engines(scene(), all, {}).wrong, HasSubstr("client state"));
    all = new_one();
    all[rank]["again"] = "the file exists";
    EXPECT_THAT(judge_by_engines(scene(), all, {}).wrong, HasSubstr("the file exists"));
  }
}

TEST(Scene, AFolderWithoutACheckpointIsRefusedByALookToo) {
  std::string folder = testing::TempDir() + "equigrad-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto nothing = find(folder, "");
  EXPECT_THAT(nothing.threw, HasSubstr("latest"));
  EXPECT_TRUE(nothing.is_error);
  EXPECT_THAT(judge_by_look(scene(), folder, {}).wrong, HasSubstr("latest is refused"));
  write_folder({{"two"}, {{"latest", "two"}}}, folder);
  EXPECT_THAT(judge_by_look(scene(), folder, {}).wrong, HasSubstr("did not come to its end"));
  remove_folder(folder);
}

}  // namespace
}  // namespace equigrad::conformance::crash
