#include "engine/parallel/tensor_plan.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "engine/error.hpp"
#include "engine/parallel/plan_cuts.hpp"
#include "engine/parallel/plan_decisions.hpp"

namespace equigrad::parallel {
namespace {

using Decisions = std::vector<Decision>;
using Cuts = std::vector<std::optional<Split>>;

constexpr const char* kPlacements[] = {"replicated", "column", "row", "vocabulary"};

const char* word_of(Placement placement) { return kPlacements[static_cast<int>(placement)]; }

// A matrix for what can be split, and each name once.
void check_candidates(const std::vector<Candidate>& candidates) {
  std::set<std::string> names;
  for (const Candidate& candidate : candidates) {
    if (!names.insert(candidate.name).second)
      throw Error(kTensorPlan, "expected every module once, got " + candidate.name +
                                   " twice. Give each the name that it is registered by.");
    if (candidate.kind != ModuleKind::Other && candidate.shape.size() != 2)
      throw Error(kTensorPlan, candidate.name + ": expected a weight of two dimensions, got " +
                                   std::to_string(candidate.shape.size()) +
                                   ". List the module as of another kind.");
  }
}

void check_head_is_free(const Decision& decision, const Candidate& candidate) {
  if (decision.spec != nullptr)
    throw Error(kTensorPlan, candidate.name +
                                 ": expected vocab_parallel_lm_head or a spec, got "
                                 "both, " +
                                 decision.reason + ". Drop one of them.");
}

// vocab_parallel_lm_head: the head's outputs, and with them an embedding of the same weight.
void split_vocabulary(const PlanInput& input, Decisions& decisions) {
  std::vector<std::string> heads;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const Candidate& candidate = input.candidates[i];
    if (candidate.kind != ModuleKind::Linear || !is_head(candidate, input.config)) continue;
    heads.push_back(candidate.name);
    check_head_is_free(decisions[i], candidate);
    decisions[i] = {};
    decisions[i].placement = Placement::Column;
    decisions[i].reason = "vocab_parallel_lm_head";
  }
  if (heads.size() != 1)
    throw Error(kTensorPlan,
                "expected one linear that is the output head, for "
                "vocab_parallel_lm_head, got " +
                    (heads.empty() ? std::string("none") : listed(heads)) +
                    ". Name it at partition_config.lm_head_patterns, or drop "
                    "vocab_parallel_lm_head.");
}

// What a head and an embedding of one weight do where a rule names only one of them.
void follow(const Candidate& one, const Decision& of_one, const Candidate& other,
            Decision& of_other) {
  const bool by_entries = of_one.placement == Placement::Vocabulary ||
                          (is_linear(one) && of_one.placement == Placement::Column);
  const bool is_embedding = other.kind == ModuleKind::Embedding;
  of_other.placement = is_embedding ? (by_entries ? Placement::Vocabulary : Placement::Column)
                                    : (by_entries ? Placement::Column : Placement::Row);
  of_other.gathers_output = of_other.placement == Placement::Column;
  of_other.takes_whole_input = of_other.placement == Placement::Row;
  of_other.reason = "shares the weight of " + one.name;
}

// Modules of one weight have one cut: an embedding follows its head, and a head its embedding.
void follow_ties(const PlanInput& input, Decisions& decisions) {
  const auto& all = input.candidates;
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < all.size(); ++j) {
      const bool is_tied = i != j && all[i].weight != nullptr && all[i].weight == all[j].weight;
      const bool is_pair =
          (all[i].kind == ModuleKind::Embedding) != (all[j].kind == ModuleKind::Embedding) &&
          all[i].kind != ModuleKind::Other && all[j].kind != ModuleKind::Other;
      if (is_tied && is_pair && decisions[i].placement != Placement::Replicated &&
          decisions[j].reason.empty())
        follow(all[i], decisions[i], all[j], decisions[j]);
    }
}

void check_ties(const PlanInput& input, const Decisions& decisions, const Cuts& cuts) {
  std::map<const void*, std::size_t> first;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const Candidate& candidate = input.candidates[i];
    if (candidate.weight == nullptr) continue;
    const std::size_t before = first.emplace(candidate.weight, i).first->second;
    if (cuts[before] == cuts[i]) continue;
    throw Error(kTensorPlan, "expected one cut of the weight that " +
                                 input.candidates[before].name + " and " + candidate.name +
                                 " share, got " + word_of(decisions[before].placement) + " and " +
                                 word_of(decisions[i].placement) +
                                 ". Split both along the same dimension, or neither.");
  }
}

// The split projection that a norm is on, beside it or packed; nothing: none.
std::optional<std::size_t> split_projection(const PlanInput& input, const Cuts& cuts,
                                            const Decisions& decisions, std::size_t norm) {
  const NormRule* rule = norm_rule(input.candidates[norm].name);
  if (rule == nullptr || input.candidates[norm].kind != ModuleKind::Other) return std::nullopt;
  const std::string beside = before_ending(input.candidates[norm].name, rule->ending);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const std::string& name = input.candidates[i].name;
    const bool is_packed = name.starts_with(beside) && holds_queries_keys_values(name);
    if ((is_packed || name == beside + rule->projection) && cuts[i] && !decisions[i].gathers_output)
      return i;
  }
  return std::nullopt;
}

// Norms on the heads of a split projection have a part of their gradient on each rank; one over all
// heads, or with a weight for each head, cannot be split.
void sum_gradients_of_norms(const PlanInput& input, const Cuts& cuts, Decisions& decisions) {
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const auto found = split_projection(input, cuts, decisions, i);
    if (!found) continue;
    const Candidate &norm = input.candidates[i], &split = input.candidates[*found];
    const bool is_over_all = norm.shape.size() != 1 || (!holds_queries_keys_values(split.name) &&
                                                        outputs(split) == norm.shape.front());
    if (is_over_all || norm_rule(norm.name)->is_one_for_each_head)
      throw Error(kTensorPlan,
                  norm.name + ": expected one norm for the outputs of each head, got " +
                      (is_over_all ? "one over all outputs of " : "one of many on ") + split.name +
                      ", which is split. Leave the attention whole with \"skip\".");
    if (decisions[i].reason.empty()) decisions[i].reason = "norm of the heads of " + split.name;
    decisions[i].sums_gradient = true;
  }
}

// ---- columns and rows go together -------------------------------------------------------------

// What a block has below one of its own modules, such as its attention.
struct Child {
  std::vector<std::size_t> columns, rows;
  bool is_of_caller = false;
};

std::string first_part(const std::string& name, const std::string& block) {
  const std::size_t begin = block.size() + 1;
  return name.substr(0, name.find('.', begin));
}

// Whether a column alone in its module makes what `row` takes.
bool is_fed(const PlanInput& input, const Cuts& cuts, std::size_t row,
            const std::map<std::string, Child>& children) {
  return std::any_of(children.begin(), children.end(), [&](const auto& one) {
    const Child& child = one.second;
    return child.rows.empty() &&
           std::any_of(child.columns.begin(), child.columns.end(), [&](std::size_t column) {
             const auto& segments = cuts[column]->segments;
             const std::int64_t wanted = inputs(input.candidates[row]);
             return outputs(input.candidates[column]) == wanted ||
                    std::find(segments.begin(), segments.end(), wanted) != segments.end();
           });
  });
}

void check_block(const PlanInput& input, const Cuts& cuts,
                 const std::map<std::string, Child>& children) {
  std::size_t lone_rows = 0;
  std::optional<std::size_t> lone_column;
  for (const auto& [name, child] : children) {
    if (child.is_of_caller) return;
    if (child.rows.empty() && !child.columns.empty()) lone_column = child.columns.front();
    if (child.columns.empty()) {
      lone_rows += child.rows.size();
      for (const std::size_t row : child.rows)
        if (!is_fed(input, cuts, row, children))
          throw Error(kTensorPlan, input.candidates[row].name +
                                       ": expected a column-parallel module before it, got none in "
                                       "its block. Write specs in partition_config.");
    }
  }
  if (lone_column && lone_rows == 0)
    throw Error(kTensorPlan, input.candidates[*lone_column].name +
                                 ": expected a row-parallel module after it, got none in its "
                                 "block. Write specs in partition_config.");
}

void check_pairs(const PlanInput& input, const Decisions& decisions, const Cuts& cuts) {
  std::map<std::string, std::map<std::string, Child>> blocks;
  std::vector<std::string> rows;
  bool has_column = false;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const Candidate& candidate = input.candidates[i];
    const bool is_row = decisions[i].placement == Placement::Row && !decisions[i].takes_whole_input;
    const bool is_column =
        decisions[i].placement == Placement::Column && !decisions[i].gathers_output;
    has_column = has_column || is_column;
    if (is_row) rows.push_back(candidate.name);
    const std::string block = block_of(candidate.name);
    if (block.empty() || !is_linear(candidate) || !(is_row || is_column)) continue;
    Child& child = blocks[block][first_part(candidate.name, block)];
    (is_row ? child.rows : child.columns).push_back(i);
    child.is_of_caller = child.is_of_caller || decisions[i].spec != nullptr;
  }
  for (const auto& [name, children] : blocks) check_block(input, cuts, children);
  if (!rows.empty() && !has_column)
    throw Error(kTensorPlan, listed(rows) +
                                 ": expected a column-parallel module before a row-parallel one, "
                                 "got none in the model. Add a spec of \"column\".");
}

ModulePlan plan_of(const Candidate& candidate, const Decision& decision,
                   const std::optional<Split>& cut) {
  return {.placement = decision.placement,
          .weight = cut,
          .has_bias = candidate.has_bias,
          .gathers_output = decision.gathers_output,
          .takes_whole_input = decision.takes_whole_input,
          .sums_gradient = decision.sums_gradient,
          .reason = decision.reason};
}

}  // namespace

std::vector<std::string> TensorPlan::split_modules() const {
  std::vector<std::string> names;
  for (const auto& [name, module] : modules)
    if (module.is_split()) names.push_back(name);
  return names;
}

TensorPlan plan_tensor_parallel(const TensorParallelConfig& config, const ModelFacts& model,
                                const std::vector<Candidate>& candidates) {
  ModelFacts facts = model;
  for (char& c : facts.type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const PlanInput input{.config = config, .model = facts, .candidates = candidates};
  check_candidates(candidates);
  Decisions decisions(candidates.size());
  Cuts cuts(candidates.size());
  if (config.size() > 1) {
    decisions = decide(input);
    if (config.vocab_parallel_lm_head) split_vocabulary(input, decisions);
    follow_ties(input, decisions);
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      if (decisions[i].placement == Placement::Replicated) continue;
      cuts[i] = cut_of(input, decisions, i);
      check_split(*cuts[i], config.size(), candidates[i].name + ".weight");
    }
    check_ties(input, decisions, cuts);
    sum_gradients_of_norms(input, cuts, decisions);
    check_pairs(input, decisions, cuts);
  }
  TensorPlan plan{.size = config.size(), .modules = {}};
  for (std::size_t i = 0; i < cuts.size(); ++i)
    plan.modules.emplace(candidates[i].name, plan_of(candidates[i], decisions[i], cuts[i]));
  return plan;
}

std::string describe(const TensorPlan& plan) {
  std::string text;
  for (const auto& [name, module] : plan.modules) {
    text += name + "  " + word_of(module.placement);
    if (module.weight) {
      text += "  [";
      for (std::size_t i = 0; i < module.weight->segments.size(); ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(module.weight->segments[i]);
      text += "] of dimension " + std::to_string(module.weight->dimension);
    }
    if (module.gathers_output) text += ", output gathered";
    if (module.sums_gradient) text += ", gradient summed";
    text += (module.reason.empty() ? "" : "  (" + module.reason + ")") + "\n";
  }
  return text;
}

}  // namespace equigrad::parallel
