#include "engine/profile/eigenvalue.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "engine/agreement/coordinator.hpp"
#include "engine/autograd/gradients.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/error.hpp"

namespace equigrad::profile {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

void check(const Tensor& loss, const Tensors& parameters, const EigenvalueOptions& options) {
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw Error("profile.eigenvalue",
                "expected a scalar loss with a graph, got another tensor. Compute it from the "
                "model's parameters outside of NoGradGuard, and call this before backward.");
  }
  if (parameters.empty()) {
    throw Error("profile.eigenvalue",
                "expected parameters that require a gradient, got none. Name those of a block.");
  }
  if (options.max_iterations < 1) {
    throw Error("profile.eigenvalue", fmt::format("expected max_iterations of at least 1, got {}. "
                                                  "DeepSpeed's default is 100.",
                                                  options.max_iterations));
  }
}

Tensors trainable(const Tensors& parameters) {
  Tensors chosen;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad() && parameter.numel() > 0) chosen.push_back(parameter);
  }
  return chosen;
}

// Hessian of one loss, with its graph.
class Hessian {
 public:
  Hessian(const Tensor& loss, const Tensors& parameters, const EigenvalueOptions& options,
          comm::Communicator* communicator);
  // Flat, fp32, the same on all ranks.
  Tensor times(const Tensor& vector);
  // The first vector's device.
  at::Device device() const { return parameters_.front().device(); }
  int64_t numel() const { return numel_; }
  Tensors split(const Tensor& flat) const;

 private:
  Tensor local_times(const Tensor& vector) const;
  Tensor averaged(Tensor flat);

  Tensors parameters_;
  comm::Communicator* communicator_;
  std::unique_ptr<agreement::Participant> participant_;  // serves ranks without a product
  int64_t products_ = 0;
  int64_t numel_ = 0;
  Tensors gradients_;  // with a graph of their own; of the parameters that have one
  std::vector<std::size_t> reached_;
};

Hessian::Hessian(const Tensor& loss, const Tensors& parameters, const EigenvalueOptions& options,
                 comm::Communicator* communicator)
    : parameters_(trainable(parameters)), communicator_(communicator) {
  if (communicator_ != nullptr)
    participant_ = std::make_unique<agreement::Participant>(*communicator_, 1);
  for (const auto& parameter : parameters_) numel_ += parameter.numel();
  try {
    check(loss, parameters_, options);
    const auto gradients = autograd::gradients({loss}, parameters_, {}, /*create_graph=*/true);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !gradients[i].requires_grad()) continue;
      gradients_.push_back(gradients[i]);
      reached_.push_back(i);
    }
  } catch (...) {
    if (participant_) participant_->abandon();  // the others wait for this rank's product
    throw;
  }
}

Tensors Hessian::split(const Tensor& flat) const {
  Tensors pieces;
  int64_t offset = 0;
  for (const auto& parameter : parameters_) {
    pieces.push_back(flat.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
  return pieces;
}

Tensor Hessian::local_times(const Tensor& vector) const {
  Tensors products;
  if (!gradients_.empty()) {
    const auto pieces = split(vector);
    Tensors along;
    for (const auto i : reached_) along.push_back(pieces[i].to(parameters_[i].scalar_type()));
    products = autograd::gradients(gradients_, parameters_, along, /*create_graph=*/false);
  }
  Tensors rows;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool has = i < products.size() && products[i].defined();
    const auto row = has ? products[i].detach().reshape({-1}).to(at::kFloat)
                         : at::zeros({parameters_[i].numel()}, vector.options());
    rows.push_back(at::where(at::isfinite(row), row, at::zeros({}, row.options())));
  }
  return at::cat(rows);
}

Tensor Hessian::averaged(Tensor flat) {
  if (communicator_ == nullptr || communicator_->world_size() == 1) return flat;
  const int64_t world = communicator_->world_size();
  const auto buffer = at::zeros({(numel_ + world - 1) / world * world},
                                flat.options().device(communicator_->device()));
  buffer.narrow(0, 0, numel_).copy_(flat);
  const auto sum =
      comm::Reduction::all_reduce_sum(*communicator_, ReductionOrder::Pinned, buffer, at::kFloat)
          .finish();
  return sum.narrow(0, 0, numel_).mul(1.0 / static_cast<double>(world)).to(flat.device());
}

Tensor Hessian::times(const Tensor& vector) {
  Tensor product;
  try {
    product = local_times(vector);
  } catch (...) {
    if (participant_) participant_->abandon();
    throw;
  }
  const at::NoGradGuard no_grad;
  if (participant_) participant_->meet(agreement::HessianProduct{.number = products_++});
  return averaged(std::move(product));
}

double inner_product(const Tensor& a, const Tensor& b) { return a.dot(b).item<double>(); }

// On the CPU, so that every device starts from the same vector.
Tensor random_vector(const Hessian& hessian, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty({hessian.numel()}, at::kFloat).normal_(0, 1, generator).to(hessian.device());
}

Tensor normalized(const Tensor& vector, double stability) {
  const auto wide = vector.to(at::kDouble);
  return wide.mul_(1.0 / (std::sqrt(inner_product(wide, wide)) + stability)).to(at::kFloat);
}

}  // namespace

Eigenvalue eigenvalue(const Tensor& loss, const Tensors& parameters,
                      const EigenvalueOptions& options, comm::Communicator* communicator) {
  Hessian hessian(loss, parameters, options, communicator);
  const at::NoGradGuard no_grad;  // products need none: autograd runs on the graph that is there
  Tensor vector = normalized(random_vector(hessian, options.seed), options.stability);
  Eigenvalue result;
  double last = std::numeric_limits<double>::quiet_NaN();  // nothing to compare with
  for (;;) {
    const auto product = hessian.times(vector);
    const auto wide = product.to(at::kDouble), old = vector.to(at::kDouble);
    result.value = inner_product(wide, old);
    ++result.iterations;
    result.converged = result.value == 0
                           ? !product.any().item<bool>()
                           : std::abs((result.value - last) / result.value) < options.tolerance;
    if (options.verbose && (communicator == nullptr || communicator->rank() == 0)) {
      fmt::print("power iteration: {}, eigenvalue: {}\n", result.iterations, result.value);
    }
    if (result.converged || result.iterations == options.max_iterations) {
      const auto rest = wide - old * result.value;
      result.residual = std::sqrt(inner_product(rest, rest) / inner_product(old, old));
      result.vector = hessian.split(vector);
      return result;
    }
    last = result.value;
    vector = normalized(product, options.stability);
  }
}

}  // namespace equigrad::profile
