#include "perf/scale/play.hpp"

#include <stdexcept>

#include "perf/race/rank_processes.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr int kLearning = 3;  // steps

std::vector<PlayedStep> steps_of(RankProcesses& ranks, const Piece& piece, json request) {
  request.update({{"do", "start"},
                  {"work", "engine"},
                  {"model", piece.model},
                  {"batch", piece.batch},
                  {"accumulation", 1},
                  {"bf16", false},
                  {"weights", piece.workload.weights()},
                  {"batches", piece.workload.batches()},
                  {"recorded", true},
                  {"config", piece.config.dump()}});
  ranks.ask(request);
  ranks.ask({{"do", "block"}, {"warm", kLearning}, {"steps", 0}});
  std::vector<PlayedStep> steps;
  for (const auto& answer : ranks.ask({{"do", "counts"}, {"steps", 1}})) {
    const auto& ledger = answer.at("ledger");
    steps.push_back({answer.at("calls"), ledger.at("held_bytes"), ledger.at("held_peak_bytes"),
                     answer.at("under_way_bytes")});
  }
  return steps;
}

Traffic traffic_of_call(const std::string& what, int64_t bytes, int world, const Network& network) {
  if (what == "all_reduce") return ring(network, world, bytes, 2);
  if (what == "reduce_scatter") return ring(network, world, bytes, 1);
  if (what == "all_to_all" || what == "all_gather" || what == "words")
    return all_to_all(network, world, bytes);
  throw std::runtime_error("[scale] expected a collective of a step, got " + what + ".");
}

}  // namespace

std::vector<PlayedStep> record_step(const std::string& worker, const std::string& scratch,
                                    const Piece& piece, int world) {
  RankProcesses ranks("recorded", {worker}, world, scratch + "/recorded");
  return steps_of(ranks, piece, json::object());
}

PlayedStep play_step(const std::string& worker, const std::string& scratch, const Piece& piece,
                     int world) {
  RankProcesses ranks("played", {worker}, 1, scratch + "/played");
  return steps_of(ranks, piece, {{"played_world", world}}).front();
}

StepTraffic traffic_of(const json& calls, int world, const Network& network) {
  StepTraffic step;
  for (const auto& call : calls) {
    const std::string what = call.at(0);
    const auto traffic = traffic_of_call(what, call.at(1), world, network);
    ++step.collectives;
    step.all += traffic;
    if (what != "words") continue;
    ++step.agreements;
    step.words += traffic;
  }
  return step;
}

}  // namespace equigrad::perf
