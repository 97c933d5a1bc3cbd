// Every operation of a save refused, one at a time: the call is an error on every rank, which names
// the file; the old checkpoint loads; training goes on.
#include <algorithm>

#include "conformance/crash/campaign.hpp"
#include "conformance/crash/scene.hpp"
#include "conformance/ranks/interrupt.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::int64_t kRefusalsAtOnce = 12;

// Operations [begin, end) of one rank.
struct Run {
  Point point;  // its first
  std::int64_t end = 0;
};

nlohmann::json request_of(const Scene& scene, const Run& run,
                          const std::vector<std::string>& folders) {
  const bool full = run.point.kind == Point::Kind::DiskFull;
  return {{"do", "refuse"},
          {"setting", scene.setting},
          {"folders", folders},
          {"tag", scene.new_tag},
          {"old_tag", scene.old_tag},
          {"interrupt",
           {{"rank", run.point.rank}, {"at", run.point.at}, {"how", full ? "ENOSPC" : "EIO"}}}};
}

// What the ranks said of it; `folder` as it is afterwards.
Judged judge(const Scene& scene, const Point& point, const std::vector<nlohmann::json>& said,
             const std::string& folder) {
  const auto wrong = [](const std::string& what) { return Judged{Tally::Left::Old, what}; };
  const auto& met = said.at(static_cast<std::size_t>(point.rank)).at("met");
  if (met.is_null()) return wrong("the operation was not reached");
  std::size_t threw = 0;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    const auto& one = said[rank];
    if (one.at("digest") != scene.new_digests[rank])
      return wrong("rank " + std::to_string(rank) + " has not what the run has before the save");
    if (one.at("digest_after") != one.at("digest"))
      return wrong("rank " + std::to_string(rank) + " is not as it was before the save");
    if (one.at("next") != scene.next_digests[rank])
      return wrong("rank " + std::to_string(rank) + " goes on in another way");
    const std::string text = one.at("threw");
    threw += !text.empty();
    if (!text.empty() && text.find(met.at("path").get<std::string>()) == std::string::npos)
      return wrong("the error of rank " + std::to_string(rank) +
                   " does not name the file: " + text);
  }
  if (threw != 0 && threw != said.size())
    return wrong(std::to_string(threw) + " of " + std::to_string(said.size()) + " ranks throw");
  const bool may_be_ignored = met.at("did") == "remove";
  if (threw == 0 && !may_be_ignored)
    return wrong("nobody says that it could not " + met.at("did").get<std::string>() + " " +
                 met.at("path").get<std::string>());
  return judge_by_look(scene, folder, {.must_be_new = threw == 0, .other_id = true});
}

void try_run(Ground& ground, const Scene& scene, const Run& run, Tally& tally) {
  for (Run part = run; part.point.at < run.end && ranks::interrupted() == 0;
       part.point.at = part.end) {
    part.end = std::min(run.end, part.point.at + kRefusalsAtOnce);
    std::vector<std::string> folders;
    for (auto at = part.point.at; at < part.end; ++at) {
      folders.push_back(ground.folder("refuse" + std::to_string(at - part.point.at)));
      write_folder(scene.before, folders.back());
    }
    const auto said = ground.ask(scene.setting.world, request_of(scene, part, folders));
    std::vector<nlohmann::json> loaded =
        ground.ask(scene.setting.world, check_request(scene, folders));
    for (std::size_t i = 0; i < folders.size(); ++i) {
      Point point = part.point;
      point.at += static_cast<std::int64_t>(i);
      std::vector<nlohmann::json> of_folder, checked;
      for (const auto& rank : said) of_folder.push_back(rank.at(i));
      for (const auto& rank : loaded) checked.push_back(rank.at(i));
      auto judged = judge(scene, point, of_folder, folders[i]);
      if (judged.wrong.empty()) judged = judge_by_engines(scene, checked, {});
      tally.add_by_engines(1);
      tally.add(point, judged.left, judged.wrong);
    }
  }
}

// Each way to refuse in every second setting.
Point::Kind kind_of(std::size_t setting) {
  return setting / 2 % 2 == 0 ? Point::Kind::DiskFull : Point::Kind::DiskFails;
}

}  // namespace

void refuse_all(Ground& ground, reports::Losses& losses, const Point* only) {
  Tally tally(ground, "refuse", "one operation is refused: the disk is full, or fails");
  const auto& options = ground.options();
  const auto all =
      only ? std::vector<Setting>{only->setting} : settings(options.stages, options.worlds);
  for (std::size_t i = 0; i < all.size() && ranks::interrupted() == 0; ++i) {
    ground.progress("refuse: " + to_text(all[i]));
    const auto scene = record_scene(ground, all[i]);
    if (only) {
      try_run(ground, scene, {*only, only->at + 1}, tally);
      continue;
    }
    for (int rank = 0; rank < all[i].world; ++rank)
      try_run(ground, scene,
              {{.kind = kind_of(i), .setting = all[i], .rank = rank},
               scene.operations[static_cast<std::size_t>(rank)]},
              tally);
  }
  tally.put_into(losses);
}

}  // namespace equigrad::conformance::crash
