// What an operator costs, against counts made by hand.
#include "engine/profile/flop_formulas.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <ostream>

namespace equigrad::profile {

static std::ostream& operator<<(std::ostream& stream, const Cost& cost) {
  return stream << cost.flops << " flops, " << cost.macs << " MACs";
}

namespace {

using List = c10::List<int64_t>;

at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::zeros(sizes, dtype);
}

std::optional<Cost> cost(const std::string& name, const std::vector<c10::IValue>& inputs) {
  return cost_of("aten::" + name, inputs);
}

TEST(FlopFormulas, AProductIsTwoForEveryMultiplyAccumulate) {
  EXPECT_EQ(cost("mm", {zeros({4, 5}), zeros({5, 3})}), (Cost{120, 60}));
  EXPECT_EQ(cost("bmm", {zeros({7, 4, 5}), zeros({7, 5, 3})}), (Cost{840, 420}));
  EXPECT_EQ(cost("mv", {zeros({4, 5}), zeros({5})}), (Cost{40, 20}));
  EXPECT_EQ(cost("dot", {zeros({5}), zeros({5})}), (Cost{10, 5}));
}

TEST(FlopFormulas, WhatIsAddedToAProductIsOneForEveryOutput) {
  EXPECT_EQ(cost("addmm", {zeros({3}), zeros({4, 5}), zeros({5, 3}), 1, 1}), (Cost{132, 60}));
  EXPECT_EQ(cost("addmv", {zeros({4}), zeros({4, 5}), zeros({5}), 1, 1}), (Cost{44, 20}));
  EXPECT_EQ(cost("baddbmm", {zeros({7, 4, 3}), zeros({7, 4, 5}), zeros({7, 5, 3}), 1, 1}),
            (Cost{924, 420}));
  EXPECT_EQ(cost("addbmm", {zeros({4, 3}), zeros({7, 4, 5}), zeros({7, 5, 3}), 1, 1}),
            (Cost{840 + 12, 420}));
  EXPECT_EQ(cost("addmm", {zeros({3}), zeros({4, 0}), zeros({0, 3}), 1, 1}), (Cost{12, 0}));
}

// 9 + 2 - 3, by 2, + 1 = 5: [2, 6, 5, 5] outputs of 4 * 3 * 3 products.
TEST(FlopFormulas, AConvolutionCountsItsOutputs) {
  const List two({2, 2}), one({1, 1}), none({0, 0});
  EXPECT_EQ(cost("convolution", {zeros({2, 4, 9, 9}), zeros({6, 4, 3, 3}), zeros({6}), two, one,
                                 one, false, none, 1}),
            (Cost{2 * 300 * 36 + 300, 300 * 36}));
  EXPECT_EQ(cost("convolution", {zeros({2, 4, 9, 9}), zeros({6, 2, 3, 3}), c10::IValue(), two, one,
                                 one, false, none, 2}),
            (Cost{2 * 300 * 18, 300 * 18}));
  EXPECT_EQ(cost("convolution", {zeros({4, 9, 9}), zeros({6, 4, 3, 3}), c10::IValue(), two, one,
                                 one, false, none, 1}),
            (Cost{2 * 150 * 36, 150 * 36}))
      << "without a batch";
}

// (5 - 1) * 2 - 2 + 2 + 1 + 1 = 10: every one of [2, 4, 5, 5] inputs meets 6 * 3 * 3 weights.
TEST(FlopFormulas, ATransposedConvolutionCountsItsInputs) {
  const List two({2, 2}), one({1, 1});
  EXPECT_EQ(cost("convolution", {zeros({2, 4, 5, 5}), zeros({4, 6, 3, 3}), zeros({6}), two, one,
                                 one, true, one, 1}),
            (Cost{2 * 200 * 54 + 2 * 6 * 100, 200 * 54}));
}

TEST(FlopFormulas, TheBackwardOfAConvolutionCountsWhatIsAskedFor) {
  const List two({2, 2}), one({1, 1}), none({0, 0});
  const auto backward = [&](bool input, bool weight, bool bias) {
    return cost("convolution_backward",
                {zeros({2, 6, 5, 5}), zeros({2, 4, 9, 9}), zeros({6, 4, 3, 3}), List({6}), two, one,
                 one, false, none, 1, c10::List<bool>({input, weight, bias})});
  };
  EXPECT_EQ(backward(false, true, true), (Cost{2 * 300 * 36 + 300, 300 * 36}));
  EXPECT_EQ(backward(true, true, false), (Cost{4 * 300 * 36, 2 * 300 * 36}));
}

// 2 * 3 heads, 4 queries, 5 keys: 120 scores of depth 8, mixing values of 16.
TEST(FlopFormulas, AttentionCountsBothProductsAndTheSoftmax) {
  const at::Tensor query = zeros({2, 3, 4, 8}), key = zeros({2, 3, 5, 8}),
                   value = zeros({2, 3, 5, 16}), gradient = zeros({2, 3, 4, 16});
  EXPECT_EQ(cost("_scaled_dot_product_flash_attention_for_cpu", {query, key, value}),
            (Cost{2 * 120 * 24 + 120, 120 * 24}));
  EXPECT_EQ(cost("_scaled_dot_product_flash_attention_backward", {gradient, query, key, value}),
            (Cost{2 * 120 * (3 * 8 + 2 * 16) + 240, 120 * (3 * 8 + 2 * 16)}));
}

TEST(FlopFormulas, ElementWiseOperatorsCountTheElementsOfTheirResult) {
  EXPECT_EQ(cost("add", {zeros({2, 3, 4}), zeros({3, 1}), 1}), (Cost{24, 0}));
  EXPECT_EQ(cost("mul", {zeros({3, 1}), zeros({1, 4})}), (Cost{12, 0}));
  EXPECT_EQ(cost("div", {zeros({3}), 2.0}), (Cost{3, 0}));
  EXPECT_EQ(cost("gelu_backward", {zeros({3, 4}), zeros({3, 4}), "none"}), (Cost{12, 0}));
  EXPECT_EQ(cost("addcmul", {zeros({3, 4}), zeros({4}), zeros({3, 1}), 1}), (Cost{24, 0}));
  EXPECT_EQ(cost("mul", {zeros({0, 4}), zeros({1})}), (Cost{0, 0}));
}

TEST(FlopFormulas, AnOperatorInPlaceCostsTheSame) {
  EXPECT_EQ(cost("add_", {zeros({2, 3}), zeros({3}), 1}), (Cost{6, 0}));
  EXPECT_EQ(cost("addmm_", {zeros({4, 3}), zeros({4, 5}), zeros({5, 3}), 1, 1}), (Cost{132, 60}));
}

TEST(FlopFormulas, IntegersCostNothing) {
  EXPECT_EQ(cost("add", {zeros({5}, at::kLong), zeros({5}, at::kLong), 1}), (Cost{0, 0}));
  EXPECT_EQ(cost("sum", {zeros({5}, at::kLong)}), (Cost{0, 0}));
  EXPECT_EQ(cost("mul", {zeros({5}, at::kLong), zeros({5})}), (Cost{5, 0}));
}

TEST(FlopFormulas, NormalizationsReductionsAndLossesFollowDeepSpeed) {
  const auto x = zeros({2, 3, 4}), weight = zeros({4});
  EXPECT_EQ(cost("native_layer_norm", {x, List({4}), weight, weight, 1e-5}), (Cost{120, 0}));
  EXPECT_EQ(cost("native_layer_norm", {x, List({4}), c10::IValue(), c10::IValue(), 1e-5}),
            (Cost{96, 0}));
  EXPECT_EQ(cost("native_batch_norm", {x, weight, weight}), (Cost{120, 0}));
  EXPECT_EQ(cost("native_layer_norm_backward", {x, x, List({4}), weight, weight, weight, weight}),
            (Cost{240, 0}));
  EXPECT_EQ(cost("_softmax", {x, 1, false}), (Cost{24, 0}));
  EXPECT_EQ(cost("sum", {x, List({1}), true}), (Cost{24, 0}));
  EXPECT_EQ(cost("max_pool2d_with_indices_backward", {zeros({2, 2}), zeros({4, 4})}),
            (Cost{16, 0}));
  EXPECT_EQ(cost("nll_loss_forward", {zeros({6, 9}), zeros({6}, at::kLong)}), (Cost{6, 0}));
}

TEST(FlopFormulas, WhatMovesDataIsFreeAndWhatIsUnknownIsSaidToBe) {
  EXPECT_EQ(cost("embedding", {zeros({256, 24}), zeros({2, 16}, at::kLong)}), (Cost{0, 0}));
  EXPECT_EQ(cost("copy_", {zeros({5}), zeros({5}), false}), (Cost{0, 0}));
  EXPECT_EQ(cost("erfinv", {zeros({5})}), std::nullopt);
  EXPECT_EQ(cost("matmul", {zeros({4, 5}), zeros({5, 3})}), std::nullopt);
  EXPECT_EQ(cost_of("mine::mm", std::vector<c10::IValue>{zeros({4, 5}), zeros({5, 3})}),
            std::nullopt);
}

}  // namespace
}  // namespace equigrad::profile
