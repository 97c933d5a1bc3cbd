#include <algorithm>

#include "conformance/cli/cli.hpp"
#include "conformance/vision/caption_training.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {

int captions_command(const TrainCommand& command) {
  const TrainCommand usual;
  std::vector<std::string> problems;
  if (!command.config.empty())
    problems.push_back(
        "captions have two engines, whose configurations --stage, --dtype and "
        "--accumulate make; --config goes with text and images");
  if (command.layers != usual.layers || command.dim != usual.dim || command.heads != usual.heads ||
      command.context != usual.context)
    problems.push_back(
        "--layers, --dim, --heads and --context are of the text model; captions "
        "have models of their own");
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

}  // namespace equigrad::conformance::cli
