// ReferencePlayer: a program for every rank in one process, in plain torch calls on a Stepper, and
// what each call must leave behind.
//
// Invariants: a call is played for rank 0, then 1, ...; a pass that throws gives nothing.
// Shapes: Seen holds whole parameters, numbers as [] doubles; undefined is a value too.
// Errors: those of the reference for a program that is not legal.
// Depends on: settings.hpp, pass.hpp, reference/stepper.hpp.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "property_tests/programs/pass.hpp"
#include "property_tests/programs/settings.hpp"

namespace equigrad::property_tests::programs {

using Seen = std::map<std::string, at::Tensor>;

inline at::Tensor number(double value) { return at::full({}, value, at::kDouble); }

class ReferencePlayer {
 public:
  // `rank` is the one whose returned values are seen.
  ReferencePlayer(const json& setting, int rank)
      : setting_(setting),
        rank_(rank),
        world_(setting.at("world")),
        accumulation_(setting.at("accumulation")),
        model_(std::make_shared<SmallModel>(setting)),
        stepper_(recipe_of(setting), model_),
        kept_(static_cast<std::size_t>(world_)) {}

  Seen play(const json& call);

 private:
  Kept run(const json& call, int rank, int branch) {
    return model_->run(batch_of(setting_, rank, call.at("batch")), branch);
  }
  template <class Visit>
  void each_rank(Visit visit) {
    for (int rank = 0; rank < world_; ++rank) visit(rank);
  }

  void forward(const json& call) {
    each_rank([&](int rank) {
      kept_[static_cast<std::size_t>(rank)][call.at("slot")] =
          run(call, rank, branch_of(call, rank));
    });
  }

  void pass(int rank, const Roots& roots, const PassOptions& options);
  void backward(const json& call);
  void throwing(const json& call);
  void twice(const json& call);
  void discard() {
    each_rank([&](int rank) { stepper_.discard(rank); });
  }

  void step(const json& call);
  void end() {
    for (const auto& name : trained(setting_))
      seen_["so far " + name] = stepper_.get("gradient", name);
    see_everything();
  }

  void set(const json& call);
  void look(const json& call);
  void grad(const json& call);
  void see_parameter(const std::string& name) {
    seen_["parameter " + name] = model_->named_parameters()[name].detach().clone();
  }

  void see_everything();
  void see_numbers();

  const json& setting_;
  int rank_, world_;
  int64_t accumulation_;
  std::shared_ptr<SmallModel> model_;
  reference::Stepper stepper_;
  std::vector<std::map<int, Kept>> kept_;  // by rank and slot
  Seen seen_;
  json boundary_;
  bool applied_ = false;
  int64_t micro_steps_ = 0, global_steps_ = 0, skipped_steps_ = 0, in_window_ = 0;
  std::optional<double> norm_;
};

}  // namespace equigrad::property_tests::programs
