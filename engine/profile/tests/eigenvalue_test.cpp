// Power iteration against spectra that are known, or computed from the whole matrix. A value v and
// its vector x with |Hx - vx| / |x| = r have an eigenvalue within r: no tolerance is chosen.
#include "engine/profile/eigenvalue.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/small_run.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::profile {
namespace {

using conformance::SmallRun;

// The matrix with these eigenvalues; every number in it is exact, as is its inverse's.
at::Tensor matrix_of(const std::vector<float>& eigenvalues) {
  const auto half = at::full({4, 4}, 0.5F);
  for (const auto& [row, column] : {std::pair{1, 1}, {1, 3}, {2, 2}, {2, 3}, {3, 1}, {3, 2}}) {
    half[row][column].neg_();
  }
  return half.mm(at::diag(at::tensor(eigenvalues))).mm(half.t());
}

// x is somewhere: the Hessian does not depend on it.
at::Tensor point() { return at::ones({4}).requires_grad_(); }

at::Tensor form(const at::Tensor& matrix, const at::Tensor& x) {
  return x.dot(matrix.mv(x)).mul(0.5);
}

// What rounding to fp32 can add to the residual: n terms of Hx and one rounding of it.
double rounding(const Eigenvalue& found, double norm, int64_t terms) {
  return 2.0 * static_cast<double>(terms + 1) * std::ldexp(norm, -24) +
         std::ldexp(std::abs(found.value), -24);
}

TEST(Eigenvalue, OfAQuadraticFormIsTheOneOfLargestAbsoluteValue) {
  // Of the last one the values fall from above zero to below, before they grow.
  for (const auto& spectrum :
       {std::vector<float>{1, 4, -8, 2}, {1, 4, 8, 2}, {0, 0, -0.5F, 0.25F}, {4, 4, -4.5F, 4}}) {
    const auto x = point();
    EigenvalueOptions options;
    options.tolerance = 1e-6;
    options.max_iterations = 300;
    const auto found = eigenvalue(form(matrix_of(spectrum), x), {x}, options);
    const double largest = spectrum[2], next = std::max(spectrum[1], spectrum[3]);
    EXPECT_TRUE(found.converged);
    EXPECT_GT(found.iterations, 2);
    const double bound = found.residual + rounding(found, std::abs(largest), 4);
    EXPECT_LE(std::abs(found.value - largest), bound);
    EXPECT_LT(bound, std::abs(largest) - next);  // so that no other one is within it
  }
}

TEST(Eigenvalue, StopsWhenTwoValuesAreCloseOrAtTheLimit) {
  const auto x = point();
  const auto loss = form(matrix_of({1, 4, -8, 2}), x);
  EigenvalueOptions options;
  options.max_iterations = 2;
  const auto cut = eigenvalue(loss, {x}, options);
  EXPECT_EQ(cut.iterations, 2);
  EXPECT_FALSE(cut.converged);
  options.max_iterations = 100;
  const auto loose = eigenvalue(loss, {x}, options);
  options.tolerance = 1e-5;
  const auto tight = eigenvalue(loss, {x}, options);
  EXPECT_TRUE(loose.converged);
  EXPECT_LT(loose.iterations, tight.iterations);
  EXPECT_GT(loose.residual, tight.residual);
}

// Of the identity every value is 1, but the first says nothing.
TEST(Eigenvalue, ComparesTheFirstValueWithNothing) {
  const auto x = point();
  EXPECT_EQ(eigenvalue(form(matrix_of({1, 1, 1, 1}), x), {x}).iterations, 2);
}

// Of two layers in fp64: the matrix is built row by row.
TEST(Eigenvalue, OfANetworkIsInTheSpectrumOfItsWholeMatrix) {
  const auto make = [](int64_t numel, double phase) {
    return at::sin(at::arange(numel, at::kDouble) + phase);
  };
  const auto first = make(12, 1).view({4, 3}).requires_grad_();
  const auto second = make(8, 2).view({2, 4}).requires_grad_();
  const auto loss = second.mm(at::tanh(first.mm(make(15, 3).view({3, 5})))).square().mean();
  const auto gradients = torch::autograd::grad({loss}, {first, second}, {}, true, true);
  const auto flat = at::cat({gradients[0].flatten(), gradients[1].flatten()});
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const auto row = torch::autograd::grad({flat[i]}, {first, second}, {}, true);
    rows.push_back(at::cat({row[0].flatten(), row[1].flatten()}));
  }
  const auto spectrum = at::linalg_eigvalsh(at::stack(rows));
  const auto largest = spectrum[spectrum.abs().argmax()].item<double>();
  const auto others = spectrum.masked_select(spectrum.ne(largest)).abs().max().item<double>();
  EigenvalueOptions options;
  options.tolerance = 1e-7;
  options.max_iterations = 1000;
  const auto found = eigenvalue(loss, {first, second}, options);
  const double bound = found.residual + rounding(found, std::abs(largest), 0);
  EXPECT_LE(std::abs(found.value - largest), bound);
  EXPECT_LT(bound, std::abs(largest) - others);
  ASSERT_EQ(found.vector.size(), 2u);
  EXPECT_EQ(found.vector[1].sizes(), second.sizes());
  // The block of one parameter is another matrix.
  EXPECT_NE(eigenvalue(loss, {second}, options).value, found.value);
}

TEST(Eigenvalue, IsZeroWhereTheLossIsLinear) {
  const auto x = point();
  const auto found = eigenvalue(x.sum(), {x, at::ones({2}).requires_grad_()});
  EXPECT_EQ(found.value, 0);
  EXPECT_TRUE(found.converged);
  EXPECT_EQ(found.iterations, 1);
}

TEST(Eigenvalue, ANumberThatIsNotFiniteCountsAsZero) {
  const auto x = point(), y = at::zeros({1}).requires_grad_();
  const auto loss = form(matrix_of({1, 4, -8, 2}), x) + y.pow(1.5).sum();  // its second: infinite
  EigenvalueOptions options;
  options.tolerance = 1e-6;
  const auto found = eigenvalue(loss, {x, y}, options);
  EXPECT_LE(std::abs(found.value + 8), found.residual + rounding(found, 8, 4));
}

TEST(Eigenvalue, LeavesTheGraphTheGradientsAndTheGlobalGeneratorAlone) {
  const auto x = point();
  const auto loss = form(matrix_of({1, 4, -8, 2}), x);
  torch::manual_seed(3);
  const auto want = at::randn({4});
  torch::manual_seed(3);
  const auto found = eigenvalue(loss, {x}), again = eigenvalue(loss, {x});
  EXPECT_THAT(at::randn({4}), conformance::oracle::HasTheBitsOf(want));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(found.value, again.value);
  loss.backward();
  EXPECT_THAT(x.grad(), conformance::oracle::HasTheBitsOf(matrix_of({1, 4, -8, 2}).mv(point())));
  EigenvalueOptions other;
  other.seed = 1;
  EXPECT_NE(eigenvalue(form(matrix_of({1, 4, -8, 2}), x), {x}, other).value, found.value);
}

TEST(Eigenvalue, SaysWhatIsWrong) {
  const auto x = point();
  const auto error = [&](const at::Tensor& loss, const std::vector<at::Tensor>& parameters,
                         int64_t max_iterations = 100) {
    EigenvalueOptions options;
    options.max_iterations = max_iterations;
    return conformance::error_of([&] { eigenvalue(loss, parameters, options); });
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(error(x.detach().sum(), {x}), HasSubstr("expected a scalar loss with a graph"));
  EXPECT_THAT(error(x * 2, {x}), HasSubstr("expected a scalar loss with a graph"));
  EXPECT_THAT(error(x.sum(), {}), HasSubstr("expected parameters that require a gradient"));
  EXPECT_THAT(error(x.sum(), {at::ones({3})}), HasSubstr("got none"));
  EXPECT_THAT(error(x.sum(), {x}, 0), HasSubstr("expected max_iterations of at least 1, got 0"));
}

int64_t bits_of(double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Rank r's matrix is the average's and something that the ranks' cancel.
TEST(Eigenvalue, OverRanksIsThatOfTheAverageAndTheSameOnAll) {
  EXPECT_EQ(
      conformance::ranks::on_ranks(
          3,
          [](conformance::ranks::RankContext& context) {
            const auto group = context.group();
            const auto mine = static_cast<float>(context.rank() - 1) * 16;
            const auto x = point();
            const auto loss = form(matrix_of({1, 4, -8, 2}) + matrix_of({mine, 0, 0, mine}), x);
            EigenvalueOptions options;
            options.tolerance = 1e-6;
            const auto found = eigenvalue(loss, {x}, options, group.get());
            EXPECT_TRUE(found.converged);
            // Sums of the ranks' rows round at the size of each.
            EXPECT_LE(std::abs(found.value + 8), found.residual + rounding(found, 3 * 24, 4));
            EXPECT_LT(found.residual, 1);
            const auto said = comm::exchange(
                *group, at::tensor({bits_of(found.value), found.iterations}, at::kLong));
            EXPECT_TRUE(said.eq(said[0]).all().item<bool>());
          }),
      "");
}

TEST(Eigenvalue, AnExceptionOnOneRankReachesTheOthers) {
  EXPECT_EQ(conformance::ranks::on_ranks(
                2,
                [](conformance::ranks::RankContext& context) {
                  const auto group = context.group();
                  const auto x = point();
                  const auto loss = form(matrix_of({1, 4, -8, 2}), x);
                  const auto error = conformance::error_of([&] {
                    eigenvalue(context.rank() == 0 ? loss : loss.detach(), {x}, {}, group.get());
                  });
                  EXPECT_THAT(error, ::testing::HasSubstr(context.rank() == 0
                                                              ? "got an exception on rank 1"
                                                              : "a scalar loss with a graph"));
                  EXPECT_GT(eigenvalue(loss, {x}, {}, group.get()).iterations, 1);
                }),
            "");
}

// One window of two passes, an eigenvalue in between and another before the step.
TEST(Eigenvalue, LeavesTheWindowOfAnEngineItsBits) {
  auto first = std::make_shared<double>(std::numeric_limits<double>::quiet_NaN());
  conformance::at_every_stage(2, [first](conformance::ranks::RankContext& context, int stage) {
    conformance::SmallOptions options;
    options.stage = stage;
    options.accumulation = 2;
    SmallRun plain(context, options), run(context, options);
    plain.train(0);
    plain.train(1);
    run.train(0);
    const auto gradient = run.engine->access().full_gradient("w1").clone();
    const auto loss = run.loss(1);
    const auto block = std::vector<at::Tensor>{run["w1"], run["b1"], run["w2"], run["unused"]};
    const auto found = eigenvalue(loss, block, {}, run.group.get());
    EXPECT_GT(found.iterations, 1);
    EXPECT_THAT(run.engine->access().full_gradient("w1"),
                conformance::oracle::HasTheBitsOf(gradient));
    for (const auto& parameter : block) EXPECT_FALSE(parameter.grad().defined());
    run.engine->backward(loss);
    eigenvalue(run.loss(2), block, {}, run.group.get());
    run.engine->step();
    conformance::expect_equal(run.all(), plain.all(), "after the step");
    if (stage == 0) *first = found.value;
    EXPECT_EQ(found.value, *first);  // parameters have the same bits at every stage
  });
}

// The rank that reads fewer parameters is done first, and serves the others.
TEST(Eigenvalue, RanksMayReadOtherParameters) {
  conformance::at_every_stage(2, [](conformance::ranks::RankContext& context, int stage) {
    conformance::SmallOptions options;
    options.stage = stage;
    SmallRun run(context, options);
    const auto short_loss = [&] { return at::tanh(run["b1"]).square().sum(); };
    const auto found = eigenvalue(context.rank() == 0 ? short_loss() : run.loss(0),
                                  {run["w1"], run["b1"], run["w2"]}, {}, run.group.get());
    EXPECT_NE(found.value, 0);
    run.train(0);
  });
}

}  // namespace
}  // namespace equigrad::profile
