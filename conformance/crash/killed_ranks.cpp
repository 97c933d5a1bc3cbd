// Real ranks, killed with kill -9 in the middle of their save.
#include <algorithm>
#include <random>

#include "conformance/crash/campaign.hpp"
#include "conformance/crash/rank_program.hpp"
#include "conformance/crash/scene.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::int64_t kPointsOfOne = 100;  // one real death for so many simulated ones

// Ranks and operations, each rank in its turn; every other point kills all ranks.
std::vector<Point> deaths(const Scene& scene, std::uint64_t seed, std::int64_t count) {
  std::mt19937_64 random(seed);
  std::vector<Point> points;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto rank = static_cast<int>(random() % static_cast<std::uint64_t>(scene.setting.world));
    const auto whole = static_cast<std::uint64_t>(scene.operations[static_cast<std::size_t>(rank)]);
    const bool all = i % 2 == 1 && scene.setting.world > 1;
    points.push_back({.kind = all ? Point::Kind::SignalAll : Point::Kind::SignalOne,
                      .setting = scene.setting,
                      .rank = rank,
                      .at = static_cast<std::int64_t>(random() % whole)});
  }
  return points;
}

// Calls about the commit, by which ranks agree on their files and hear that all is there, and
// others before; each on some rank.
std::vector<Point> lost_calls(const Scene& scene, std::uint64_t seed) {
  std::vector<Point> points;
  const auto world = static_cast<std::uint64_t>(scene.setting.world);
  if (world == 1) return points;
  std::int64_t commit = 0;  // calls that rank 0 had left
  for (const auto& one : scene.log.by_rank.front()) commit = std::max(commit, one.left);
  std::mt19937_64 random(seed);
  const auto earlier = [&] {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(commit));
  };
  commit = std::max<std::int64_t>(commit, 2);
  for (const auto call : {commit - 2, commit - 1, commit, commit + 1, earlier(), earlier()})
    points.push_back({.kind = Point::Kind::LostCall,
                      .setting = scene.setting,
                      .rank = static_cast<int>(call == commit - 1 ? 1 + random() % (world - 1)
                                                                  : random() % world),
                      .at = call});
  return points;
}

void lose_call(Ground& ground, const Scene& scene, const Point& point, const std::string& folder) {
  write_folder(scene.before, folder);
  ground.try_to(scene.setting.world, {{"do", "save"},
                                      {"setting", scene.setting},
                                      {"directory", folder},
                                      {"tag", scene.new_tag},
                                      {"steps", 3},
                                      {"lose", {{"rank", point.rank}, {"call", point.at}}}});
}

void die_at(Ground& ground, const Scene& scene, const Point& point, const std::string& folder) {
  write_folder(scene.before, folder);
  nlohmann::json interrupt = {{"rank", point.rank}, {"at", point.at}, {"how", "signal"}};
  if (point.kind == Point::Kind::SignalAll)
    interrupt["processes"] = ground.processes(scene.setting.world);
  const auto outcomes = ground.try_to(scene.setting.world, {{"do", "save"},
                                                            {"setting", scene.setting},
                                                            {"directory", folder},
                                                            {"tag", scene.new_tag},
                                                            {"steps", 3},
                                                            {"interrupt", interrupt}});
  // Where all die, the pool may end the last one itself; and so it may a rank whose process takes
  // long to end, while the others have lost it already.
  const auto& killed = outcomes.at(static_cast<std::size_t>(point.rank));
  const bool is_ended =
      point.kind == Point::Kind::SignalAll
          ? !ranks::all_ok(outcomes)
          : killed.kind == ranks::Outcome::Kind::Died ||
                (killed.kind == ranks::Outcome::Kind::Stopped && killed.doing == kKillsItself);
  if (!is_ended)
    throw Error("crash.signal", "expected rank " + std::to_string(point.rank) +
                                    " to be killed in its save, got: " + ranks::failures(outcomes) +
                                    " (" + to_text(point) + ").");
}

Judged judge(Ground& ground, const Scene& scene, const std::string& folder) {
  const Demands demands{.other_id = true};
  const auto judged = judge_by_look(scene, folder, demands);
  if (!judged.wrong.empty()) return judged;
  auto request = check_request(scene, {folder});
  request["again"] = scene.new_tag;
  std::vector<nlohmann::json> said;
  for (const auto& rank : ground.ask(scene.setting.world, request)) said.push_back(rank.at(0));
  auto by_engines = judge_by_engines(scene, said, demands);
  if (by_engines.wrong.empty()) by_engines.wrong = leftovers(folder, scene.new_tag);
  return by_engines;
}

}  // namespace

void kill_ranks(Ground& ground, reports::Losses& losses, const Point* only) {
  Tally killed(ground, "signal", "kill -9 of a rank in its save, or of all ranks");
  Tally lost(ground, "call", "a rank hears a call of the save end in an error, the others do not");
  const auto& options = ground.options();
  const auto all =
      only ? std::vector<Setting>{only->setting} : settings(options.stages, options.worlds);
  const auto folder = ground.folder("signal");
  for (std::size_t i = 0; i < all.size() && ranks::interrupted() == 0; ++i) {
    ground.progress("signal: " + to_text(all[i]));
    const auto scene = record_scene(ground, all[i]);
    const auto seed = options.seed * 1000 + i;
    auto points = only ? std::vector<Point>{*only} : lost_calls(scene, seed);
    const auto count = std::max<std::int64_t>(2, options.points / kPointsOfOne);
    if (!only)
      for (const auto& point : deaths(scene, seed, count)) points.push_back(point);
    for (const auto& point : points) {
      if (ranks::interrupted() != 0) break;
      const bool is_lost = point.kind == Point::Kind::LostCall;
      is_lost ? lose_call(ground, scene, point, folder) : die_at(ground, scene, point, folder);
      const auto judged = judge(ground, scene, folder);
      Tally& tally = is_lost ? lost : killed;
      tally.add_by_engines(1);
      tally.add(point, judged.left, judged.wrong);
    }
  }
  killed.put_into(losses);
  lost.put_into(losses);
}

}  // namespace equigrad::conformance::crash
