#include "conformance/faults/mutant_sites.hpp"

#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/forwarding_communicator.hpp"

namespace equigrad::conformance::faults {
namespace {

void put(const at::Tensor& into, const Mutate& mutate) { into.copy_(mutate(into)); }

void at_gradient(FaultContext& context, Mutate mutate) {
  seams().window_ready = [&context, mutate](gradient::Window& self, std::size_t parameter,
                                            const at::Tensor& gradient) {
    if (!is_time(context)) return through::window_ready(self, parameter, gradient);
    const auto before = context.act().times;
    const auto other = mutate(gradient);
    if (context.act().times != before) context.acted_on(parameter);
    through::window_ready(self, parameter, other);
  };
}

void at_bucket(FaultContext&, Mutate mutate) {
  seams().bucket_copy_in = [mutate](bucket::Bucket& self, std::size_t slot,
                                    const at::Tensor& gradient, double weight) {
    through::bucket_copy_in(self, slot, mutate(gradient), weight);
  };
}

void at_sum(FaultContext&, Mutate mutate) {
  seams().reduction_finish = [mutate](comm::Reduction& self, const at::Tensor& into) {
    return mutate(through::reduction_finish(self, into));
  };
}

void at_accumulator(FaultContext&, Mutate mutate) {
  seams().accumulate = [mutate](gradient::Accumulator& self, std::size_t bucket, at::Tensor sum,
                                double weight) {
    through::accumulate(self, bucket, mutate(sum), weight);
  };
}

void at_average(FaultContext&, Mutate mutate) {
  seams().window_average = [mutate](gradient::Window& self, double factor) {
    return mutate(through::window_average(self, factor));
  };
}

void at_clipped(FaultContext&, Mutate mutate) {
  seams().clip = [mutate](const at::Tensor& gradient, double norm, double threshold) {
    const double factor = through::clip(gradient, norm, threshold);
    put(gradient, mutate);
    return factor;
  };
}

void at_used_gradient(FaultContext&, Mutate mutate) {
  seams().update = [mutate](const OptimizerConfig& config, int64_t step,
                            const at::Tensor& parameter, const at::Tensor& gradient,
                            const std::vector<at::Tensor>& state) {
    through::update(config, step, parameter, mutate(gradient), state);
  };
}

void at_master(FaultContext&, Mutate mutate) {
  seams().update = [mutate](const OptimizerConfig& config, int64_t step,
                            const at::Tensor& parameter, const at::Tensor& gradient,
                            const std::vector<at::Tensor>& state) {
    through::update(config, step, parameter, gradient, state);
    put(parameter, mutate);
  };
}

void at_state(FaultContext&, Mutate mutate) {
  seams().update = [mutate](const OptimizerConfig& config, int64_t step,
                            const at::Tensor& parameter, const at::Tensor& gradient,
                            const std::vector<at::Tensor>& state) {
    through::update(config, step, parameter, gradient, state);
    if (!state.empty()) put(state.back(), mutate);
  };
}

void at_copy(FaultContext&, Mutate mutate) {
  seams().copy_out = [mutate](const at::Tensor& columns, const at::Tensor& flat) {
    through::copy_out(columns, flat);
    put(flat, mutate);
  };
}

void at_page(FaultContext&, Mutate mutate) {
  seams().page_arrive = [mutate](parameter::Page& self, memory::Ledger& ledger) {
    const bool arrives = self.state == parameter::Page::State::Arriving;
    through::page_arrive(self, ledger);
    if (arrives) put(self.tensor.variable_data(), mutate);
  };
}

// What the communicator is given, and what it returns.
class MutatingCommunicator : public ForwardingCommunicator {
 public:
  enum class At { Sent, Received, Published, Gathered };
  MutatingCommunicator(CommunicatorPtr communicator, At at, Mutate mutate)
      : ForwardingCommunicator(std::move(communicator)), at_(at), mutate_(std::move(mutate)) {}
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (!input.is_floating_point()) return real_->all_gather(output, input);
    if (at_ == At::Published) {
      const auto sent = mutate_(input);
      return std::make_unique<Altered>(real_->all_gather(output, sent), sent, nullptr);
    }
    return received(real_->all_gather(output, input), At::Gathered, output);
  }

 private:
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    if (at_ == At::Sent) return send(by, output, mutate_(input));
    return received((*real_.*by)(output, input), At::Received, output);
  }
  PendingPtr received(PendingPtr pending, At at, const at::Tensor& output) {
    if (at_ != at) return pending;
    return std::make_unique<Altered>(std::move(pending), at::Tensor(),
                                     [this, output] { put(output, mutate_); });
  }
  At at_;
  Mutate mutate_;
};

auto on_communicator(MutatingCommunicator::At at) {
  return [at](CommunicatorPtr communicator, FaultContext&, Mutate mutate) -> CommunicatorPtr {
    return std::make_shared<MutatingCommunicator>(std::move(communicator), at, std::move(mutate));
  };
}

}  // namespace

const std::vector<Site>& sites() {
  using At = MutatingCommunicator::At;
  static const std::vector<Site> all = {
      {"gradient", "a gradient from autograd", "accumulation", "gradient", at_gradient, nullptr},
      {"bucket", "what goes into a bucket", "bucket", "gradient", at_bucket, nullptr},
      {"sent", "what a rank sends to be summed", "communicator", "gradient", nullptr,
       on_communicator(At::Sent)},
      {"received", "what a rank gets to sum", "communicator", "gradient", nullptr,
       on_communicator(At::Received)},
      {"sum", "the sum over ranks", "reduction", "gradient", at_sum, nullptr},
      {"accumulated", "what is added to the window", "accumulation", "gradient", at_accumulator,
       nullptr},
      {"average", "the average of a step", "accumulation", "gradient", at_average, nullptr},
      {"clipped", "the clipped gradient", "clip", "clip", at_clipped, nullptr},
      {"used_gradient", "the gradient of an update", "optimizer", "update", at_used_gradient,
       nullptr},
      {"master", "a master after its update", "optimizer", "update", at_master, nullptr},
      {"state", "a state after its update", "optimizer", "update", at_state, nullptr},
      {"published", "the shard that a rank publishes", "parameter", "parameter", nullptr,
       on_communicator(At::Published)},
      {"gathered", "the shards that a rank gathers", "parameter", "parameter", nullptr,
       on_communicator(At::Gathered)},
      {"copied", "a parameter as it is filled", "parameter", "parameter", at_copy, nullptr},
      {"page", "a page as it arrives", "parameter", "forward", at_page, nullptr},
  };
  return all;
}

}  // namespace equigrad::conformance::faults
