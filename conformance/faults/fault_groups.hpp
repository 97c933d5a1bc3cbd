// Fault groups: the catalogue, by seam; and what its faults are made of.
//
// Invariants, shapes, units, errors: those of fault.hpp.
// Depends on: fault.hpp, seams.hpp.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/faults/fault.hpp"
#include "conformance/faults/seams.hpp"

namespace equigrad::conformance::faults {

std::vector<Fault> comm_faults();
std::vector<Fault> layout_faults();
std::vector<Fault> bucket_faults();
std::vector<Fault> reduction_faults();
std::vector<Fault> gradient_faults();
std::vector<Fault> loss_faults();
std::vector<Fault> shard_faults();
std::vector<Fault> optimizer_faults();
std::vector<Fault> schedule_faults();
std::vector<Fault> parameter_faults();
std::vector<Fault> parallel_faults();
std::vector<Fault> sequence_faults();
std::vector<Fault> completion_faults();
std::vector<Fault> checkpoint_faults();
std::vector<Fault> mutant_faults();

// A fault of the seams alone.
Fault at_seams(const std::string& name, const std::string& what, std::vector<std::string> bugs,
               const std::string& phase, std::function<void(FaultContext&)> plant);

// How the engine cuts and holds its parameters, from when it is made.
struct Layout {
  const layout::BucketPlan* plan = nullptr;
  const layout::ParameterTable* table = nullptr;
  at::Tensor masters;
};
std::shared_ptr<const Layout> watch_layout();

// Another factor for the average: the one that it gets, and what it was given for.
void change_factor(FaultContext& context, std::function<double(double factor)> change);

// Another gradient when one is ready; nothing: that one. Copies are the fault's own.
using Change = std::function<at::Tensor(std::size_t parameter, const at::Tensor& gradient)>;
void change_gradient(FaultContext& context, Change change);

// Whether two tensors have the same bits, NaN and the sign of zero included.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace equigrad::conformance::faults
