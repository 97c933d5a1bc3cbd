#include "engine/parallel/plan_decisions.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>

#include "engine/config/pattern.hpp"
#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

constexpr const char* kWriteSpecs =
    "Write specs for it in tensor_parallel.partition_config.layer_specs.";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_for(const LayerSpec& spec, const std::string& model_type) {
  return spec.model_types.empty() ||
         (!model_type.empty() &&
          std::any_of(spec.model_types.begin(), spec.model_types.end(),
                      [&](const std::string& one) { return lower(one) == model_type; }));
}

// Whether both say the same of a parameter.
bool agree(const LayerSpec& a, const LayerSpec& b) {
  return a.type == b.type && a.shape == b.shape && a.partition_dim == b.partition_dim &&
         a.gather_output == b.gather_output && a.grad_allreduce == b.grad_allreduce;
}

std::string name_of_spec(std::size_t index) { return "layer_specs[" + std::to_string(index) + "]"; }

// A weight that a cut could be meant for: matrices; others only ever stay whole.
bool is_cuttable(const Candidate& candidate) { return candidate.shape.size() == 2; }

// `spec` of the caller names the module.
void take_spec(const PlanInput& input, std::size_t module, std::size_t index,
               std::vector<Decision>& decisions) {
  const auto& specs = input.config.partition_config->layer_specs;
  const Candidate& candidate = input.candidates[module];
  const LayerSpec& spec = specs[index];
  Decision& decision = decisions[module];
  if (decision.spec != nullptr) {
    if (agree(*decision.spec, spec)) return;
    throw Error(kTensorPlan, candidate.name + ": expected one spec, got two that disagree, " +
                                 decision.reason + " and " + name_of_spec(index) +
                                 ". Narrow the pattern of one of them.");
  }
  const bool is_skip = spec.type == LayerSpec::Type::Skip;
  if (!is_skip && candidate.kind == ModuleKind::Other)
    throw Error(kTensorPlan, candidate.name +
                                 ": expected a linear or an embedding, got a module of another "
                                 "kind, which " +
                                 name_of_spec(index) +
                                 " would split. Exclude it from the pattern.");
  const bool is_embedding = candidate.kind == ModuleKind::Embedding;
  decision = {.placement = is_skip                                ? Placement::Replicated
                           : spec.type == LayerSpec::Type::Column ? Placement::Column
                           : is_embedding                         ? Placement::Vocabulary
                                                                  : Placement::Row,
              .packing = Packing::Plain,
              .spec = &spec,
              .gathers_output = spec.gather_output,
              .takes_whole_input = false,
              .sums_gradient = spec.grad_allreduce,
              .reason = name_of_spec(index)};
}

void decide_by_specs(const PlanInput& input, std::vector<Decision>& decisions) {
  const auto& specs = input.config.partition_config->layer_specs;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!is_for(specs[i], input.model.type)) continue;
    std::set<std::size_t> named;
    for (const std::string& text : specs[i].patterns) {
      const Pattern pattern(text);
      bool names_one = false;
      for (std::size_t module = 0; module < input.candidates.size(); ++module) {
        const Candidate& candidate = input.candidates[module];
        const bool counts = specs[i].type == LayerSpec::Type::Skip || is_cuttable(candidate);
        if (!counts || !pattern.matches(candidate.name + ".weight")) continue;
        names_one = true;
        named.insert(module);
      }
      if (!names_one)
        throw Error(kTensorPlan, name_of_spec(i) +
                                     ": expected a pattern that matches a parameter, "
                                     "got \"" +
                                     text + "\". Parameters have names such as \"" +
                                     (input.candidates.empty() ? std::string("layers.0.fc1")
                                                               : input.candidates.front().name) +
                                     ".weight\"; correct the pattern, or give model_types.");
    }
    for (const std::size_t module : named) take_spec(input, module, i, decisions);
  }
}

void decide_by_preset(const PlanInput& input, std::vector<Decision>& decisions) {
  const std::string preset = lower(input.config.preset_model);
  const auto rules = preset_rules(preset);
  if (rules.empty())
    throw Error(kTensorPlan,
                "expected the name of a preset, got \"" + preset + "\". " + kWriteSpecs);
  bool names_one = false;
  for (std::size_t module = 0; module < input.candidates.size(); ++module) {
    const Candidate& candidate = input.candidates[module];
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& one) {
      return has_ending(candidate.name, one.ending);
    });
    if (!is_linear(candidate) || rule == rules.end()) continue;
    names_one = true;
    if (decisions[module].reason.empty())
      decisions[module] = {.placement = rule->placement,
                           .packing = rule->packing,
                           .spec = nullptr,
                           .gathers_output = false,
                           .takes_whole_input = false,
                           .sums_gradient = false,
                           .reason = "preset " + preset};
  }
  if (!names_one)
    throw Error(kTensorPlan,
                "expected a model that the preset \"" + preset + "\" fits, got one " +
                    (input.model.type.empty() ? std::string("without any of its modules")
                                              : "of the type \"" + input.model.type + "\"") +
                    ". Name its family at preset_model, or write specs in "
                    "partition_config.");
}

// Blocks that have a row, and no convolution.
std::set<std::string> blocks_to_split(const PlanInput& input) {
  std::set<std::string> blocks, convolutional;
  for (const Candidate& candidate : input.candidates) {
    const std::string block = block_of(candidate.name);
    if (block.empty()) continue;
    if (candidate.shape.size() > 2) convolutional.insert(block);
    if (is_linear(candidate) &&
        heuristic_rule(candidate.name, input.model.type)->placement == Placement::Row)
      blocks.insert(block);
  }
  for (const std::string& block : convolutional) blocks.erase(block);
  return blocks;
}

void decide_by_names(const PlanInput& input, std::vector<Decision>& decisions) {
  const std::set<std::string> blocks = blocks_to_split(input);
  const char* why_not = why_not_by_names(input.model.type);
  if (!blocks.empty() && why_not != nullptr)
    throw Error(kTensorPlan,
                "expected a model that can be split by the names of its modules, got "
                "the type \"" +
                    input.model.type + "\": " + why_not + ". " + kWriteSpecs);
  for (std::size_t module = 0; module < input.candidates.size(); ++module) {
    const Candidate& candidate = input.candidates[module];
    const bool is_bias_of_heads = candidate.kind == ModuleKind::Embedding &&
                                  has_ending(candidate.name, "relative_attention_bias");
    if (!blocks.contains(block_of(candidate.name))) continue;
    if (!is_linear(candidate) && !is_bias_of_heads) continue;
    const Rule* rule = heuristic_rule(candidate.name, input.model.type);
    Decision& decision = decisions[module];
    decision.placement = rule->placement;
    decision.packing = rule->packing;
    decision.reason = std::string("heuristics: ") + rule->ending;
    if (rule->placement == Placement::Column && rule->packing == Packing::Plain &&
        holds_queries_keys_values(candidate.name))
      decision.packing = packing_of_heads(input.model.type);
  }
}

// The styles of a plan that is followed are all known: half of one would split one of a pair.
void check_styles(const ModelFacts& model) {
  for (const auto& [pattern, style] : model.plan)
    if (style_of(style) == nullptr)
      throw Error(kTensorPlan, "expected styles that are known in the model's own plan (" +
                                   known_styles() + "), got \"" + style + "\" for \"" + pattern +
                                   "\". " + kWriteSpecs);
}

bool mean_the_same(const Style& a, const Style& b) {
  return a.placement == b.placement && a.gathers_output == b.gathers_output &&
         a.takes_whole_input == b.takes_whole_input && a.sums_gradient == b.sums_gradient;
}

// Of the model's own plan: what it says of a module; null: nothing.
const Style* own_style(const ModelFacts& model, const Candidate& candidate) {
  const Style* found = nullptr;
  for (const auto& [pattern, name] : model.plan) {
    if (!is_named_by(pattern, candidate.name)) continue;
    const Style* style = style_of(name);
    if (found != nullptr && !mean_the_same(*found, *style))
      throw Error(kTensorPlan, candidate.name +
                                   ": expected one style in the model's own plan, got \"" +
                                   found->name + "\" and \"" + style->name + "\". " + kWriteSpecs);
    found = style;
  }
  return found;
}

void check_can_have(const Style& style, const Candidate& candidate) {
  const bool is_embedding = candidate.kind == ModuleKind::Embedding;
  const bool fits =
      style.placement == Placement::Replicated ||
      (style.placement == Placement::Vocabulary ? is_embedding : is_linear(candidate));
  if (!fits)
    throw Error(kTensorPlan,
                candidate.name + ": expected " +
                    (style.placement == Placement::Vocabulary ? "an embedding" : "a linear") +
                    " for \"" + style.name +
                    "\" in the model's own plan, got a module "
                    "of another kind. " +
                    kWriteSpecs);
}

void decide_by_model(const PlanInput& input, std::vector<Decision>& decisions) {
  check_styles(input.model);
  for (std::size_t module = 0; module < input.candidates.size(); ++module) {
    const Candidate& candidate = input.candidates[module];
    const Style* style = own_style(input.model, candidate);
    if (style == nullptr) continue;
    check_can_have(*style, candidate);
    const bool is_column = style->placement == Placement::Column && !style->gathers_output;
    Packing packing = Packing::Plain;
    if (is_column) packing = heuristic_rule(candidate.name, input.model.type)->packing;
    if (is_column && packing == Packing::Plain && holds_queries_keys_values(candidate.name))
      packing = packing_of_heads(input.model.type);
    decisions[module] = {.placement = style->placement,
                         .packing = packing,
                         .spec = nullptr,
                         .gathers_output = style->gathers_output,
                         .takes_whole_input = style->takes_whole_input,
                         .sums_gradient = style->sums_gradient,
                         .reason = std::string("the model's plan: ") + style->name};
  }
}

bool splits_nothing(const std::vector<Decision>& decisions) {
  return std::all_of(decisions.begin(), decisions.end(),
                     [](const Decision& one) { return one.placement == Placement::Replicated; });
}

void check_strict(const PlanInput& input, const std::vector<Decision>& decisions) {
  std::vector<std::string> left;
  for (std::size_t i = 0; i < decisions.size(); ++i)
    if (is_linear(input.candidates[i]) && decisions[i].reason.empty())
      left.push_back(input.candidates[i].name);
  if (!left.empty())
    throw Error(kTensorPlan,
                "expected a spec for every linear, as strict_mode says, got none for " +
                    listed(left) + ". Add a spec; \"skip\" leaves a module whole.");
}

}  // namespace

std::vector<Decision> decide(const PlanInput& input) {
  std::vector<Decision> decisions(input.candidates.size());
  const auto& partition = input.config.partition_config;
  const bool has_preset = !input.config.preset_model.empty();
  if (partition) decide_by_specs(input, decisions);
  if (has_preset && (!partition || partition->use_default_specs))
    decide_by_preset(input, decisions);
  if (!partition && !has_preset) {
    decide_by_names(input, decisions);
    if (splits_nothing(decisions)) decide_by_model(input, decisions);
  }
  if (partition && partition->strict_mode) check_strict(input, decisions);
  for (std::size_t i = 0; i < decisions.size(); ++i)
    if (decisions[i].placement == Placement::Row && is_head(input.candidates[i], input.config))
      decisions[i].takes_whole_input = true;
  return decisions;
}

std::string block_of(const std::string& name) {
  std::size_t begin = 0;
  while (begin < name.size()) {
    const std::size_t end = name.find('.', begin);
    if (end == std::string::npos) return "";
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    if (end > begin && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                   name.begin() + static_cast<std::ptrdiff_t>(end), is_digit))
      return name.substr(0, end);
    begin = end + 1;
  }
  return "";
}

bool is_linear(const Candidate& candidate) {
  return candidate.kind == ModuleKind::Linear || candidate.kind == ModuleKind::Conv1D;
}

bool is_head(const Candidate& candidate, const TensorParallelConfig& config) {
  const auto patterns = config.partition_config.value_or(PartitionConfig{}).lm_head_patterns;
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& one) { return has_ending(candidate.name, one); });
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  return text +
         (names.size() > kMost ? " and " + std::to_string(names.size() - kMost) + " more" : "");
}

}  // namespace equigrad::parallel
