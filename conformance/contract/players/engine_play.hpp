// EnginePlay: a program played on this rank with real engines, and all they hold compared.
//
// Invariants: after each window every gradient, norm, master weight, optimizer state and parameter
// is compared with the reference's, and so is everything that the program saw.
// Shapes/Units: those of play.hpp.
// Errors: what the engine throws where the program expects no error.
// Depends on: play.hpp, contract_spec.hpp, reference/stepper.hpp, engine/engine.hpp,
// lane_tally.hpp.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"
#include "conformance/contract/players/play.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "engine/engine.hpp"
#include "reference/stepper.hpp"

namespace equigrad::conformance::contract {

class EnginePlay final : public Play {
 public:
  EnginePlay(const Spec& spec, const ContractContext& context, ranks::RankContext& rank_context,
             const reference::Data& data, const std::shared_ptr<comm::Communicator>& communicator);

  // Plays the next window and compares all that it left with the reference's.
  void window(const std::vector<reference::StepRecord>& want, const Seen& seen);
  const LaneTally& tally() const { return tally_; }

  reference::Model& model(std::size_t which) override { return *models_[which]; }
  at::Tensor parameter(const std::string& name, std::size_t which) override {
    return engines_[which]->full_parameter(name);
  }
  Engine* engine(std::size_t which) override { return engines_[which].get(); }
  at::Tensor backward(const at::Tensor& loss, PassOptions options) override;
  at::Tensor scale(const at::Tensor& tensor, std::size_t which) override;
  double loss_scale(std::size_t which) override { return engines_[which]->loss_scale(); }
  void share_loss_scale(std::size_t engine, std::size_t with) override {
    engines_[engine]->share_loss_scale(*engines_[with]);
  }
  void run(const Call& pass) override { pass(); }
  void step() override;
  void zero_grad() override;
  void set_boundary(std::optional<bool> is_boundary) override;
  void set_accumulation(int64_t steps) override;
  at::Tensor full(const std::string& what, const std::string& name) override;
  at::Tensor local(const std::string& what, const std::string& name) override;
  void set_full(const std::string& what, const std::string& name, const at::Tensor& value) override;
  void set_local(const std::string& what, const std::string& name,
                 const at::Tensor& whole) override;
  void gather(const std::vector<std::string>& names, std::optional<int> modifier_rank,
              const Call& inside) override;
  void refuse(const std::string& fragment, const Call& call) override { fail(fragment, call); }
  void fail(const std::string& fragment, const Call& call) override;
  void check(const std::string& what, bool holds) override;
  void see(const std::string& what, const at::Tensor& value) override;

 private:
  void compare(const std::string& what, int64_t begin, const at::Tensor& got,
               const at::Tensor& want);
  void compare_model(std::size_t which, const reference::StepRecord& want);
  void compare_gradient(const std::string& where, const LocalShard& shard,
                        const reference::StepRecord& want);
  std::string at(const std::string& what) const;

  Spec spec_;
  ranks::RankContext& rank_context_;
  std::vector<std::shared_ptr<reference::Model>> models_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::vector<std::map<std::string, LocalShard>>> stepped_;  // [model][call of on_step]
  Seen seen_;
  LaneTally tally_;
};

}  // namespace equigrad::conformance::contract
