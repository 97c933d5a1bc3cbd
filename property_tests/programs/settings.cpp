#include "property_tests/programs/settings.hpp"

#include <string>

namespace equigrad::property_tests::programs {

namespace {

constexpr double kLr = 0.02, kDecay = 0.1;

}  // namespace

comm::MeshSizes mesh_of(const json& setting) {
  return comm::mesh_sizes(setting.at("world"), setting.value("sequence", 1),
                          setting.value("tensor", 1));
}

json config_of(const json& setting) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"gradient_accumulation_steps", setting.at("accumulation")}};
  if (setting.at("clip") != 0.0) config["gradient_clipping"] = setting.at("clip");
  if (setting.value("prescale", false)) config["prescale_gradients"] = true;
  const int rule = setting.at("rule");
  json params = {{"lr", kLr}, {"weight_decay", kDecay}};
  if (rule == 2) params["momentum"] = setting.at("momentum");
  if (rule == 1) params["adam_w_mode"] = false;
  config["optimizer"] = {{"type", rule == 2   ? "SGD"
                                  : rule == 1 ? "Adam"
                                              : "AdamW"},
                         {"params", params}};
  const int precision = setting.at("precision");
  const std::string type = precision == 1 ? "bf16" : "fp16";
  if (precision == 1) config["bf16"]["enabled"] = true;
  if (precision == 2)
    config["fp16"] = {{"enabled", true},
                      {"loss_scale", 0},
                      {"initial_scale_power", 12},
                      {"loss_scale_window", setting.at("scale_window")},
                      {"hysteresis", setting.at("hysteresis")}};
  if (precision != 0)
    config["data_types"]["grad_accum_dtype"] =
        setting.at("narrow_sums").get<bool>() ? type : "fp32";
  const auto& bucket = setting.at("bucket");
  json zero = {{"stage", setting.at("stage")},
               {"reduce_bucket_size", bucket},
               {"allgather_bucket_size", bucket}};
  if (setting.at("stage") == 3) {
    zero["stage3_param_persistence_threshold"] = setting.at("persistent");
    zero["stage3_max_reuse_distance"] = setting.at("reuse");
    zero["stage3_prefetch_bucket_size"] = bucket;
  }
  config["zero_optimization"] = zero;
  const auto sizes = mesh_of(setting);
  if (sizes.tensor > 1) config["tensor_parallel"]["autotp_size"] = sizes.tensor;
  if (sizes.sequence > 1) config["sequence_parallel_size"] = sizes.sequence;
  return config;
}

reference::Recipe recipe_of(const json& setting) {
  reference::Recipe recipe;
  const auto sizes = mesh_of(setting);
  recipe.world = sizes.data * sizes.sequence;
  recipe.sequence = sizes.sequence;
  recipe.accumulation_steps = setting.at("accumulation");
  const int rule = setting.at("rule");
  recipe.optimizer.rule = rule == 2   ? reference::Rule::Sgd
                          : rule == 1 ? reference::Rule::Adam
                                      : reference::Rule::AdamW;
  recipe.optimizer.lr = kLr;
  recipe.optimizer.weight_decay = kDecay;
  if (rule == 2) recipe.optimizer.momentum = setting.at("momentum");
  recipe.gradient_clipping = setting.at("clip");
  recipe.compute_dtype = dtype_of(setting);
  recipe.accumulate_dtype = setting.at("narrow_sums") ? recipe.compute_dtype : at::kFloat;
  if (setting.value("prescale", false))
    recipe.precision.averaging = reference::Averaging::BeforeSum;
  if (setting.at("precision") == 2) {
    auto& scale = recipe.precision.loss_scale;
    scale.policy = reference::LossScaleSpec::Policy::DeepSpeed;
    scale.initial = 4096;
    scale.window = setting.at("scale_window");
    scale.hysteresis = setting.at("hysteresis");
  }
  recipe.order = setting.at("stage").get<int>() <= 1 ? reference::SumOrder::AddThenReduce
                                                     : reference::SumOrder::ReduceThenAdd;
  recipe.absolute_sums = false;
  return recipe;
}

}  // namespace equigrad::property_tests::programs
