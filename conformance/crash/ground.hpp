// Ground: what a campaign of losses works on: rank processes, a folder, and what it was asked for.
//
// Invariants: a rank that was killed is forked anew before the next request. Folders are told by
// number, so that points of a batch do not meet.
// Units: points.
// Errors: equigrad::Error with every rank's reason where one does not answer.
// Depends on: ranks/pool, scratch_folder, setting, reports/losses.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "conformance/crash/scratch_folder.hpp"
#include "conformance/crash/setting.hpp"
#include "conformance/ranks/pool.hpp"
#include "reports/losses.hpp"

namespace equigrad::conformance::crash {

struct CrashOptions {
  std::uint64_t seed = 1;
  std::int64_t points = 400;  // losses after which engines load and train on, over all settings
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<int> worlds = {1, 2, 3, 4};
  std::set<std::string> parts;  // of part_names(); none: all
  std::string replay;           // one point, and nothing else
  std::string replay_prefix = "equigrad crash";
  double timeout_scale = 1;
  bool quiet = false;
};

class Ground {
 public:
  explicit Ground(const CrashOptions& options);

  // Each rank's answer.
  std::vector<nlohmann::json> ask(int world, const nlohmann::json& request);
  // Where ranks are to die.
  std::vector<ranks::Outcome> try_to(int world, const nlohmann::json& request);
  std::vector<int> processes(int world) const;  // of the ranks
  std::string folder(const std::string& name) const { return scratch_.path() + "/" + name; }
  const CrashOptions& options() const { return options_; }
  void progress(const std::string& text) const;  // on stderr, unless it is to be quiet

 private:
  CrashOptions options_;
  ScratchFolder scratch_;
  ranks::Pool pool_;
};

// Points of one kind as they are counted.
class Tally {
 public:
  Tally(const Ground& ground, std::string name, std::string what);

  enum class Left { Old, New, Refused };
  // `wrong` is empty where all is well.
  void add(const Point& point, Left left, const std::string& wrong);
  void add_by_engines(std::int64_t points) { part_.by_engines += points; }
  bool is_clean() const { return part_.wrong == 0; }
  void put_into(reports::Losses& losses) const;

 private:
  std::string replay_prefix_;
  reports::LossPart part_;
  std::vector<reports::LossFailure> failures_;
  double begun_s_;
};

double seconds_now();

}  // namespace equigrad::conformance::crash
