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

std::size_t trainable(Stations& at, const std::string& name) {
  const auto parameter = at.table.index_of(name);
  if (at.table[parameter].trainable) return parameter;
  throw Error("engine.access", "expected a parameter that is trained, got \"" + name +
                                   "\", which is frozen. Read it with full_parameter.");
}

std::size_t state_index(Stations& at, const std::string& name, const std::string& state) {
  const auto names = at.optimizer.state_names(at.table.index_of(name));
  const auto found = std::find(names.begin(), names.end(), state);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw Error("engine.access",
              fmt::format("expected one of the optimizer's states [{}] of \"{}\", got \"{}\".{}",
                          fmt::join(names, ", "), name, state,
                          names.empty() ? " An optimizer of the caller's has those of its states "
                                          "that are as large as their slices, from its first step "
                                          "on."
                                        : ""));
}

layout::Range mine(const Stations& at, std::size_t parameter) {
  const int rank = at.plan.shards() == 1 ? 0 : at.communicator.rank();
  return layout::Partition(at.table[parameter].numel, at.plan.shards()).range(rank);
}

// A view of this rank's slice, padding included.
at::Tensor slice_of(Stations& at, const at::Tensor& flat, std::size_t parameter) {
  const auto where = at.plan.slot_of(parameter);
  if (!where) return flat.narrow(0, 0, 0);  // an empty parameter
  const auto& slot = at.plan.slot(*where);
  return flat.narrow(0, at.plan.buckets()[where->bucket].offset + slot.offset, slot.shard_numel);
}

bool meet(Stations& at, const agreement::SyncPoint& point, std::size_t parameter) {
  const auto met = at.participant.meet(point, at.window.progress().used);
  if (met.least_flag == met.greatest_flag) return met.marks[parameter];
  const bool reads = std::holds_alternative<agreement::ReadGradient>(point);
  throw Error(
      "engine.access",
      fmt::format("expected {} on every rank for \"{}\", got others on some. {}",
                  reads ? "as many backward passes" : "the same values", at.table[parameter].name,
                  reads ? "Make the same calls on every rank."
                        : "Make the same call with the same, whole value on every rank."));
}

at::Tensor averaged(Stations& at, std::size_t parameter) {
  if (!meet(at, agreement::ReadGradient{parameter, at.window.progress().passes}, parameter))
    return {};
  if (!at.plan.slot_of(parameter)) return at::zeros({0});
  return at.window.averaged_slice(parameter, at.factor());
}

at::Tensor gather(Stations& at, const at::Tensor& slice, std::size_t parameter) {
  const auto& entry = at.table[parameter];
  const int shards = at.plan.shards();
  if (shards == 1 || entry.numel == 0) return slice.clone().view(entry.shape);
  const auto mine = slice.to(at.communicator.device());  // offloaded state comes from the CPU
  const auto whole = at::empty({shards * mine.numel()}, mine.options());
  at.communicator.all_gather(whole, mine.contiguous())->wait();
  return whole.narrow(0, 0, entry.numel).clone().view(entry.shape);
}

at::Tensor slice_of_local(Stations& at, std::size_t parameter, const at::Tensor& value) {
  const auto numel = slice_of(at, at.optimizer.masters(), parameter).numel();
  const auto padded = at::zeros({numel}, value.options());
  padded.narrow(0, 0, value.numel()).copy_(value);
  return padded;
}

at::Tensor slice_of_full(Stations& at, std::size_t parameter, const at::Tensor& value) {
  const auto range = mine(at, parameter);
  return slice_of_local(at, parameter, value.reshape({-1}).narrow(0, range.begin, range.numel()));
}

// A view, without padding.
at::Tensor own_state(const Stations& at, std::size_t parameter, std::size_t state) {
  return at.optimizer.state(parameter, state).narrow(0, 0, mine(at, parameter).numel());
}

void write_master(Stations& at, std::size_t parameter, const at::Tensor& slice) {
  if (at.parameters.is_pinned(parameter)) {
    throw Error("engine.access", "expected a parameter that gather() has not pinned, got \"" +
                                     at.table[parameter].name + "\". End its scope first.");
  }
  at.parameters.publish(parameter, slice);
}

void write_state(Stations& at, std::size_t parameter, std::size_t state, const at::Tensor& slice) {
  const auto own = own_state(at, parameter, state);
  own.copy_(slice.narrow(0, 0, own.numel()));
  at.optimizer.keep_state(parameter);
}

// Else every rank's is the whole.
bool slices_differ(const Stations& at) { return at.plan.shards() > 1; }

}  // namespace

at::Tensor Access::full_gradient(const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto slice = averaged(at_, parameter);
  return slice.defined() ? gather(at_, slice, parameter) : slice;
}

at::Tensor Access::full_master(const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  meet(at_, agreement::ReadMaster{parameter}, parameter);
  return gather(at_, slice_of(at_, at_.optimizer.masters(), parameter), parameter);
}

at::Tensor Access::full_optimizer_state(const std::string& name, const std::string& state) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto index = state_index(at_, name, state);
  meet(at_, agreement::ReadState{parameter, index}, parameter);
  return gather(at_, slice_of_local(at_, parameter, own_state(at_, parameter, index)), parameter);
}

void Access::set_full_gradient(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto whole = checked(value, at_.table[parameter].shape, name);
  meet(at_, agreement::WriteGradient{parameter, digest(whole)}, parameter);
  if (whole.numel() > 0) at_.window.assign(parameter, slice_of_full(at_, parameter, whole));
}

void Access::set_full_master(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto whole = checked(value, at_.table[parameter].shape, name);
  meet(at_, agreement::WriteMaster{parameter, digest(whole)}, parameter);
  if (whole.numel() > 0) write_master(at_, parameter, slice_of_full(at_, parameter, whole));
}

void Access::set_full_optimizer_state(const std::string& name, const std::string& state,
                                      const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto index = state_index(at_, name, state);
  const auto whole = checked(value, at_.table[parameter].shape, name);
  meet(at_, agreement::WriteState{parameter, digest(whole) / 16 * 16 + static_cast<int64_t>(index)},
       parameter);
  if (whole.numel() > 0) write_state(at_, parameter, index, slice_of_full(at_, parameter, whole));
}

at::Tensor Access::local_gradient(const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto slice = averaged(at_, parameter);
  return slice.defined() ? slice.narrow(0, 0, mine(at_, parameter).numel()) : slice;
}

at::Tensor Access::local_master(const std::string& name) {
  const auto parameter = trainable(at_, name);
  return slice_of(at_, at_.optimizer.masters(), parameter)
      .narrow(0, 0, mine(at_, parameter).numel())
      .clone();
}

at::Tensor Access::local_optimizer_state(const std::string& name, const std::string& state) {
  const auto parameter = trainable(at_, name);
  return own_state(at_, parameter, state_index(at_, name, state)).clone();
}

void Access::set_local_gradient(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto part = checked(value, {mine(at_, parameter).numel()}, name);
  slices_differ(at_) ? meet(at_, agreement::WriteLocal{parameter, /*is_master=*/false}, parameter)
                     : meet(at_, agreement::WriteGradient{parameter, digest(part)}, parameter);
  if (at_.plan.slot_of(parameter))
    at_.window.assign(parameter, slice_of_local(at_, parameter, part));
}

void Access::set_local_master(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto part = checked(value, {mine(at_, parameter).numel()}, name);
  slices_differ(at_) ? meet(at_, agreement::WriteLocal{parameter, /*is_master=*/true}, parameter)
                     : meet(at_, agreement::WriteMaster{parameter, digest(part)}, parameter);
  if (at_.plan.slot_of(parameter))
    write_master(at_, parameter, slice_of_local(at_, parameter, part));
}

void Access::set_local_optimizer_state(const std::string& name, const std::string& state,
                                       const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto parameter = trainable(at_, name);
  const auto index = state_index(at_, name, state);
  const auto part = checked(value, {mine(at_, parameter).numel()}, name);
  if (at_.plan.slot_of(parameter))
    write_state(at_, parameter, index, slice_of_local(at_, parameter, part));
}

std::vector<LocalShard> local_shards(const Stations& at, const at::Tensor& gradient,
                                     const std::vector<bool>& used) {
  std::vector<LocalShard> shards;
  const int rank = at.plan.shards() == 1 ? 0 : at.communicator.rank();
  for (const auto& bucket : at.plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const auto mine = layout::Partition(slot.numel, at.plan.shards()).range(rank);
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, bucket.offset + slot.offset, mine.numel());
      };
      LocalShard shard{at.table[slot.parameter].name, mine.begin, mine.end, {}, {}, {}};
      if (gradient.defined() && used[slot.parameter]) shard.gradient = part(gradient);
      shard.master = part(at.optimizer.masters());
      const auto names = at.optimizer.state_names(slot.parameter);
      for (std::size_t i = 0; i < names.size(); ++i)
        shard.state[names[i]] = own_state(at, slot.parameter, i);
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

}  // namespace equigrad
