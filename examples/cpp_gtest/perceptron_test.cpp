#include <gtest/gtest.h>

#include <equigrad/check.hpp>
#include <perceptron.hpp>

TEST(Perceptron, GradientsAreEqual) {
  EXPECT_GRADIENTS_EQUAL(
      equigrad::check([] { return std::make_shared<Perceptron>(); }, perceptron_loss,
                      {.ranks = {1, 2}, .stages = {0, 3}, .precisions = {"fp32", "bf16"}}));
}
