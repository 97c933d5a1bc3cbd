// Bits that flip and files that are cut: whatever is not as it was saved is refused.
#include "conformance/crash/flipped_bits.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "conformance/crash/campaign.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

constexpr std::int64_t kAtRandom = 10'000;
constexpr int kOfEngines = 12;  // flips that engines are to refuse
constexpr int kWorldOfLarge = 4;

Setting setting_of(const Ground& ground, Flipped of) {
  if (of == Flipped::Small) return {.stage = 1, .world = 1, .precision = "fp32", .same_tag = true};
  if (of == Flipped::Parts)
    return {.stage = 1, .world = 2, .precision = "bf16", .same_tag = true, .tensor = 2};
  const auto& worlds = ground.options().worlds;
  const int world = std::min(kWorldOfLarge, *std::max_element(worlds.begin(), worlds.end()));
  return {.stage = 2, .world = world, .same_tag = true};
}

// Saved to the ground's "scene".
Scene scene_of(Ground& ground, Flipped of) {
  ground.progress("flip: bits of a checkpoint of " + to_text(setting_of(ground, of)));
  return record_scene(ground, setting_of(ground, of),
                      {.careless = {}, .interrupt = nullptr, .tiny = of == Flipped::Small});
}

Point flip_of(Flipped of, const std::string& file, std::int64_t bit) {
  return {.kind = Point::Kind::Flip, .setting = {}, .at = bit, .of = of, .file = file};
}

void flip(const std::string& file, std::int64_t bit) {
  const int number = open(file.c_str(), O_RDWR | O_CLOEXEC);
  unsigned char byte = 0;
  const auto place = static_cast<off_t>(bit / 8);
  const bool is_read = number >= 0 && pread(number, &byte, 1, place) == 1;
  byte = static_cast<unsigned char>(byte ^ (1U << (bit % 8)));
  const bool is_written = is_read && pwrite(number, &byte, 1, place) == 1;
  if (number >= 0) close(number);
  if (!is_written)
    throw Error("crash.flip", "expected bit " + std::to_string(bit) + " in " + file +
                                  ", got a file without it. Take a point as a report has it.");
}

std::string wrong_unless_refused(const Found& found) {
  if (found.threw.empty()) return "nobody sees it: the checkpoint loads";
  return found.is_error ? "" : "what is thrown is no equigrad::Error: " + found.threw;
}

}  // namespace

std::map<std::string, std::string> files_by_part(const std::string& directory) {
  std::map<std::string, std::string> files = {{"latest", "latest"}};
  const auto tag = checkpoint::latest_tag(directory);
  files["manifest"] = tag + "/" + std::string(checkpoint::kManifestName);
  const auto saved = checkpoint::SavedCheckpoint::open(directory, tag);
  for (std::size_t rank = 0; rank < saved.manifest().files.size(); ++rank)
    files["rank" + std::to_string(rank)] = tag + "/" + saved.manifest().files[rank].name;
  return files;
}

std::string wrong_with_flip(const std::string& directory, const std::string& file, std::int64_t bit,
                            Reader reader) {
  flip(directory + "/" + file, bit);
  const auto found = find(directory, "", reader);
  flip(directory + "/" + file, bit);
  return wrong_unless_refused(found);
}

std::string wrong_with_length(const std::string& directory, const std::string& file,
                              const std::string& bytes) {
  const auto whole = read_bytes(directory + "/" + file);
  write_bytes(directory + "/" + file, bytes);
  const auto found = find(directory, "");
  write_bytes(directory + "/" + file, whole);
  return wrong_unless_refused(found);
}

namespace {

// Every bit of every file; and every length, and a byte more.
void flip_all(Ground& ground, Tally& flips, Tally& lengths) {
  constexpr auto of = Flipped::Small;
  scene_of(ground, of);
  const auto directory = ground.folder("scene");
  for (const auto& [part, file] : files_by_part(directory)) {
    const auto whole = read_bytes(directory + "/" + file);
    const auto bits = static_cast<std::int64_t>(whole.size()) * 8;
    ground.progress("flip: " + std::to_string(bits) + " bits of " + file);
    for (std::int64_t bit = 0; bit < bits && ranks::interrupted() == 0; ++bit)
      flips.add(flip_of(of, part, bit), Tally::Left::Refused,
                wrong_with_flip(directory, file, bit, Reader::Careful));
    for (std::size_t length = 0; length <= whole.size() && ranks::interrupted() == 0; ++length) {
      const auto bytes = length == whole.size() ? whole + "\n" : whole.substr(0, length);
      // A file of the tag alone may be written by hand: the digest is not asked for.
      if (part == "latest" && length >= 3 && length <= 4) continue;
      lengths.add(flip_of(of, part, static_cast<std::int64_t>(length) * 8), Tally::Left::Refused,
                  wrong_with_length(directory, file, bytes));
    }
  }
}

using Files = std::map<std::string, std::string>;

// A bit of a file that is chosen by its bytes.
Point some_flip(Flipped of, const Files& files, const std::string& directory,
                std::mt19937_64& random) {
  std::int64_t whole = 0;
  std::map<std::string, std::int64_t> bits;
  for (const auto& [part, file] : files)
    whole += bits[part] = static_cast<std::int64_t>(read_bytes(directory + "/" + file).size()) * 8;
  auto at = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(whole));
  for (const auto& [part, count] : bits) {
    if (at < count) return flip_of(of, part, at);
    at -= count;
  }
  return flip_of(of, "manifest", 0);
}

// Engines on all ranks refuse it, and stay what they were.
void flip_for_engines(Ground& ground, const Scene& scene, const std::vector<Point>& points,
                      Tally& tally) {
  std::vector<std::string> folders;
  const auto files = files_by_part(ground.folder("scene"));
  for (const auto& point : points) {
    folders.push_back(ground.folder("flip" + std::to_string(folders.size())));
    write_folder(scene.after, folders.back());
    flip(folders.back() + "/" + files.at(point.file), point.at);
  }
  const auto said = ground.ask(scene.setting.world, check_request(scene, folders));
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::string wrong;
    for (std::size_t rank = 0; rank < said.size() && wrong.empty(); ++rank) {
      const auto& one = said[rank].at(i);
      if (!one.contains("threw"))
        wrong = "the engine of rank " + std::to_string(rank) + " loads it";
      else if (one.at("changed").get<bool>())
        wrong = "the engine of rank " + std::to_string(rank) + " is another after its error";
    }
    tally.add_by_engines(1);
    tally.add(points[i], Tally::Left::Refused, wrong);
  }
}

void flip_some(Ground& ground, Flipped of, Tally& tally) {
  const auto scene = scene_of(ground, of);
  const auto directory = ground.folder("scene");
  const auto files = files_by_part(directory);
  std::mt19937_64 random(ground.options().seed);
  std::vector<Point> for_engines;
  for (std::int64_t i = 0; i < kAtRandom && ranks::interrupted() == 0; ++i) {
    const auto point = some_flip(of, files, directory, random);
    if (i < kOfEngines) for_engines.push_back(point);
    tally.add(point, Tally::Left::Refused,
              wrong_with_flip(directory, files.at(point.file), point.at, Reader::Careful));
  }
  if (ranks::interrupted() == 0) flip_for_engines(ground, scene, for_engines, tally);
}

void flip_one(Ground& ground, const Point& only, Tally& tally) {
  scene_of(ground, only.of);
  const auto directory = ground.folder("scene");
  const auto files = files_by_part(directory);
  const auto file = files.find(only.file);
  if (file == files.end())
    throw Error("crash.replay", "expected latest, manifest or a rank's file, got \"" + only.file +
                                    "\". Take a point as a report has it.");
  tally.add(only, Tally::Left::Refused,
            wrong_with_flip(directory, file->second, only.at, Reader::Careful));
}

}  // namespace

void flip_bits(Ground& ground, reports::Losses& losses, const Point* only) {
  Tally flips(ground, "flip",
              "one bit of a file is another: all of a small checkpoint, and 10,000 each of a "
              "larger one and of one of a tensor group");
  Tally lengths(ground, "length",
                "a file of a small checkpoint is cut, to every length, or longer");
  if (only) {
    flip_one(ground, *only, flips);
  } else {
    flip_all(ground, flips, lengths);
    for (const auto of : {Flipped::Large, Flipped::Parts})
      if (ranks::interrupted() == 0) flip_some(ground, of, flips);
  }
  flips.put_into(losses);
  if (!only) lengths.put_into(losses);
}

}  // namespace equigrad::conformance::crash
