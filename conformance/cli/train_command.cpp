#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "conformance/cli/cli.hpp"
#include "conformance/lane_tally.hpp"
#include "conformance/program.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/config.hpp"

namespace equigrad::conformance::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// Ranks 0..world-1 are the engine's, the last one is the twin's.
class Training {
 public:
  Training(const TrainCommand& command, const std::string& config);
  int run();

 private:
  json request(const char* part, const char* verb) const;
  bool both(const char* verb);  // engine and twin at the same time
  bool compare();
  bool step(int number);
  bool check(const std::vector<ranks::Outcome>& outcomes);

  const TrainCommand& command_;
  ranks::Pool pool_;
  std::vector<int> engine_ranks_, twin_rank_;
  json start_, engine_answers_, twin_answer_;
  double engine_seconds_ = 0;
  int64_t compared_ = 0, differing_ = 0;
  std::string first_;  // difference
  bool broken_ = false;
};

Training::Training(const TrainCommand& command, const std::string& config)
    : command_(command),
      pool_(command.world + 1, serve,
            {std::chrono::milliseconds(static_cast<long long>(300'000 * command.timeout_scale)),
             std::chrono::milliseconds(2'000), false}),
      twin_rank_{command.world} {
  for (int rank = 0; rank < command.world; ++rank) engine_ranks_.push_back(rank);
  start_ = {{"do", "train"},
            {"kind", command.data},
            {"seed", command.seed},
            {"world", command.world},
            {"config", config},
            {"layers", command.layers},
            {"dim", command.dim},
            {"heads", command.heads},
            {"context", command.context},
            {"data", to_json(find_data(command.data_dir, true))},
            {"path", pool_.directory() + "/step.safetensors"}};
}

json Training::request(const char* part, const char* verb) const {
  json message = start_;
  message["part"] = part;
  message["verb"] = verb;
  return message;
}

bool Training::check(const std::vector<ranks::Outcome>& outcomes) {
  if (ranks::all_ok(outcomes)) return true;
  std::fprintf(stderr, "equigrad: %s\n", ranks::failures(outcomes).c_str());
  broken_ = true;
  return false;
}

bool Training::both(const char* verb) {
  const auto start = Clock::now();
  const int engine = pool_.start(engine_ranks_, request("engine", verb));
  pool_.start(twin_rank_, request("twin", verb));
  while (pool_.jobs() > 0) {
    const auto finished = pool_.wait(std::chrono::seconds(1));
    if (ranks::interrupted() != 0) return false;
    if (!finished) continue;
    if (!check(finished->outcomes)) return false;
    if (finished->job != engine) {
      twin_answer_ = finished->outcomes[0].answer;
      continue;
    }
    engine_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    engine_answers_ = json::array();
    for (const auto& outcome : finished->outcomes) engine_answers_.push_back(outcome.answer);
  }
  return true;
}

bool Training::compare() {
  const auto outcomes = pool_.run(engine_ranks_, request("engine", "compare"));
  if (!check(outcomes)) return false;
  compared_ = differing_ = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& answer = outcomes[rank].answer;
    compared_ += answer.at("compared").get<int64_t>();
    differing_ += answer.at("differing").get<int64_t>();
    if (first_.empty() && !answer.at("first").get<std::string>().empty())
      first_ = "rank " + std::to_string(rank) + ": " + answer.at("first").get<std::string>();
  }
  return true;
}

bool Training::step(int number) {
  if (!both("step") || !compare()) return false;
  double loss = 0;
  for (const auto& answer : engine_answers_)
    loss += answer.at("loss").get<double>() / command_.world;
  const double tokens = start_.at("tokens").get<double>();
  std::printf("%6d  %11.6f  %14.6f  %14lld  %12lld  %8.0f\n", number, loss,
              twin_answer_.at("loss").get<double>(), static_cast<long long>(differing_),
              static_cast<long long>(compared_), tokens / engine_seconds_);
  std::fflush(stdout);
  return true;
}

int Training::run() {
  if (!both("start")) return kInfrastructure;
  start_["tokens"] = engine_answers_[0].at("tokens");
  std::printf("# %s, %lld parameters, stage %s, %d rank%s, seed %llu\n#\n", command_.data.c_str(),
              engine_answers_[0].at("parameters").get<long long>(),
              command_.config.empty() ? std::to_string(command_.stage).c_str() : "as configured",
              command_.world, command_.world == 1 ? "" : "s",
              static_cast<unsigned long long>(command_.seed));
  std::printf("# step  loss engine  loss reference  differing bits      compared  %s\n",
              command_.data == "text" ? "tokens/s" : "images/s");
  int64_t total = 0, worst = 0;
  int done = 0;
  while (done < command_.steps && step(done + 1)) {
    ++done;
    total += compared_;
    worst = std::max(worst, differing_);
  }
  if (ranks::interrupted() != 0) std::printf("# interrupted after %d steps\n", done);
  if (!first_.empty()) std::printf("# first difference: %s\n", first_.c_str());
  const bool held = done > 0 && worst == 0 && total > 0;
  std::printf("%s  %d steps, %lld elements compared with the twin, at most %lld differing\n",
              !held || broken_ ? "FAILED" : "HELD", done, static_cast<long long>(total),
              static_cast<long long>(worst));
  if (broken_) return kInfrastructure;
  return held ? kHeld : kFailed;
}

}  // namespace

std::string train_config(const TrainCommand& command) {
  json config = {
      {"train_micro_batch_size_per_gpu", command.data == "text" ? command.micro_batch : 4},
      {"gradient_accumulation_steps", command.accumulate},
      {"gradient_clipping", 1.0},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}, {"weight_decay", 0.01}}}}},
      {"zero_optimization",
       {{"stage", command.stage},
        {"reduce_bucket_size", 100'000},
        {"allgather_bucket_size", 100'000},
        {"stage3_prefetch_bucket_size", 50'000},
        {"stage3_param_persistence_threshold", 0}}}};
  if (command.dtype == "bf16") config["bf16"] = {{"enabled", true}};
  return config.dump(1);
}

int train_command(const TrainCommand& command) {
  std::string config = train_config(command);
  if (!command.config.empty()) {
    std::ifstream file(command.config);
    config.assign(std::istreambuf_iterator<char>(file), {});
  }
  parse_config(config, command.world);  // complains here, once, rather than on every rank
  const auto files = find_data(command.data_dir, true);
  if (files.text.empty() || (command.data == "images" && files.images.empty()))
    throw Error("train", "expected " + command.data +
                             ", got no file of it. Name its folder with "
                             "--data-dir; equigrad doctor says what is there.");
  return Training(command, config).run();
}

}  // namespace equigrad::conformance::cli
