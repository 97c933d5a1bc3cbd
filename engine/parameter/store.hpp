// Parameters: what the model computes with, kept in step with the master weights.
//
// Two keepers: Replicas (every rank holds every parameter whole, stages 0-2) and Pages (every rank
// holds its shard and gathers the whole for as long as an operator needs it, stage 3). The engine
// chooses one by the stage's row.
//
// Invariants: after publish() the parameter's value is the master rounded to the type it is sent in
// and then to the parameter dtype, on every rank alike; shape, strides (kept_strides) and identity
// of the model's tensors never change; padding is zero.
// Shapes: a parameter keeps its own; flat is the order of its shape, whatever its strides: what is
// not contiguous is copied where a whole is made or cut. Masters are flat over the rank's shard
// space, in their own type and perhaps on another device.
// Errors: those of the communicator, and of a peer whose pass threw.
// Depends on: layout, comm, memory/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/agreement/coordinator.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/config/config.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::parameter {

// What both keepers work with; all of it outlives them.
struct Context {
  const layout::ParameterTable& table;
  const layout::BucketPlan& plan;
  const ZeroConfig& zero;
  comm::Communicator& communicator;
  agreement::Participant& participant;
  memory::Ledger& ledger;
  const at::Tensor& masters;        // [plan.shard_numel()]
  std::vector<at::Tensor> tensors;  // the model's, by index of the table
  at::ScalarType dtype;             // that the model computes in
  // Rounded to this before they are sent, at every stage alike; nothing: to `dtype` only. By the
  // bucket's lower_precision.
  std::array<std::optional<at::ScalarType>, 2> communication_dtypes = {};
  std::vector<std::vector<std::size_t>> leaves = {};  // parameters that come and go together

  at::ScalarType communication_dtype(bool lower_precision) const {
    return communication_dtypes[lower_precision ? 1 : 0].value_or(dtype);
  }
  at::Tensor as_seen(const at::Tensor& values, bool lower_precision) const {
    return values.to(communication_dtype(lower_precision)).to(dtype);
  }
};

// Elements gathered for operators in one cycle; by the plan; and the least (paging_plan.hpp).
struct Traffic {
  int64_t gathered_numel = 0, planned_numel = 0, least_numel = 0;
};

class Parameters {
 public:
  virtual ~Parameters() = default;
  // Masters into parameters, after an update; or into one of them, whose master becomes `slice`
  // first, if it is given: nothing that is on its way reads it meanwhile. Collective.
  virtual void publish() = 0;
  virtual void publish(std::size_t parameter, const at::Tensor& slice) = 0;
  // A parameter as the model sees it, a copy. Collective where parameters are sharded.
  virtual at::Tensor whole(std::size_t parameter) = 0;
  // The model's tensor is whole until it is unpinned, once at a time. Collective where parameters
  // are sharded.
  virtual void pin(std::size_t parameter) = 0;
  // `keep`: what it holds now is its value, on every rank alike; a trained one's is in its master
  // already, and publish() comes next. Otherwise it is as it was.
  virtual void unpin(std::size_t parameter, bool keep) = 0;
  // What the model sees of these masters.
  virtual at::Tensor as_seen(const at::Tensor& values, bool lower_precision) const = 0;
  virtual bool is_pinned(std::size_t parameter) const { return pinned_.contains(parameter); }
  // Nothing that is on its way reads masters any more: they change next.
  virtual void settle() = 0;
  // A backward pass ended, or threw: nothing needs a whole parameter until the next forward. The
  // pass counts by now: what fails is thrown by rethrow_failure(). Of the cycle that ends.
  virtual Traffic end_of_pass() noexcept = 0;
  // Throws what an operator could not: a gather that failed inside one.
  virtual void rethrow_failure() = 0;

 protected:
  std::map<std::size_t, at::Tensor> pinned_;  // what they were, where it is not kept elsewhere
};

std::unique_ptr<Parameters> make_replicas(const Context& context);
std::unique_ptr<Parameters> make_pages(const Context& context);
// Fills the masters, then makes the one or the other.
std::unique_ptr<Parameters> make_keeper(const Context& context, bool sharded);

// Copies this rank's slice of every trainable parameter into the masters, before anything else is
// rounded.
void fill_masters(const Context& context);

// Row-major [shards, shard_numel] columns -> a flat parameter [numel], padding left out.
void copy_out(const at::Tensor& columns, const at::Tensor& flat);

// What a parameter keeps: its own strides where they are dense and do not overlap; else those of
// torch::empty_like. Its data is not asked for.
std::vector<int64_t> kept_strides(const at::Tensor& parameter);

}  // namespace equigrad::parameter
