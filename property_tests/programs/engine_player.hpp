// EnginePlayer: a program on this rank with a real engine, each call compared with what it must
// leave behind.
//
// Invariants: a difference is noted and the program goes on, so that ranks stay together.
// Shapes: those of ReferencePlayer's Seen, of which this rank may hold a slice.
// Errors: what the engine throws where no error is expected.
// Depends on: pass.hpp, settings.hpp, conformance/oracle/bits.hpp, engine/engine.hpp.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/oracle/bits.hpp"
#include "property_tests/programs/pass.hpp"
#include "property_tests/programs/reference_player.hpp"
#include "property_tests/programs/settings.hpp"

namespace equigrad::property_tests::programs {

class EnginePlayer {
 public:
  EnginePlayer(const json& setting, int rank, const std::shared_ptr<comm::Communicator>& group)
      : setting_(setting), rank_(rank), network_(setting), observed_(network_.models().size()) {
    for (const auto& model : network_.models()) {
      const auto i = engines_.size();
      engines_.push_back(initialize(*model, config_of(setting).dump(), group));
      engines_[i]->on_step([this, i](const std::vector<LocalShard>& shards) {
        ++observed_[i];
        for (const auto& shard : shards)
          expect("gradient " + shard.name + of(i), shard.gradient, shard);
      });
    }
    if (setting.at("precision") == 2 && engines_.size() == 2)
      engines_[1]->share_loss_scale(*engines_[0]);
  }

  // The first thing that is wrong, or nothing.
  std::string play(const json& call, const Seen& want);

 private:
  using Act = std::function<void()>;
  void note(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  at::Tensor batch(const json& call) { return batch_of(setting_, rank_, call.at("batch")); }

  void expect(const std::string& what, const at::Tensor& got, const LocalShard& part = {}) {
    const auto found = want_->find(what);
    const at::Tensor none, &want = found == want_->end() ? none : found->second;
    if (got.defined() != want.defined())
      return note(what + (want.defined() ? ": the engine has none" : ": the reference has none"));
    if (!want.defined()) return;
    const bool whole = part.name.empty();
    const auto report = conformance::oracle::compare(
        plain(whole ? got : got.flatten()),
        plain(whole ? want : want.flatten().slice(0, part.begin, part.end)));
    if (!report.equal()) note(what + ": " + conformance::oracle::describe(report));
  }
  // Which bits a NaN has says nothing.
  static at::Tensor plain(const at::Tensor& tensor) {
    const auto copy = tensor.detach().clone().contiguous();
    return copy.is_floating_point() ? copy.masked_fill(copy.isnan(), 12345) : copy;
  }

  void fails(std::initializer_list<const char*> fragments, const Act& act) {
    std::string got = "none";
    try {
      act();
    } catch (const std::exception& error) {
      got = error.what();
      for (const char* fragment : fragments)
        if (got.find(fragment) != std::string::npos) return;
    }
    note(std::string("expected an error with \"") + *fragments.begin() + "\", got " +
         got.substr(0, 300));
  }

  void backward(const json& call);
  void throwing(const json& call);
  void twice(const json& call);
  Kept run(const json& call, int branch, Throw where = Throw::None) {
    return network_.run(batch(call), branch, where);
  }
  template <class Visit>
  void each_engine(Visit visit) {
    for (auto& engine : engines_) visit(*engine);
  }

  void window(const json& call);
  void step(const json& call);
  void get(const json& call);
  void set(const json& call);
  void look(const json& call);
  void refuse(const std::string& what);
  void expect_everything();
  void expect_numbers();
  LocalShard part_of(const std::string& name, std::size_t which) const;

  const json& setting_;
  int rank_;
  Network network_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::map<int, Kept> kept_;
  std::vector<std::shared_ptr<void>> guards_;
  std::vector<int> observed_;
  const Seen* want_ = nullptr;
  std::string wrong_;
};

}  // namespace equigrad::property_tests::programs
