// RankBackward: a forward and a backward pass of a model with its engine, in each of the four
// styles.
//
// Every call is judged by what it leaves its caller. No model of the zoo draws random numbers, so
// that its forward is judged too, by itself and with the guard around it.
//
// Where the loss is scaled, loss.backward() must be refused before anything is added up; then the
// style goes on with the scaled loss, so that the rest of a case shows whether the refusal left
// something behind.
//
// Invariants: the four styles compute the same contributions.
// Shapes: the loss is a scalar, not scaled.
// Errors: whatever the engine or the model throw; RefusalMissing for a refusal that did not come,
// or that does not name both right ways.
// Depends on: caller_state.hpp, matrix.hpp, engine/engine.hpp, reference/models/model.hpp.
#pragma once

#include <stdexcept>

#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/caller_state.hpp"
#include "engine/engine.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

class RefusalMissing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Calls loss.backward(), which an engine that scales its loss must refuse, naming both right ways.
void require_refusal(const at::Tensor& loss);

// The loss that the forward pass gave, detached.
at::Tensor rank_backward(Engine& engine, reference::Model& model, const reference::Batch& batch,
                         const CaseSpec& spec, CallerWatch& caller);
// The same, for the program of a failure, where nobody judges.
at::Tensor rank_backward(Engine& engine, reference::Model& model, const reference::Batch& batch,
                         const CaseSpec& spec);

}  // namespace equigrad::conformance
