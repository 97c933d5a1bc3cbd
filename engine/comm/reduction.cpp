#include "engine/comm/reduction.hpp"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>

#include "engine/kernels/element_of.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::comm {
namespace {

// Of one piece and one rank: 1 MiB in fp32, which is received into memory that malloc reuses.
constexpr int64_t kPieceNumel = int64_t{1} << 18;

void tree_sum_into(const at::Tensor& result, const at::Tensor& contributions) {
  const int rows = static_cast<int>(contributions.size(0));
  const int64_t numel = contributions.size(1);
  const auto from = kernels::element_of(contributions.scalar_type(), "comm.reduction");
  const auto to = kernels::element_of(result.scalar_type(), "comm.reduction");
  if (contributions.is_cuda()) {
    const c10::cuda::CUDAGuard guard(contributions.device());
    kernels::tree_sum_cuda(
        contributions.const_data_ptr(), from, rows, numel, result.mutable_data_ptr(), to,
        c10::cuda::getCurrentCUDAStream(contributions.device().index()).stream());
  } else {
    kernels::tree_sum(contributions.const_data_ptr(), from, rows, numel, result.mutable_data_ptr(),
                      to);
  }
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
  const int64_t world = communicator.world_size();
  switch (kind_) {
    case Kind::All:
      send_piece();
      send_piece();
      break;
    case Kind::Scatter:
      received_ = communicator.workspace().take(buffer_.numel(), buffer_.options());
      pending_ =
          communicator.all_to_all(kernels::as_sent(received_.tensor()), kernels::as_sent(buffer_));
      break;
    case Kind::NativeScatter:
      native_ = at::empty({buffer_.numel() / world}, buffer_.options());
      pending_ = communicator.reduce_scatter_sum(native_, buffer_);
      break;
    case Kind::NativeAll:
      pending_ = communicator.all_reduce_sum(buffer_);
      break;
  }
}

Reduction Reduction::reduce_scatter_sum(Communicator& communicator, ReductionOrder order,
                                        at::Tensor buffer, at::ScalarType result_dtype) {
  const auto kind = order == ReductionOrder::Native ? Kind::NativeScatter : Kind::Scatter;
  return Reduction(communicator, kind, order, std::move(buffer), result_dtype);
}

Reduction Reduction::all_reduce_sum(Communicator& communicator, ReductionOrder order,
                                    at::Tensor buffer, at::ScalarType result_dtype) {
  const auto kind = order == ReductionOrder::Native ? Kind::NativeAll : Kind::All;
  return Reduction(communicator, kind, order, std::move(buffer), result_dtype);
}

// Of what all ranks sent of `numel` elements.
at::Tensor Reduction::sum_of(const Workspace::Room& received, int64_t numel) const {
  const int64_t world_size = communicator_->world_size();
  const auto rows = received.tensor().view({world_size, numel / world_size});
  return order_ == ReductionOrder::Exact ? kernels::exact_row_sum(rows, result_dtype_)
                                         : tree_sum(rows, result_dtype_);
}

void Reduction::send_piece() {
  const int64_t numel =
      std::min(kPieceNumel * communicator_->world_size(), buffer_.numel() - sent_numel_);
  if (numel == 0) return;
  const auto piece = buffer_.narrow(0, sent_numel_, numel);
  auto received = communicator_->workspace().take(numel, piece.options());
  auto pending =
      communicator_->all_to_all(kernels::as_sent(received.tensor()), kernels::as_sent(piece));
  pieces_.push_back({sent_numel_, numel, std::move(received), std::move(pending)});
  sent_numel_ += numel;
}

at::Tensor Reduction::finish_pieces() {
  // A piece that has been sent leaves its room to the sum of the same type.
  const auto sum = buffer_.scalar_type() == result_dtype_
                       ? buffer_
                       : at::empty({buffer_.numel()}, buffer_.options().dtype(result_dtype_));
  at::Tensor slice;  // stays until its gather has arrived
  PendingPtr gather;
  while (!pieces_.empty()) {
    auto piece = std::move(pieces_.front());
    pieces_.pop_front();
    piece.pending->wait();
    auto next = sum_of(piece.received, piece.numel);
    piece.received.give_back();
    if (gather) gather->wait();
    slice = std::move(next);
    gather = communicator_->all_gather(kernels::as_sent(sum.narrow(0, piece.begin, piece.numel)),
                                       kernels::as_sent(slice));
    send_piece();
  }
  if (gather) gather->wait();
  return sum;
}

at::Tensor Reduction::finish() {
  if (kind_ == Kind::All) return finish_pieces();
  pending_->wait();
  pending_.reset();
  if (kind_ == Kind::NativeScatter) return native_.to(result_dtype_);
  if (kind_ == Kind::NativeAll) return buffer_.to(result_dtype_);
  const int64_t numel = buffer_.numel();
  buffer_.reset();
  auto sum = sum_of(received_, numel);
  received_.give_back();
  return sum;
}

}  // namespace equigrad::comm
