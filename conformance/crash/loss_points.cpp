#include "conformance/crash/loss_points.hpp"

#include <algorithm>
#include <random>

#include "conformance/crash/campaign.hpp"
#include "conformance/crash/disk/crashed_disk.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::size_t kCommit = 18;  // operations from the last rank's sync to the end, or so
constexpr std::size_t kFoldersAtOnce = 16;  // that are loaded by one request
constexpr std::size_t kSaveAgain = 3;       // one request in so many saves once more
constexpr std::uint64_t kMoreLosses = 4;    // losses behind the extremes
constexpr std::uint64_t kKillSeeds = 2;     // nothing of what was to be appended, and a part

Point point_at(const Scene& scene, Point::Kind kind, Cut cut, std::uint64_t seed) {
  return {.kind = kind, .setting = scene.setting, .cut = std::move(cut), .seed = seed};
}

Tally::Left left_of(const Judged& judged) { return judged.left; }

}  // namespace

FolderImage after_loss(const Scene& scene, const Point& point) {
  if (!is_possible(scene.log, point.cut))
    throw Error("crash.replay", "expected a cut that this save can have, got " +
                                    to_text(point.cut) + ". Take it as a report has it.");
  return point.kind == Point::Kind::Kill
             ? after_kill(scene.before, scene.log, point.cut, point.seed)
             : after_power_loss(scene.before, scene.log, point.cut, point.seed);
}

bool is_whole(const Scene& scene, const Point& point) {
  return point.cut == first_of(scene.log, operations_of(scene.log));
}

std::vector<Point> all_losses(const Scene& scene, std::uint64_t seed, std::uint64_t seeds) {
  std::vector<Point> points;
  std::mt19937_64 random(seed);
  const auto count = operations_of(scene.log);
  for (std::size_t done = 0; done <= count; ++done) {
    const auto cut = first_of(scene.log, done);
    for (std::uint64_t i = 0; i < kExtremeSeeds + seeds; ++i) {
      const auto loss = i < kExtremeSeeds ? i : random() % 1'000'000'000;
      points.push_back(point_at(scene, Point::Kind::Power, cut, loss));
    }
    for (std::uint64_t i = 0; i < kKillSeeds; ++i)
      points.push_back(point_at(scene, Point::Kind::Kill, cut, i));
    if (scene.setting.world == 1) continue;
    for (std::uint64_t i = 0; i < seeds; ++i)
      points.push_back(point_at(scene, Point::Kind::Power, some_cut(scene.log, random()),
                                random() % 1'000'000'000));
  }
  return points;
}

std::vector<Point> some_losses(const Scene& scene, std::uint64_t seed, std::size_t count) {
  std::vector<Point> points;
  std::mt19937_64 random(seed);
  const auto whole = operations_of(scene.log);
  for (std::size_t i = 0; i < count; ++i) {
    const auto late = whole - random() % (std::min(kCommit, whole) + 1);
    const auto cut = i % 4 == 3   ? some_cut(scene.log, random())
                     : i % 2 == 0 ? first_of(scene.log, late)
                                  : first_of(scene.log, random() % (whole + 1));
    const auto kind = i % 5 == 4 ? Point::Kind::Kill : Point::Kind::Power;
    points.push_back(point_at(scene, kind, cut, random() % 1'000'000'000));
  }
  if (count > 0)  // what a save that has ended must have made sure of
    points.push_back(point_at(scene, Point::Kind::Power, first_of(scene.log, whole), 0));
  return points;
}

void look_at_losses(Ground& ground, const Scene& scene, const std::vector<Point>& points,
                    const std::function<bool(const Point&, const Judged&)>& tell) {
  const auto folder = ground.folder("loss");
  for (const auto& point : points) {
    if (ranks::interrupted() != 0) return;
    write_folder(after_loss(scene, point), folder);
    const Demands demands{.must_be_new = is_whole(scene, point)};
    if (!tell(point, judge_by_look(scene, folder, demands))) return;
  }
}

void load_losses(Ground& ground, const Scene& scene, const std::vector<Point>& points,
                 const std::function<bool(const Point&, const Judged&)>& tell) {
  for (std::size_t begin = 0; begin < points.size(); begin += kFoldersAtOnce) {
    if (ranks::interrupted() != 0) return;
    const auto end = std::min(points.size(), begin + kFoldersAtOnce);
    std::vector<std::string> folders;
    for (std::size_t i = begin; i < end; ++i) {
      folders.push_back(ground.folder("loss" + std::to_string(i - begin)));
      write_folder(after_loss(scene, points[i]), folders.back());
    }
    auto request = check_request(scene, folders);
    const bool again = begin / kFoldersAtOnce % kSaveAgain == 0;
    if (again) request["again"] = scene.new_tag;
    const auto said = ground.ask(scene.setting.world, request);
    for (std::size_t i = begin; i < end; ++i) {
      std::vector<nlohmann::json> of_folder;
      for (const auto& rank : said) of_folder.push_back(rank.at(i - begin));
      const Demands demands{.must_be_new = is_whole(scene, points[i])};
      auto judged = judge_by_engines(scene, of_folder, demands);
      if (again && judged.wrong.empty())
        judged.wrong = leftovers(folders[i - begin], scene.new_tag);
      if (!tell(points[i], judged)) return;
    }
  }
}

void lose_power(Ground& ground, reports::Losses& losses, const Point* only) {
  Tally power(ground, "power",
              "power is lost in a save: what was not synced, is lost, torn or not");
  Tally kill(ground, "kill", "processes are killed in a save, all at once");
  const auto& options = ground.options();
  const auto tally_of = [&](const Point& point) -> Tally& {
    return point.kind == Point::Kind::Kill ? kill : power;
  };
  const auto tell = [&](const Point& point, const Judged& judged) {
    tally_of(point).add(point, left_of(judged), judged.wrong);
    return true;
  };
  const auto tell_of_engines = [&](const Point& point, const Judged& judged) {
    tally_of(point).add_by_engines(1);
    return tell(point, judged);
  };
  const auto all =
      only ? std::vector<Setting>{only->setting} : settings(options.stages, options.worlds);
  const auto each = static_cast<std::size_t>(options.points) / all.size() + 1;
  for (std::size_t i = 0; i < all.size() && ranks::interrupted() == 0; ++i) {
    ground.progress("power, kill: " + to_text(all[i]));
    const auto scene = record_scene(ground, all[i]);
    const auto seed = options.seed * 1000 + i;
    look_at_losses(ground, scene,
                   only ? std::vector<Point>{*only} : all_losses(scene, seed, kMoreLosses), tell);
    load_losses(ground, scene, only ? std::vector<Point>{*only} : some_losses(scene, seed, each),
                tell_of_engines);
  }
  power.put_into(losses);
  kill.put_into(losses);
}

}  // namespace equigrad::conformance::crash
