#include "engine/comm/reduction.hpp"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/kernels/device_stream.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::comm {
namespace {

// On CUDA a collective costs more than memory.
constexpr int64_t kCudaPieceNumel = int64_t{1} << 25;

void tree_sum_into(const at::Tensor& result, const at::Tensor& contributions) {
  if (!contributions.is_cuda()) return comm::tree_sum_into(result, contributions.unbind(0));
  const auto from = kernels::element_of(contributions.scalar_type(), "comm.reduction");
  const auto to = kernels::element_of(result.scalar_type(), "comm.reduction");
  const c10::DeviceGuard guard(contributions.device());
  kernels::tree_sum_cuda(contributions.const_data_ptr(), from,
                         static_cast<int>(contributions.size(0)), contributions.size(1),
                         result.mutable_data_ptr(), to,
                         kernels::current_stream(contributions.device()));
}

}  // namespace

at::Tensor tree_sum(const at::Tensor& contributions, at::ScalarType result_dtype) {
  auto result = at::empty({contributions.size(1)}, contributions.options().dtype(result_dtype));
  tree_sum_into(result, contributions);
  return result;
}

Reduction::Reduction(Communicator& communicator, Kind kind, ReductionOrder order, at::Tensor buffer,
                     at::ScalarType result_dtype)
    : communicator_(&communicator),
      kind_(kind),
      order_(order),
      result_dtype_(result_dtype),
      buffer_(std::move(buffer)) {
  RECORD_USER_SCOPE("comm.reduce");
  EQUIGRAD_CHECK(buffer_.dim() == 1 && buffer_.numel() % communicator.world_size() == 0,
                 "comm.reduction", "a buffer is flat and padded to a multiple of the ranks");
  switch (kind_) {
    case Kind::NativeScatter:
      native_ = at::empty({buffer_.numel() / communicator.world_size()}, buffer_.options());
      pending_ = communicator.reduce_scatter_sum(native_, buffer_);
      break;
    case Kind::NativeAll:
      pending_ = communicator.all_reduce_sum(buffer_);
      break;
    default:
      for (int piece = 0; piece < kInFlight; ++piece) send_piece();
  }
}

Reduction Reduction::reduce_scatter_sum(Communicator& communicator, ReductionOrder order,
                                        at::Tensor buffer, at::ScalarType result_dtype) {
  const auto kind = order == ReductionOrder::Native ? Kind::NativeScatter : Kind::Scatter;
  return Reduction(communicator, kind, order, std::move(buffer), result_dtype);
}

Reduction Reduction::all_reduce_sum(Communicator& communicator, ReductionOrder order,
                                    at::Tensor buffer, at::ScalarType result_dtype) {
  // Adding exactly twice costs more than a message does.
  const bool both = communicator.world_size() <= 2 && order == ReductionOrder::Pinned &&
                    buffer.itemsize() <= c10::elementSize(result_dtype);
  const auto kind = order == ReductionOrder::Native ? Kind::NativeAll
                    : both                          ? Kind::Both
                                                    : Kind::Slices;
  return Reduction(communicator, kind, order, std::move(buffer), result_dtype);
}

void Reduction::send_piece() {
  const int64_t world = communicator_->world_size();
  const int64_t row_numel = kind_ == Kind::Both ? buffer_.numel() : buffer_.numel() / world;
  const int64_t numel =
      std::min(buffer_.is_cuda() ? kCudaPieceNumel : kPieceNumel, row_numel - sent_numel_);
  if (numel == 0) return;
  const bool trades = order_ == ReductionOrder::Pinned && communicator_->trades();
  at::Tensor rows;  // [W, numel], row r for rank r
  if (kind_ == Kind::Scatter)
    rows = buffer_.view({world, row_numel}).narrow(1, sent_numel_, numel);
  else if (kind_ == Kind::Both)
    rows = buffer_.narrow(0, sent_numel_, numel).expand({world, numel});
  else
    rows = buffer_.narrow(0, sent_numel_ * world, numel * world).view({world, numel});
  sent_numel_ += numel;
  const int64_t begin = sent_numel_ - numel;
  if (goes_by_levels()) {
    pieces_.push_back({begin, numel, {}, {}, {}, std::make_unique<LevelSum>(*communicator_, rows)});
    return;
  }
  auto received = communicator_->workspace().take((trades ? 1 : world) * numel, buffer_.options());
  if (trades) {
    const int rank = communicator_->rank();
    auto pending = communicator_->trade(received.tensor(), rows[1 - rank]);
    pieces_.push_back({begin, numel, rows[rank], std::move(received), std::move(pending), {}});
    return;
  }
  if (rows.is_contiguous()) rows = rows.view({-1});
  auto pending =
      communicator_->all_to_all(kernels::as_sent(received.tensor()), kernels::as_sent(rows));
  pieces_.push_back({begin, numel, {}, std::move(received), std::move(pending), {}});
}

// Two ranks, and ranks of one host, have one level.
bool Reduction::goes_by_levels() const {
  if (order_ != ReductionOrder::Pinned || kind_ == Kind::Both || buffer_.is_cuda()) return false;
  return levels_of(communicator_->world_size(), communicator_->local_ranks()).size() > 1;
}

void Reduction::add_into(const at::Tensor& sum, Piece& piece) const {
  if (piece.by_levels) return piece.by_levels->finish(sum);
  if (piece.own.defined()) {
    std::vector<at::Tensor> rows{piece.own, piece.received.tensor()};
    if (communicator_->rank() == 1) std::swap(rows[0], rows[1]);
    tree_sum_into(sum, rows);
    return piece.received.give_back();
  }
  const auto rows = piece.received.tensor().view({communicator_->world_size(), piece.numel});
  if (order_ == ReductionOrder::Exact)
    sum.copy_(kernels::exact_row_sum(rows, result_dtype_));
  else
    tree_sum_into(sum, rows);
  piece.received.give_back();
}

// The memory of a piece that has been sent is used for the sum of the same type.
at::Tensor Reduction::room_for_all() const {
  return buffer_.scalar_type() == result_dtype_
             ? buffer_
             : at::empty({buffer_.numel()}, buffer_.options().dtype(result_dtype_));
}

at::Tensor Reduction::finish_rows(const at::Tensor& into) {
  const auto sum = into.defined() ? into
                   : kind_ == Kind::Both
                       ? room_for_all()
                       : at::empty({buffer_.numel() / communicator_->world_size()},
                                   buffer_.options().dtype(result_dtype_));
  while (!pieces_.empty()) {
    auto piece = std::move(pieces_.front());
    pieces_.pop_front();
    if (piece.pending) piece.pending->wait();
    send_piece();
    add_into(sum.narrow(0, piece.begin, piece.numel), piece);
  }
  return sum;
}

at::Tensor Reduction::finish_slices(const at::Tensor& into) {
  const int64_t world = communicator_->world_size();
  const auto sum = into.defined() ? into : room_for_all();
  at::Tensor slice;  // stays until its gather has arrived
  PendingPtr gather;
  while (!pieces_.empty()) {
    auto piece = std::move(pieces_.front());
    pieces_.pop_front();
    if (piece.pending) piece.pending->wait();
    const auto next = at::empty({piece.numel}, sum.options());
    add_into(next, piece);
    if (gather) gather->wait();
    slice = next;
    const auto place = sum.narrow(0, piece.begin * world, piece.numel * world);
    gather = communicator_->all_gather(kernels::as_sent(place), kernels::as_sent(slice));
    send_piece();
  }
  if (gather) gather->wait();
  return sum;
}

void Reduction::drop() {
  for (auto& piece : pieces_) {
    if (piece.by_levels) {
      piece.by_levels->drop();
      continue;
    }
    piece.pending->wait();
    piece.received.give_back();
  }
  pieces_.clear();
  if (pending_) pending_->wait();
  buffer_.reset();
}

at::Tensor Reduction::finish(const at::Tensor& into) {
  RECORD_USER_SCOPE("comm.finish");
  EQUIGRAD_CHECK(buffer_.defined(), "comm.reduction", "a reduction is finished once");
  const auto sum_numel = kind_ == Kind::Scatter || kind_ == Kind::NativeScatter
                             ? buffer_.numel() / communicator_->world_size()
                             : buffer_.numel();
  EQUIGRAD_CHECK(
      !into.defined() || (into.numel() == sum_numel && into.scalar_type() == result_dtype_),
      "comm.reduction", "a sum is written into its own shape and type");
  const auto sum = wait_for_sum(into);
  buffer_.reset();
  return sum;
}

at::Tensor Reduction::wait_for_sum(const at::Tensor& into) {
  if (kind_ == Kind::Slices) return finish_slices(into);
  if (kind_ == Kind::Scatter || kind_ == Kind::Both) return finish_rows(into);
  pending_->wait();
  pending_.reset();
  return (kind_ == Kind::NativeScatter ? native_ : buffer_).to(result_dtype_);
}

}  // namespace equigrad::comm
