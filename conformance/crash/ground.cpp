#include "conformance/crash/ground.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <numeric>

#include "conformance/crash/rank_program.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

ranks::Options pool_options(const CrashOptions& options) {
  ranks::Options chosen;
  chosen.timeout = std::chrono::milliseconds(std::llround(120'000 * options.timeout_scale));
  chosen.grace = std::chrono::milliseconds(std::llround(400 * options.timeout_scale));
  return chosen;
}

std::vector<int> first(int world) {
  std::vector<int> ranks(static_cast<std::size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Ground::Ground(const CrashOptions& options)
    : options_(options),
      pool_(std::max(2, *std::max_element(options.worlds.begin(), options.worlds.end())), serve,
            pool_options(options)) {}

std::vector<ranks::Outcome> Ground::try_to(int world, const nlohmann::json& request) {
  return pool_.run(first(world), request);
}

std::vector<nlohmann::json> Ground::ask(int world, const nlohmann::json& request) {
  const auto outcomes = try_to(world, request);
  if (!ranks::all_ok(outcomes))
    throw Error("crash", "expected an answer of every rank, got: " + ranks::failures(outcomes));
  std::vector<nlohmann::json> answers;
  for (const auto& outcome : outcomes) answers.push_back(outcome.answer);
  return answers;
}

std::vector<int> Ground::processes(int world) const {
  std::vector<int> all;
  for (const int rank : first(world)) all.push_back(pool_.process_id(rank));
  return all;
}

void Ground::progress(const std::string& text) const {
  if (!options_.quiet) std::cerr << text << "\n";
}

Tally::Tally(const Ground& ground, std::string name, std::string what)
    : replay_prefix_(ground.options().replay_prefix), begun_s_(seconds_now()) {
  part_.name = std::move(name);
  part_.what = std::move(what);
}

void Tally::add(const Point& point, Left left, const std::string& wrong) {
  ++part_.points;
  if (!wrong.empty()) {
    ++part_.wrong;
    const auto name = to_text(point);
    if (failures_.size() < reports::kKeptFailures)
      failures_.push_back({name, wrong, replay_prefix_ + " --replay " + name});
    return;
  }
  part_.old_left += left == Left::Old;
  part_.new_left += left == Left::New;
  part_.refused += left == Left::Refused;
}

void Tally::put_into(reports::Losses& losses) const {
  losses.parts.push_back(part_);
  losses.parts.back().seconds = seconds_now() - begun_s_;
  losses.failures.insert(losses.failures.end(), failures_.begin(), failures_.end());
}

}  // namespace equigrad::conformance::crash
