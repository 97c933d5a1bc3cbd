#include <algorithm>
#include <chrono>
#include <cstdio>

#include "conformance/campaigns/progress.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/train_report.hpp"
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
  bool compare(TrainedStep& step);
  void check_cover(const std::vector<Outcome>& outcomes, TrainedStep& step);
  bool train_step();
  bool check(const std::vector<Outcome>& outcomes, bool twin);
  void begin();
  int end();
  std::FILE* out() const { return command_.json == "-" ? stderr : stdout; }

  const TrainCommand& command_;
  ranks::Pool pool_;
  std::vector<int> engine_ranks_, twin_rank_;
  json start_, engine_answers_, twin_answer_;
  double engine_seconds_ = 0;  // of the last verb
  TrainReport report_;
  int broken_ = 0;  // the exit code for a rank that did not answer
};

json options_of(const TrainCommand& command) {
  return {{"stage", command.stage},
          {"dtype", command.dtype},
          {"accumulate", command.accumulate},
          {"micro_batch", command.micro_batch},
          {"lr", command.lr}};
}

Training::Training(const TrainCommand& command, const std::string& config,
                   const ranks::Handler& serve)
    : command_(command),
      pool_(command.world + 1, serve,
            {std::chrono::milliseconds(static_cast<long long>(300'000 * command.timeout_scale)),
             std::chrono::milliseconds(2'000), false, command.device}),
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
  const bool started = !report_.data.empty();
  broken_ = thrown && !twin && started ? kFailed : kInfrastructure;
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

bool Training::compare(TrainedStep& step) {
  pool_.start(engine_ranks_, request("engine", "compare"));
  std::optional<ranks::Finished> finished;
  while (!finished) {
    finished = pool_.wait(std::chrono::seconds(1));
    if (ranks::interrupted() != 0) return false;
  }
  const auto& outcomes = finished->outcomes;
  if (!check(outcomes, false)) return false;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& answer = outcomes[rank].answer;
    step.compared += answer.at("compared").get<int64_t>();
    step.differing += answer.at("differing").get<int64_t>();
    if (!answer.at("worst").is_null())
      step.worst_ulp = std::max(step.worst_ulp, exact_value(answer["worst"].at("ulp")));
    if (report_.first_difference.empty() && !answer.at("first").get<std::string>().empty())
      report_.first_difference =
          "rank " + std::to_string(rank) + ": " + answer.at("first").get<std::string>();
  }
  check_cover(outcomes, step);
  return true;
}

void Training::check_cover(const std::vector<Outcome>& outcomes, TrainedStep& step) {
  std::vector<json> cover;
  for (const auto& outcome : outcomes) cover.push_back(outcome.answer.at("cover"));
  const auto problem = cover_problem(start_.at("stage"), cover);
  if (problem.empty()) return;
  ++step.differing;
  if (report_.first_difference.empty()) report_.first_difference = "shards: " + problem;
}

bool Training::train_step() {
  TrainedStep step;
  if (!both("step")) return false;
  step.seconds = engine_seconds_;
  if (!compare(step)) return false;
  for (const auto& answer : engine_answers_)
    step.loss += answer.at("loss").get<double>() / command_.world;
  step.twin_loss = twin_answer_.at("loss").get<double>();
  report_.steps.push_back(step);
  return true;
}

void Training::begin() {
  const auto& first = engine_answers_[0];
  start_["stage"] = first.at("stage");
  const bool configured = !command_.config.empty();
  report_.data = command_.data;
  report_.parameters = first.at("parameters").get<int64_t>();
  report_.stage = first.at("stage").get<int>();
  report_.world = command_.world;
  report_.wanted_steps = command_.steps;
  report_.precision = configured ? "as configured" : command_.dtype;
  report_.twin = configured ? "the parsed configuration: a key that the parser misreads is not seen"
                            : "the command's options, not from the engine's configuration";
  report_.seed = command_.seed;
  report_.tokens = first.at("tokens").get<double>();
  std::fputs(head_of(report_).c_str(), out());
  std::fflush(out());
}

int Training::end() {
  const bool differs = report_.most_differing() != 0;
  int code = !differs && report_.compared() > 0 ? kHeld : kFailed;
  if (!differs && broken_ != 0) code = broken_;
  report_.verdict = code == kHeld ? "HELD" : code == kFailed ? "FAILED" : "BROKEN";
  if (ranks::interrupted() != 0 && !differs) report_.verdict = "INTERRUPTED";
  report_.wanted_steps = command_.steps;
  std::fputs(end_of(report_).c_str(), out());
  std::fflush(out());
  const bool is_written = command_.json.empty() || was_written([&] {
                            write_file(command_.json, record_of(report_).dump(1) + "\n");
                          });
  return is_written || code != kHeld ? code : kInfrastructure;
}

int Training::run() {
  const auto start = Clock::now();
  Progress progress(command_.steps, false, "steps", "differing");
  if (both("start")) {
    begin();
    for (int done = 1; done <= command_.steps && train_step(); ++done) {
      progress.clear();
      std::fputs(row_of(report_, report_.steps.size() - 1).c_str(), out());
      std::fflush(out());
      progress.update(done, report_.most_differing(), "");
    }
  }
  progress.finish();
  report_.all_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return end();
}

// A vision encoder and a language model in two engines.
int captions_command(const TrainCommand& command) {
  std::vector<std::string> problems;
  if (command.device != nullptr) problems.push_back("--device cuda goes with text and images");
  if (!command.config.empty())
    problems.push_back(
        "captions have two engines, whose configurations --stage, --dtype and "
        "--accumulate make; --config goes with text and images");
  check_model(command, problems);
  if (!command.json.empty() || command.lr != TrainCommand{}.lr)
    problems.push_back("--json and --lr go with text and images");
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
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", command.lr}, {"weight_decay", 0.01}}}}},
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
  check_writable(command.json);
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
