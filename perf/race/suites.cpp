#include "perf/race/suites.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "conformance/cases/filter.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr const char* kDdp = "DDP";
constexpr const char* kAlone = "LibTorch alone";
constexpr const char* kPyTorch = "PyTorch alone";

// Contestants of one group, in the order of the tables.
class Field {
 public:
  Field(const Programs& programs, RaceGroup& group) : programs_(programs), group_(group) {}

  void alone() {
    Contestant libtorch{.name = kAlone,
                        .command = {programs_.worker},
                        .settings = {{"work", "libtorch"}},
                        .is_ours = true,
                        .is_alone = true};
    group_.contestants.push_back(libtorch);
    if (!programs_.peers.empty()) peer(kPyTorch, {{"peer", "plain"}}).is_alone = true;
    if (group_.base.empty()) group_.base = programs_.peers.empty() ? kAlone : kDdp;
  }
  void ddp() {
    if (!programs_.peers.empty()) peer(kDdp, {{"peer", "ddp"}});
  }
  void peers(bool with_deepspeed = true) {
    if (programs_.peers.empty()) return;
    ddp();
    peer("FSDP2", {{"peer", "fsdp2"}});
    for (int stage = 0; with_deepspeed && stage <= 3; ++stage)
      peer("DeepSpeed stage " + std::to_string(stage), {{"peer", "deepspeed"}, {"stage", stage}});
    // Stage 3 puts a linear layer of its own in place of torch's: a product, then the bias, as the
    // reference has it.
    if (with_deepspeed) group_.contestants.back().contributions_of.clear();
  }
  void engine(int stage, const std::string& suffix = "", const json& more = json::object()) {
    const std::string name = "Equigrad stage " + std::to_string(stage) + suffix;
    const json config = engine_config(stage, group_.batch, group_.accumulation, more);
    group_.contestants.push_back(engine_contestant(name, programs_, config));
    if (programs_.older.empty()) return;
    Programs before = programs_;
    before.worker = programs_.older;
    group_.contestants.push_back(engine_contestant(name + ", older", before, config));
  }
  // The same operators as in C++, so the same bits.
  void from_python(int stage) {
    group_.base = "Equigrad stage " + std::to_string(stage);
    engine(stage);
    const json config = engine_config(stage, group_.batch, group_.accumulation, json::object());
    group_.contestants.push_back({.name = group_.base + ", from Python",
                                  .command = {programs_.python, programs_.peer_script},
                                  .settings = {{"peer", "equigrad"},
                                               {"package", programs_.package},
                                               {"config", config.dump()},
                                               {"unfused", true}},
                                  .is_ours = false,
                                  .is_alone = false});
  }
  void engine_stages(const std::string& suffix = "", const json& more = json::object()) {
    for (int stage = 0; stage <= 3; ++stage) engine(stage, suffix, more);
  }

 private:
  Contestant& peer(const std::string& name, const json& settings) {
    Contestant contestant{.name = name,
                          .command = {programs_.peers, programs_.peer_script},
                          .settings = settings,
                          .is_ours = false,
                          .is_alone = false};
    if (name != kPyTorch) contestant.contributions_of = kPyTorch;
    group_.contestants.push_back(contestant);
    return group_.contestants.back();
  }

  const Programs& programs_;
  RaceGroup& group_;
};

std::string model_text(const json& model) {
  if (model.at("kind") == "dots")
    return model.at("count").dump() + " parameters of " + model.at("width").dump() + " elements";
  return "GPT, " + model.at("layers").dump() + " layers, dim " + model.at("dim").dump() + ", " +
         model.at("heads").dump() + " heads, context " + model.at("context").dump() +
         ", vocabulary " + model.at("vocabulary").dump();
}

RaceGroup group_of(const std::string& name, const json& model, int rounds, int steps) {
  RaceGroup group;
  group.name = name;
  group.model = model;
  group.model_text = model_text(model);
  group.rounds = rounds;
  group.steps = steps;
  return group;
}

json dots(int count, int width) { return {{"kind", "dots"}, {"count", count}, {"width", width}}; }

// A stage 3 that keeps little: what a user sets who is short of memory.
json paged(int64_t live_numel) {
  return {{"zero_optimization",
           {{"stage3_max_live_parameters", live_numel},
            {"stage3_prefetch_bucket_size", live_numel / 2},
            {"reduce_bucket_size", live_numel},
            {"allgather_bucket_size", live_numel},
            {"stage3_param_persistence_threshold", 10'000}}}};
}

void everyone(const Programs& programs, RaceGroup& group) {
  Field field(programs, group);
  field.alone();
  field.peers();
  field.engine_stages();
  if (group.model.at("kind") == "gpt") {
    field.engine(1, ", native", {{"reduction", "native"}});
    field.engine(2, ", native", {{"reduction", "native"}});
    field.engine(2, ", exact", {{"reduction", "exact"}});
    const json waits = {{"zero_optimization", {{"overlap_comm", false}}}};
    for (const int stage : {2, 3}) field.engine(stage, ", no overlap", waits);
    field.engine(3, ", paged", paged(4'000'000));
  }
}

std::vector<RaceGroup> targets(const Programs& programs) {
  std::vector<RaceGroup> groups = {
      group_of("0.17 M", gpt(10, 16, 2, 128, 4096), 11, 10),
      group_of("5.3 M", gpt(4, 256, 8, 128, 4096), 13, 3),
      group_of("29.5 M", gpt(8, 512, 8, 128, 4096), 7, 2),
      group_of("1,000 tensors", dots(1000, 16), 11, 10),
  };
  for (auto& group : groups) everyone(programs, group);
  groups[2].at_once = 7;  // about a gigabyte a rank
  return groups;
}

std::vector<RaceGroup> modes(const Programs& programs) {
  std::vector<RaceGroup> groups;
  const json small = gpt(2, 64, 4, 64, 512);
  for (const int world : {1, 2, 4}) {
    auto group = group_of("small, fp32, ranks " + std::to_string(world), small, 9, 6);
    group.world = world;
    Field field(programs, group);
    field.alone();
    field.peers(world > 1);
    field.engine_stages();
    field.engine_stages(", native", {{"reduction", "native"}});
    field.engine_stages(", exact", {{"reduction", "exact"}});
    groups.push_back(group);
  }
  auto group = group_of("small, bf16, ranks 2", small, 9, 4);
  group.bf16 = true;
  Field field(programs, group);
  field.alone();
  field.peers();
  const json bf16 = {{"bf16", {{"enabled", true}}}};
  field.engine_stages(", bf16", bf16);
  const json low = {{"bf16",
                     {{"enabled", true},
                      {"bf16_master_weights_and_grads", true},
                      {"bf16_optimizer_states", true}}}};
  for (const int stage : {2, 3}) field.engine(stage, ", bf16 states", low);
  groups.push_back(group);
  return groups;
}

// Heats that differ in one number; their names are "<series> <number>".
std::vector<RaceGroup> scaling(const Programs& programs) {
  std::vector<RaceGroup> groups;
  const auto add = [&](const std::string& name, const json& model, int rounds, int steps, int world,
                       int64_t accumulation, const json& more) {
    auto group = group_of(name, model, rounds, steps);
    group.world = world;
    group.accumulation = accumulation;
    Field field(programs, group);
    field.alone();
    field.peers(false);
    field.engine_stages("", more);
    groups.push_back(group);
  };
  const json none = json::object(), small = gpt(2, 64, 4, 64, 512),
             medium = gpt(2, 128, 4, 64, 1024);
  for (const auto& [layers, dim] : {std::pair{2, 64}, {2, 128}, {4, 192}, {4, 256}})
    add("model dim " + std::to_string(dim), gpt(layers, dim, 4, 64, 1024), 6, 4, 2, 1, none);
  for (const int world : {1, 2, 3, 4, 8})
    add("ranks " + std::to_string(world), small, 6, 4, world, 1, none);
  for (const int accumulation : {1, 2, 4, 8})
    add("accumulation " + std::to_string(accumulation), small, 6, 3, 2, accumulation, none);
  for (const int count : {10, 100, 1'000, 10'000})
    add("parameters " + std::to_string(count), dots(count, 160'000 / count), 6,
        count < 10'000 ? 10 : 2, 2, 1, none);
  for (const int64_t bucket : {10'000, 100'000, 1'000'000})
    add("bucket " + std::to_string(bucket), medium, 6, 4, 2, 1,
        {{"zero_optimization",
          {{"reduce_bucket_size", bucket}, {"allgather_bucket_size", bucket}}}});
  return groups;
}

// Few contestants, so that several lives are affordable.
std::vector<RaceGroup> step(const Programs& programs) {
  std::vector<RaceGroup> groups = {group_of("5.3 M", gpt(4, 256, 8, 128, 4096), 5, 3),
                                   group_of("29.5 M", gpt(8, 512, 8, 128, 4096), 4, 2),
                                   group_of("5.3 M, 4 ranks", gpt(4, 256, 8, 128, 4096), 4, 3)};
  groups[2].world = 4;
  for (auto& group : groups) {
    group.lives = 7;
    Field field(programs, group);
    field.alone();
    field.ddp();
    field.engine_stages();
  }
  return groups;
}

std::vector<RaceGroup> python(const Programs& programs) {
  std::vector<RaceGroup> groups;
  const auto add = [&](const std::string& name, const json& model, int rounds, int steps) {
    for (int stage = 0; stage <= 3; ++stage) {
      auto group = group_of(name + ", stage " + std::to_string(stage), model, rounds, steps);
      Field(programs, group).from_python(stage);
      groups.push_back(group);
    }
  };
  add("5.3 M", gpt(4, 256, 8, 128, 4096), 13, 3);
  add("29.5 M", gpt(8, 512, 8, 128, 4096), 7, 2);
  add("1,000 tensors", dots(1000, 16), 11, 10);
  return groups;
}

std::vector<RaceGroup> smoke(const Programs& programs) {
  std::vector<RaceGroup> groups = {group_of("small", gpt(2, 64, 4, 64, 512), 3, 2),
                                   group_of("100 tensors", dots(100, 16), 3, 2)};
  for (auto& group : groups) everyone(programs, group);
  return groups;
}

// A part of a name has commas and spaces, so it goes first.
std::vector<RaceGroup> filtered(std::vector<RaceGroup> groups, const std::string& filter) {
  const auto has_it = [&](const RaceGroup& group) {
    return group.name.find(filter) != std::string::npos;
  };
  if (std::any_of(groups.begin(), groups.end(), has_it))
    std::erase_if(groups, std::not_fn(has_it));
  else
    std::erase_if(groups, [words = conformance::Filter(filter)](const RaceGroup& group) {
      return !words.matches({group.name});
    });
  return groups;
}

}  // namespace

json gpt(int layers, int dim, int heads, int context, int vocabulary) {
  return {{"kind", "gpt"},  {"layers", layers},   {"dim", dim},
          {"heads", heads}, {"context", context}, {"vocabulary", vocabulary}};
}

json engine_config(int stage, int64_t batch, int64_t accumulation, const json& more) {
  json config = {
      {"train_micro_batch_size_per_gpu", batch},
      {"gradient_accumulation_steps", accumulation},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", 1e-3}, {"betas", {0.9, 0.999}}, {"eps", 1e-8}, {"weight_decay", 0.01}}}}},
      {"zero_optimization", {{"stage", stage}}}};
  config.merge_patch(more);
  return config;
}

Contestant engine_contestant(const std::string& name, const Programs& programs,
                             const json& config) {
  return {name,
          {programs.worker},
          {{"work", "engine"}, {"config", config.dump()}},
          /*is_ours=*/true,
          /*is_alone=*/false};
}

std::vector<RaceGroup> make_suite(const std::string& name, const Programs& programs,
                                  const SuiteOptions& options) {
  std::vector<RaceGroup> all;
  const auto add = [&](const std::string& suite, std::vector<RaceGroup> groups) {
    const bool is_of_all = suite == "targets" || suite == "modes" || suite == "scaling";
    if (name == suite || (name == "all" && is_of_all))
      all.insert(all.end(), groups.begin(), groups.end());
  };
  add("targets", targets(programs));
  add("modes", modes(programs));
  add("scaling", scaling(programs));
  add("smoke", smoke(programs));
  add("python", python(programs));
  add("step", step(programs));
  if (all.empty())
    throw std::runtime_error(
        "[race] expected all, targets, modes, scaling, smoke, python or step, got " + name + ".");
  for (auto& group : all) {
    if (options.rounds > 0) group.rounds = options.rounds;
    if (options.lives > 0) group.lives = options.lives;
  }
  return filtered(std::move(all), options.filter);
}

}  // namespace equigrad::perf
