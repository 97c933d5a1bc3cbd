// Savers and readers with a mistake: each must be caught by points like those that the engine has
// to stand.
#include <random>

#include "conformance/crash/campaign.hpp"
#include "conformance/crash/disk/careless_storage.hpp"
#include "conformance/crash/flipped_bits.hpp"
#include "conformance/crash/loss_points.hpp"
#include "conformance/ranks/interrupt.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::uint64_t kLossesOfCareless = 12;
constexpr std::int64_t kFlipsOfCareless = 1000;

// Where a mistake shows only if the tag is new, or only if it is not.
std::vector<Setting> settings_of_careless() {
  return {{.stage = 1, .world = 2, .precision = "fp32", .same_tag = false},
          {.stage = 1, .world = 2, .precision = "fp32", .same_tag = true}};
}

// Notes a point; true until one has caught it.
bool note(reports::CarelessSaver& saver, const Point& point, const std::string& wrong) {
  ++saver.points;
  if (wrong.empty()) return true;
  saver.caught = true;
  saver.point = to_text(point);
  saver.message = wrong;
  return false;
}

void lose_all(Ground& ground, const std::string& name, reports::CarelessSaver& saver) {
  for (const auto& setting : settings_of_careless()) {
    if (saver.caught) return;
    const auto scene = record_scene(ground, setting, {.careless = name, .interrupt = nullptr});
    look_at_losses(
        ground, scene, all_losses(scene, ground.options().seed, kLossesOfCareless),
        [&](const Point& point, const Judged& judged) { return note(saver, point, judged.wrong); });
  }
}

// A sync fails, the save goes on, and the power is lost when it has ended.
void fail_syncs(Ground& ground, const std::string& name, reports::CarelessSaver& saver) {
  const auto setting = settings_of_careless().front();
  const auto undisturbed = record_scene(ground, setting, {.careless = name, .interrupt = nullptr});
  for (std::int64_t at = 0; at < undisturbed.operations.at(0) && !saver.caught; ++at) {
    if (ranks::interrupted() != 0) return;
    const nlohmann::json interrupt = {{"rank", 0}, {"at", at}, {"how", "EIO"}};
    const auto scene = record_scene(ground, setting, {.careless = name, .interrupt = interrupt});
    bool has_failed = false;
    for (const auto& one : scene.log.by_rank.at(0)) has_failed |= one.failed;
    if (!has_failed || !scene.threw.at(0).empty()) continue;
    const auto whole = first_of(scene.log, operations_of(scene.log));
    std::vector<Point> points;
    for (std::uint64_t seed = 0; seed < kLossesOfCareless; ++seed)
      points.push_back({.setting = setting, .cut = whole, .seed = seed});
    look_at_losses(ground, scene, points, [&](const Point& point, const Judged& judged) {
      return note(saver, point, judged.wrong);
    });
  }
}

// What is wrong with it needs no loss.
void load_parts(Ground& ground, const std::string& name, reports::CarelessSaver& saver) {
  const Setting setting{.stage = 1, .world = 2, .precision = "fp32", .tensor = 2};
  const auto scene = record_scene(ground, setting, {.careless = name, .interrupt = nullptr});
  const Point whole{.setting = setting, .cut = first_of(scene.log, operations_of(scene.log))};
  load_losses(ground, scene, {whole}, [&](const Point& point, const Judged& judged) {
    return note(saver, point, judged.wrong);
  });
}

void flip_unseen(Ground& ground, reports::CarelessSaver& saver) {
  record_scene(ground, settings_of_careless().back(),
               {.careless = {}, .interrupt = nullptr, .tiny = true});
  const auto directory = ground.folder("scene");
  const auto files = files_by_part(directory);
  const auto& file = files.at("rank0");
  const auto bits = read_bytes(directory + "/" + file).size() * 8;
  std::mt19937_64 random(ground.options().seed);
  for (std::int64_t i = 0; i < kFlipsOfCareless; ++i) {
    const auto bit = static_cast<std::int64_t>(random() % bits);
    const Point point{.kind = Point::Kind::Flip, .at = bit, .file = "rank0"};
    if (!note(saver, point, wrong_with_flip(directory, file, bit, Reader::WithoutDigests))) return;
  }
}

}  // namespace

void be_careless(Ground& ground, reports::Losses& losses) {
  for (const auto& one : carelessnesses()) {
    if (ranks::interrupted() != 0) return;
    ground.progress("careless: " + one.name);
    reports::CarelessSaver saver{.name = one.name, .what = one.what, .point = {}, .message = {}};
    if (one.of_reader)
      flip_unseen(ground, saver);
    else if (one.of_parts)
      load_parts(ground, one.name, saver);
    else if (one.needs_error)
      fail_syncs(ground, one.name, saver);
    else
      lose_all(ground, one.name, saver);
    losses.careless.push_back(saver);
  }
}

}  // namespace equigrad::conformance::crash
