// EnginePlay: a program played on this rank with real engines, and all they hold compared.
//
// Invariants: after each window every gradient, norm, master weight, optimizer state and parameter
// is compared with the reference's, and so is everything that the program saw. What a rank is doing
// names the call of the engine that it is in.
// Shapes/Units: those of play.hpp.
// Errors: what the engine throws where the program expects no error.
// Depends on: play.hpp, play_difference.hpp, contract_spec.hpp, reference/stepper.hpp,
// engine/engine.hpp, lane_tally.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"
#include "conformance/contract/players/play.hpp"
#include "conformance/contract/players/play_difference.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "engine/engine.hpp"
#include "reference/stepper.hpp"

namespace equigrad::conformance::contract {

class EnginePlay final : public Play {
 public:
  EnginePlay(const Spec& spec, const ContractContext& context, ranks::RankContext& rank_context,
             const reference::Data& data, const std::shared_ptr<comm::Communicator>& communicator);
  ~EnginePlay() override;

  // Plays the next window and compares all that it left with the reference's.
  void window(const std::vector<reference::StepRecord>& want, const Seen& seen);
  const LaneTally& tally() const { return tally_; }
  // The first that was found; nothing where both plays are alike.
  const std::optional<PlayDifference>& difference() const { return difference_; }

  reference::Model& model(std::size_t which) override { return *trained_[which].model; }
  at::Tensor parameter(const std::string& name, std::size_t which) override;
  Engine* engine(std::size_t which) override;
  using Play::group;
  std::shared_ptr<comm::Communicator> group(int world) override;
  at::Tensor backward(const at::Tensor& loss, PassOptions options) override;
  at::Tensor scale(const at::Tensor& tensor, std::size_t which) override;
  double loss_scale(std::size_t which) override;
  void share_loss_scale(std::size_t engine, std::size_t with) override;
  void run(const Call& pass) override;
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
  using Play::restart;
  void restart(const Restart& how) override;
  void detour(const Call& away) override;
  std::string folder() override { return folder_; }
  void refuse(const std::string& fragment, const Call& call) override { fail(fragment, call); }
  void fail(const std::string& fragment, const Call& call) override;
  void check(const std::string& what, bool holds) override;
  void see(const std::string& what, const at::Tensor& value) override;

 private:
  using Shards = std::map<std::string, LocalShard>;
  struct Trained {
    std::shared_ptr<reference::Model> model;
    std::unique_ptr<Engine> engine;  // goes before its model
    std::vector<Shards> stepped;     // by call of on_step, in this window
  };
  void make(std::size_t which, uint64_t other_weights, std::optional<int> stage);
  void save();
  void load(const LoadOptions& options);
  // What of the engine's is compared, under which name, and where the reference has it.
  struct Compared {
    Source source;
    std::string name;
    std::size_t which = 0;        // model
    int64_t begin = 0, end = -1;  // of the whole; -1: all of it
  };
  void compare(const Compared& one, const at::Tensor& got, const at::Tensor& whole);
  void compare_seen(const Seen& want);
  void compare_model(std::size_t which, const reference::StepRecord& want);
  void compare_norm(std::size_t which, const reference::StepRecord& want);
  void compare_shards(std::size_t which, const reference::StepRecord& want);
  void compare_gradient(std::size_t which, const LocalShard& shard,
                        const reference::StepRecord& want);
  void find(const std::string& what, bool holds, const Source& source);
  std::string of(std::size_t which) const;  // " of model 2" where there are several
  std::string at(const std::string& what) const;
  // The engine is called: what is seen or goes wrong from here on comes after it.
  void enter(const std::string& call, const std::string& parameter = "",
             const std::string& what = "");
  // The same of the engine `which`.
  void enter_of(std::size_t which, const std::string& call, const std::string& parameter = "",
                const std::string& what = "");

  Spec spec_;
  ranks::RankContext& rank_context_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::string folder_;
  std::vector<Trained> trained_;  // by model
  Seen seen_;
  std::vector<Source> seen_from_;
  LaneTally tally_;
  Source last_;              // call
  int64_t comparisons_ = 0;  // and checks
  std::array<std::vector<reference::StepRecord>, 2>
      steps_;  // of the models: this window's, the last
  std::optional<PlayDifference> difference_;
};

}  // namespace equigrad::conformance::contract
