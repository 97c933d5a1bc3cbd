// 15. What an engine says of itself: the eigenvalue of a block of the loss's second derivatives.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/profile/eigenvalue.hpp"

namespace equigrad::conformance::contract {
namespace eigenvalue_parts {
namespace {

using profile::eigenvalue;
using profile::Eigenvalue;
using profile::EigenvalueOptions;

constexpr double kLargest = -6;  // of the spectra that are drawn; all else is 2 at most

// Symmetric, fp32, with eigenvalues between -2 and 2 and kLargest.   [n, n]
at::Tensor matrix_of(int64_t n, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto drawn = at::empty({n, n}, at::kDouble).normal_(0, 1, generator);
  auto values = at::empty({n}, at::kDouble).uniform_(-2, 2, generator);
  values[n / 2] = kLargest;
  const auto basis = std::get<0>(at::linalg_qr(drawn));
  const auto whole = at::mm(basis * values, basis.t());
  return ((whole + whole.t()) / 2).to(at::kFloat);
}

// A quadratic form of several parameters, of which one is not reached and one is not trained.
struct Form {
  std::vector<at::Tensor> parameters;
  at::Tensor matrix, loss;

  Form(int64_t rows, int64_t columns, int64_t more, const at::Tensor& of)
      : parameters{at::ones({rows, columns}).requires_grad_(), at::ones({0}).requires_grad_(),
                   at::ones({3}), at::full({more}, 0.5).requires_grad_()},
        matrix(of) {
    const auto x = at::cat({parameters[0].flatten(), parameters[3]});
    loss = at::dot(x, at::mv(matrix, x)) / 2 + x.sum();
  }
};

// The largest of absolute value, in fp64.
double largest_of(const at::Tensor& matrix) {
  const auto values = at::linalg_eigvalsh(matrix.to(at::kDouble));
  return values[values.abs().argmax()].item<double>();
}

at::Tensor flat(const std::vector<at::Tensor>& vector) {
  std::vector<at::Tensor> all;
  for (const auto& piece : vector) all.push_back(piece.flatten());
  return at::cat(all).to(at::kDouble);
}

std::string words_of(double got, double want) {
  return std::to_string(want) + ", got " + std::to_string(got);
}

constexpr double kHalfUlp = 0x1p-24, kOfDoubles = 0x1p-53;  // relative

// H, and what the sums of its elements can be wrong by.
struct Known {
  at::Tensor matrix, magnitude;     // [n, n], fp64; the second of absolute values
  double of_an_element = kHalfUlp;  // relative
  int64_t ranks = 1;

  explicit Known(const at::Tensor& of, double element = kHalfUlp)
      : matrix(of.to(at::kDouble)), magnitude(matrix.abs()), of_an_element(element) {}
  // The largest error of a computed Hv, element by element: sums of n products, their mean with
  // those of the transposed, and that of all ranks (Higham, Accuracy and Stability, 3.1).   [n]
  at::Tensor bound(const at::Tensor& vector) const {
    const double n = static_cast<double>(vector.numel() + 2 + ranks);
    const double factor = n * (of_an_element + kOfDoubles) / (1 - n * of_an_element);
    return at::mv(magnitude, vector.abs()) * factor;
  }
};

// By the definition, in fp64: of the vector that came with it. An eigenvalue of a symmetric matrix
// is no farther from v . Hv / v . v than the residual is long (Parlett, The Symmetric Eigenvalue
// Problem, 4.5).
struct ByDefinition {
  double value = 0, value_bound = 0, residual = 0, residual_bound = 0, to_an_eigenvalue = 0;

  ByDefinition(const Known& known, const Eigenvalue& found) {
    const auto vector = flat(found.vector);
    const auto product = at::mv(known.matrix, vector);
    const auto bound = known.bound(vector);
    const double length = vector.norm().item<double>();
    value = at::dot(product, vector).item<double>();
    value_bound = at::dot(bound, vector.abs()).item<double>();
    residual = (product - vector * found.value).norm().item<double>() / length;
    residual_bound = bound.norm().item<double>() / length;
    to_an_eigenvalue = residual + std::abs(found.value) * std::abs(1 - length * length) / length;
  }
};

void check_residual(Play& play, const std::string& what, const Known& known,
                    const Eigenvalue& found) {
  const ByDefinition want(known, found);
  play.check(what + " is v . Hv, " + words_of(found.value, want.value),
             std::abs(found.value - want.value) <= want.value_bound);
  play.check(what + " has the residual " + words_of(found.residual, want.residual),
             std::abs(found.residual - want.residual) <= want.residual_bound);
}

// The eigenvalue itself, of a matrix that has no other as near.
void check_eigenvalue(Play& play, const std::string& what, const Known& known,
                      const Eigenvalue& found, double want) {
  const ByDefinition bounds(known, found);
  play.check(what + ", " + words_of(found.value, want),
             std::abs(found.value - bounds.value) <= bounds.value_bound &&
                 std::abs(found.value - want) <= bounds.to_an_eigenvalue + bounds.value_bound);
}

void check_found(Play& play, int64_t rows, int64_t columns, int64_t more) {
  const auto seed = play.context().seed + static_cast<uint64_t>(rows * 100 + more);
  Form form(rows, columns, more, matrix_of(rows * columns + more, seed));
  EigenvalueOptions options;
  options.max_iterations = 400;
  options.tolerance = 1e-7;
  options.seed = seed;
  const auto found = eigenvalue(form.loss, form.parameters, options);
  const double want = largest_of(form.matrix) + (play.fault() ? 1 : 0);
  play.check("two products agree at last", found.converged);
  check_eigenvalue(play, "the eigenvalue", Known(form.matrix), found, want);
  check_residual(play, "the eigenvalue", Known(form.matrix), found);
  const double length = flat(found.vector).norm().item<double>();
  play.check("its vector has the shapes of what is trained, and the length 1",
             found.vector.size() == 2 && found.vector[0].sizes() == form.parameters[0].sizes() &&
                 found.vector[1].sizes() == form.parameters[3].sizes() &&
                 found.vector[0].scalar_type() == at::kFloat && length <= 1 + kHalfUlp &&
                 length >= (1 - kHalfUlp) / (1 + options.stability));  // of a product above 1
  for (const auto& parameter : form.parameters)
    play.check("no gradient is written", !parameter.grad().defined());
  form.loss.backward();
  play.check("the graph is there for a backward pass", form.parameters[0].grad().defined());
}

// As many products as the same iteration takes in fp64.
int64_t products_by_hand(const at::Tensor& matrix, at::Tensor vector, double tolerance,
                         double stability, int64_t most) {
  const auto wide = matrix.to(at::kDouble);
  double last = std::numeric_limits<double>::quiet_NaN();
  for (int64_t number = 1;; ++number) {
    const auto product = at::mv(wide, vector);
    const double value = at::dot(product, vector).item<double>();
    if (std::abs(value - last) < tolerance * std::abs(value) || number == most) return number;
    last = value;
    vector = product / (product.norm() + stability);
  }
}

at::Tensor first_vector(int64_t numel, uint64_t seed, double stability) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto drawn = at::empty({numel}, at::kFloat).normal_(0, 1, generator).to(at::kDouble);
  return drawn / (drawn.norm() + stability);
}

void check_iterations(Play& play) {
  const Form form(2, 3, 2, matrix_of(8, play.context().seed));
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{7}})
    for (const double stability : {1e-6, 1.0}) {
      EigenvalueOptions options;
      options.max_iterations = 1;
      options.seed = seed;
      options.stability = stability;
      const auto one = eigenvalue(form.loss, form.parameters, options);
      const auto want = first_vector(8, seed, stability);
      play.check("a single product is of the first vector, and has nothing to agree with",
                 one.iterations == 1 && !one.converged &&
                     ((flat(one.vector) - want).abs() <= want.abs() * (kHalfUlp + 32 * kOfDoubles))
                         .all()
                         .item<bool>());
      check_residual(play, "a single product", Known(form.matrix), one);
      for (const double tolerance : {1e9, 0.3, 1e-2}) {
        options.max_iterations = 60;
        options.tolerance = tolerance;
        const auto several = eigenvalue(form.loss, form.parameters, options);
        const auto count = products_by_hand(form.matrix, want, tolerance, stability, 60);
        play.check("two values are within " + std::to_string(tolerance) + " after " +
                       std::to_string(count) + " products, got " +
                       std::to_string(several.iterations),
                   several.iterations == count && several.converged == (count < 60));
        check_residual(play, "the last of several", Known(form.matrix), several);
      }
    }
}

// A loss of straight lines has none; what is not finite counts as nothing.
void check_zeros(Play& play) {
  const auto x = at::zeros({3}).requires_grad_(), y = at::ones({2}).requires_grad_();
  const auto straight = eigenvalue(x.sum() + 2 * y.sum(), {x, y});
  play.check("a loss without second derivatives has the eigenvalue 0, at once",
             straight.value == 0 && straight.converged && straight.iterations == 1 &&
                 straight.residual == 0);
  const auto diagonal = [](std::vector<float> of, double element = kHalfUlp) {
    return Known(at::diag(at::tensor(of)), element);
  };
  const auto infinite = eigenvalue(x.pow(1.5).sum() + 1.5 * y.square().sum(), {x, y});
  check_eigenvalue(play, "what is infinite counts as nothing", diagonal({0, 0, 0, 3, 3}), infinite,
                   3);
  // Rows that the loss does not reach, or reaches on straight lines only, are zeros.
  const auto partly = eigenvalue(x.sum() - 2 * y.square().sum(), {x, y});
  check_eigenvalue(play, "one of two that are reached", diagonal({0, 0, 0, -4, -4}), partly, -4);
  const auto beside = at::ones({2}).requires_grad_();
  const auto half = at::ones({2}, at::kBFloat16).requires_grad_();
  const auto mixed = eigenvalue(half.to(at::kFloat).square().sum() * 4, {beside, half});
  check_eigenvalue(play, "of 16 bits", diagonal({0, 0, 8, 8}, 0x1p-9), mixed, 8);
  play.check("its vector is fp32", mixed.vector[1].scalar_type() == at::kFloat);
}

void check_generator(Play& play) {
  const auto x = at::ones({3}).requires_grad_();
  const auto before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  eigenvalue(x.square().sum(), {x});
  play.check("the global generator is as it was",
             at::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

void check_refused(Play& play) {
  const auto x = at::ones({2}).requires_grad_(), frozen = at::ones({2}),
             empty = at::ones({0}).requires_grad_();
  const auto loss = x.square().sum();
  const std::string no_loss =
      "[profile.eigenvalue] expected a scalar loss with a graph, got another tensor. Compute it "
      "from the model's parameters outside of NoGradGuard, and call this before backward.";
  const std::string none =
      "[profile.eigenvalue] expected parameters that require a gradient, got none. Name those of a "
      "block.";
  play.refuse(no_loss, [&] { eigenvalue(at::Tensor(), {x}); });
  play.refuse(no_loss, [&] { eigenvalue(x.square(), {x}); });
  play.refuse(no_loss, [&] { eigenvalue(loss.detach(), {x}); });
  play.refuse(none, [&] { eigenvalue(loss, {}); });
  play.refuse(none, [&] { eigenvalue(loss, {frozen, empty}); });
  for (const int64_t most : {0, -3}) {
    EigenvalueOptions options;
    options.max_iterations = most;
    play.refuse("[profile.eigenvalue] expected max_iterations of at least 1, got " +
                    std::to_string(most) + ". DeepSpeed's default is 100.",
                [&] { eigenvalue(loss, {x}, options); });
  }
}

// Each rank has a matrix of its own, of a size that ranks do not divide: H is their average.
void check_ranks(Play& play, comm::Communicator& group) {
  const auto& context = play.context();
  Known average(at::zeros({5, 5}));
  average.ranks = context.world;
  at::Tensor mine;
  for (int rank = 0; rank < context.world; ++rank) {
    auto matrix = matrix_of(5, context.seed + static_cast<uint64_t>(rank) + 1);
    matrix += at::eye(5) * -4;  // so that the average has one eigenvalue that leads
    average.matrix += matrix.to(at::kDouble) / context.world;
    average.magnitude += matrix.to(at::kDouble).abs() / context.world;
    if (rank == context.rank) mine = matrix;
  }
  const Form form(2, 2, 1, mine);
  EigenvalueOptions options;
  options.max_iterations = 50;
  options.tolerance = 1e-3;
  const auto found = eigenvalue(form.loss, form.parameters, options, &group);
  check_residual(play, "the eigenvalue of all ranks", average, found);
  play.check("all ranks stop where fp64 would, give or take one",
             std::abs(found.iterations - products_by_hand(average.matrix, first_vector(5, 0, 1e-6),
                                                          1e-3, 1e-6, 50)) <= 1);
  const auto bits =
      at::cat({at::scalar_tensor(found.value, at::kDouble).view({1}),
               at::scalar_tensor(found.residual, at::kDouble).view({1}), flat(found.vector)})
          .view(at::kLong);
  const auto all = comm::exchange(group, bits);
  play.check("all ranks have the same bits", all.eq(all[0]).all().item<bool>());
  if (context.world > 1) {
    const bool last = context.rank + 1 == context.world;
    play.refuse(last ? "a scalar loss with a graph"
                     : "got an exception on rank " + std::to_string(context.world - 1),
                [&] {
                  eigenvalue(last ? form.loss.detach() : form.loss, form.parameters, options,
                             &group);
                });
  }
  const auto again = eigenvalue(form.loss, form.parameters, options, &group);
  play.check("the next one is as the first",
             again.value == found.value && again.iterations == found.iterations);
}

void eigenvalue_of_a_block(Play& play) {
  if (const auto group = play.group()) {
    check_found(play, 1, 1, 2);
    check_found(play, 2, 3, 5);
    check_iterations(play);
    check_zeros(play);
    check_generator(play);
    check_refused(play);
    check_ranks(play, *group);
  }
  train_along(play);
}

}  // namespace
}  // namespace eigenvalue_parts

std::vector<Case> eigenvalues() {
  return {case_beside(
      {.section = "15",
       .name = "eigenvalue_of_a_block",
       .sentence = "a block's eigenvalue is that of its whole matrix, in as many products",
       .fault = "another eigenvalue is expected",
       .program = eigenvalue_parts::eigenvalue_of_a_block},
      Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
