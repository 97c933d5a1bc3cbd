#include "perf/scale/play.hpp"

#include <stdexcept>

#include "engine/comm/relay.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr int kLearning = 3;  // steps

Traffic traffic_of_call(const json& call, int world, const Network& network) {
  const std::string what = call.at(0);
  const int64_t bytes = call.at(1);
  if (what == "send") return message(network, world, bytes, call.at(2));
  if (what == "all_reduce") return ring(network, world, bytes, 2);
  if (what == "reduce_scatter") return ring(network, world, bytes, 1);
  if (what != "all_to_all" && what != "all_gather" && what != "words")
    throw std::runtime_error("[scale] expected a collective of a step, got " + what + ".");
  const bool is_small = what == "words" || bytes <= comm::Relay::kSmallBytes;
  const bool is_relayed = what != "all_to_all" && is_small && world > comm::Relay::kDirectRanks;
  return is_relayed ? relay(network, world, bytes) : all_to_all(network, world, bytes);
}

}  // namespace

Player Player::real(const std::string& worker, const std::string& scratch, Ranks of) {
  return {std::make_unique<RankProcesses>("recorded", std::vector{worker}, of.world,
                                          scratch + "/recorded"),
          {{"local_ranks", of.local}}};
}

Player Player::played(const std::string& worker, const std::string& scratch, Ranks of) {
  return {std::make_unique<RankProcesses>("played", std::vector{worker}, 1, scratch + "/played"),
          {{"played_world", of.world}, {"local_ranks", of.local}}};
}

void Player::start(const Piece& piece) {
  json request = {{"do", "start"},
                  {"work", "engine"},
                  {"model", piece.model},
                  {"batch", piece.batch},
                  {"accumulation", 1},
                  {"bf16", false},
                  {"weights", piece.workload.weights()},
                  {"batches", piece.workload.batches()},
                  {"recorded", true},
                  {"config", piece.config.dump()}};
  request.update(request_);
  processes_->ask(request);
}

std::vector<PlayedStep> Player::step(const Piece& piece) {
  start(piece);
  processes_->ask({{"do", "block"}, {"warm", kLearning}, {"steps", 0}});
  std::vector<PlayedStep> steps;
  for (const auto& answer : processes_->ask({{"do", "counts"}, {"steps", 1}})) {
    const auto& ledger = answer.at("ledger");
    steps.push_back({answer.at("calls"), ledger.at("held_bytes"), ledger.at("held_peak_bytes"),
                     answer.at("under_way_bytes")});
  }
  return steps;
}

void Player::write_gradients(const Piece& piece, const std::string& path) {
  start(piece);
  processes_->ask({{"do", "gradients"}, {"path", path}});
}

StepTraffic traffic_of(const json& calls, int world, const Network& network) {
  StepTraffic step;
  for (const auto& call : calls) {
    const auto traffic = traffic_of_call(call, world, network);
    ++step.calls;
    step.all += traffic;
    if (call.at(0) != "words") continue;
    ++step.agreements;
    step.words += traffic;
  }
  return step;
}

}  // namespace equigrad::perf
