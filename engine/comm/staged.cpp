#include "engine/comm/staged.hpp"

#include <ATen/ops/empty.h>

#include <utility>

namespace equigrad::comm {
namespace {

at::Tensor on_the_cpu(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

// Where an output arrives before it is copied to its place.
at::Tensor room_for(const at::Tensor& output) {
  return at::empty({output.numel()}, output.options().device(at::kCPU));
}

class StagedPending final : public Pending {
 public:
  // `sent` stays until the collective has ended; `output` is undefined where nothing arrives.
  StagedPending(PendingPtr pending, at::Tensor sent, at::Tensor arrived, at::Tensor output)
      : pending_(std::move(pending)),
        sent_(std::move(sent)),
        arrived_(std::move(arrived)),
        output_(std::move(output)) {}
  void wait() override {
    pending_->wait();
    if (output_.defined()) output_.copy_(arrived_.view(output_.sizes()));
    output_.reset();  // a second wait() copies nothing
  }

 private:
  PendingPtr pending_;
  at::Tensor sent_, arrived_, output_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::shared_ptr<Communicator> on_cpu, c10::Device device)
      : on_cpu_(std::move(on_cpu)), device_(device) {}

  int rank() const override { return on_cpu_->rank(); }
  int world_size() const override { return on_cpu_->world_size(); }
  c10::Device device() const override { return device_; }

  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return carry(&Communicator::all_to_all, output, input);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return carry(&Communicator::all_gather, output, input);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return carry(&Communicator::reduce_scatter_sum, output, input);
  }
  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    const auto copy = on_the_cpu(tensor);
    return std::make_unique<StagedPending>(named().all_reduce_sum(copy), at::Tensor(), copy,
                                           tensor);
  }
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    const auto copy = on_the_cpu(tensor);
    return std::make_unique<StagedPending>(named().broadcast(copy, root), at::Tensor(), copy,
                                           tensor);
  }
  PendingPtr send(const at::Tensor& tensor, int to, int tag) override {
    const auto sent = on_the_cpu(tensor);
    return std::make_unique<StagedPending>(named().send(sent, to, tag), sent, at::Tensor(),
                                           at::Tensor());
  }
  PendingPtr receive(const at::Tensor& tensor, int from, int tag) override {
    const auto arrived = room_for(tensor);
    return std::make_unique<StagedPending>(named().receive(arrived, from, tag), at::Tensor(),
                                           arrived, tensor);
  }

 private:
  using Carrier = PendingPtr (Communicator::*)(const at::Tensor&, const at::Tensor&);

  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) {
    const auto sent = on_the_cpu(input).view({-1}), arrived = room_for(output);
    return std::make_unique<StagedPending>((named().*by)(arrived, sent), sent, arrived, output);
  }

  // Errors are the given one's, and have this one's names.
  Communicator& named() {
    if (names() && !on_cpu_->names()) on_cpu_->call_ranks(*names());
    return *on_cpu_;
  }

  std::shared_ptr<Communicator> on_cpu_;
  c10::Device device_;
};

}  // namespace

std::shared_ptr<Communicator> staged(std::shared_ptr<Communicator> on_cpu, c10::Device device) {
  return std::make_shared<StagedCommunicator>(std::move(on_cpu), device);
}

}  // namespace equigrad::comm
