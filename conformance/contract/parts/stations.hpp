// Stations: what programs of section 16 need to play with one part of an engine alone.
//
// Invariants: numbers drawn are the same on every rank, and others at every place.
// Units: none.   Errors: none of its own.
// Depends on: play.hpp, engine/comm/communicator.hpp, engine/layout/parameter_table.hpp.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "conformance/contract/players/play.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/layout/parameter_table.hpp"

namespace equigrad::conformance::contract {

class Drawn {
 public:
  Drawn(const Play& play, uint64_t salt)
      : numbers_(play.context().seed * 1000 + static_cast<uint64_t>(play.context().stage) * 100 +
                 static_cast<uint64_t>(play.context().world) * 10 + salt) {}
  int64_t below(int64_t end) {
    return static_cast<int64_t>(numbers_() % static_cast<uint64_t>(end));
  }
  bool one_in(int64_t many) { return below(many) == 0; }
  template <class T>
  const T& of(const std::vector<T>& some) {
    return some[static_cast<std::size_t>(below(static_cast<int64_t>(some.size())))];
  }

 private:
  std::mt19937_64 numbers_;
};

inline layout::ParameterTable table_of(const std::vector<int64_t>& numels) {
  static const std::vector<int> kIdentities(64);
  std::vector<layout::Registration> all(numels.size());
  for (std::size_t at = 0; at < all.size(); ++at)
    all[at] = {
        .name = "p" + std::to_string(at), .identity = &kIdentities.at(at), .shape = {numels[at]}};
  return layout::ParameterTable(all);
}

// From -4 to 4: few of them add up to the same in any order and type.
inline at::Tensor whole_numbers(Drawn& drawn, int64_t numel) {
  auto values = at::empty({numel});
  auto* begin = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numel; ++i) begin[i] = static_cast<float>(drawn.below(9) - 4);
  return values;
}

// While it lives, memory that nobody has written is no number.
class UninitializedIsNan {
 public:
  UninitializedIsNan() { torch().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~UninitializedIsNan() { torch().setDeterministicAlgorithms(was_, warned_); }
  UninitializedIsNan(const UninitializedIsNan&) = delete;
  UninitializedIsNan& operator=(const UninitializedIsNan&) = delete;

 private:
  static at::Context& torch() { return at::globalContext(); }
  bool was_ = torch().deterministicAlgorithms();
  bool warned_ = torch().deterministicAlgorithmsWarnOnly();
};

// The ranks of another communicator as if nobody had spoken to them: engines are counted from 0.
class CountedWire final : public comm::Communicator {
 public:
  explicit CountedWire(std::shared_ptr<comm::Communicator> of) : of_(std::move(of)) {}
  int rank() const override { return of_->rank(); }
  int world_size() const override { return of_->world_size(); }
  c10::Device device() const override { return of_->device(); }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    ++sums;
    return of_->all_to_all(output, input);
  }
  bool trades() const override { return of_->trades(); }
  comm::PendingPtr trade(const at::Tensor& output, const at::Tensor& input) override {
    ++sums;
    return of_->trade(output, input);
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (input.scalar_type() == at::kLong) {
      ++messages;
      words += input.numel();
    }
    return of_->all_gather(output, input);
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    ++sums;
    return of_->all_reduce_sum(tensor);
  }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    ++sums;
    return of_->reduce_scatter_sum(output, input);
  }
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    return of_->broadcast(tensor, root);
  }

  int64_t sums = 0;      // collectives that were begun for a sum
  int64_t messages = 0;  // of words to all
  int64_t words = 0;     // in them

 private:
  std::shared_ptr<comm::Communicator> of_;
};

}  // namespace equigrad::conformance::contract
