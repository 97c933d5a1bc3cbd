#include "engine/inspect/tensor_access.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "engine/error.hpp"

namespace equigrad {
namespace {

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

at::Tensor checked(const at::Tensor& value, at::IntArrayRef shape, const std::string& name) {
  if (!value.defined() || value.sizes() != shape || !value.is_floating_point()) {
    throw Error("engine.access",
                fmt::format("expected floating point values of shape {} for \"{}\", got {}. The "
                            "getter of the same name shows the shape.",
                            shape_text(shape), name,
                            !value.defined()
                                ? "an undefined tensor"
                                : fmt::format("{} of shape {}", c10::toString(value.scalar_type()),
                                              shape_text(value.sizes()))));
  }
  return value.detach().to(at::kFloat).contiguous();
}

// Of the bytes; positive.
int64_t digest(const at::Tensor& value) {
  const auto bytes = value.cpu();
  const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  return static_cast<int64_t>(std::hash<std::string_view>()(text) >> 1);
}

}  // namespace

std::size_t TensorAccess::trainable(const std::string& name) const {
  const auto parameter = at_.table.index_of(name);
  if (at_.table[parameter].trainable) return parameter;
  throw Error("engine.access", "expected a parameter that is trained, got \"" + name +
                                   "\", which is frozen. Read it with full_parameter.");
}

std::size_t TensorAccess::state_index(const std::string& name, const std::string& state) const {
  const auto& names = at_.optimizer.names();
  const auto found = std::find(names.begin(), names.end(), state);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw Error("engine.access",
              fmt::format("expected one of the optimizer's states [{}] of \"{}\", got \"{}\".",
                          fmt::join(names, ", "), name, state));
}

layout::Range TensorAccess::mine(std::size_t parameter) const {
  const int rank = at_.plan.shards() == 1 ? 0 : at_.communicator.rank();
  return layout::Partition(at_.table[parameter].numel, at_.plan.shards()).range(rank);
}

// A view of this rank's slice, padding included.
at::Tensor TensorAccess::slice_of(const at::Tensor& flat, std::size_t parameter) const {
  const auto at = at_.plan.slot_of(parameter);
  if (!at) return flat.narrow(0, 0, 0);  // an empty parameter
  const auto& slot = at_.plan.slot(*at);
  return flat.narrow(0, at_.plan.buckets()[at->bucket].offset + slot.offset, slot.shard_numel);
}

bool TensorAccess::meet(const agreement::SyncPoint& point, std::size_t parameter) {
  const auto met = at_.participant.meet(point, at_.window.progress().used);
  if (met.least_flag == met.greatest_flag) return met.marks[parameter];
  const bool reads = std::holds_alternative<agreement::ReadGradient>(point);
  throw Error(
      "engine.access",
      fmt::format("expected {} on every rank for \"{}\", got others on some. {}",
                  reads ? "as many backward passes" : "the same values", at_.table[parameter].name,
                  reads ? "Make the same calls on every rank."
                        : "Make the same call with the same, whole value on every rank."));
}

at::Tensor TensorAccess::averaged(std::size_t parameter) {
  if (!meet(agreement::ReadGradient{parameter, at_.window.progress().passes}, parameter)) return {};
  if (!at_.plan.slot_of(parameter)) return at::zeros({0});
  return at_.window.averaged_slice(parameter, at_.factor());
}

at::Tensor TensorAccess::gather(const at::Tensor& slice, std::size_t parameter) {
  const auto& entry = at_.table[parameter];
  const int shards = at_.plan.shards();
  if (shards == 1 || entry.numel == 0) return slice.clone().view(entry.shape);
  const auto mine = slice.to(at_.communicator.device());  // offloaded state comes from the CPU
  const auto whole = at::empty({shards * mine.numel()}, mine.options());
  at_.communicator.all_gather(whole, mine.contiguous())->wait();
  return whole.narrow(0, 0, entry.numel).clone().view(entry.shape);
}

at::Tensor TensorAccess::slice_of_full(std::size_t parameter, const at::Tensor& value) const {
  const auto range = mine(parameter);
  return slice_of_local(parameter, value.reshape({-1}).narrow(0, range.begin, range.numel()));
}

at::Tensor TensorAccess::slice_of_local(std::size_t parameter, const at::Tensor& value) const {
  const auto numel = slice_of(at_.optimizer.masters(), parameter).numel();
  const auto padded = at::zeros({numel}, value.options());
  padded.narrow(0, 0, value.numel()).copy_(value);
  return padded;
}

void TensorAccess::write_master(std::size_t parameter, const at::Tensor& slice) {
  if (at_.parameters.is_pinned(parameter)) {
    throw Error("engine.access", "expected a parameter that gather() has not pinned, got \"" +
                                     at_.table[parameter].name + "\". End its scope first.");
  }
  slice_of(at_.optimizer.masters(), parameter).copy_(slice);
  at_.parameters.publish(parameter);
}

void TensorAccess::write_state(std::size_t parameter, std::size_t state, const at::Tensor& slice) {
  slice_of(at_.optimizer.states()[state], parameter).copy_(slice);
  at_.optimizer.keep_state(parameter);
}

at::Tensor TensorAccess::full_gradient(const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto slice = averaged(parameter);
  return slice.defined() ? gather(slice, parameter) : slice;
}

at::Tensor TensorAccess::full_master(const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  meet(agreement::ReadMaster{parameter}, parameter);
  return gather(slice_of(at_.optimizer.masters(), parameter), parameter);
}

at::Tensor TensorAccess::full_optimizer_state(const std::string& name, const std::string& state) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto index = state_index(name, state);
  meet(agreement::ReadState{parameter, index}, parameter);
  return gather(slice_of(at_.optimizer.states()[index], parameter), parameter);
}

void TensorAccess::set_full_gradient(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto whole = checked(value, at_.table[parameter].shape, name);
  meet(agreement::WriteGradient{parameter, digest(whole)}, parameter);
  if (whole.numel() > 0) at_.window.assign(parameter, slice_of_full(parameter, whole));
}

void TensorAccess::set_full_master(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto whole = checked(value, at_.table[parameter].shape, name);
  meet(agreement::WriteMaster{parameter, digest(whole)}, parameter);
  if (whole.numel() > 0) write_master(parameter, slice_of_full(parameter, whole));
}

void TensorAccess::set_full_optimizer_state(const std::string& name, const std::string& state,
                                            const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto index = state_index(name, state);
  const auto whole = checked(value, at_.table[parameter].shape, name);
  meet(agreement::WriteState{parameter, digest(whole) / 16 * 16 + static_cast<int64_t>(index)},
       parameter);
  if (whole.numel() > 0) write_state(parameter, index, slice_of_full(parameter, whole));
}

at::Tensor TensorAccess::local_gradient(const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto slice = averaged(parameter);
  return slice.defined() ? slice.narrow(0, 0, mine(parameter).numel()) : slice;
}

at::Tensor TensorAccess::local_master(const std::string& name) {
  const auto parameter = trainable(name);
  return slice_of(at_.optimizer.masters(), parameter).narrow(0, 0, mine(parameter).numel()).clone();
}

at::Tensor TensorAccess::local_optimizer_state(const std::string& name, const std::string& state) {
  const auto parameter = trainable(name);
  return slice_of(at_.optimizer.states()[state_index(name, state)], parameter)
      .narrow(0, 0, mine(parameter).numel())
      .clone();
}

void TensorAccess::set_local_gradient(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto part = checked(value, {mine(parameter).numel()}, name);
  slices_differ() ? meet(agreement::WriteLocal{parameter, /*is_master=*/false}, parameter)
                  : meet(agreement::WriteGradient{parameter, digest(part)}, parameter);
  if (at_.plan.slot_of(parameter)) at_.window.assign(parameter, slice_of_local(parameter, part));
}

void TensorAccess::set_local_master(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto part = checked(value, {mine(parameter).numel()}, name);
  slices_differ() ? meet(agreement::WriteLocal{parameter, /*is_master=*/true}, parameter)
                  : meet(agreement::WriteMaster{parameter, digest(part)}, parameter);
  if (at_.plan.slot_of(parameter)) write_master(parameter, slice_of_local(parameter, part));
}

void TensorAccess::set_local_optimizer_state(const std::string& name, const std::string& state,
                                             const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(name);
  const auto index = state_index(name, state);
  const auto part = checked(value, {mine(parameter).numel()}, name);
  if (at_.plan.slot_of(parameter)) write_state(parameter, index, slice_of_local(parameter, part));
}

std::vector<LocalShard> TensorAccess::shards(const at::Tensor& gradient,
                                             const std::vector<bool>& used) const {
  std::vector<LocalShard> shards;
  const int rank = at_.plan.shards() == 1 ? 0 : at_.communicator.rank();
  for (const auto& bucket : at_.plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const auto mine = layout::Partition(slot.numel, at_.plan.shards()).range(rank);
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, bucket.offset + slot.offset, mine.numel());
      };
      LocalShard shard{at_.table[slot.parameter].name, mine.begin, mine.end, {}, {}, {}};
      if (gradient.defined() && used[slot.parameter]) shard.gradient = part(gradient);
      shard.master = part(at_.optimizer.masters());
      for (std::size_t i = 0; i < at_.optimizer.names().size(); ++i) {
        shard.state[at_.optimizer.names()[i]] = part(at_.optimizer.states()[i]);
      }
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

}  // namespace equigrad
