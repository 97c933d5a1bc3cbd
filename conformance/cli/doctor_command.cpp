#include <chrono>
#include <cstdio>
#include <iostream>

#include "conformance/campaigns/environment.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/machine.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/ranks/private_directory.hpp"

namespace equigrad::conformance::cli {
namespace {

class Findings {
 public:
  void say(bool good, const std::string& what, const std::string& value,
           const std::string& remedy = "") {
    std::cout << (good ? "  ok       " : "  PROBLEM  ") << what
              << std::string(what.size() < 14 ? 14 - what.size() : 1, ' ') << value << "\n";
    if (!good && !remedy.empty()) std::cout << "           -> " << remedy << "\n";
    std::cout << std::flush;
    healthy_ = healthy_ && good;
  }
  bool healthy() const { return healthy_; }

 private:
  bool healthy_ = true;
};

std::string found(const std::string& path) { return path.empty() ? "not found" : path; }

// Where the ranks meet and twins are kept.
bool check_place(Findings& findings) {
  constexpr int64_t kLeastMib = 64;
  const auto places = ranks::private_places();
  std::string names;
  for (const auto& place : places) names += (names.empty() ? "" : ", ") + place;
  const auto place = ranks::first_writable(places);
  if (place.empty()) {
    findings.say(false, "ranks' folder", "none of " + names + " is writable", place_remedy(place));
    return false;
  }
  const auto free_mib = free_bytes(place) >> 20;
  findings.say(free_mib >= kLeastMib, "ranks' folder",
               place + ", " + std::to_string(free_mib) + " MiB free", place_remedy(place));
  return true;
}

// Forks two ranks and adds two numbers over Gloo.
void check_ranks(Findings& findings) {
  const auto start = std::chrono::steady_clock::now();
  ranks::Pool pool(2, serve,
                   {std::chrono::milliseconds(30'000), std::chrono::milliseconds(2'000), false});
  const auto outcomes = pool.run({0, 1}, {{"do", "hello"}});
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                      std::chrono::steady_clock::now() - start)
                      .count();
  const bool good = ranks::all_ok(outcomes) && outcomes[0].answer.at("sum") == 3.0 &&
                    outcomes[1].answer.at("sum") == 3.0;
  findings.say(good, "ranks",
               good ? "2 forked, one sum over Gloo, " + std::to_string(ms) + " ms, torch " +
                          outcomes[0].answer.at("torch").get<std::string>()
                    : ranks::failures(outcomes),
               "Gloo needs a network interface that reaches this machine (lo is enough)");
}

}  // namespace

std::string place_remedy(const std::string& place) {
  if (place.empty()) return "set TMPDIR to a folder that is writable and has room";
  if (place == "/dev/shm")
    return "ranks take /dev/shm where it is writable, whatever TMPDIR says: give it more room "
           "(docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm)";
  return "make room there, or set TMPDIR to a folder that has room (/dev/shm is not writable)";
}

int doctor_command(const std::string& data_dir) {
  Findings findings;
  std::cout << version_text() << "\n\n";
  const auto here = environment_here();
  findings.say(
      true, "machine",
      here.os + ", " + here.cpu + ", " + std::to_string(here.cores) + " cores, 1 thread a rank");
  const bool has_place = check_place(findings);
  const auto files = find_data(data_dir, true);
  findings.say(!files.text.empty(), "text", found(files.text), "name its folder with --data-dir");
  findings.say(!files.images.empty(), "images", found(files.images),
               "apt-get install dataset-fashion-mnist");
  if (has_place) check_ranks(findings);
  std::cout << "\n" << (findings.healthy() ? "healthy" : "not healthy") << "\n";
  return findings.healthy() ? kHeld : kInfrastructure;
}

}  // namespace equigrad::conformance::cli
