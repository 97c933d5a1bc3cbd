// Subject: a model that is checked, as one process has it, and its passes.
//
//   class MySubject : public Subject { parameters(), buffers(), forward(which) }
//
// What a Subject gives is what the engine and the twin are made of: leaves under the names of the
// model, the modules that own them, buffers, and the loss of any pass of any rank.
//
// Invariants: parameters() and modules() are the same before and after an engine is made of them;
// forward() reads its batch from Which alone, so that equal passes of equal weights, buffers and
// generators give equal numbers. Torch's generators, the CPU's and that of Which::device, have been
// set to Which::seed before it.
// Shapes: those of the model.   Units: steps, ranks and micro-batches count from 0.
// Errors: those of the model.
// Depends on: engine/engine.hpp, user_model.hpp, cases/case_model.hpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/check/user_model.hpp"
#include "engine/api/engine_types.hpp"
#include "engine/engine.hpp"

namespace equigrad {

namespace conformance {

class Subject {
 public:
  virtual ~Subject() = default;
  // Moves parameters and buffers there; parameters stay the same tensors.
  virtual void move_to(at::Device device) = 0;
  // In order of registration, a tied one under every name that it has.
  virtual std::vector<NamedParameter> parameters() = 0;
  // As initialize() takes them; none: those that the parameters' names tell of.
  virtual std::vector<layout::ModuleEntry> modules() { return {}; }
  // As they are now: a model may replace one.
  virtual std::vector<std::pair<std::string, at::Tensor>> buffers() = 0;
  virtual Forward forward(const Which& which) = 0;
  virtual std::unique_ptr<Engine> make_engine(const std::string& config,
                                              std::shared_ptr<comm::Communicator> group);
};

// Called with torch's CPU generator set to the seed of the check.
using MakeSubject = std::function<std::unique_ptr<Subject>()>;

// Any module, and its loss or (output, gradient).
using ModuleForward = std::function<Forward(torch::nn::Module& module, const Which& which)>;
std::unique_ptr<Subject> subject_of(std::shared_ptr<torch::nn::Module> module,
                                    ModuleForward forward);
MakeSubject subject_maker(UserModel model);

// Sets torch's generators, makes the subject, and moves it to where this process has its models.
std::unique_ptr<Subject> make_seeded(const MakeSubject& make, uint64_t seed);
void set_generator(uint64_t seed);

}  // namespace conformance
}  // namespace equigrad
