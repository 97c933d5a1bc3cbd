// Faults of completion: somebody reads, writes or sends before what it waits for is done. The ones
// that are a race on a real communicator have an adversary beneath, so that the race is always
// lost.
#include <ATen/ATen.h>

#include <deque>
#include <map>

#include "conformance/faults/adversary.hpp"
#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/forwarding_communicator.hpp"

namespace equigrad::conformance::faults {
namespace {

using Buffers = std::deque<at::Tensor>;  // what is sent and not waited for, the oldest first

// Every sum begins as late as it may.
std::shared_ptr<comm::Communicator> late(std::shared_ptr<comm::Communicator> communicator,
                                         FaultContext&) {
  return adversarial(std::move(communicator), AdversaryOptions{1, /*complains=*/false, true});
}

// Keeps account of the buffers in flight. `before` gives what is sent instead, `after` is called
// when it has been launched.
void watch_launches(const std::shared_ptr<Buffers>& flying,
                    const std::function<at::Tensor(const at::Tensor& buffer)>& before,
                    const std::function<void(const at::Tensor& buffer)>& after) {
  const auto launch = [=](const auto& through, comm::Communicator& communicator,
                          ReductionOrder order, const at::Tensor& buffer, at::ScalarType result) {
    const auto sent = before ? before(buffer) : buffer;
    auto reduction = through(communicator, order, sent, result);
    flying->push_back(sent);
    if (after) after(sent);
    return reduction;
  };
  seams().reduce_scatter = [=](comm::Communicator& communicator, ReductionOrder order,
                               const at::Tensor& buffer, at::ScalarType result) {
    return launch(through::reduce_scatter, communicator, order, buffer, result);
  };
  seams().all_reduce = [=](comm::Communicator& communicator, ReductionOrder order,
                           const at::Tensor& buffer, at::ScalarType result) {
    return launch(through::all_reduce, communicator, order, buffer, result);
  };
  seams().reduction_finish = [=](comm::Reduction& self, const at::Tensor& into) {
    const auto keeps = flying->empty() ? at::Tensor() : flying->front();
    if (!flying->empty()) flying->pop_front();
    return through::reduction_finish(self, into);
  };
}

// As if both began at the same address.
void overwrite(const at::Tensor& in_flight, const at::Tensor& by, FaultContext& context) {
  const int64_t numel = std::min(in_flight.numel(), by.numel());
  const auto lost = in_flight.narrow(0, 0, numel);
  const auto written = by.narrow(0, 0, numel).to(lost.scalar_type());
  if (!same_bits(lost, written)) context.acted();
  lost.copy_(written);
}

void send_buffer_reused(FaultContext& context) {
  const auto flying = std::make_shared<Buffers>();
  watch_launches(
      flying,
      [flying, &context](const at::Tensor& buffer) {
        if (context.has_begun() && !flying->empty()) overwrite(flying->back(), buffer, context);
        return buffer;
      },
      nullptr);
}

void always_buffer_zero(FaultContext& context) {
  const auto flying = std::make_shared<Buffers>();
  watch_launches(flying, nullptr, nullptr);
  seams().bucket_copy_in = [flying, &context](bucket::Bucket& self, std::size_t slot,
                                              const at::Tensor& gradient, double weight) {
    through::bucket_copy_in(self, slot, gradient, weight);
    if (context.has_begun() && !flying->empty()) overwrite(flying->back(), self.buffer(), context);
  };
}

void freed_before_wait(FaultContext& context) {
  watch_launches(std::make_shared<Buffers>(), nullptr, [&context](const at::Tensor& buffer) {
    if (context.step() < 1 || !context.is_last_rank()) return;
    buffer.fill_(1);  // its next owner's
    context.acted();
  });
}

// The bucket is sent as it was before the last gradient had been copied in.
void launched_before_producer(FaultContext& context) {
  const auto before =
      std::make_shared<std::map<const void*, at::Tensor>>();  // by the buffer's data
  seams().bucket_copy_in = [before](bucket::Bucket& self, std::size_t slot,
                                    const at::Tensor& gradient, double weight) {
    (*before)[self.buffer().const_data_ptr()] = self.buffer().clone();
    through::bucket_copy_in(self, slot, gradient, weight);
  };
  watch_launches(
      std::make_shared<Buffers>(),
      [before, &context](const at::Tensor& buffer) {
        const auto found = before->find(buffer.const_data_ptr());
        if (found == before->end()) return buffer;
        auto incomplete = found->second;
        before->erase(found);
        const bool fits =
            incomplete.sizes() == buffer.sizes() && incomplete.dtype() == buffer.dtype();
        if (!fits || !context.has_begun() || context.rank() != 0) return buffer;
        if (!same_bits(incomplete, buffer)) context.acted();
        return incomplete;
      },
      nullptr);
}

// The page takes the columns of the first page of its gather.
void gather_taken_for_another(FaultContext& context) {
  seams().page_arrive = [&context](parameter::Page& self, memory::Ledger& ledger) {
    const bool arrives = self.state == parameter::Page::State::Arriving && self.offset != 0;
    if (arrives && context.has_begun()) {
      self.gather->wait();
      const auto right = self.gather->take(self.offset, self.shard.numel());
      if (!same_bits(right, self.gather->take(0, self.shard.numel()))) context.acted();
      self.offset = 0;
    }
    through::page_arrive(self, ledger);
  };
}

// The second half of `fresh` as it was.
at::Tensor half_old(const at::Tensor& fresh, const at::Tensor& old, FaultContext& context) {
  auto mixed = fresh.clone();
  const int64_t half = fresh.numel() / 2;
  mixed.narrow(0, half, fresh.numel() - half).copy_(old.narrow(0, half, fresh.numel() - half));
  if (!same_bits(mixed, fresh)) context.acted();
  return mixed;
}

void update_before_copy_to_host(FaultContext& context) {
  const auto last = std::make_shared<at::Tensor>();
  seams().update_all = [last, &context](optimizer::ShardedState& self, const at::Tensor& gradient,
                                        const std::vector<bool>& used) {
    const auto old = std::exchange(*last, gradient.clone());
    through::update_all(self, old.defined() ? half_old(gradient, old, context) : gradient, used);
  };
}

void forward_before_copy_back(FaultContext& context) {
  seams().copy_out = [&context](const at::Tensor& columns, const at::Tensor& flat) {
    const auto old = flat.clone();
    through::copy_out(columns, flat);
    if (context.has_begun() && context.is_last_rank())
      flat.copy_(half_old(flat.clone(), old, context));
  };
}

// What arrives is there only when it has been read: the reader sees what last came of that size.
class ReadEarly : public ForwardingCommunicator {
 public:
  ReadEarly(std::shared_ptr<comm::Communicator> communicator, FaultContext& context, bool gathers)
      : ForwardingCommunicator(std::move(communicator)), context_(context), gathers_(gathers) {}
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return early(real_->all_gather(output, input), output, gathers_);
  }

 private:
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    return early((*real_.*by)(output, input), output, !gathers_);
  }

  PendingPtr early(PendingPtr pending, const at::Tensor& output, bool is_meant) {
    if (!is_meant || !output.is_floating_point()) return pending;
    return std::make_unique<Altered>(std::move(pending), at::Tensor(), [this, output] {
      const auto arrived = output.clone();
      auto& seen = last_[{output.scalar_type(), output.numel()}];
      if (!seen.defined()) seen = at::zeros_like(output);
      if (context_.has_begun() && context_.is_last_rank()) {
        if (!same_bits(seen, arrived)) context_.acted();
        output.copy_(seen);
      }
      seen = arrived;
    });
  }

  FaultContext& context_;
  bool gathers_;
  std::map<std::pair<at::ScalarType, int64_t>, at::Tensor> last_;
};

// The last rank sends a shard of which the second half is still that of the step before.
class GatherBeforeCopy : public ForwardingCommunicator {
 public:
  GatherBeforeCopy(std::shared_ptr<comm::Communicator> communicator, FaultContext& context)
      : ForwardingCommunicator(std::move(communicator)), context_(context) {}
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (!input.is_floating_point()) return real_->all_gather(output, input);
    if (context_.step() != step_) {
      last_ = std::exchange(now_, {});
      step_ = context_.step();
    }
    const std::size_t call = now_.size();
    now_.push_back(input.clone());
    const bool acts = context_.is_last_rank() && context_.step() >= 1 && call < last_.size() &&
                      last_[call].sizes() == input.sizes();
    const auto sent = acts ? half_old(input, last_[call], context_) : input;
    return std::make_unique<Altered>(real_->all_gather(output, sent), sent, nullptr);
  }

 private:
  FaultContext& context_;
  int step_ = -1;
  std::vector<at::Tensor> last_, now_;
};

Fault wrapped(Fault fault, decltype(Fault::wrap) wrap) {
  fault.wrap = std::move(wrap);
  return fault;
}

Fault read_early(const std::string& name, const std::string& what, std::vector<std::string> bugs,
                 const std::string& phase, bool gathers) {
  return {
      .name = name,
      .what = what,
      .seam = "completion",
      .bugs = std::move(bugs),
      .phase = phase,
      .plant = nullptr,
      .wrap = [gathers](std::shared_ptr<comm::Communicator> communicator, FaultContext& context) {
        return std::make_shared<ReadEarly>(std::move(communicator), context, gathers);
      }};
}

std::shared_ptr<comm::Communicator> before_copy(std::shared_ptr<comm::Communicator> communicator,
                                                FaultContext& context) {
  return std::make_shared<GatherBeforeCopy>(std::move(communicator), context);
}

}  // namespace

std::vector<Fault> completion_faults() {
  return {
      wrapped(at_seams("completion.send_buffer_reused",
                       "the next bucket is written to the buffer that is being sent",
                       {"DS-34", "CA-04"}, "gradient", send_buffer_reused),
              late),
      wrapped(
          at_seams("completion.always_buffer_zero",
                   "of two buffers in turns the first is always taken, also while it is being sent",
                   {"DS-35"}, "gradient", always_buffer_zero),
          late),
      wrapped(at_seams("completion.freed_before_wait",
                       "the last rank's buffer goes back to the allocator while it is being sent",
                       {"DS-36"}, "gradient", freed_before_wait),
              late),
      at_seams("completion.launched_before_producer",
               "rank 0 sends its buckets before the last gradient is in them",
               {"DS-37", "DS-38", "MG-11", "AP-01"}, "gradient", launched_before_producer),
      at_seams("completion.gather_taken_for_another",
               "a page that arrives takes the data of the first page of its gather", {"DS-39"},
               "forward", gather_taken_for_another),
      at_seams("completion.update_before_copy_to_host",
               "the update reads a gradient of which half is still that of the step before",
               {"DS-42"}, "update", update_before_copy_to_host),
      at_seams("completion.forward_before_copy_back",
               "the last rank's forward reads weights that are only half updated", {"MG-10"},
               "parameter", forward_before_copy_back),
      wrapped(
          at_seams("completion.gather_before_copy",
                   "the last rank's shards are gathered while half of the new values are in them",
                   {"DS-40"}, "parameter", nullptr),
          before_copy),
      read_early("completion.gather_read_before_wait",
                 "the last rank reads gathered parameters before they have arrived", {"DS-41"},
                 "parameter", true),
      read_early("mutant.completion.sum_read_before_wait",
                 "the last rank adds contributions before they have arrived", {}, "gradient",
                 false),
  };
}

}  // namespace equigrad::conformance::faults
