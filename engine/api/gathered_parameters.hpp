// Gathered parameters: whole parameters for the user's own code while it lives, at every stage
// (DeepSpeed: zero.GatheredParameters). engine.gather makes one.
//
//   {
//     auto whole = engine->gather({model->head->weight}, /*modifier_rank=*/0);
//     const torch::NoGradGuard no_grad;
//     if (rank == 0) model->head->weight.fill_(0.5);
//   }  // rank 0's values are every rank's: parameter, shard and master weight
//
// Invariants: while it lives the tensors hold their data on every rank, for operators and for plain
// pointers alike, and other passes may run. At its end what the modifier rank wrote, and no other
// bit, replaces parameter and master weight on every rank; optimizer state and gradients stay. It
// is a transaction: one that ends by an exception on any rank, or is refused, leaves every value as
// it was. Views and pointers must not be kept beyond it.
// Of a parameter that a tensor group splits all ranks of the mesh have the whole while it lives, in
// its shape and packing, and the layers of engine/parallel refuse to compute with it; what was
// written is cut again. The modifier rank is one of the engine's ranks, on a mesh of all of them.
// Shapes: parameters keep theirs, in the type that the model computes in.
// Errors: equigrad::Error on all ranks if one wrote that is not the modifier (without a modifier:
// any), if a rank made another call, or threw in its scope; for step() and setters of these
// parameters while it lives. end() throws; the destructor leaves the error to the engine's next
// call.
// Depends on: the C++ standard library only.
#pragma once

#include <memory>

namespace equigrad {

class GatheredParameters {
 public:
  class Scope {
   public:
    virtual ~Scope() = default;
    virtual void end() = 0;
    virtual void end_quietly(bool by_exception) noexcept = 0;
  };

  explicit GatheredParameters(std::unique_ptr<Scope> scope);
  ~GatheredParameters();
  GatheredParameters(GatheredParameters&&) noexcept = default;
  GatheredParameters& operator=(GatheredParameters&&) = delete;
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

  // As the destructor, with its error here and now. Collective, as the destructor is.
  void end();

 private:
  std::unique_ptr<Scope> scope_;
  int exceptions_;  // that were on their way when it was made
};

}  // namespace equigrad
