// Eigenvalue: the eigenvalue of largest absolute value of the loss's Hessian with respect to some
// parameters (a block of it), by power iteration with products of the Hessian and a vector.
//
//   v = random, |v| = 1;   repeat:  u = H v,  value = u . v,  v = u / (|u| + stability)
//   until |value - the last one| < tolerance * |value|, or max_iterations
//
// Invariants: options and convergence are DeepSpeed's, but the first value is compared with nothing
// (DeepSpeed: with 1). Nothing is written: neither .grad nor an engine's window nor the global
// generator; the loss's graph is kept, for a backward pass afterwards. A parameter that the loss
// does not reach has a row of zeros; numbers that are not finite count as zeros. With a
// communicator H is the average over ranks, in the pinned order (comm/reduction.hpp), and all ranks
// get the same bits, if all name the same parameters; without one it is this rank's own.
// Shapes: a scalar loss; the vector has the shapes of the parameters, fp32.
// Units: none.
// Errors: equigrad::Error for a loss without a graph, no parameters; autograd's, for an operator
// without a second derivative. Collective at stage 3 and with a communicator, where an exception on
// one rank reaches the others.
// Depends on: ATen tensors; comm in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace equigrad::comm {
class Communicator;
}

namespace equigrad::profile {

struct EigenvalueOptions {
  int64_t max_iterations = 100;
  double tolerance = 1e-2;
  double stability = 1e-6;
  uint64_t seed = 0;     // of the first vector, the same on all ranks
  bool verbose = false;  // one line for each iteration, on rank 0
};

struct Eigenvalue {
  double value = 0;  // of the last vector: v . Hv
  int64_t iterations = 0;
  bool converged = false;  // also where H v is zero: then it is the value
  // |Hv - value v| / |v|: the interval value +- residual contains an eigenvalue, whatever v is.
  double residual = 0;
  std::vector<at::Tensor> vector;  // the last v
};

Eigenvalue eigenvalue(const at::Tensor& loss, const std::vector<at::Tensor>& parameters,
                      const EigenvalueOptions& options = {},
                      comm::Communicator* communicator = nullptr);

}  // namespace equigrad::profile
