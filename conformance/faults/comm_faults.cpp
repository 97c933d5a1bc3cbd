// Faults of the communicator: what is sent is not what was given, or not what arrives.
#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/forwarding_communicator.hpp"

namespace equigrad::conformance::faults {
namespace {

class FaultyCommunicator : public ForwardingCommunicator {
 public:
  FaultyCommunicator(std::shared_ptr<comm::Communicator> communicator, FaultContext& context)
      : ForwardingCommunicator(std::move(communicator)), context_(context) {}

 protected:
  // Sends `sent` in place of `input`, which is an act if it is another one.
  PendingPtr send_instead(Carrier by, const at::Tensor& output, const at::Tensor& input,
                          at::Tensor sent) {
    if (!same_bits(sent, input)) context_.acted();
    return send(by, output, std::move(sent));
  }

  FaultContext& context_;
};

// Of every contribution, a rank's own one too.
class OfEveryRow : public FaultyCommunicator {
 public:
  using FaultyCommunicator::FaultyCommunicator;
  bool trades() const override { return false; }
};

class MicroBatchDropped : public FaultyCommunicator {
  using FaultyCommunicator::FaultyCommunicator;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    const bool now = rank() == 1 && context_.step() == 0 && context_.micro_batch() == 1;
    return send_instead(by, output, input, now ? at::zeros_like(input) : input);
  }
};

class AveragedTwice : public OfEveryRow {
  using OfEveryRow::OfEveryRow;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    return send_instead(by, output, input,
                        context_.has_begun() ? input / static_cast<double>(world_size()) : input);
  }
};

class ShardOffByOne : public OfEveryRow {
  using OfEveryRow::OfEveryRow;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    return send_instead(by, output, input, context_.has_begun() ? at::roll(input, 1) : input);
  }
};

class WordLost : public FaultyCommunicator {
  using FaultyCommunicator::FaultyCommunicator;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    auto pending = (*real_.*by)(output, input);
    if (lost_ || context_.step() != 1 || rank() != 0) return pending;
    return std::make_unique<Altered>(std::move(pending), at::Tensor(), [this, output] {
      const auto words = output.flatten().nonzero();
      if (lost_ || words.numel() == 0) return;
      output.flatten()[words[0][0].item<int64_t>()].zero_();
      lost_ = true;
      context_.acted();
    });
  }
  bool lost_ = false;
};

class GatherStale : public FaultyCommunicator {
  using FaultyCommunicator::FaultyCommunicator;
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (!input.is_floating_point()) return real_->all_gather(output, input);  // the norm's words
    if (context_.step() != seen_step_) {
      last_ = std::exchange(now_, {});
      seen_step_ = context_.step();
    }
    now_.push_back(input.clone());
    const std::size_t call = now_.size() - 1;
    const bool stale = rank() == 1 && context_.step() == 1 && call < last_.size() &&
                       last_[call].sizes() == input.sizes() &&
                       last_[call].scalar_type() == input.scalar_type();
    const at::Tensor sent = stale ? last_[call] : input;
    if (!same_bits(sent, input)) context_.acted();
    return std::make_unique<Altered>(real_->all_gather(output, sent), sent, nullptr);
  }
  int seen_step_ = -1;
  std::vector<at::Tensor> last_, now_;
};

// The scale of the passes is 2^8 at first (kScalePower, recipe.cpp).
class ScaleNotDivided : public OfEveryRow {
  using OfEveryRow::OfEveryRow;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    return send_instead(by, output, input, context_.has_begun() ? input * 256.0 : input);
  }
};

// After the second step the scale doubles, so whoever divides by it then gets half the gradient.
class UpdatedScale : public OfEveryRow {
  using OfEveryRow::OfEveryRow;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    return send_instead(by, output, input, context_.step() == 1 ? input * 0.5 : input);
  }
};

// Of what one rank alone does not see the other ranks never hear again, and the case ends early: so
// here nobody sees it.
class OverflowUnseen : public OfEveryRow {
  using OfEveryRow::OfEveryRow;
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    return cleaned((*real_.*by)(output, input), output);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return cleaned(real_->all_gather(output, input), output);
  }
  PendingPtr cleaned(PendingPtr pending, const at::Tensor& output) {
    if (!context_.has_begun() || !output.is_floating_point()) return pending;
    return std::make_unique<Altered>(std::move(pending), at::Tensor(), [this, output] {
      const auto infinite = at::isfinite(output).logical_not();
      if (infinite.any().item<bool>()) context_.acted();
      output.masked_fill_(infinite, 0);
    });
  }
};

template <class Kind>
Fault in_communicator(const std::string& name, const std::string& what,
                      std::vector<std::string> bugs, const std::string& phase) {
  return {.name = name,
          .what = what,
          .seam = "communicator",
          .bugs = std::move(bugs),
          .phase = phase,
          .plant = nullptr,
          .wrap = [](std::shared_ptr<comm::Communicator> communicator, FaultContext& context) {
            return std::make_shared<Kind>(std::move(communicator), context);
          }};
}

}  // namespace

std::vector<Fault> comm_faults() {
  return {
      in_communicator<MicroBatchDropped>(
          "micro_batch_dropped", "rank 1's second micro-batch of step 1 never reaches the others",
          {}, "gradient"),
      in_communicator<AveragedTwice>("averaged_twice",
                                     "every contribution is divided by the world size once more",
                                     {}, "gradient"),
      in_communicator<ShardOffByOne>("shard_off_by_one",
                                     "what is sent for a shard begins one element too early", {},
                                     "gradient"),
      in_communicator<WordLost>("word_lost", "one word of one reduction of step 2 arrives as zero",
                                {}, "gradient"),
      in_communicator<GatherStale>("gather_stale",
                                   "rank 1 publishes the parameters of step 1 again after step 2",
                                   {}, "parameter"),
      in_communicator<ScaleNotDivided>("scale_not_divided", "the average keeps the loss scale", {},
                                       "gradient"),
      in_communicator<UpdatedScale>(
          "updated_scale", "the gradient of step 2 is divided by the scale that grew after it", {},
          "gradient"),
      in_communicator<OverflowUnseen>(
          "overflow_unseen", "the overflow of rank 1 is lost on its way, and no rank skips step 3",
          {}, "scale"),
  };
}

}  // namespace equigrad::conformance::faults
