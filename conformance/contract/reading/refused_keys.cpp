// 17. What is refused: keys that do not go together.
#include <map>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"

namespace equigrad::conformance::contract {
namespace {

// Without usual_keys, but for the optimizer.
void check_batches(Play& play) {
  const int64_t world = play.context().world;
  const auto number = [](int64_t value) { return std::to_string(value); };
  const std::string w = number(world), w3 = number(3 * world), w5 = number(5 * world),
                    w15 = number(15 * world), train = "train_batch_size",
                    large = "4611686018427387904";
  const std::string remedy = ". Change one of the keys, or drop one.",
                    micro = "train_micro_batch_size_per_gpu=",
                    steps = "gradient_accumulation_steps=";
  const auto refused = [&](const std::string& keys, const std::vector<std::string>& problems) {
    check_problems(play, text_of_keys(with_keys(keys_of("optimizer.type=\"SGD\""), keys_of(keys))),
                   problems);
  };
  const auto of_train = [&](const std::string& problem) {
    return std::vector<std::string>{train + ": expected " + problem};
  };
  const auto neither = of_train(
      "it or train_micro_batch_size_per_gpu, got neither. Add "
      "\"train_micro_batch_size_per_gpu\": 4, say; the others follow from it.");
  refused("", neither);
  refused(steps + "4", neither);
  refused(train + "=" + number(6 * world + 1) + " " + micro + "3",
          of_train("a multiple of micro x world = 3 x " + w + " = " + w3 + ", got " +
                   number(6 * world + 1) + remedy));
  refused(train + "=" + number(10 * world + 1) + " " + steps + "5",
          of_train("a multiple of accumulation x world = 5 x " + w + " = " + w5 + ", got " +
                   number(10 * world + 1) + remedy));
  const auto all_three = micro + "3 " + steps + "5 " + train + "=";
  refused(all_three + number(15 * world + 1),
          of_train("micro x accumulation x world = 3 x 5 x " + w + " = " + w15 + ", got " +
                   number(15 * world + 1) + ". Drop one of the three keys to have it derived."));
  refused(all_three + w15, {});
  refused(micro + large + " " + steps + "4",
          of_train("micro x accumulation x world to fit in 64 bits, got " + large + " x 4 x " + w +
                   ". Lower them."));
  refused(micro + large + " " + steps + "2",
          of_train("micro x accumulation x world to fit in 64 bits, got " + large + " x 2 x " + w +
                   ". Lower them."));
  refused(micro + "1152921504606846976", {});
  auto config = parse_config(text_of_keys(usual_keys("SGD")), play.context().world);
  config.train_micro_batch_size_per_gpu = int64_t{1} << 62;
  config.gradient_accumulation_steps = 2;
  play.refuse("x 2 x " + w + " = more than 64 bits hold, got " + w + ".",
              [&] { validate(config, play.context().world); });
  play.refuse("world_size: expected at least 1 rank, got 0. Give the number of ranks.",
              [&] { validate(config, 0); });
  play.refuse("world_size: expected at least 1 rank, got -2.", [&] { parse_config("{}", -2); });
}

std::vector<Relation> of_the_optimizer() {
  const std::string params = "optimizer.params.", expected = "optimizer.type: expected ",
                    three = "SGD, Adam or AdamW, got ";
  const auto foreign = [&](const std::string& key, const std::string& of) {
    return params + key + ": expected a parameter of " + of + ", got \"" + key +
           "\", which it does not have. Drop the key.";
  };
  std::vector<Relation> all = {
      {"lion", "", {expected + three + "\"lion\"" + kUnsupported + "Choose one of the three."}},
      {"OneBitAdam",
       "",
       {expected + three + "\"OneBitAdam\"" + kUnsupported + "Choose one of the three."}},
      {"Adamm", "", {expected + three + "\"Adamm\". Did you mean \"adam\"?"}},
      {"ADAMQW", "", {expected + three + "\"ADAMQW\". Did you mean \"adamw\"?"}},
      {"momentum", "", {expected + three + "\"momentum\"."}},
      {"sGd", "", {}},
      {"AdamW",
       params + "adam_w_mode=false",
       {params +
        "adam_w_mode: expected true for AdamW, got false. Write \"type\": \"Adam\" for L2 decay."}},
      {"Adam", params + "adam_w_mode=false", {}},
      {"AdamW", params + "adam_w_mode=true", {}},
      {"SGD", params + "nesterov=true " + params + "momentum=0.5", {}},
      {"SGD", params + "dampening=0.5 " + params + "momentum=0.5", {}}};
  for (const auto& [keys, got] : std::map<std::string, std::string>{
           {"momentum=0", "momentum 0.0 and dampening 0.0"},
           {"dampening=-0.5 optimizer.params.momentum=0.5", "momentum 0.5 and dampening -0.5"}})
    all.push_back({"SGD",
                   params + "nesterov=true " + params + keys,
                   {params + "nesterov: expected a momentum above 0 and no dampening, got " + got +
                    ". Set it to false, or them."}});
  all.push_back({"SGD",
                 params + "eps=1 " + params + "betas=[0,0] " + params + "adam_w_mode=true " +
                     params + "torch_adam=false",
                 {foreign("eps", "SGD"), foreign("betas", "SGD"), foreign("adam_w_mode", "SGD"),
                  foreign("torch_adam", "SGD")}});
  for (const auto* type : {"Adam", "AdamW"})
    all.push_back(
        {type,
         params + "momentum=0 " + params + "dampening=0 " + params + "nesterov=false",
         {foreign("momentum", type), foreign("dampening", type), foreign("nesterov", type)}});
  return all;
}

std::vector<Relation> of_offloading() {
  const std::string zero = "zero_optimization.", param = zero + "offload_param.device",
                    optimizer = zero + "offload_optimizer.",
                    stage = zero + "stage=", cpu = optimizer + "device=\"cpu\" ",
                    old = zero + "cpu_offload";
  std::vector<Relation> all;
  for (const std::string number : {"0", "1", "2", "3"}) {
    const bool is_3 = number == "3", is_0 = number == "0";
    all.push_back({"SGD", stage + number + " " + param + "=\"cpu\"",
                   is_3 ? std::vector<std::string>{}
                        : std::vector<std::string>{
                              param + ": expected \"none\" below stage 3, got \"cpu\". Parameters "
                                      "are whole on every rank there; set stage 3, or drop the "
                                      "section."}});
    for (const auto& key : {cpu, old + "=true"})
      all.push_back({"SGD", stage + number + " " + key,
                     !is_0 ? std::vector<std::string>{}
                           : std::vector<std::string>{
                                 optimizer + "device: expected ZeRO stage 1, 2 or 3 with \"cpu\", "
                                             "got stage 0. Set zero_optimization.stage, or "
                                             "\"none\"."}});
  }
  const std::string ratio = optimizer + "ratio: expected 1, got 0.5" + kUnsupported +
                            "All of the optimizer's state is offloaded; drop the key.",
                    both = ": expected it or ", drop = ", got both. Drop it; it is the old name.",
                    gather = "zero_optimization.stage3_gather_", on_save = "_weights_on_model_save";
  const std::vector<Relation> more = {
      {"SGD", stage + "1 " + cpu + optimizer + "ratio=0.5", {ratio}},
      {"SGD", stage + "1 " + optimizer + "ratio=0.5", {}},
      {"SGD", stage + "1 " + cpu + optimizer + "ratio=1", {}},
      {"SGD", stage + "1 " + cpu + old + "=true", {old + both + "\"offload_optimizer\"" + drop}},
      {"SGD",
       stage + "1 " + old + "=false " + optimizer + "pin_memory=false",
       {old + both + "\"offload_optimizer\"" + drop}},
      {"SGD",
       optimizer + "pin_memory=true " + old + "_use_pin_memory=true",
       {old + "_use_pin_memory" + both + "offload_optimizer.pin_memory" + drop}},
      {"SGD", old + "_use_pin_memory=false", {}},
      {"SGD",
       gather + "16bit" + on_save + "=true " + gather + "fp16" + on_save + "=true",
       {gather + "fp16" + on_save + both + "stage3_gather_16bit" + on_save + drop}},
      {"SGD",
       param + "=\"nvme\" " + optimizer + "device=\"cpus\"",
       {param + ": expected \"none\" or \"cpu\", got \"nvme\"" + kUnsupported + "Use \"cpu\".",
        optimizer + "device: expected \"none\" or \"cpu\", got \"cpus\". Did you mean \"cpu\"?"}},
      {"SGD",
       optimizer + "device=\"CPU\"",
       {optimizer + "device: expected \"none\" or \"cpu\", got \"CPU\"."}}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<Relation> of_averaging() {
  const std::string sum = "gradient_allreduce_op=\"Sum\" ", factor = "gradient_predivide_factor",
                    remedy = ". A sum is not divided; drop one of the two keys.",
                    with = " with gradient_allreduce_op = \"sum\", got ",
                    before = "prescale_gradients";
  return {{"SGD", sum, {}},
          {"SGD", sum + before + "=false " + factor + "=1", {}},
          {"SGD", sum + before + "=true", {before + ": expected false" + with + "true" + remedy}},
          {"SGD", sum + factor + "=2", {factor + ": expected 1" + with + "2.0" + remedy}},
          {"SGD",
           sum + factor + "=0.5 " + before + "=true",
           {before + ": expected false" + with + "true" + remedy,
            factor + ": expected 1" + with + "0.5" + remedy}},
          {"SGD", before + "=true " + factor + "=2", {}},
          {"SGD",
           "gradient_allreduce_op=\"maen\" reduction=\"Exact\"",
           {"gradient_allreduce_op: expected \"mean\" or \"sum\", got \"maen\". Did you mean "
            "\"mean\"?",
            "reduction: expected \"pinned\", \"native\" or \"exact\", got \"Exact\". Did you mean "
            "\"exact\"?"}},
          {"SGD",
           "reduction=\"tree\"",
           {"reduction: expected \"pinned\", \"native\" or \"exact\", got \"tree\"."}}};
}

std::string decided(const std::string& key, const std::string& holds, const std::string& level,
                    const std::string& got) {
  return "amp." + key + ": expected " + holds + " with opt_level " + level + ", got " + got + ". " +
         (key == "keep_batchnorm_fp32" ? "All parameters have one type here."
                                       : "The level decides it.") +
         " Drop the key.";
}

std::vector<Relation> of_amp() {
  const std::string amp = "amp.enabled=true ",
                    level = amp + "amp.opt_level=", scale = "amp.loss_scale";
  const std::string all_true =
                        " amp.patch_torch_functions=true amp.master_weights=true "
                        "amp.keep_batchnorm_fp32=true",
                    all_false =
                        " amp.patch_torch_functions=false amp.master_weights=false "
                        "amp.keep_batchnorm_fp32=false";
  const std::string patch = "patch_torch_functions", masters = "master_weights",
                    norms = "keep_batchnorm_fp32", none = "no such key";
  const std::string power = ": expected a power of two, which changes exponents only, got ",
                    usual = " \"dynamic\" is the default.";
  std::vector<Relation> all = {
      {"SGD",
       level + "\"O0\"" + all_true,
       {decided(patch, "false", "O0", "true"), decided(masters, "false", "O0", "true")}},
      {"SGD", level + "\"O0\"" + all_false, {decided(norms, "true", "O0", "false")}},
      {"SGD",
       amp + all_true,
       {decided(masters, none, "O1", "true"), decided(norms, none, "O1", "true")}},
      {"SGD",
       level + "\"O1\"" + all_false,
       {decided(patch, "true", "O1", "false"), decided(masters, none, "O1", "false"),
        decided(norms, none, "O1", "false")}},
      {"SGD",
       level + "\"O2\"" + all_true,
       {decided(patch, "false", "O2", "true"), decided(norms, "false", "O2", "true")}},
      {"SGD", level + "\"O2\"" + all_false, {decided(masters, "true", "O2", "false")}},
      {"SGD", "amp.opt_level=\"O0\"" + all_true, {}},
      {"SGD",
       level + "\"O3\"",
       {"amp.opt_level: expected \"O0\", \"O1\" or \"O2\", got \"O3\"" + kUnsupported +
        "Use fp16 with fp16_master_weights_and_grads."}},
      {"SGD",
       level + "\"O0\" " + scale + "=2",
       {scale + ": expected 1 with opt_level O0, got 2. fp32 needs no loss scale; drop the key."}},
      {"SGD", level + "\"O0\" " + scale + "=\"1\"", {}},
      {"SGD",
       level + "\"O0\" " + scale + "=\"dynamic\"",
       {scale + ": expected 1 with opt_level O0, got \"dynamic\". fp32 needs no loss scale; drop "
                "the key."}},
      {"SGD", amp + scale + "=96", {scale + power + "96.0. Write 64.0 or 128.0." + usual}},
      {"SGD",
       level + "\"O2\" " + scale + "=\"0.75\"",
       {scale + power + "0.75. Write 0.5 or 1.0." + usual}},
      {"SGD", amp + scale + "=\"128\"", {}},
      {"SGD", "amp.max_loss_scale=2", {}},
      {"SGD", amp + "amp.max_loss_scale=16777216", {}},
      {"SGD",
       amp + "amp.max_loss_scale=2",
       {"amp.max_loss_scale: expected 16777216, apex's default, got 2.0" + kUnsupported +
        "The scale has no ceiling; drop the key."}}};
  for (const std::string other : {"fp16", "bf16", "bfloat16", "torch_autocast"})
    all.push_back(
        {"SGD",
         level + "\"O0\" " + other + ".enabled=true",
         {"amp.enabled: expected amp or " + other + ", got both. Drop one of the sections."}});
  return all;
}

void together(Play& play) {
  if (play.group()) {
    check_batches(play);
    check_relations(play, of_the_optimizer());
    check_relations(play, of_offloading());
    check_relations(play, of_averaging());
    check_relations(play, of_amp());
  }
  train_along(play);
}

}  // namespace

std::vector<Case> refused_keys() {
  return {case_beside(
      {.section = "17",
       .name = "keys_that_do_not_go_together",
       .sentence = "every relation between keys is refused on its wrong side, and only there",
       .fault = "another problem is expected",
       .program = together},
      Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
