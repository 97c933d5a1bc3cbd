// Watched engine: a BackwardPass and a scale, checked as an engine checks them; and the fixture of
// the tests that hand it scaled and unscaled losses.
//
// Invariants: parameters are p0, p1, ..; a loss is a sum of squares, so its gradient is 2p. Scalers
// double with every step without an overflow and halve with the others.
// Shapes: leaves are [7], fp32 unless said.
// Errors: none.
// Depends on: engine/loss, engine/autograd/backward_pass.hpp, sample.hpp, GoogleMock.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/autograd/backward_pass.hpp"
#include "engine/autograd/scaled_graph.hpp"

namespace equigrad::autograd {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using testing::HasSubstr;
using Scaler = std::shared_ptr<loss::LossScaler>;

inline Scaler scaler_of(int64_t power) {
  LossScaleConfig config;
  config.policy = LossScaleConfig::Policy::GradScaler;
  config.initial_scale_power = power;
  config.loss_scale_window = 1;
  return make_scaler(config);
}

// An engine's part in this: parameters p0, p1, .. at whose gradients the pass is checked.
class Watched {
 public:
  explicit Watched(Scaler scaler, const std::vector<at::Tensor>& leaves)
      : gradients(leaves.size()), scaler_(std::move(scaler)), leaves_(leaves) {
    std::vector<autograd::WatchedParameter> parameters;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      names_.push_back("p" + std::to_string(i));
      parameters.push_back({i, names_[i], leaves[i]});
    }
    const auto ready = [this](std::size_t i, const at::Tensor& gradient) {
      check_pass(scaler_.get(), [this](const at::Tensor& leaf) { return name_of(leaf); });
      gradients[i] = gradient;
    };
    pass_.emplace(
        parameters,
        autograd::PassCallbacks{.begin = [] {}, .ready = ready, .end = [] {}, .abandoned = [] {}});
  }

  std::vector<at::Tensor> gradients;  // the last ones
  bool got_nothing() const {
    return std::none_of(gradients.begin(), gradients.end(),
                        [](const at::Tensor& gradient) { return gradient.defined(); });
  }

 private:
  const std::string* name_of(const at::Tensor& leaf) const {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (leaves_[i].is_same(leaf)) return &names_[i];
    }
    return nullptr;
  }

  Scaler scaler_;
  std::vector<at::Tensor> leaves_;
  std::vector<std::string> names_;
  std::optional<autograd::BackwardPass> pass_;
};

inline at::Tensor leaf(uint64_t seed, at::ScalarType type = at::kFloat) {
  return sample(7, seed, type).requires_grad_();
}
inline at::Tensor loss_of(const at::Tensor& x) { return (x * x).sum(); }

inline const std::string kUnscaled =
    "got it unscaled. Loss scaling is required: call engine.backward(loss) or engine.scale(loss)";
inline const std::string kTwice = "got it scaled more than once. engine.backward scales by itself";
inline const std::string kForeign = "got it scaled by another engine's. ";
inline const std::string kStale = "got it scaled with the scale of an earlier step. ";

// One engine with one scale and two parameters.
struct ScaledGraph : testing::Test {
  Scaler scaler = scaler_of(10);
  Scaler other = scaler_of(10);
  at::Tensor p0 = leaf(1), p1 = leaf(2), plain = leaf(3);
  Watched engine{scaler, {p0, p1}};

  void accepts(const at::Tensor& loss) {
    engine.gradients.assign(2, {});
    EXPECT_EQ(error_of([&] { loss.backward({}, /*retain_graph=*/true); }), "");
    EXPECT_FALSE(engine.got_nothing());
  }
  // Before any gradient; and the next pass is as good as ever.
  void refuses(const at::Tensor& loss, const std::string& why, const std::string& parameter = "p") {
    engine.gradients.assign(2, {});
    const auto error = error_of([&] { loss.backward({}, /*retain_graph=*/true); });
    EXPECT_THAT(error, HasSubstr("[backward] expected gradients of parameter \"" + parameter));
    EXPECT_THAT(error, HasSubstr(why));
    EXPECT_TRUE(engine.got_nothing());
    accepts(scale(loss_of(p0) + loss_of(p1), scaler));
  }
};

}  // namespace equigrad::autograd
