// 17. What is refused: values of a configuration, of every key, by the key's name.
#include <algorithm>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"

namespace equigrad::conformance::contract {
namespace {

// Keys that only some texts may have, and what those begin with.
struct Kind {
  const char* name;
  std::vector<Key> keys;
};

std::vector<Kind> kinds() {
  const auto of = [](const char* name, const std::string& optimizer, const std::string& scheduler) {
    Kind kind{name, usual_keys(optimizer)};
    if (!scheduler.empty()) kind.keys.push_back({"scheduler.type", "\"" + scheduler + "\""});
    return kind;
  };
  return {of("all", "SGD", ""),
          of("Adam", "AdamW", ""),
          of("WarmupLR", "SGD", "WarmupLR"),
          of("WarmupDecayLR", "SGD", "WarmupDecayLR"),
          of("WarmupCosineLR", "SGD", "WarmupCosineLR"),
          of("OneCycle", "AdamW", "OneCycle"),
          of("LRRangeTest", "SGD", "LRRangeTest")};
}

// Keys of one type: "kind: key=default key=default".
struct Typed {
  std::vector<std::string> wrong;  // values as JSON
  std::string expected;
  std::string remedy;  // with the default's place
  std::vector<std::string> keys;
};

const std::vector<std::string> kNotText = {"3", "true", "[]", "{}", "0.5", "[\"a\"]"};
const std::vector<std::string> kNoList = {"\"a\"", "3", "[1]", "true", "{}", "[\"a\",0]"};
const std::vector<Typed> kTypes = {
    {{"1", "\"true\"", "0", "[]", "{}", "0.5"},
     "true or false",
     " Write it without quotes.",
     {"all: managed_gradient_accumulation zero_optimization.overlap_comm "
      "zero_optimization.offload_param.pin_memory zero_optimization.cpu_offload "
      "zero_optimization.offload_optimizer.pin_memory "
      "zero_optimization.cpu_offload_use_pin_memory "
      "zero_optimization.stage3_gather_16bit_weights_on_model_save "
      "zero_optimization.stage3_gather_fp16_weights_on_model_save prescale_gradients amp.enabled "
      "amp.patch_torch_functions amp.master_weights amp.keep_batchnorm_fp32 fp16.enabled "
      "fp16.auto_cast fp16.consecutive_hysteresis fp16.fp16_master_weights_and_grads "
      "fp16.fp16_master_weights_and_gradients bf16.enabled bf16.check_grad_overflow "
      "bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states torch_autocast.enabled "
      "progressive_layer_drop.enabled flops_profiler.enabled flops_profiler.detailed "
      "optimizer.params.nesterov",
      "Adam: optimizer.params.adam_w_mode optimizer.params.torch_adam bfloat16.enabled "
      "bfloat16.check_grad_overflow bfloat16.bf16_master_weights_and_grads "
      "bfloat16.bf16_optimizer_states",
      "OneCycle: scheduler.params.cycle_momentum",
      "LRRangeTest: scheduler.params.lr_range_test_staircase"}},
    {{"\"8\"", "2.5", "true", "9223372036854775808", "1e+16", "[8]"},
     "a whole number",
     " Write it without quotes, such as DEFAULT.",
     {"all: train_batch_size=1 gradient_accumulation_steps=1 zero_optimization.stage=0 "
      "zero_optimization.reduce_bucket_size=500000000 fp16.initial_scale_power=16 "
      "zero_optimization.allgather_bucket_size=500000000 fp16.loss_scale_window=1000 "
      "zero_optimization.stage3_prefetch_bucket_size=50000000 fp16.hysteresis=2 "
      "zero_optimization.stage3_param_persistence_threshold=100000 "
      "zero_optimization.stage3_max_live_parameters=1000000000 flops_profiler.profile_step=1 "
      "zero_optimization.stage3_max_reuse_distance=1000000000 flops_profiler.module_depth=-1 "
      "flops_profiler.top_modules=1 sequence_parallel_size=1 tensor_parallel.autotp_size=0 "
      "tensor_parallel.tp.tp_size=1 tensor_parallel.partition_config.tp_size=1",
      "Adam: train_micro_batch_size_per_gpu=1",
      "WarmupLR: scheduler.params.warmup_num_steps=1000 scheduler.params.last_batch_iteration=-1",
      "WarmupDecayLR: scheduler.params.total_num_steps=0",
      "WarmupCosineLR: scheduler.params.total_num_steps=0 scheduler.params.warmup_num_steps=1000",
      "OneCycle: scheduler.params.cycle_first_step_size=2000 "
      "scheduler.params.cycle_second_step_size=0 scheduler.params.cycle_first_stair_count=0 "
      "scheduler.params.cycle_second_stair_count=0 scheduler.params.decay_step_size=0",
      "LRRangeTest: scheduler.params.lr_range_test_step_size=2000"}},
    {{"\"8\"", "true", "[]", "{}", "[1.0]", "false"},
     "a number",
     " Write it without quotes, such as DEFAULT.",
     {"all: gradient_clipping=0.0 gradient_predivide_factor=1.0 optimizer.params.lr=0.001 "
      "optimizer.params.weight_decay=0.0 optimizer.params.momentum=0.0 fp16.loss_scale=0.0 "
      "optimizer.params.dampening=0.0 zero_optimization.offload_optimizer.ratio=1.0 "
      "amp.max_loss_scale=16777216.0 fp16.min_loss_scale=1.0 communication_timeout_s=1800.0 "
      "progressive_layer_drop.theta=0.5 progressive_layer_drop.gamma=0.001 "
      "flops_profiler.recompute_fwd_factor=0.0",
      "Adam: optimizer.params.eps=1e-08",
      "WarmupCosineLR: scheduler.params.warmup_min_ratio=0.0 "
      "scheduler.params.cos_min_ratio=0.0001",
      "OneCycle: scheduler.params.decay_lr_rate=0.0 scheduler.params.decay_mom_rate=0.0",
      "LRRangeTest: scheduler.params.lr_range_test_step_rate=1.0"}},
    {kNotText,
     "a text in quotes",
     " Write it as \"DEFAULT\".",
     {"all: zero_optimization.offload_param.device=none gradient_allreduce_op=mean "
      "zero_optimization.offload_optimizer.device=none reduction=pinned amp.opt_level=O1 "
      "torch_autocast.dtype=bf16 data_types.param_dtype=fp32 data_types.grad_accum_dtype=fp32 "
      "communication_data_type=fp32 flops_profiler.output_file= scheduler.type=WarmupLR",
      "Adam: optimizer.type=AdamW", "WarmupLR: scheduler.params.warmup_type=log"}},
    {kNoList,
     "a list of names",
     " Write [\"experts\"].",
     {"all: zero_optimization.leaf_module.classes zero_optimization.leaf_module.names "
      "zero_optimization.leaf_module.name_suffixes"}},
    {{"[\"a\",\"\"]", "[\"\"]"},
     "a list of names",
     " Write [\"experts\"].",
     {"Adam: zero_optimization.leaf_module.classes zero_optimization.leaf_module.names "
      "zero_optimization.leaf_module.name_suffixes"}},
    {kNoList,
     "a list of class names",
     " Write [\"torch.nn.Linear\"].",
     {"all: torch_autocast.lower_precision_safe_modules"}},
    {{"3", "\"2\"", "\"Inf\"", "true", "[]", "2.5"},
     "2 or \"inf\"",
     " Use one of the two.",
     {"all: gradient_norm_type"}},
    {{"\"x\"", "\"\"", "\"1x\"", "true", "[]", "\"Dynamic\""},
     "\"dynamic\" or a number",
     " Use one of the two.",
     {"all: amp.loss_scale"}},
    {{"\"x\"", "[]", "[0.5,\"a\"]", "true", "{}", "[true]"},
     "a number, or a list with one for each parameter group",
     " Write 1e-3 or [1e-3, 1e-4].",
     {"WarmupLR: scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr",
      "OneCycle: scheduler.params.cycle_min_lr scheduler.params.cycle_max_lr "
      "scheduler.params.cycle_min_mom scheduler.params.cycle_max_mom",
      "LRRangeTest: scheduler.params.lr_range_test_min_lr"}},
    {{"[0.5]", "0.5", "[0.5,0.5,0.5]", "[0.5,\"a\"]", "{}", "true"},
     "two numbers",
     " Write [0.9, 0.999].",
     {"Adam: optimizer.params.betas"}}};

// Keys and their wrong values of one text, and its problems.
struct Refused {
  std::vector<Key> keys;
  std::vector<std::string> problems;

  void add(const std::string& path, const std::string& value, const std::string& problem) {
    const auto same =
        std::find_if(keys.begin(), keys.end(), [&](const Key& one) { return one.path == path; });
    if (same == keys.end())
      keys.push_back({path, value});
    else
      same->value = value;
    if (!problem.empty()) problems.push_back(path + ": " + problem);
  }
};

void add_types(Refused& refused, const std::string& kind, std::size_t turn) {
  for (const auto& typed : kTypes)
    for (const auto& group : typed.keys) {
      auto named = words(group);
      if (named.front() != kind + ":") continue;
      for (std::size_t i = 1; i < named.size(); ++i) {
        const auto equals = std::min(named[i].find('='), named[i].size());
        const auto path = named[i].substr(0, equals);
        const auto& value = typed.wrong[(turn + i) % typed.wrong.size()];
        auto remedy = typed.remedy;
        const auto at = remedy.find("DEFAULT");
        if (at != std::string::npos)
          remedy.replace(at, 7, equals < named[i].size() ? named[i].substr(equals + 1) : "");
        refused.add(path, value, "expected " + typed.expected + ", got " + value + "." + remedy);
      }
    }
}

// Values of a key, each with what it is refused for, which is nothing of those that are in range.
struct Limit {
  std::string kind;
  std::string path;
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
};

std::string at_least(const std::string& least, const std::string& got, const std::string& remedy) {
  return "expected at least " + least + ", got " + got + ". " + remedy;
}

const std::string kLeast64 = "-9223372036854775808", kMost64 = "9223372036854775807",
                  kMoreThanDouble = "9007199254740993", kDouble = "9007199254740992";

Limit whole(const std::string& kind, const std::string& path, int64_t least,
            const std::string& remedy = "Give a larger whole number.") {
  const auto lowest = std::to_string(least), below = std::to_string(least - 1);
  return {kind,
          path,
          {{below, {at_least(lowest, below, remedy)}},
           {kLeast64, {at_least(lowest, kLeast64, remedy)}},
           {lowest, {}}}};
}

Limit large(Limit limit) {
  limit.values.push_back({kMost64, {}});
  return limit;
}

// What counts steps.
Limit count(const std::string& kind, const std::string& path, int64_t least) {
  auto limit = whole(kind, "scheduler.params." + path, least);
  const auto most = [](const std::string& got) {
    return "expected at most 2^53, got " + got + ". Give a smaller whole number.";
  };
  limit.values.push_back({kMoreThanDouble, {most(kMoreThanDouble)}});
  limit.values.push_back({kMost64, {most(kMost64)}});
  limit.values.push_back({kDouble, {}});
  return limit;
}

const std::string kNoFp32 = "expected a number that fp32 can hold, got ",
                  kFinite = ". Give a finite number.", kPositive = "Give a positive number, or 0.";

Limit scalar(const std::string& kind, const std::string& path) {
  return {kind,
          path,
          {{"-0.5", {at_least("0", "-0.5", kPositive)}},
           {"1e39", {kNoFp32 + "1e+39" + kFinite}},
           {"-1e39", {at_least("0", "-1e+39", kPositive), kNoFp32 + "-1e+39" + kFinite}},
           {"-1e-300", {at_least("0", "-1e-300", kPositive)}},
           {"0", {}},
           {"3.4e38", {}}}};
}

Limit rates(const std::string& kind, const std::string& path) {
  auto limit = scalar(kind, "scheduler.params." + path);
  limit.values.push_back({"[0.5,-1]", {at_least("0", "-1.0", kPositive)}});
  limit.values.push_back(
      {"[-2,3,1e40]", {at_least("0", "-2.0", kPositive), kNoFp32 + "1e+40" + kFinite}});
  limit.values.push_back({"[0,0.5]", {}});
  return limit;
}

Limit momenta(const std::string& path) {
  const auto below = [](const std::string& got) {
    return "expected it below 1, got " + got + ". Write 0.9.";
  };
  return {"OneCycle",
          "scheduler.params." + path,
          {{"1", {below("1.0")}},
           {"[0.5,-0.25,1.5]", {at_least("0", "-0.25", kPositive), below("1.5")}},
           {"1e39", {below("1e+39"), kNoFp32 + "1e+39" + kFinite}},
           {"0", {}},
           {"[0.999,0.5]", {}}}};
}

// In words, and what to do.
Limit said(const std::string& path, const std::string& range, const std::string& remedy,
           const std::vector<std::pair<std::string, std::string>>& wrong,
           const std::vector<std::string>& right) {
  Limit limit{"all", path, {}};
  for (const auto& [value, got] : wrong)
    limit.values.push_back({value, {"expected " + range + ", got " + got + ". " + remedy}});
  for (const auto& value : right) limit.values.push_back({value, {}});
  return limit;
}

void add_words(std::vector<Limit>& all) {
  all.push_back(said("zero_optimization.stage", "0, 1, 2 or 3", "Use 0 for plain data parallelism.",
                     {{"4", "4"}, {"-1", "-1"}, {kMost64, kMost64}}, {"0", "1", "2", "3"}));
  all.push_back(said("progressive_layer_drop.theta", "a probability from 0 to 1", "Write 0.5.",
                     {{"1.0001", "1.0001"}, {"-1e-9", "-1e-09"}}, {"0", "1"}));
  all.push_back(said("communication_timeout_s", "seconds from 0.001 to 1e9",
                     "Write 1800 for half an hour.",
                     {{"0.0009", "0.0009"}, {"1000000001", "1000000001.0"}, {"-1", "-1.0"}},
                     {"0.001", "1000000000"}));
  all.push_back(said(
      "gradient_predivide_factor", "a number above 0 that fp32 can hold and divide by", "Write 1.",
      {{"0", "0.0"}, {"-2", "-2.0"}, {"1e39", "1e+39"}, {"1e-39", "1e-39"}}, {"1e-38", "3e38"}));
  const std::string beta = " to be at least 0 and below 1, got ", write = ". Write [0.9, 0.999].";
  all.push_back(
      {"Adam",
       "optimizer.params.betas",
       {{"[1,0.5]", {"expected number 1" + beta + "1.0" + write}},
        {"[0.5,-0.5]", {"expected number 2" + beta + "-0.5" + write}},
        {"[-1,2]",
         {"expected number 1" + beta + "-1.0" + write, "expected number 2" + beta + "2.0" + write}},
        {"[0,0.999]", {}}}});
  all.push_back({"SGD with momentum",
                 "optimizer.params.dampening",
                 {{"1e39", {kNoFp32 + "1e+39" + kFinite}},
                  {"-1e39", {kNoFp32 + "-1e+39" + kFinite}},
                  {"-3e38", {}}}});
  all.push_back({"fp16",
                 "fp16.initial_scale_power",
                 {{"-1", {at_least("0", "-1", "Write 16.")}},
                  {"127", {"expected at most 126, got 127. Write 16."}},
                  {"0", {}},
                  {"126", {}}}});
}

std::vector<Limit> limits() {
  std::vector<Limit> all;
  const std::string zero = "zero_optimization.", stage3 = zero + "stage3_";
  for (const auto& path : {zero + "reduce_bucket_size", zero + "allgather_bucket_size"})
    all.push_back(large(whole("all", path, 1)));
  for (const auto* name : {"prefetch_bucket_size", "param_persistence_threshold",
                           "max_live_parameters", "max_reuse_distance"})
    all.push_back(large(whole("all", stage3 + name, 0)));
  all.push_back(large(whole("all", "flops_profiler.profile_step", 1)));
  all.push_back(large(whole("all", "flops_profiler.module_depth", -1)));
  all.push_back(large(whole("all", "flops_profiler.top_modules", 1)));
  all.push_back(large(whole("fp16", "fp16.loss_scale_window", 1)));
  all.push_back(large(whole("fp16", "fp16.hysteresis", 1)));
  for (const auto* name :
       {"gradient_clipping", "progressive_layer_drop.gamma", "flops_profiler.recompute_fwd_factor",
        "optimizer.params.lr", "optimizer.params.weight_decay", "optimizer.params.momentum"})
    all.push_back(scalar("all", name));
  all.push_back(scalar("Adam", "optimizer.params.eps"));
  add_words(all);
  all.push_back(count("WarmupLR", "warmup_num_steps", 1));
  for (const auto* name : {"warmup_min_lr", "warmup_max_lr"})
    for (const auto* kind : {"WarmupLR", "WarmupDecayLR"}) all.push_back(rates(kind, name));
  for (const auto* name : {"warmup_min_ratio", "cos_min_ratio"})
    all.push_back(scalar("WarmupCosineLR", std::string("scheduler.params.") + name));
  for (const auto* kind :
       {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"})
    all.push_back(count(kind, "last_batch_iteration", -1));
  all.push_back(count("OneCycle", "cycle_first_step_size", 1));
  for (const auto* name : {"cycle_second_step_size", "cycle_first_stair_count",
                           "cycle_second_stair_count", "decay_step_size"})
    all.push_back(count("OneCycle", name, 0));
  for (const auto* name : {"decay_lr_rate", "decay_mom_rate"})
    all.push_back(scalar("OneCycle", std::string("scheduler.params.") + name));
  for (const auto* name : {"cycle_min_lr", "cycle_max_lr"}) all.push_back(rates("OneCycle", name));
  for (const auto* name : {"cycle_min_mom", "cycle_max_mom"}) all.push_back(momenta(name));
  all.push_back(rates("LRRangeTest", "lr_range_test_min_lr"));
  all.push_back(count("LRRangeTest", "lr_range_test_step_size", 1));
  all.push_back(scalar("LRRangeTest", "scheduler.params.lr_range_test_step_rate"));
  return all;
}

std::vector<Kind> kinds_with_what_they_need() {
  auto all = kinds();
  for (auto& kind : all)
    if (std::string(kind.name).find("Decay") != std::string::npos ||
        std::string(kind.name).find("Cosine") != std::string::npos)
      kind.keys.push_back({"scheduler.params.total_num_steps", "1000"});
  all.push_back({"fp16", with_keys(usual_keys("SGD"),
                                   keys_of("fp16.enabled=true fp16.min_loss_scale=0.0078125"))});
  all.push_back({"SGD with momentum", usual_keys("SGD")});
  return all;
}

// Sizes are refused before any other is derived from them.
void check_sizes(Play& play) {
  const std::vector<std::string> sizes = {"train_batch_size", "gradient_accumulation_steps",
                                          "train_micro_batch_size_per_gpu"};
  for (const auto& value : {std::string("0"), std::string("-7"), kLeast64}) {
    Refused refused{usual_keys("SGD"), {}};
    for (const auto& size : sizes)
      refused.add(size, value, at_least("1", value, "Give a positive whole number."));
    check_problems(play, text_of_keys(refused.keys), refused.problems);
  }
}

void wrong_ranges(Play& play) {
  if (play.group()) {
    const auto all = limits();
    for (std::size_t turn = 0; turn < 9; ++turn)
      for (const auto& kind : kinds_with_what_they_need()) {
        Refused refused{kind.keys, {}};
        for (const auto& limit : all) {
          if (limit.kind != kind.name) continue;
          const auto& [value, problems] = limit.values[turn % limit.values.size()];
          if (problems.empty()) refused.add(limit.path, value, "");
          for (const auto& problem : problems) refused.add(limit.path, value, problem);
        }
        check_problems(play, text_of_keys(refused.keys), refused.problems);
      }
    check_sizes(play);
  }
  train_along(play);
}

void wrong_types(Play& play) {
  if (play.group()) {
    for (std::size_t turn = 0; turn < 6; ++turn)
      for (const auto& kind : kinds()) {
        Refused refused{kind.keys, {}};
        add_types(refused, kind.name, turn);
        check_problems(play, text_of_keys(refused.keys), refused.problems);
      }
  }
  train_along(play);
}

}  // namespace

std::vector<Case> refused_values() {
  return {
      case_beside({.section = "17",
                   .name = "values_of_a_wrong_type",
                   .sentence = "every key's value of another type is refused, with its right one",
                   .fault = "another problem is expected",
                   .program = wrong_types},
                  Plays::Once),
      case_beside(
          {.section = "17",
           .name = "values_beyond_their_limits",
           .sentence = "a number below or above its limits is refused, and at them it is not",
           .fault = "another problem is expected",
           .program = wrong_ranges},
          Plays::Once)};
}

}  // namespace equigrad::conformance::contract
