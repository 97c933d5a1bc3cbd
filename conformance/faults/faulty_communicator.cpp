#include "conformance/faults/faulty_communicator.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::conformance::faults {
namespace {

using comm::PendingPtr;

// Keeps an altered input alive, and alters the output once it is there.
class Altered : public comm::Pending {
 public:
  Altered(PendingPtr pending, at::Tensor kept_input, std::function<void()> alter_output)
      : pending_(std::move(pending)),
        kept_input_(std::move(kept_input)),
        alter_output_(std::move(alter_output)) {}

  void wait() override {
    pending_->wait();
    if (alter_output_) std::exchange(alter_output_, nullptr)();
  }

 private:
  PendingPtr pending_;
  at::Tensor kept_input_;
  std::function<void()> alter_output_;
};

class Wire : public comm::Communicator {
 public:
  Wire(std::shared_ptr<comm::Communicator> wire, std::shared_ptr<const Moment> moment)
      : wire_(std::move(wire)), moment_(std::move(moment)) {}

  int rank() const override { return wire_->rank(); }
  int world_size() const override { return wire_->world_size(); }
  c10::Device device() const override { return wire_->device(); }
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return wire_->all_to_all(output, input);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return wire_->all_gather(output, input);
  }
  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    return wire_->all_reduce_sum(tensor);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return wire_->reduce_scatter_sum(output, input);
  }
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    return wire_->broadcast(tensor, root);
  }

 protected:
  // all_to_all that sends `input` instead of what it was given.
  PendingPtr send(const at::Tensor& output, at::Tensor input) {
    auto pending = wire_->all_to_all(output, input);
    return std::make_unique<Altered>(std::move(pending), std::move(input), nullptr);
  }

  std::shared_ptr<comm::Communicator> wire_;
  std::shared_ptr<const Moment> moment_;
};

class MicroBatchDropped : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    const bool now = rank() == 1 && moment_->step == 0 && moment_->micro_batch == 1;
    return send(output, now ? at::zeros_like(input) : input);
  }
};

class AveragedTwice : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return send(output, moment_->step >= 0 ? input / static_cast<double>(world_size()) : input);
  }
};

class ShardOffByOne : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return send(output, moment_->step >= 0 ? at::roll(input, 1) : input);
  }
};

class WordLost : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    auto pending = wire_->all_to_all(output, input);
    if (lost_ || moment_->step != 1 || rank() != 0) return pending;
    return std::make_unique<Altered>(std::move(pending), at::Tensor(), [this, output] {
      const auto words = output.flatten().nonzero();
      if (lost_ || words.numel() == 0) return;
      output.flatten()[words[0][0].item<int64_t>()].zero_();
      lost_ = true;
    });
  }
  bool lost_ = false;
};

class GatherStale : public Wire {
  using Wire::Wire;
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (!input.is_floating_point()) return wire_->all_gather(output, input);  // the norm's words
    if (moment_->step != seen_step_) {
      last_ = std::exchange(now_, {});
      seen_step_ = moment_->step;
    }
    now_.push_back(input.clone());
    const std::size_t call = now_.size() - 1;
    const bool stale = rank() == 1 && moment_->step == 1 && call < last_.size() &&
                       last_[call].sizes() == input.sizes();
    const at::Tensor sent = stale ? last_[call] : input;
    return std::make_unique<Altered>(wire_->all_gather(output, sent), sent, nullptr);
  }
  int seen_step_ = -1;
  std::vector<at::Tensor> last_, now_;
};

// The scale of the passes is 2^8 at first (kScalePower, recipe.cpp).
class ScaleNotDivided : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return send(output, moment_->step >= 0 ? input * 256.0 : input);
  }
};

// After the second step the scale doubles, so whoever divides by it then gets half the gradient.
class UpdatedScale : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return send(output, moment_->step == 1 ? input * 0.5 : input);
  }
};

// Of what one rank alone does not see the other ranks never hear again, and the case ends early: so
// here nobody sees it.
class OverflowUnseen : public Wire {
  using Wire::Wire;
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return cleaned(wire_->all_to_all(output, input), output);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return cleaned(wire_->all_gather(output, input), output);
  }
  PendingPtr cleaned(PendingPtr pending, const at::Tensor& output) {
    if (moment_->step < 0 || !output.is_floating_point()) return pending;
    return std::make_unique<Altered>(std::move(pending), at::Tensor(), [output] {
      output.masked_fill_(at::isfinite(output).logical_not(), 0);
    });
  }
};

// Two ranks, three micro-batches, odd sizes: nearly every fault can act.
const char* const kPlain = "Required.grad.zero2.fp32.w2.gas3.clip-off.sgd.nasty.engine_backward";
// The loss scale doubles after the second step, and what travels is fp32.
const char* const kScaled = "Required.grad.zero1.fp16.w2.gas3.clip-off.sgd.nasty.engine_backward";
// Rank 1 overflows in the third step.
const char* const kLoud = "Required.grad.zero0.fp16.w2.gas1.clip-off.sgd.nasty.engine_backward";

}  // namespace

const std::vector<Fault>& planted_faults() {
  static const std::vector<Fault> faults = {
      {"micro_batch_dropped", "rank 1's second micro-batch of step 1 never reaches the sum",
       kPlain},
      {"averaged_twice", "every contribution is divided by the world size once more", kPlain},
      {"shard_off_by_one", "what is sent for a shard begins one element too early", kPlain},
      {"word_lost", "one word of one reduction of step 2 arrives as zero", kPlain},
      {"gather_stale", "rank 1 publishes the parameters of step 1 again after step 2", kPlain},
      {"scale_not_divided", "the average keeps the loss scale", kScaled},
      {"updated_scale", "the gradient of step 2 is divided by the scale that grew after it",
       kScaled},
      {"overflow_unseen", "the overflow of rank 1 is lost on its way, and no rank skips step 3",
       kLoud},
  };
  return faults;
}

std::shared_ptr<comm::Communicator> make_faulty(std::shared_ptr<comm::Communicator> wire,
                                                const std::string& fault,
                                                std::shared_ptr<const Moment> moment) {
  if (fault == "micro_batch_dropped") return std::make_shared<MicroBatchDropped>(wire, moment);
  if (fault == "averaged_twice") return std::make_shared<AveragedTwice>(wire, moment);
  if (fault == "shard_off_by_one") return std::make_shared<ShardOffByOne>(wire, moment);
  if (fault == "word_lost") return std::make_shared<WordLost>(wire, moment);
  if (fault == "gather_stale") return std::make_shared<GatherStale>(wire, moment);
  if (fault == "scale_not_divided") return std::make_shared<ScaleNotDivided>(wire, moment);
  if (fault == "updated_scale") return std::make_shared<UpdatedScale>(wire, moment);
  if (fault == "overflow_unseen") return std::make_shared<OverflowUnseen>(wire, moment);
  std::string known;
  for (const auto& planted : planted_faults()) known += " " + planted.name;
  throw Error("faults",
              "expected one of" + known + ", got \"" + fault + "\". Choose one of those.");
}

}  // namespace equigrad::conformance::faults
