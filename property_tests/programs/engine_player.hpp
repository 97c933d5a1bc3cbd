// EnginePlayer: a program on this rank with a real engine, each call compared with what it must
// leave behind.
//
// Invariants: a difference is noted and the program goes on, so that ranks stay together.
// A misuse must be refused on every rank with its message, and nothing else happens.
// Shapes: those of ReferencePlayer's Seen, of which this rank may hold a slice.
// Errors: what the engine throws where no error is expected.
// Depends on: reference_player.hpp, engine/engine.hpp.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "property_tests/programs/reference_player.hpp"

namespace equigrad::property_tests::programs {

class EnginePlayer {
 public:
  EnginePlayer(const json& setting, int rank, const comm::Mesh& mesh);

  // The first thing that is wrong, or nothing.
  std::string play(const json& call, const Seen& want);

 private:
  using Act = std::function<void()>;
  void note(const std::string& what);
  // `name`: of the parameter of which it is this tensor rank's part; empty: it is whole.
  void expect(const std::string& what, const at::Tensor& got, const std::string& name = "",
              const LocalShard& part = {});
  void expect_everything();
  void expect_numbers();
  void fails(std::initializer_list<const char*> fragments, const Act& act);

  at::Tensor batch(const json& call);
  Kept run(const json& call, int branch, Throw where = Throw::None);
  template <class Visit>
  void each_engine(Visit visit) {
    for (auto& engine : engines_) visit(*engine);
  }
  int zero_rank() const;  // of those that ZeRO shards over
  int world_rank() const;
  LocalShard shard_of(const std::string& name, std::size_t which) const;

  void backward(const json& call);
  void throwing(const json& call);
  void twice(const json& call);
  void window(const json& call);
  void step(const json& call);
  void get(const json& call);
  void set(const json& call);
  void gather(const json& call);
  void look(const json& call);
  void refuse(const std::string& what);

  const json& setting_;
  comm::MeshPlace place_;
  TensorRank tensor_;
  std::unique_ptr<Parts> parts_;
  Network network_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::map<int, Kept> kept_;
  std::vector<std::shared_ptr<void>> guards_;
  std::vector<int> observed_;
  const Seen* want_ = nullptr;
  std::string wrong_;
};

}  // namespace equigrad::property_tests::programs
