#include <algorithm>
#include <chrono>
#include <cstdio>

#include "conformance/cli/cli.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/verdict/judge.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "conformance/vision/caption_training.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using ranks::Outcome;

// Ranks 0..world-1 are the engine's, the last one is the twin's.
class Training {
 public:
  Training(const TrainCommand& command, const std::string& config, const ranks::Handler& serve);
  int run();

 private:
  json request(const char* part, const char* verb) const;
  bool both(const char* verb);  // engine and twin at the same time
  bool compare();
  void check_cover(const std::vector<Outcome>& outcomes);
  bool step(int number);
  bool check(const std::vector<Outcome>& outcomes, bool twin);
  void print_head() const;
  int verdict(int done) const;

  const TrainCommand& command_;
  ranks::Pool pool_;
  std::vector<int> engine_ranks_, twin_rank_;
  json start_, engine_answers_, twin_answer_;
  double engine_seconds_ = 0;
  int64_t compared_ = 0, differing_ = 0, total_ = 0, most_ = 0;
  double worst_ulp_ = 0;
  std::string first_;  // difference
  bool started_ = false;
  int broken_ = 0;  // the exit code for a rank that did not answer
};

json options_of(const TrainCommand& command) {
  return {{"stage", command.stage},
          {"dtype", command.dtype},
          {"accumulate", command.accumulate},
          {"micro_batch", command.micro_batch}};
}

Training::Training(const TrainCommand& command, const std::string& config,
                   const ranks::Handler& serve)
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
  if (command.config.empty()) start_["options"] = options_of(command);
}

json Training::request(const char* part, const char* verb) const {
  json message = start_;
  message["part"] = part;
  message["verb"] = verb;
  return message;
}

// What the engine throws in a step is the engine's failure; everything else is the machine's.
bool Training::check(const std::vector<Outcome>& outcomes, bool twin) {
  if (ranks::all_ok(outcomes)) return true;
  std::fprintf(stderr, "equigrad: %s%s\n", twin ? "twin, " : "", ranks::failures(outcomes).c_str());
  const bool thrown = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) {
    return outcome.kind == Outcome::Kind::Error && !ranks::is_infrastructure_error(outcome);
  });
  broken_ = thrown && !twin && started_ ? kFailed : kInfrastructure;
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
    if (!check(finished->outcomes, finished->job != engine)) return false;
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
  pool_.start(engine_ranks_, request("engine", "compare"));
  std::optional<ranks::Finished> finished;
  while (!finished) {
    finished = pool_.wait(std::chrono::seconds(1));
    if (ranks::interrupted() != 0) return false;
  }
  const auto& outcomes = finished->outcomes;
  if (!check(outcomes, false)) return false;
  compared_ = differing_ = 0;
  worst_ulp_ = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& answer = outcomes[rank].answer;
    compared_ += answer.at("compared").get<int64_t>();
    differing_ += answer.at("differing").get<int64_t>();
    if (!answer.at("worst").is_null())
      worst_ulp_ = std::max(worst_ulp_, exact_value(answer["worst"].at("ulp")));
    if (first_.empty() && !answer.at("first").get<std::string>().empty())
      first_ = "rank " + std::to_string(rank) + ": " + answer.at("first").get<std::string>();
  }
  check_cover(outcomes);
  return true;
}

void Training::check_cover(const std::vector<Outcome>& outcomes) {
  std::vector<json> cover;
  for (const auto& outcome : outcomes) cover.push_back(outcome.answer.at("cover"));
  const auto problem = cover_problem(start_.at("stage"), cover);
  if (problem.empty()) return;
  ++differing_;
  if (first_.empty()) first_ = "shards: " + problem;
}

bool Training::step(int number) {
  if (!both("step") || !compare()) return false;
  double loss = 0;
  for (const auto& answer : engine_answers_)
    loss += answer.at("loss").get<double>() / command_.world;
  const double tokens = start_.at("tokens").get<double>();
  std::printf("%6d  %11.6f  %11.6f  %12lld  %12lld  %9.4g  %8.0f\n", number, loss,
              twin_answer_.at("loss").get<double>(), static_cast<long long>(compared_),
              static_cast<long long>(differing_), worst_ulp_, tokens / engine_seconds_);
  std::fflush(stdout);
  total_ += compared_;
  most_ = std::max(most_, differing_);
  return true;
}

void Training::print_head() const {
  const bool configured = !command_.config.empty();
  const auto stage = std::to_string(start_.at("stage").get<int>());
  std::printf("# %s, %lld parameters, stage %s, %s, %d rank%s, seed %llu\n", command_.data.c_str(),
              engine_answers_[0].at("parameters").get<long long>(), stage.c_str(),
              configured ? "as configured" : command_.dtype.c_str(), command_.world,
              command_.world == 1 ? "" : "s", static_cast<unsigned long long>(command_.seed));
  std::printf("# twin built from %s\n#\n",
              configured ? "the parsed configuration: a key that the parser misreads is not seen"
                         : "the command's options, not from the engine's configuration");
  std::printf("# step  loss engine    loss twin      compared     differing      worst  %s\n",
              command_.data == "text" ? "tokens/s" : "images/s");
  std::printf("#                                  (elements)    (elements)      (ulp)\n");
  std::fflush(stdout);
}

int Training::verdict(int done) const {
  const bool stopped = ranks::interrupted() != 0;
  if (!first_.empty()) std::printf("# first difference: %s\n", first_.c_str());
  const bool held = done > 0 && most_ == 0 && total_ > 0;
  int code = held ? kHeld : kFailed;
  if (most_ == 0 && broken_ != 0) code = broken_;
  const char* word = code == kHeld ? "HELD" : code == kFailed ? "FAILED" : "BROKEN";
  if (stopped && most_ == 0) word = "INTERRUPTED";
  std::printf("%s  %d steps", word, done);
  if (done < command_.steps) std::printf(" of %d", command_.steps);
  std::printf(", %lld elements compared with the twin, at most %lld of a step differing\n",
              static_cast<long long>(total_), static_cast<long long>(most_));
  return code;
}

int Training::run() {
  int done = 0;
  if (both("start")) {
    started_ = true;
    start_["tokens"] = engine_answers_[0].at("tokens");
    start_["stage"] = engine_answers_[0].at("stage");
    print_head();
    while (done < command_.steps && step(done + 1)) ++done;
  }
  return verdict(done);
}

// A vision encoder and a language model in two engines.
int captions_command(const TrainCommand& command) {
  std::vector<std::string> problems;
  if (!command.config.empty())
    problems.push_back(
        "captions have two engines, whose configurations --stage, --dtype and "
        "--accumulate make; --config goes with text and images");
  check_model(command, problems);
  if (command.micro_batch % 4 != 0)
    problems.push_back("expected --micro-batch to be a multiple of 4 images, got " +
                       std::to_string(command.micro_batch));
  if (!problems.empty()) throw ConfigError("train", problems);
  vision::Training training;
  auto& setting = training.setting;
  setting.way = command.two_groups ? vision::Way::TwoGroups : vision::Way::Handed;
  setting.ranks = command.world;
  setting.encoder_stage = setting.language_stage = command.stage;
  setting.bf16 = command.dtype == "bf16";
  setting.accumulation = command.accumulate;
  setting.images = command.micro_batch;
  setting.seed = command.seed;
  training.steps = command.steps;
  training.every = std::max(1, command.steps / 20);
  training.held_out = std::min<int64_t>(500, 2000 / command.world);
  training.data = find_data(command.data_dir, false);
  return vision::print_caption_training(training, command.timeout_scale);
}

}  // namespace

std::string train_config(const TrainCommand& command) {
  json config = {
      {"train_micro_batch_size_per_gpu", command.micro_batch},
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

int train_command(const TrainCommand& command, const ranks::Handler& serve) {
  if (command.data == "captions") return captions_command(command);
  const std::string config =
      command.config.empty() ? train_config(command) : read_file(command.config);
  // Complains here, once, rather than on every rank.
  const auto parsed = parse_config(config, command.world);
  std::vector<std::string> problems;
  check_micro_batch(command.data, parsed.train_micro_batch_size_per_gpu, problems);
  check_model(command, problems);
  if (command.two_groups) problems.push_back("--two-groups goes with --data captions");
  if (!problems.empty()) throw ConfigError("train", problems);
  training_data("train", command.data, command.data_dir);  // complains if there is none
  return Training(command, config, serve).run();
}

}  // namespace equigrad::conformance::cli
