// Scene: a save that was recorded, what was there before it, and how ranks stood at each of both:
// what every loss in its course is judged by.
//
//   train 2 steps, save -> the old checkpoint;  train 3 steps, save -> the new one, recorded
//
// Invariants: the new one is saved one step behind the old one, so who loads the old one and trains
// a step stands where the new one was saved.
// Units: digests by rank.
// Errors: equigrad::Error if a save that nobody disturbs fails, changes what it saves, or leaves
// anything in its folder that its manifest does not name.
// Depends on: ground, crash/disk; engine/checkpoint, in the source.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/crash/disk/folder_image.hpp"
#include "conformance/crash/ground.hpp"

namespace equigrad::conformance::crash {

struct Scene {
  Setting setting;
  std::string old_tag, new_tag;
  std::string old_manifest, new_manifest;  // digests
  FolderImage before, after;
  Log log;
  std::vector<std::string> old_digests, new_digests, next_digests;  // next: one step behind new
  std::vector<std::int64_t> operations;                             // by rank
  std::vector<std::string> threw;                                   // by rank, the new save
};

struct SceneOptions {
  std::string careless = {};
  nlohmann::json interrupt = nullptr;  // of the new save
  bool tiny = false;                   // a network of few bytes
};
Scene record_scene(Ground& ground, const Setting& setting, const SceneOptions& options = {});

// What one who opens a checkpoint, without an engine, finds.
enum class Reader { Careful, WithoutDigests };
struct Found {
  std::string tag, manifest;  // the digest of that
  std::string threw;          // empty: it is whole
  bool is_error = true;       // what it threw is an equigrad::Error
};
// Of `latest`, without a tag.
Found find(const std::string& directory, const std::string& tag, Reader reader = Reader::Careful);

struct Judged {
  Tally::Left left = Tally::Left::Old;
  std::string wrong;  // empty: nothing
};
// `must_be_new`: the save had come to its end. `other_id`: what is new is of a save whose manifest
// is not the scene's.
struct Demands {
  bool must_be_new = false;
  bool other_id = false;
};
Judged judge_by_look(const Scene& scene, const std::string& directory, const Demands& demands,
                     Reader reader = Reader::Careful);
// What the ranks said of a folder to "check".
Judged judge_by_engines(const Scene& scene, const std::vector<nlohmann::json>& said,
                        const Demands& demands);
// Files of a tag that its manifest does not name; empty: there are none.
std::string leftovers(const std::string& directory, const std::string& tag);

// The request that engines load these folders.
nlohmann::json check_request(const Scene& scene, const std::vector<std::string>& folders);

}  // namespace equigrad::conformance::crash
