// ReferencePlay: a program played in plain torch calls, for every rank in one process.
//
// Invariants: the ranks share one copy of each model; they take turns and meet at collective calls,
// so each sees what the others did before. Played to its end before there is an engine, nothing
// that an engine leaves behind in the process can reach it.
// Shapes/Units: those of play.hpp.
// Errors: std::logic_error for a program whose window does not end with one boundary.
// Depends on: play.hpp, contract_spec.hpp, turns.hpp, reference/stepper.hpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"
#include "conformance/contract/players/play.hpp"
#include "conformance/contract/players/turns.hpp"
#include "reference/stepper.hpp"

namespace equigrad::conformance::contract {

class ReferenceRank;

class ReferencePlay {
 public:
  ReferencePlay(const Spec& spec, uint64_t seed, const reference::Data& data);
  ~ReferencePlay();

  // Plays the next window on all ranks; its steps, one for each model, and what `rank` saw.
  std::vector<reference::StepRecord> window();
  const Seen& seen(int rank) const;

 private:
  friend class ReferenceRank;

  Spec spec_;
  Turns turns_;
  std::vector<std::unique_ptr<reference::Stepper>> steppers_;
  std::vector<std::unique_ptr<ReferenceRank>> ranks_;
  std::vector<reference::StepRecord> records_;  // of the window
  int64_t updates_ = 0;                         // that were not skipped
  at::Tensor got_;                              // at the last meeting
  std::map<std::string, at::Tensor> written_;   // by name, in the last gather
};

class ReferenceRank final : public Play {
 public:
  ReferenceRank(ReferencePlay& all, const ContractContext& context, const reference::Data& data);

  void window();
  const Seen& seen() const { return seen_; }

  reference::Model& model(std::size_t which) override { return all_.steppers_[which]->model(); }
  at::Tensor parameter(const std::string& name, std::size_t which) override;
  Engine* engine(std::size_t) override { return nullptr; }
  using Play::group;
  std::shared_ptr<comm::Communicator> group(int) override { return nullptr; }
  at::Tensor backward(const at::Tensor& loss, PassOptions options) override;
  at::Tensor scale(const at::Tensor& tensor, std::size_t which) override;
  double loss_scale(std::size_t which) override { return all_.steppers_[which]->loss_scale(); }
  void share_loss_scale(std::size_t engine, std::size_t with) override;
  void run(const Call& pass) override { run(pass, 0, 1.0); }
  void step() override;
  void zero_grad() override;
  void set_boundary(std::optional<bool> is_boundary) override { boundary_ = is_boundary; }
  void set_accumulation(int64_t steps) override;
  at::Tensor full(const std::string& what, const std::string& name) override;
  at::Tensor local(const std::string& what, const std::string& name) override;
  void set_full(const std::string& what, const std::string& name, const at::Tensor& value) override;
  void set_local(const std::string& what, const std::string& name,
                 const at::Tensor& whole) override {
    set_full(what, name, whole);
  }
  void gather(const std::vector<std::string>& names, std::optional<int> modifier_rank,
              const Call& inside) override;
  using Play::restart;
  void restart(const Restart& how) override;
  void detour(const Call&) override {}
  std::string folder() override { return {}; }
  void refuse(const std::string&, const Call&) override {}
  void fail(const std::string& fragment, const Call& call) override;
  void check(const std::string&, bool) override {}
  void see(const std::string& what, const at::Tensor& value) override;

 private:
  void run(const Call& pass, std::size_t weighed, double weight);

  ReferencePlay& all_;
  Seen seen_;
  int64_t in_window_ = 0;  // calls of step() since the last boundary
  int boundaries_ = 0;     // in the program
  std::optional<bool> boundary_;
};

}  // namespace equigrad::conformance::contract
