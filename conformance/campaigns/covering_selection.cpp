#include "conformance/campaigns/covering_selection.hpp"

#include <algorithm>
#include <string>

#include "conformance/cases/covering.hpp"

namespace equigrad::conformance {
namespace {

bool is_of_contract(const std::string& id) { return id.rfind("Contract.", 0) == 0; }

CoveringSelection selection() {
  std::vector<CaseSpec> given;
  CoveringSelection made;
  for (const auto& beyond : beyond_pairs()) {
    if (is_of_contract(beyond.id))
      made.specs.push_back(contract::parse_contract_id(beyond.id));
    else
      given.push_back(parse_id(beyond.id));
  }
  const auto matrix = default_matrix();
  const auto chosen = covering_of(matrix, given);
  for (const auto& spec : matrix)
    if (std::find(chosen.begin(), chosen.end(), spec) != chosen.end()) made.cases.push_back(spec);
  return made;
}

}  // namespace

const std::vector<BeyondPairs>& beyond_pairs() {
  static const std::vector<BeyondPairs> kBeyond = {
      {"Contract.2.reentrant_checkpointing_of_reused_parameters.zero2.bf16.w2.accumulation3",
       "a parameter gets several gradients in one pass: reduction.first_part_only"},
      {"Contract.4.engines_share_a_scale.zero3.fp16.w2.accumulation3",
       "a loss scale waits for several engines: mutant.hold.left_out"},
      {"Contract.11.rate_of_every_group.zero3.fp32.w2.accumulation3",
       "groups have rates of their own, which a schedule sets: schedule.steps_per_micro_batch, "
       "first_step_at_full_rate, never_applied"},
      {"Contract.18.goes_on_with_momentum.zero1.fp32.w3.accumulation1",
       "a run is saved and loaded, whose shards are padded: checkpoint.shards_in_order_of_text, "
       "padding_shifts, padding_as_data, frozen_left_out, first_group_for_all"},
      {"Contract.18.goes_on.zero0.bf16.w2.accumulation3",
       "masters are wider than weights: checkpoint.masters_rounded, masters_not_refreshed, "
       "states_skipped_in_bf16, step_counts_dropped, second_state_is_the_first, "
       "states_of_another_parameter"},
      {"Contract.18.loss_scale_with_its_history.zero2.fp16.w2.accumulation1",
       "overflows are borne: checkpoint.loss_scale_dropped, growth_begins_anew, "
       "hysteresis_refilled, counters_dropped"},
      {"Contract.18.schedule.zero3.fp16.w2.accumulation1",
       "a schedule goes on: checkpoint.schedule_dropped"},
      {"Contract.18.layer_drop.zero1.fp32.w2.accumulation3",
       "layers are dropped: checkpoint.layer_drop_dropped"},
      {"Contract.18.buffers_and_draws.zero2.fp32.w2.accumulation1",
       "ranks have buffers and draws of their own: checkpoint.buffers_of_rank_0, "
       "draws_of_rank_0"}};
  return kBeyond;
}

bool CoveringSelection::has(const CaseSpec& spec) const {
  return std::find(cases.begin(), cases.end(), spec) != cases.end();
}

bool CoveringSelection::has(const contract::Spec& spec) const {
  return std::any_of(specs.begin(), specs.end(),
                     [id = spec.id()](const contract::Spec& one) { return one.id() == id; });
}

const CoveringSelection& covering_selection() {
  static const CoveringSelection kSelection = selection();
  return kSelection;
}

}  // namespace equigrad::conformance
