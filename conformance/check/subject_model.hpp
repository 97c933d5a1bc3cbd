// SubjectModel: a Subject as the rest of the harness takes models: as the CaseModel of a twin, all
// ranks in one process, and as the RankModel of one rank of an engine.
//
// Invariants: both sides set the generator from (seed, step, rank, micro-batch) before each
// forward, so that dropout is the same. Of the twin's ranks each has buffers of its own, which are
// swapped in before its passes and copied out after them. The model that the reference trains is a
// shell with the subject's own tensors under their names.
// Shapes: those of the subject.   Units: steps, ranks and micro-batches count from 0.
// Errors: those of the subject; equigrad::Error for a call style that its passes do not have.
// Depends on: subject.hpp, cases/case_model.hpp, on_rank/rank_model.hpp,
// reference/models/model.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "conformance/cases/case_model.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/check/subject.hpp"
#include "conformance/on_rank/rank_model.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

// What the passes of a check depend on, beside the subject.
struct PassSetting {
  uint64_t seed = 1;
  int world = 1;
  std::optional<OverflowingBatch> overflowing = std::nullopt;  // its loss is kOverflowFactor times
                                                               // as large
};

// The forward of a pass, with the generator set.
Forward seeded_forward(Subject& subject, const PassSetting& setting, const Pass& pass,
                       at::ScalarType dtype);
// Copies, in the types that a twin's file knows; what it does not know (complex numbers) is left
// out.
reference::TensorMap copy_buffers(Subject& subject);

std::shared_ptr<reference::Model> shell_of(Subject& subject);
MakeCaseModel case_model_of(const MakeSubject& make, const PassSetting& setting);
// `is_scaled`: the precision scales the loss.
struct RankPasses {
  Style style = Style::EngineBackward;
  at::ScalarType dtype = at::kFloat;
  bool is_scaled = false;
};
std::unique_ptr<RankModel> rank_model_of(std::unique_ptr<Subject> subject,
                                         const PassSetting& setting, const RankPasses& passes);

}  // namespace equigrad::conformance
