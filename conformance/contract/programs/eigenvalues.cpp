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

bool is_near(double got, double want, double by) { return std::abs(got - want) <= by; }

std::string words_of(double got, double want) {
  return std::to_string(want) + ", got " + std::to_string(got);
}

// By the definition, in fp64: of the vector that came with it.
void check_residual(Play& play, const std::string& what, const at::Tensor& matrix,
                    const Eigenvalue& found) {
  const auto vector = flat(found.vector);
  const auto product = at::mv(matrix.to(at::kDouble), vector);
  const double value = at::dot(product, vector).item<double>();
  play.check(what + " is v . Hv, " + words_of(found.value, value),
             is_near(found.value, value, 1e-4));
  const double rest = ((product - vector * found.value).norm() / vector.norm()).item<double>();
  play.check(what + " has the residual " + words_of(found.residual, rest),
             is_near(found.residual, rest, 1e-4));
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
  play.check("the eigenvalue is " + words_of(found.value, want),
             found.converged && is_near(found.value, want, 2e-3));
  check_residual(play, "the eigenvalue", form.matrix, found);
  play.check("its vector has the shapes of what is trained, and the length 1",
             found.vector.size() == 2 && found.vector[0].sizes() == form.parameters[0].sizes() &&
                 found.vector[1].sizes() == form.parameters[3].sizes() &&
                 found.vector[0].scalar_type() == at::kFloat &&
                 is_near(flat(found.vector).norm().item<double>(), 1, 1e-5));
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
                     at::allclose(flat(one.vector), want, 1e-5, 1e-6));
      check_residual(play, "a single product", form.matrix, one);
      for (const double tolerance : {1e9, 0.3, 1e-2}) {
        options.max_iterations = 60;
        options.tolerance = tolerance;
        const auto several = eigenvalue(form.loss, form.parameters, options);
        const auto count = products_by_hand(form.matrix, want, tolerance, stability, 60);
        play.check("two values are within " + std::to_string(tolerance) + " after " +
                       std::to_string(count) + " products, got " +
                       std::to_string(several.iterations),
                   several.iterations == count && several.converged == (count < 60));
        check_residual(play, "the last of several", form.matrix, several);
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
  const auto infinite = eigenvalue(x.pow(1.5).sum() + 1.5 * y.square().sum(), {x, y});
  play.check("what is infinite counts as nothing, " + words_of(infinite.value, 3),
             infinite.converged && is_near(infinite.value, 3, 1e-2));
  // Rows that the loss does not reach, or reaches on straight lines only, are zeros.
  const auto partly = eigenvalue(x.sum() - 2 * y.square().sum(), {x, y});
  play.check("one of two that are reached, " + words_of(partly.value, -4),
             partly.converged && is_near(partly.value, -4, 1e-2));
  const auto beside = at::ones({2}).requires_grad_();
  const auto half = at::ones({2}, at::kBFloat16).requires_grad_();
  const auto mixed = eigenvalue(half.to(at::kFloat).square().sum() * 4, {beside, half});
  play.check("of 16 bits, " + words_of(mixed.value, 8), is_near(mixed.value, 8, 0.1));
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
  at::Tensor average = at::zeros({5, 5}, at::kDouble), mine;
  for (int rank = 0; rank < context.world; ++rank) {
    auto matrix = matrix_of(5, context.seed + static_cast<uint64_t>(rank) + 1);
    matrix += at::eye(5) * -4;  // so that the average has one eigenvalue that leads
    average += matrix.to(at::kDouble) / context.world;
    if (rank == context.rank) mine = matrix;
  }
  const Form form(2, 2, 1, mine);
  EigenvalueOptions options;
  options.max_iterations = 50;
  options.tolerance = 1e-3;
  const auto found = eigenvalue(form.loss, form.parameters, options, &group);
  check_residual(play, "the eigenvalue of all ranks", average, found);
  play.check("all ranks stop where fp64 would, give or take one",
             std::abs(found.iterations -
                      products_by_hand(average, first_vector(5, 0, 1e-6), 1e-3, 1e-6, 50)) <= 1);
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
  return {{.section = "15",
           .name = "eigenvalue_of_a_block",
           .sentence = "a block's eigenvalue is that of its whole matrix, in as many products",
           .fault = "another eigenvalue is expected",
           .program = eigenvalue_parts::eigenvalue_of_a_block,
           .models = {"tower"},
           .places = {.precisions = {Precision::Fp32}},
           .windows = 1}};
}

}  // namespace equigrad::conformance::contract
