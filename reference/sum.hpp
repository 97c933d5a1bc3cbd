// Sum: what the contributions of all ranks and passes to one parameter add up to.
//
//   c[p][r] = what rank r's p-th pass gave, in the compute dtype; zeros when it gave nothing.
//             A pass whose backward runs another inside (reentrant checkpointing) gives a
//             parameter one contribution a graph task: its k-th with the k-th of other ranks
//   tree    = neighbours (0,1) (2,3).. added in fp32, level by level; an odd last one carried up
//   A(x)    = x rounded to the accumulate dtype
//   v[p]    = the pass's weight; a product with v = 1 is left out, another rounded to fp32
//   t(x)    = T(x b): the product in fp32, left out if b = 1; T the communication dtype or x's own
//
//   AddThenReduce (stages 0, 1)  w_r = 0; w_r = A(w_r + c[p][r] v[p]) for each p
//                                R = A(tree(t(w)))
//   ReduceThenAdd (stages 2, 3)  R = A(tree(t(c[0])) v[0])
//                                R = A(R + tree(t(c[p])) v[p]) for later p
//   ExactGrid ("exact")          x = T(c (v b)) for every c, whatever its pass and rank, b rounded
//                                to fp32 before it multiplies v, and v b before it multiplies c;
//                                u = 2^(32 floor((e - 1) / 32) - 31), 2^e <= the largest |x| <
//                                2^(e+1); R = the sum of all u round(x / u), |x| >= u, ties to
//                                even, as one whole number times u, rounded once to fp32. If some x
//                                are not finite R is their sum
//   Fp64                         R = the sum of all c v in fp64; b and T are not read
//
// Invariants: for contributions in fp64 all of this is fp64, and there is no ExactGrid.
// Shapes: all contributions are of one shape and dtype, and so is R's shape.   Errors: none.
// Depends on: ATen; model.hpp in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace equigrad::reference {

enum class SumOrder { AddThenReduce, ReduceThenAdd, ExactGrid, Fp64 };

using Contributions = std::vector<std::vector<at::Tensor>>;  // [pass][rank], one parameter's

struct Sending {
  double factor = 1.0;  // b
  std::optional<at::ScalarType> dtype;
};

// R. No weights: each is 1.
at::Tensor sum_contributions(const Contributions& contributions, SumOrder order,
                             at::ScalarType accumulate_dtype, std::vector<double> weights = {},
                             const Sending& sending = {});

}  // namespace equigrad::reference
