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

// Behind the name of what the second engine has.
inline std::string of(std::size_t which) { return which == 0 ? "" : " of the second"; }

inline at::Tensor number(double value) { return at::full({}, value, at::kDouble); }

class ReferencePlayer {
 public:
  // `rank` is the one whose returned values are seen.
  ReferencePlayer(const json& setting, int rank)
      : setting_(setting),
        rank_(rank),
        world_(setting.at("world")),
        accumulation_(setting.at("accumulation")),
        network_(setting),
        kept_(static_cast<std::size_t>(world_)),
        told_(network_.models().size()) {
    for (const auto& model : network_.models())
      steppers_.push_back(std::make_unique<reference::Stepper>(recipe_of(setting), model));
    if (setting.at("precision") == 2 && steppers_.size() == 2)
      steppers_[0]->share_loss_scale(*steppers_[1]);
  }

  Seen play(const json& call);

 private:
  Kept run(const json& call, int rank, int branch) {
    return network_.run(batch_of(setting_, rank, call.at("batch")), branch);
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
    each_rank([&](int rank) {
      for (auto& stepper : steppers_) stepper->discard(rank);
    });
  }

  void step(const json& call);
  void step_of(std::size_t which);
  void end() {
    for (std::size_t i = 0; i < steppers_.size(); ++i)
      for (const auto& name : trained(setting_))
        seen_["so far " + name + of(i)] = steppers_[i]->get("gradient", name);
    see_everything();
  }

  void set(const json& call);
  void look(const json& call);
  void grad(const json& call);
  void see_parameter(const std::string& name, std::size_t which) {
    auto& model = *network_.models()[which];
    seen_["parameter " + name + of(which)] = model.named_parameters()[name].detach().clone();
  }

  void see_everything();
  void see_numbers();

  const json& setting_;
  int rank_, world_;
  int64_t accumulation_;
  Network network_;
  std::vector<std::unique_ptr<reference::Stepper>> steppers_;
  std::vector<std::map<int, Kept>> kept_;  // by rank and slot
  Seen seen_;
  json boundary_;
  int64_t micro_steps_ = 0, in_window_ = 0;
  struct Told {  // by one engine
    bool applied = false;
    int64_t global_steps = 0, skipped_steps = 0;
    std::optional<double> norm;
  };
  std::vector<Told> told_;
};

}  // namespace equigrad::property_tests::programs
