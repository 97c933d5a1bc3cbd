#include "engine/comm/level_sum.hpp"

#include <utility>

#include "engine/comm/relay.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::comm {
namespace {

constexpr int kTag = Relay::kLastTag + 1;

}  // namespace

void tree_sum_into(const at::Tensor& sum, const std::vector<at::Tensor>& rows) {
  const auto from = kernels::element_of(rows.front().scalar_type(), "comm.reduction");
  const auto to = kernels::element_of(sum.scalar_type(), "comm.reduction");
  std::vector<const void*> begins;
  for (const auto& row : rows) begins.push_back(row.const_data_ptr());
  kernels::tree_sum(begins.data(), from, static_cast<int>(rows.size()), sum.numel(),
                    sum.mutable_data_ptr(), to);
}

LevelSum::LevelSum(Communicator& communicator, const at::Tensor& rows)
    : communicator_(&communicator),
      levels_(levels_of(communicator.world_size(), communicator.local_ranks())) {
  send(rows);
}

// Of rows [M, n], those of slices that end at this rank or at one that it exchanges with from here
// on: every M-th part goes to each of them.
void LevelSum::send(const at::Tensor& rows) {
  const auto& level = levels_[level_];
  const int rank = communicator_->rank(), mine = level.digit_of(rank);
  const int64_t numel = rows.numel() / level.ranks;
  const auto parts = rows.view({rows.size(0) / level.ranks, level.ranks, rows.size(1)})
                         .transpose(0, 1);  // [ranks, M / ranks, n]
  received_ = communicator_->workspace().take(rows.numel(), rows.options());
  const auto received = received_.tensor().view({level.ranks, numel});
  received[mine].view(parts[mine].sizes()).copy_(parts[mine]);
  auto sent = parts;
  if (parts.size(1) > 1) {
    sent_ = communicator_->workspace().take(rows.numel(), rows.options());
    sent = sent_.tensor().view(parts.sizes());
  }
  for (int step = 1; step < level.ranks; ++step) {
    const int from = (mine + level.ranks - step) % level.ranks;
    pending_.push_back(communicator_->receive(received[from], level.with_digit(rank, from), kTag));
  }
  for (int step = 1; step < level.ranks; ++step) {
    const int to = (mine + step) % level.ranks;
    if (parts.size(1) > 1) sent[to].copy_(parts[to]);
    pending_.push_back(communicator_->send(sent[to].view({-1}), level.with_digit(rank, to), kTag));
  }
}

void LevelSum::wait() {
  for (const auto& pending : pending_) pending->wait();
  pending_.clear();
  if (sent_.tensor().defined()) sent_.give_back();
  sent_ = {};
}

void LevelSum::finish(const at::Tensor& sum) {
  Workspace::Block partial;  // what is under way
  for (;;) {
    wait();
    auto received = std::exchange(received_, {});
    const auto rows = received.tensor().view({levels_[level_].ranks, -1}).unbind(0);
    if (partial.tensor().defined()) partial.give_back();
    if (++level_ == levels_.size()) {
      tree_sum_into(sum, rows);
      return received.give_back();
    }
    const int64_t numel = rows.front().numel();
    partial = communicator_->workspace().take(numel, sum.options().dtype(at::kFloat));
    tree_sum_into(partial.tensor(), rows);
    received.give_back();
    send(partial.tensor().view({-1, sum.numel()}));
  }
}

void LevelSum::drop() {
  wait();
  std::exchange(received_, {}).give_back();
}

}  // namespace equigrad::comm
