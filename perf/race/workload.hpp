// Workload: what all contestants of a race train: a model's weights and every rank's batches, in
// two files that both languages read; and what the first step's gradients must be.
//
// Batches: text as tokens: two neighbouring bytes b, c of the text are the token (31 b + c) mod
// vocabulary; for dots, numbers by counter. They depend on the model's settings and the rank only.
//
// The proof compares a contestant's averaged gradient g of the first step with what one process
// finds without any engine: the contributions of all ranks and micro-batches in the same precision
// (plain), and in fp64 with fp64 weights (exact). Its bound is the oracle's (bound.hpp). A peer's
// model adds a bias within the product, so its plain contributions are those of its own program
// without communication, which gives the reference's every bit when told not to.
//
// Shapes: batches "rank<r>" [count, batch, context + 1] int64; dots [count, width] float.
// Errors: std::runtime_error, c10::Error.
// Depends on: conformance/oracle, perf/worker/model.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/oracle/bound.hpp"

namespace equigrad::perf {

struct Proof {
  conformance::oracle::BoundReport report;
  int64_t differing_elements = 0;  // from plain, bit by bit
};

class Workload {
 public:
  // Writes the files into `directory`.
  Workload(const nlohmann::json& model, int world, int64_t batch, int64_t accumulation,
           const std::string& directory);

  const std::string& weights() const { return weights_; }
  const std::string& batches() const { return batches_; }
  int64_t parameters() const { return parameters_; }
  int64_t tokens_per_step() const;

  // Writes the mean of files of gradients into one more, and gives its path.
  std::string mean_of(const std::vector<std::string>& of_ranks) const;
  // Of the gradients that a contestant wrote.
  Proof prove(const std::string& gradients);
  // The same with each rank's own gradients, of one pass, as plain ones.
  Proof prove(const std::string& gradients, const std::vector<std::string>& of_ranks);

 private:
  void write_batches();
  void write_weights();
  // Adds up all ranks' contributions.
  struct Sums {
    std::map<std::string, at::Tensor> sum, absolute;
  };
  Sums contributions(at::ScalarType dtype) const;
  void find_exact();
  Proof compare(const std::string& gradients, const Sums& plain) const;

  nlohmann::json model_;
  int world_;
  int64_t batch_, accumulation_, parameters_ = 0;
  std::string weights_, batches_;
  Sums plain_, exact_;
};

}  // namespace equigrad::perf
