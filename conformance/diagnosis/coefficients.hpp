// Coefficients: a gradient as the matrix C[rank, micro-batch] of what was added up, and in words.
//
// A right gradient is the sum over all contributions G[r][m] of C[r][m] G[r][m], every C[r][m]
// being 1 / (world accumulation_steps). Matrices here are relative to that: 1 is right, 0 is
// missing, 2 is counted twice, 1 / world everywhere is averaged twice.
//
// Two ways to the matrix: a fit to the contributions of a real model; and a probe, a parameter
// whose contributions are distinct powers of two at places of their own, so that C is read off
// without solving anything, exactly but for the roundings of the average (as_read).
//
// Shapes: Matrix [world][accumulation_steps]; a probe is flat, [world * world *
//   accumulation_steps], so that every rank's shard holds every contribution once.
// Units: words count micro-batches from 1 and ranks from 0.
// Errors: std::runtime_error for a slice of a probe that does not hold every contribution.
// Depends on: ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace equigrad::conformance::oracle {

using Matrix = std::vector<std::vector<double>>;
using Values = std::vector<double>;

// Least squares; nothing with fewer than two values a coefficient, or where two contributions
// cannot be told apart. parts: [rank][micro_batch].
std::optional<Matrix> fit_coefficients(const Values& got,
                                       const std::vector<std::vector<Values>>& parts);
// Every coefficient replaced by the nearest one that a fault makes: 0, 1, 2, 1 / world, ...
Matrix nearest_simple(const Matrix& fitted);

// "micro-batch 2 of rank 1 is missing"; empty for a matrix without words, or a right one.
std::string in_words(const Matrix& matrix);
// "rank 0: 1/6 1/6 1/6, rank 1: 1/6 0 1/6": C itself, where `divisor` makes a right average.
std::string matrix_text(const Matrix& matrix, int64_t divisor);
// What a number in front of the right gradient says, averages with `of_averages` behind; the same
// number may say two things.
std::vector<std::pair<double, std::string>> named_factors(int64_t world, int64_t accumulation_steps,
                                                          const std::string& of_averages = {});

// The only wrong micro-batch or rank, or the first wrong micro-batch where not all are wrong alike;
// -1: it cannot be told.
struct Culprit {
  int micro_batch = -1;
  int rank = -1;
};
Culprit culprit_of(const Matrix& matrix);

// What (rank, micro_batch) gives to the probe.
at::Tensor probe(int64_t world, int64_t accumulation_steps, int64_t rank, int64_t micro_batch);
// A coefficient in 20 bits: what the roundings of an average in fp32 leave of it.
double as_read(double coefficient);
// From the elements [begin, begin + got.numel()) of a probe's averaged gradient. An element that
// holds what belongs elsewhere gives a coefficient that is off by a power of two.
Matrix decode_probe(const at::Tensor& got, int64_t begin, int64_t world,
                    int64_t accumulation_steps);

}  // namespace equigrad::conformance::oracle
