#include "conformance/generator/workload.hpp"

#include <algorithm>

#include "engine/error.hpp"

namespace equigrad::conformance {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkloadTensor, name, sizes, role, layout, dtype, values, hook,
                                   second_name, group)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkloadCore, tensor, sequence, batch, vocabulary, context,
                                   features, hidden, heads, key_heads, width, layers, is_tied,
                                   has_qkv_bias, has_padding, has_spare, loss, labels, frozen)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkloadGroup, lr, weight_decay)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PassEvent, what, step, rank, micro_batch, tensor, element)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RateEvent, step, lr)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HarmlessEvent, what, step, micro_batch)

const std::map<std::string, std::vector<std::string>>& case_words() {
  static const std::map<std::string, std::vector<std::string>> words = {
      {"way in", {"module", "groups"}},
      {"tensor role",
       {"linear", "bias", "convolution", "embedding", "term", "penalty", "sometimes", "one_rank",
        "recomputed", "unused", "frozen", "buffer"}},
      {"tensor layout", {"contiguous", "transposed", "channels_last", "sliced"}},
      {"tensor type", {"float", "int64", "uint8"}},
      {"tensor values", {"usual", "zeros", "negative_zeros", "subnormal", "nan"}},
      {"hook", {"none", "observes", "halves", "keeps", "keeps_alias", "replaces"}},
      {"core loss", {"split", "whole"}},
      {"core labels", {"all", "some", "late"}},
      {"core frozen", {"none", "position", "norm", "qkv", "token", "block0"}},
      {"pass", {"twice", "undivided", "overflow"}},
      {"harmless event",
       {"cancelled", "evaluated", "thrown", "thrown_alone", "asked", "read", "bystander",
        "together", "crowd"}}};
  return words;
}

nlohmann::json to_json(const Workload& workload) {
  const auto& core = workload.core;
  return {{"seed", workload.seed},
          {"world", workload.world},
          {"core", core ? nlohmann::json(*core) : nlohmann::json()},
          {"accumulation", workload.accumulation},
          {"steps", workload.steps},
          {"tensors", workload.tensors},
          {"groups", workload.groups},
          {"passes", workload.passes},
          {"rates", workload.rates},
          {"config", workload.config}};
}

nlohmann::json to_json(const GeneratedCase& one) {
  const auto& how = one.execution;
  return {{"workload", to_json(one.workload)},
          {"execution",
           {{"stage", how.stage},
            {"seed", how.seed},
            {"adversary", how.adversary},
            {"way_in", how.way_in},
            {"resumed_before", how.resumed_before},
            {"events", how.events},
            {"knobs", how.knobs}}}};
}

namespace {

void expect_between(int64_t least, int64_t most, int64_t got, const char* what) {
  if (got < least || got > most)
    throw Error("generated case", std::string("expected ") + what + " from " +
                                      std::to_string(least) + " to " + std::to_string(most) +
                                      ", got " + std::to_string(got) +
                                      ". Take a file that a run has written.");
}

void expect_whole(const GeneratedCase& one) {
  constexpr int64_t kMany = int64_t{1} << 30;
  expect_between(1, kGeneratedRanks, one.workload.world, "ranks");
  expect_between(1, kMany, one.workload.accumulation, "micro-batches");
  expect_between(1, kMany, one.workload.steps, "steps");
  const bool has_core = one.workload.core.has_value();
  expect_between(has_core ? 0 : 1, kMany, static_cast<int64_t>(one.workload.tensors.size()),
                 "tensors");
  expect_between(0, one.workload.tensor_ranks() > 1 ? 2 : 3, one.execution.stage, "a stage");
  expect_between(-1, one.workload.steps - 1, one.execution.resumed_before, "a step, or -1,");
}

void expect_divided(int64_t size, int64_t by, const char* what) {
  if (size >= 1 && by >= 1 && size % by == 0) return;
  throw Error("generated case", std::string("expected ") + what + " that " + std::to_string(by) +
                                    " divides, got " + std::to_string(size) +
                                    ". Take a file that a run has written.");
}

void expect_core(const WorkloadCore& core, int world) {
  const int64_t tensor = core.tensor, sequence = core.sequence;
  expect_divided(world, tensor * sequence, "ranks");
  expect_divided(core.vocabulary, tensor, "entries of a vocabulary");
  expect_divided(core.hidden, tensor, "hidden features");
  expect_divided(core.key_heads, tensor, "key/value heads");
  expect_divided(core.heads, core.key_heads, "query heads");
  expect_divided(core.heads / tensor, sequence, "query heads of a tensor rank");
  expect_divided(core.context, sequence, "positions");
  const int64_t keys = core.key_heads / tensor;
  expect_divided(std::max(keys, sequence), std::min(keys, sequence), "key/value heads or ranks");
  for (const int64_t size : {core.batch, core.features, core.width, core.layers})
    expect_between(1, int64_t{1} << 30, size, "a size of the core");
  expect_between(2, int64_t{1} << 30, core.context, "positions");
}

void expect_word(const std::string& of, const std::string& got) {
  const auto& words = case_words().at(of);
  if (std::find(words.begin(), words.end(), got) != words.end()) return;
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : ", ") + word;
  throw Error("generated case", "expected a " + of + " of " + all + ", got \"" + got +
                                    "\". Take a file of this version.");
}

void expect_known(const GeneratedCase& one) {
  const auto& what = one.workload;
  for (const auto& tensor : what.tensors) {
    expect_word("tensor role", tensor.role);
    expect_word("tensor layout", tensor.layout);
    expect_word("tensor type", tensor.dtype);
    expect_word("tensor values", tensor.values);
    expect_word("hook", tensor.hook);
    expect_between(0, static_cast<int64_t>(what.groups.size()) - 1, tensor.group, "a group");
  }
  if (what.core) {
    expect_core(*what.core, what.world);
    expect_word("core loss", what.core->loss);
    expect_word("core labels", what.core->labels);
    expect_word("core frozen", what.core->frozen);
  }
  for (const auto& event : what.passes) expect_word("pass", event.what);
  for (const auto& event : one.execution.events) expect_word("harmless event", event.what);
  expect_word("way in", one.execution.way_in);
}

}  // namespace

GeneratedCase generated_case(const nlohmann::json& file) {
  try {
    const auto& what = file.at("workload");
    const auto& how = file.at("execution");
    GeneratedCase one;
    one.workload = {.seed = what.at("seed"),
                    .world = what.at("world"),
                    .accumulation = what.at("accumulation"),
                    .steps = what.at("steps"),
                    .tensors = what.at("tensors"),
                    .groups = what.at("groups"),
                    .passes = what.at("passes"),
                    .rates = what.at("rates"),
                    .config = what.at("config")};
    one.execution = {.stage = how.at("stage"),
                     .seed = how.at("seed"),
                     .adversary = how.at("adversary"),
                     .way_in = how.at("way_in"),
                     .resumed_before = how.value("resumed_before", -1),
                     .events = how.at("events"),
                     .knobs = how.at("knobs")};
    if (const auto core = what.value("core", nlohmann::json()); !core.is_null())
      one.workload.core = core.get<WorkloadCore>();
    expect_whole(one);
    expect_known(one);
    return one;
  } catch (const nlohmann::json::exception& error) {
    throw Error("generated case",
                "expected the file of a generated case, with \"workload\" and \"execution\", got " +
                    std::string(error.what()) + ". Take one that a run has written.");
  }
}

nlohmann::json engine_config(const GeneratedCase& one, double threshold) {
  auto config = one.workload.config;
  config.merge_patch(one.execution.knobs);
  // The default is left out now and then.
  if (one.execution.stage != 0 || one.execution.seed % 2 == 0)
    config["zero_optimization"]["stage"] = one.execution.stage;
  if (config.contains("gradient_clipping") && config["gradient_clipping"] == "half")
    config["gradient_clipping"] = threshold;
  return config;
}

}  // namespace equigrad::conformance
