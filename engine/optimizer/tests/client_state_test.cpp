// What an optimizer of the caller's is given, and what its states take.
#include "engine/optimizer/client_state.hpp"

#include <ATen/ATen.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"

namespace equigrad::optimizer {
namespace {

using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using testing::ElementsAre;
using testing::IsEmpty;

// Keeps what it is given; its states grow by a float with every step.
class Recorder final : public SliceOptimizer {
 public:
  void own(const std::vector<OwnedSlice>& slices) override { slices_ = slices; }
  void step(const std::vector<at::Tensor>& gradients) override {
    gradients_ = gradients;
    ++steps_;
  }
  std::vector<double> lr() const override { return {}; }
  void set_rates(const std::vector<double>& /*lr*/, const std::vector<double>& /*beta1*/) override {
  }
  std::vector<std::string> state_names(std::size_t slice) const override {
    return {"of " + slices_.at(slice).name, "square"};
  }
  at::Tensor state(std::size_t slice, const std::string& name) override {
    return at::full({1}, name == "square" ? 100.0 + static_cast<double>(slice) : -1.0);
  }
  int64_t state_bytes() const override { return 1000 + 4 * steps_; }
  std::string kind() const override { return "recorder"; }
  std::string numbers(std::size_t slice) const override { return "of " + slices_.at(slice).name; }
  void restore(std::size_t slice, const SliceStates& states, const std::string& numbers) override {
    restored_ = slices_.at(slice).name + " " + states.begin()->first + " " + numbers;
    steps_ += 10;
  }

  std::vector<OwnedSlice> slices_;
  std::vector<at::Tensor> gradients_;
  int64_t steps_ = 0;
  std::string restored_;
};

// Five, none, a frozen one of six, seven elements.
struct Model {
  std::vector<at::Tensor> tensors{at::zeros({5}), at::zeros({0}), at::zeros({6}), at::zeros({7})};
  layout::ParameterTable table;
  layout::BucketPlan plan;
  memory::Ledger ledger;
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  at::Tensor masters;
  ClientState state;

  Model(int shards, int rank)
      : table(registrations()),
        plan(table, shards, 100),
        masters(sample(plan.shard_numel(), 1)),
        state({recorder, tensors, rank}, table, plan, masters, ledger) {}

  std::vector<layout::Registration> registrations() const {
    std::vector<layout::Registration> all;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      all.push_back({"p" + std::to_string(i), &tensors[i], tensors[i].sizes().vec(), i != 2});
    return all;
  }
  int64_t offset(std::size_t parameter) const {
    const auto at = *plan.slot_of(parameter);
    return plan.buckets()[at.bucket].offset + plan.slot(at).offset;
  }
};

TEST(ClientState, ASliceIsWhatThisRankOwnsOfATrainableParameter) {
  const std::vector<std::vector<int64_t>> ends_of_first{{0, 5}, {0, 3}, {3, 5}},
      ends_of_last{{0, 7}, {0, 4}, {4, 7}};
  const std::vector<std::pair<int, int>> places{{1, 1}, {2, 0}, {2, 1}};  // (shards, rank)
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Model model(places[i].first, places[i].second);
    const auto& slices = model.recorder->slices_;
    ASSERT_EQ(slices.size(), 2U);
    EXPECT_EQ(slices[0].name, "p0");
    EXPECT_EQ(slices[1].name, "p3");
    EXPECT_TRUE(slices[1].parameter.is_same(model.tensors[3]));
    EXPECT_THAT((std::vector{slices[0].begin, slices[0].end}), ends_of_first[i]);
    EXPECT_THAT((std::vector{slices[1].begin, slices[1].end}), ends_of_last[i]);
  }
}

TEST(ClientState, MastersAreLeavesAndViews) {
  const Model model(2, 1);
  for (const auto& slice : model.recorder->slices_) {
    EXPECT_TRUE(slice.master.is_leaf() && slice.master.requires_grad());
    const auto parameter = slice.name == "p0" ? 0U : 3U;
    EXPECT_EQ(slice.master.const_data_ptr<float>(),
              model.masters.const_data_ptr<float>() + model.offset(parameter));
    EXPECT_EQ(slice.master.numel(), slice.end - slice.begin) << "without padding";
  }
}

TEST(ClientState, WhatNobodyUsedHasNoGradient) {
  Model model(2, 1);
  const auto gradient = sample(model.plan.shard_numel(), 2);
  model.state.update(gradient, {true, true, true, false});
  ASSERT_EQ(model.recorder->gradients_.size(), 2U);
  EXPECT_THAT(model.recorder->gradients_[0],
              HasTheBitsOf(gradient.narrow(0, model.offset(0), 2).clone()));
  EXPECT_FALSE(model.recorder->gradients_[1].defined());
}

TEST(ClientState, WhatIsKeptAndGivenBackIsOfTheParametersSlice) {
  Model model(2, 1);
  EXPECT_EQ(model.state.numbers(3), "of p3");
  EXPECT_EQ(model.state.numbers(2), "");
  model.state.restore(2, {{"square", at::ones({3})}}, "of p2");
  EXPECT_EQ(model.recorder->restored_, "") << "frozen";
  model.state.restore(3, {{"square", at::ones({3})}}, "of p3");
  EXPECT_EQ(model.recorder->restored_, "p3 square of p3");
  EXPECT_EQ(model.ledger.bytes(memory::Category::OptimizerState), 1000 + 40);
}

TEST(ClientState, StatesAreChargedAndNamedByParameter) {
  Model model(1, 0);
  const auto held = [&] { return model.ledger.bytes(memory::Category::OptimizerState); };
  EXPECT_EQ(held(), 1000);
  for (int step = 1; step <= 3; ++step) {
    model.state.update(model.masters, std::vector<bool>(4, true));
    EXPECT_EQ(held(), 1000 + 4 * step);
  }
  EXPECT_THAT(model.state.names(3), ElementsAre("of p3", "square"));
  EXPECT_THAT(model.state.names(1), IsEmpty());
  EXPECT_THAT(model.state.names(2), IsEmpty());
  EXPECT_EQ(model.state.state(3, 1).item<float>(), 101);
  EXPECT_EQ(model.state.state(3, 0).item<float>(), -1);
}

}  // namespace
}  // namespace equigrad::optimizer
