#include "engine/inspect/gathering.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/error.hpp"
#include "engine/parallel/regions.hpp"

namespace equigrad {
namespace {

int64_t digest(std::string_view bytes) {
  return static_cast<int64_t>(std::hash<std::string_view>()(bytes) >> 1);
}

// The bits of 16- and 32-bit floats.
at::Tensor bits(const at::Tensor& values) {
  return values.view(values.element_size() == 2 ? at::kShort : at::kInt);
}

}  // namespace

class Gathering::Scope final : public GatheredParameters::Scope {
 public:
  Scope(Gathering& gathering, std::vector<Opened> opened, std::optional<int> modifier_rank)
      : gathering_(gathering),
        engine_(gathering.open_),
        opened_(std::move(opened)),
        modifier_rank_(modifier_rank) {
    ++*gathering.open_;
  }

  void end() override {
    const auto engine = engine_.lock();
    engine_.reset();
    if (!engine) return;  // ended, or the engine is gone
    --*engine;
    gathering_.close(opened_, modifier_rank_);
  }

  void end_quietly(bool by_exception) noexcept override {
    const auto engine = engine_.lock();
    if (!engine) return;
    if (by_exception) {
      --*engine;
      return gathering_.close_by_exception(opened_);
    }
    try {
      end();
    } catch (...) {
      if (!gathering_.failure_) gathering_.failure_ = std::current_exception();
    }
  }

 private:
  Gathering& gathering_;
  std::weak_ptr<int> engine_;
  std::vector<Opened> opened_;
  std::optional<int> modifier_rank_;
};

GatheredParameters::GatheredParameters(std::unique_ptr<Scope> scope)
    : scope_(std::move(scope)), exceptions_(std::uncaught_exceptions()) {}

GatheredParameters::~GatheredParameters() {
  if (scope_) scope_->end_quietly(std::uncaught_exceptions() > exceptions_);
}

void GatheredParameters::end() {
  if (scope_) scope_->end();
}

Gathering::Gathering(Stations& stations, const std::vector<at::Tensor>& tensors,
                     const std::vector<std::optional<parallel::Split>>& splits,
                     const comm::Mesh& mesh)
    : at_(stations),
      tensors_(tensors),
      splits_(splits),
      mesh_(mesh),
      open_(std::make_shared<int>(0)) {}

comm::Communicator& Gathering::ranks() const {
  return mesh_.tensor() ? *mesh_.world() : at_.communicator;
}

std::size_t Gathering::index_of(const at::Tensor& tensor) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (tensor.defined() && tensors_[i].is_same(tensor)) return i;
  throw Error(
      "engine.gather",
      "expected parameters of this engine's model, got another tensor. Give the model's own "
      "tensors, such as model->head->weight.");
}

std::vector<std::size_t> Gathering::checked(const std::vector<at::Tensor>& parameters,
                                            std::optional<int> modifier_rank) const {
  const int world = ranks().world_size();
  if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= world)) {
    throw Error("engine.gather", fmt::format("expected a modifier rank from 0 to {}, got {}. Give "
                                             "none to read only.",
                                             world - 1, *modifier_rank));
  }
  std::vector<std::size_t> indices;
  for (const auto& tensor : parameters) {
    const auto index = index_of(tensor);
    if (at_.parameters.is_pinned(index)) {
      throw Error("engine.gather", "expected a parameter that no scope holds, got \"" +
                                       at_.table[index].name + "\". End the other scope first.");
    }
    if (std::find(indices.begin(), indices.end(), index) == indices.end()) indices.push_back(index);
  }
  return indices;
}

void Gathering::meet_to_open(const std::vector<std::size_t>& parameters,
                             std::optional<int> modifier_rank) {
  auto asked = parameters;
  asked.push_back(static_cast<std::size_t>(modifier_rank.value_or(-1)));
  const std::string_view bytes(reinterpret_cast<const char*>(asked.data()),
                               asked.size() * sizeof(asked[0]));
  const auto met = at_.participant.meet(agreement::GatherBegins{.digest = digest(bytes)});
  bool is_same = met.least_flag == met.greatest_flag;
  if (mesh_.tensor()) {
    const auto said =
        comm::exchange(ranks(), at::full({1}, digest(bytes), at::TensorOptions().dtype(at::kLong)));
    is_same = is_same && said.eq(said[0]).all().item<bool>();
  }
  if (is_same) return;
  throw Error("engine.gather",
              "expected the same parameters and modifier rank on every rank, got others on some. "
              "Make the same call on every rank.");
}

GatheredParameters Gathering::open(const std::vector<at::Tensor>& parameters,
                                   std::optional<int> modifier_rank) {
  const at::NoGradGuard no_grad;
  const auto indices = checked(parameters, modifier_rank);
  meet_to_open(indices, modifier_rank);
  std::vector<Opened> opened;
  try {
    for (const auto index : indices) open_one(index, opened);
    at_.participant.meet(agreement::GatherStands{});  // who had a page served those who had not
  } catch (...) {
    put_parts_back(opened);
    for (const auto& one : opened) at_.parameters.unpin(one.parameter, /*keep=*/false);
    throw;
  }
  return GatheredParameters(std::make_unique<Scope>(*this, std::move(opened), modifier_rank));
}

void Gathering::open_one(std::size_t parameter, std::vector<Opened>& opened) {
  at_.parameters.pin(parameter);
  opened.push_back({parameter, {}, 0, 0});  // whatever follows may throw: it is unpinned
  opened.back().before = opened.back().digest = digest_of(parameter);
  if (const auto& split = splits_[parameter]; split && mesh_.tensor()) {
    auto tensor = tensors_[parameter];
    opened.back().part = tensor.variable_data();
    tensor.set_data(parallel::whole_over(opened.back().part, *split, *mesh_.tensor()));
    opened.back().digest = digest_of(parameter);
  }
}

void Gathering::put_parts_back(const std::vector<Opened>& opened) {
  for (const auto& one : opened)
    if (one.part.defined()) at::Tensor(tensors_[one.parameter]).set_data(one.part);
}

// What the whole has now, into this rank's part of it.
void Gathering::take_parts(const Opened& one) {
  const auto whole = tensors_[one.parameter].detach();
  const auto& group = *mesh_.tensor();
  one.part.copy_(
      parallel::part_of(whole, *splits_[one.parameter], group.rank(), group.world_size()));
}

int64_t Gathering::digest_of(std::size_t parameter) const {
  const auto bytes = tensors_[parameter].detach().cpu();
  return digest({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
}

void Gathering::close(const std::vector<Opened>& opened, std::optional<int> modifier_rank) {
  const at::NoGradGuard no_grad;
  std::vector<bool> written(at_.table.size(), false);
  bool wrote = false;
  for (const auto& one : opened) {
    written[one.parameter] = digest_of(one.parameter) != one.digest;
    wrote = wrote || written[one.parameter];
  }
  const bool may_write = modifier_rank == ranks().rank();
  try {
    const auto met = meet_to_close(written, wrote && !may_write);
    if (met.is_wrong) {
      const auto first = std::find(met.marks.begin(), met.marks.end(), true) - met.marks.begin();
      throw Error("engine.gather",
                  fmt::format("expected {}, got a write to \"{}\" on another rank. Nothing was "
                              "kept; write on the modifier rank only.",
                              modifier_rank ? fmt::format("writes on rank {} only", *modifier_rank)
                                            : std::string("no writes without a modifier rank"),
                              at_.table[static_cast<std::size_t>(first)].name));
    }
    // No master changes before everything has arrived: unpin() cannot bring masters back.
    for (const auto& one : opened) {
      if (!met.marks[one.parameter]) continue;
      const auto whole = tensors_[one.parameter].detach();
      const auto flat = whole.contiguous();  // the same, but for a parameter of other strides
      ranks().broadcast(flat.view({-1}), *modifier_rank)->wait();
      if (!flat.is_same(whole)) whole.copy_(flat);
    }
    for (const auto& one : opened)
      if (met.marks[one.parameter] && one.part.defined()) take_parts(one);
    put_parts_back(opened);
    for (const auto& one : opened)
      if (met.marks[one.parameter]) take_over(one.parameter);
    written = met.marks;
  } catch (...) {
    put_parts_back(opened);
    unpin(opened, {});
    throw;
  }
  unpin(opened, written);
  for (const auto& one : opened)
    if (written[one.parameter]) at_.parameters.publish(one.parameter, {});
}

namespace {

// What ranks of a mesh say at the end of a scope.
constexpr int64_t kIsRight = 0, kIsWrong = 1, kHasThrown = 2;

}  // namespace

// Those of other tensor ranks have met by themselves.
Gathering::Ended Gathering::hear_the_mesh(const std::vector<bool>& written, int64_t what) {
  std::vector<int64_t> mine{what};
  mine.insert(mine.end(), written.begin(), written.end());
  const auto said = comm::exchange(ranks(), at::tensor(mine, at::kLong));
  const auto most = std::get<0>(said.max(0));
  const auto words = most.accessor<int64_t, 1>();
  if (what != kHasThrown && words[0] == kHasThrown) {
    const auto thrown = said.select(1, 0).argmax().item<int64_t>();
    throw Error("engine.gather",
                fmt::format("expected every rank to end its scope, got an exception on rank {} or "
                            "on those that share its part of the model. Nothing was kept; do it "
                            "again, or leave it out, on all of them.",
                            thrown));
  }
  Ended ended{words[0] == kIsWrong, std::vector<bool>(written.size())};
  for (std::size_t i = 0; i < written.size(); ++i)
    ended.marks[i] = words[static_cast<int64_t>(i) + 1] != 0;
  return ended;
}

Gathering::Ended Gathering::meet_to_close(const std::vector<bool>& written, bool is_wrong) {
  const agreement::GatherEnds end{.has_written = is_wrong};
  if (!mesh_.tensor()) {
    const auto met = at_.participant.meet(end, written);
    return {met.greatest_flag != 0, met.marks};
  }
  try {
    at_.participant.meet(end, written);
  } catch (...) {
    hear_the_mesh(written, kHasThrown);
    throw;
  }
  return hear_the_mesh(written, is_wrong ? kIsWrong : kIsRight);
}

// Where no bit was written the master keeps those that the model's type has no room for.
void Gathering::take_over(std::size_t parameter) {
  const auto where = at_.plan.slot_of(parameter);
  if (!where) return;  // frozen: unpin() takes it
  const auto& bucket = at_.plan.buckets()[where->bucket];
  const auto& slot = at_.plan.slot(*where);
  const int rank = at_.plan.shards() == 1 ? 0 : at_.communicator.rank();
  const auto mine = layout::Partition(slot.numel, at_.plan.shards()).range(rank);
  const auto master = at_.optimizer.masters().narrow(0, bucket.offset + slot.offset, mine.numel());
  const auto now = tensors_[parameter].detach().reshape({-1}).narrow(0, mine.begin, mine.numel());
  const auto before = at_.parameters.as_seen(master, bucket.lower_precision).to(now.device());
  const auto same = bits(now.contiguous()).eq(bits(before)).to(master.device());
  master.copy_(at::where(same, master, now.to(master.options())));
}

// What has the bits that it had is left alone: a graph of before the scope may yet need it, and
// would take a copy of equal values for a write. Parts are back by now.
void Gathering::unpin(const std::vector<Opened>& opened, const std::vector<bool>& written) {
  for (const auto& one : opened) {
    const bool was_written = digest_of(one.parameter) != one.before;
    at_.parameters.unpin(one.parameter,
                         !was_written || (!written.empty() && written[one.parameter]));
  }
}

// The exception is on its way to the caller; other ranks are told.
void Gathering::close_by_exception(const std::vector<Opened>& opened) noexcept {
  try {
    const at::NoGradGuard no_grad;
    put_parts_back(opened);
    unpin(opened, {});
    at_.participant.begin_pass();
    at_.participant.abandon();
    if (mesh_.tensor()) hear_the_mesh(std::vector<bool>(at_.table.size()), kHasThrown);
  } catch (...) {
  }
}

void Gathering::check_closed(const std::string& where) const {
  if (*open_ == 0) return;
  throw Error(where, fmt::format("expected no scope of gather(), got {} that are open. End them "
                                 "first: their parameters would not follow the update.",
                                 *open_));
}

void Gathering::rethrow_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace equigrad
