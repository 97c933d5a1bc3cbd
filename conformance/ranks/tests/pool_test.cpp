#include "conformance/ranks/pool.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "conformance/testing/rank_test.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::ranks {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Answers {"sum": over all ranks}, or does to itself what the request says, on the rank it names.
json serve_test(const json& request, RankContext& context) {
  const std::string what = request.value("do", "");
  const bool mine = request.value("rank", -1) == context.rank();
  if (what == "sum") {
    const auto group = context.group(request.value("world", 0));
    auto value = at::full({1}, static_cast<double>(context.rank() + 1), at::kFloat);
    group->all_reduce_sum(value)->wait();
    return {{"sum", value.item<float>()}, {"pid", getpid()}, {"threads", at::get_num_threads()}};
  }
  context.note("step 1 micro-batch 2 backward");
  if (mine && what == "throw") throw Error("test", "expected calm, got a storm. Wait.");
  if (mine && what == "pretend") throw Error("rank 0/2] [comm.all_gather", "expected all.");
  if (mine && what == "die") raise(SIGKILL);
  if (mine && what == "exit") {
    fprintf(stderr, "the disk is on fire\n");
    _exit(7);
  }
  if (mine && what == "hang") pause();
  if (mine && what == "sleep") std::this_thread::sleep_for(milliseconds(request.value("ms", 300)));
  if (what == "wait-for-peer") context.group()->all_reduce_sum(at::ones({1}))->wait();
  if (what == "die-in-collective") {
    const auto group = context.group();
    if (mine) raise(SIGKILL);
    group->all_reduce_sum(at::ones({1}))->wait();
  }
  return {{"echo", request}, {"pid", getpid()}};
}

float sum_of(const std::vector<Outcome>& outcomes) {
  EXPECT_EQ(failures(outcomes), "");
  if (!all_ok(outcomes)) return -1;
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.answer["sum"], outcomes[0].answer["sum"]);
  return outcomes[0].answer["sum"].get<float>();
}

Options quick() { return {milliseconds(20'000), milliseconds(3'000), false}; }

TEST(Pool, AnswersComeFromDistinctProcessesWithOneThreadEach) {
  Pool pool(3, serve_test, quick());
  const auto outcomes = pool.run({0, 1, 2}, {{"do", "sum"}});
  EXPECT_EQ(sum_of(outcomes), 6);
  std::set<pid_t> processes;
  for (const auto& outcome : outcomes) {
    processes.insert(outcome.answer["pid"].get<pid_t>());
    EXPECT_EQ(outcome.answer["threads"], 1);
  }
  EXPECT_EQ(processes.size(), 3u);
  EXPECT_EQ(processes.count(getpid()), 0u);
}

TEST(Pool, ServesManyRequestsOverTheSameProcesses) {
  Pool pool(2, serve_test, quick());
  const auto first = pool.run({0, 1}, {{"do", "sum"}});
  for (int i = 0; i < 50; ++i) {
    const auto again = pool.run({0, 1}, {{"do", "sum"}});
    EXPECT_EQ(sum_of(again), 3);
    EXPECT_EQ(again[0].answer["pid"], first[0].answer["pid"]);
  }
}

TEST(Pool, ASubsetOfTheSetCanBeAGroup) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       if (context.rank() == 2) return;
                       auto value = at::ones({1});
                       context.group(2)->all_reduce_sum(value)->wait();
                       EXPECT_EQ(value.item<float>(), 2);
                     }),
            "");
}

TEST(Pool, GroupsOfOtherNamesAreOthersAndTheWorldIsTheGroup) {
  EXPECT_EQ(
      on_ranks(4,
               [](RankContext& context) {
                 const int rank = context.rank();
                 const auto pair = context.group("pair/" + std::to_string(rank / 2), rank % 2, 2);
                 auto value = at::full({1}, static_cast<double>(rank), at::kFloat);
                 pair->all_reduce_sum(value)->wait();
                 EXPECT_EQ(value.item<float>(), rank < 2 ? 1 : 5);
                 EXPECT_EQ(context.group("pair/" + std::to_string(rank / 2), rank % 2, 2), pair);
                 EXPECT_EQ(context.group("world", rank, 4), context.group());
               }),
      "");
}

TEST(Pool, DisjointSetsWorkAtTheSameTime) {
  Pool pool(4, serve_test, quick());
  const int slow = pool.start({0, 1}, {{"do", "sleep"}, {"rank", 0}, {"ms", 3'000}});
  const int fast = pool.start({2, 3}, {{"do", "echo"}});
  const auto first = pool.wait(milliseconds(10'000));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->job, fast);
  const auto second = pool.wait(milliseconds(10'000));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->job, slow);
  EXPECT_EQ(pool.jobs(), 0);
}

TEST(Pool, ABusyRankIsRefused) {
  Pool pool(2, serve_test, quick());
  pool.start({0}, {{"do", "sleep"}, {"rank", 0}});
  EXPECT_THROW(pool.start({0, 1}, {{"do", "echo"}}), Error);
  EXPECT_THROW(pool.start({2}, {{"do", "echo"}}), Error);
}

TEST(Pool, AnExceptionIsAnOutcomeWithItsText) {
  Pool pool(2, serve_test, quick());
  const auto outcomes = pool.run({0, 1}, {{"do", "throw"}, {"rank", 1}});
  EXPECT_EQ(outcomes[0].kind, Outcome::Kind::Ok);
  EXPECT_EQ(outcomes[1].kind, Outcome::Kind::Error);
  EXPECT_NE(failures(outcomes).find("expected calm, got a storm"), std::string::npos);
  EXPECT_EQ(sum_of(pool.run({0, 1}, {{"do", "sum"}})), 3);
}

TEST(Pool, ADeathIsToldWithItsSignalAndWhatTheRankWasDoing) {
  Pool pool(2, serve_test, quick());
  const auto outcomes = pool.run({0, 1}, {{"do", "die"}, {"rank", 0}});
  EXPECT_EQ(outcomes[0].kind, Outcome::Kind::Died);
  EXPECT_NE(outcomes[0].text.find("signal 9"), std::string::npos) << outcomes[0].text;
  EXPECT_EQ(outcomes[0].doing, "step 1 micro-batch 2 backward");
  EXPECT_EQ(sum_of(pool.run({0, 1}, {{"do", "sum"}})), 3);
}

TEST(Pool, AnExitIsToldWithItsCodeAndItsLastWords) {
  Pool pool(1, serve_test, quick());
  const auto outcomes = pool.run({0}, {{"do", "exit"}, {"rank", 0}});
  EXPECT_EQ(outcomes[0].kind, Outcome::Kind::Died);
  EXPECT_NE(outcomes[0].text.find("exit code 7"), std::string::npos) << outcomes[0].text;
  EXPECT_NE(outcomes[0].text.find("the disk is on fire"), std::string::npos) << outcomes[0].text;
}

TEST(Pool, AHangEndsAtTheTimeOutAndTheSuiteGoesOn) {
  Pool pool(3, serve_test, quick());
  EXPECT_EQ(failures(pool.run({0, 1, 2}, {{"do", "echo"}})), "");  // they are there
  const auto before = std::chrono::steady_clock::now();
  pool.start({0, 1}, {{"do", "hang"}, {"rank", 1}}, milliseconds(1'500));
  const auto finished = pool.wait(milliseconds(10'000));
  EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(15'000));
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->outcomes[0].kind, Outcome::Kind::Ok);
  EXPECT_EQ(finished->outcomes[1].kind, Outcome::Kind::TimedOut);
  EXPECT_EQ(finished->outcomes[1].doing, "step 1 micro-batch 2 backward");
  EXPECT_EQ(sum_of(pool.run({0, 1, 2}, {{"do", "sum"}})), 6);
}

TEST(Pool, APeerThatDiesInACollectiveDoesNotHangTheOthers) {
  Pool pool(3, serve_test, quick());
  EXPECT_EQ(sum_of(pool.run({0, 1, 2}, {{"do", "sum"}})), 6);
  const auto before = std::chrono::steady_clock::now();
  const auto outcomes = pool.run({0, 1, 2}, {{"do", "die-in-collective"}, {"rank", 2}});
  EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(15'000));
  EXPECT_EQ(outcomes[2].kind, Outcome::Kind::Died);
  EXPECT_NE(outcomes[0].kind, Outcome::Kind::Ok);
  EXPECT_EQ(sum_of(pool.run({0, 1, 2}, {{"do", "sum"}})), 6);
}

TEST(Pool, ALostPeerIsToldByItsTypeNotByItsText) {
  Pool pool(2, serve_test, quick());
  const auto lost = pool.run({0, 1}, {{"do", "die-in-collective"}, {"rank", 1}});
  EXPECT_TRUE(is_infrastructure_error(lost[0])) << lost[0].text;
  EXPECT_EQ(lost[0].lost_rank, 1);
  const auto like_it = pool.run({0, 1}, {{"do", "pretend"}, {"rank", 0}});
  EXPECT_EQ(like_it[0].kind, Outcome::Kind::Error);
  EXPECT_FALSE(is_infrastructure_error(like_it[0])) << like_it[0].text;
}

TEST(Pool, ARankKilledWhileIdleIsFoundAtTheNextRequest) {
  Pool pool(2, serve_test, quick());
  kill(pool.process_id(1), SIGKILL);
  const auto outcomes = pool.run({0, 1}, {{"do", "echo"}});
  EXPECT_EQ(outcomes[1].kind, Outcome::Kind::Died);
  EXPECT_EQ(sum_of(pool.run({0, 1}, {{"do", "sum"}})), 3);
}

TEST(Pool, TheDirectoryAndTheRanksAreGoneWithThePool) {
  std::string directory;
  pid_t process = 0;
  {
    Pool pool(1, serve_test, quick());
    directory = pool.directory();
    process = pool.process_id(0);
    EXPECT_EQ(access(directory.c_str(), F_OK), 0);
    for (const char* name : {"/a", "/a/b"}) EXPECT_EQ(mkdir((directory + name).c_str(), 0700), 0);
    EXPECT_EQ(symlink("/", (directory + "/a/b/root").c_str()), 0);
    std::ofstream(directory + "/a/b/file") << "text";
  }
  EXPECT_NE(access(directory.c_str(), F_OK), 0);
  EXPECT_EQ(kill(process, 0), -1);
}

TEST(Pool, LargeAnswersAndRequestsArriveWhole) {
  Pool pool(1, serve_test, quick());
  const std::string long_text(3'000'000, 'x');
  const auto outcomes = pool.run({0}, {{"do", "echo"}, {"text", long_text}});
  ASSERT_EQ(failures(outcomes), "");
  EXPECT_EQ(outcomes[0].answer["echo"]["text"].get<std::string>().size(), long_text.size());
}

TEST(Pool, AFailedExpectationInsideARankReachesTheTest) {
  const auto outcomes = run_ranks(2, [](RankContext& context) {
    if (context.rank() == 1) throw std::runtime_error("only here");
  });
  EXPECT_NE(failures(outcomes).find("rank 1/2 failed: only here"), std::string::npos);
}

TEST(Pool, AParentWithThreadsCannotFork) {
  std::thread sleeper([] { std::this_thread::sleep_for(milliseconds(200)); });
  EXPECT_THROW(Pool(1, serve_test, quick()), Error);
  sleeper.join();
}

}  // namespace
}  // namespace equigrad::conformance::ranks
