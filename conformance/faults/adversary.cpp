#include "conformance/faults/adversary.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/faults/forwarding_communicator.hpp"
#include "engine/error.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance::faults {
namespace {

using Begin = std::function<PendingPtr(const at::Tensor& output, const at::Tensor& input)>;

// A tensor of one element may have any stride, which view(kByte) would not take. Of rows that lie
// apart, or are one and the same: of a copy.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().as_strided({tensor.numel()}, {1}).view(at::kByte);
}

// Only this process's adversary still holds its memory.
bool is_freed(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// A collective from its launch to the end of its wait().
struct Flight {
  std::string name;          // "all_gather 12"
  at::Tensor input, output;  // the caller's; either may be missing
  at::Tensor sent, poison;   // what they held at the launch, in bytes
  at::Tensor block;          // what the real collective writes to
  Begin begin;
  PendingPtr real;  // null: not begun
  bool complete = false;

  void launch() {
    if (real) return;
    auto from = block;
    if (input.defined()) {
      if (is_freed(input)) bytes_of(input).fill_(0xFF);  // somebody else's by now
      from = input.clone();  // so that whoever counts its owners does not count the communicator
    }
    real = begin(block.defined() ? block : from, from);
  }

  void finish() {
    if (complete) return;
    launch();
    real->wait();
    complete = true;
    if (!output.defined()) return;
    was_touched_ = !bytes_of(output).equal(poison);
    output.copy_(block);
  }

  // Before finish(): empty, or what the caller did to it in flight.
  std::string broken() const {
    if (input.defined() && is_freed(input)) return "its input was freed";
    if (output.defined() && is_freed(output)) return "its output was freed";
    if (input.defined() && !bytes_of(input).equal(sent)) return "its input was written to";
    if (!output.defined()) return "";
    const bool is_right = bytes_of(output).equal(complete ? bytes_of(block) : poison);
    return is_right && !was_touched_ ? "" : "its output was written to";
  }

 private:
  bool was_touched_ = false;  // when it arrived before its wait()
};
using FlightPtr = std::shared_ptr<Flight>;

// What is in flight on this rank. `line` begins in this order on every rank.
struct CollectiveQueue {
  AdversaryOptions options;
  int rank = 0;
  int slow_rank = 0;
  uint64_t number = 0;
  std::vector<FlightPtr> line;     // not begun, in the order of their launch
  std::vector<FlightPtr> flying;   // begun, not complete
  std::vector<FlightPtr> orphans;  // nobody waits for them; their memory stays

  // The same on every rank.
  uint64_t dice(uint64_t salt) const {
    return reference::hash(reference::hash(options.seed * 31 + salt) + number);
  }
  uint64_t own_dice(uint64_t salt) const {
    return reference::hash(dice(salt) + static_cast<uint64_t>(rank));
  }

  // That one, and what was launched before it.
  void begin_to(const FlightPtr& last) {
    if (std::find(line.begin(), line.end(), last) == line.end()) return;
    for (bool is_last = false; !is_last;) {
      const auto flight = line.front();
      line.erase(line.begin());
      flight->launch();
      flying.push_back(flight);
      is_last = flight == last;
    }
  }

  // Some that are on their way arrive before anybody waits for them, the last one first.
  void finish_some() {
    if (options.always_late || !options.arrives_early || own_dice(3) % 2 == 0) return;
    for (auto flight = flying.rbegin(); flight != flying.rend(); ++flight) (*flight)->finish();
    flying.clear();
  }

  void maybe_sleep(uint64_t salt) const {
    if (options.always_late || rank != slow_rank || dice(salt) % 4 != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + dice(salt + 1) % 2));
  }
};

class Waiting final : public comm::Pending {
 public:
  Waiting(std::shared_ptr<CollectiveQueue> queue, FlightPtr flight)
      : queue_(std::move(queue)), flight_(std::move(flight)) {}
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  ~Waiting() override {
    if (waited_) return;
    try {
      queue_->begin_to(flight_);  // or the other ranks would wait for ever
      queue_->orphans.push_back(flight_);
    } catch (...) {
      // A peer is lost: the next collective says so.
    }
  }

  void wait() override {
    if (std::exchange(waited_, true)) return;
    queue_->begin_to(flight_);
    queue_->maybe_sleep(11);
    queue_->finish_some();
    const std::string broken = flight_->broken();
    flight_->finish();
    std::erase(queue_->flying, flight_);
    if (broken.empty() || !queue_->options.complains) return;
    throw Error("adversary",
                fmt::format("expected {} of rank {} to be left alone until wait(), got that {} in "
                            "flight. Wait first, or give it memory of its own.",
                            flight_->name, queue_->rank, broken));
  }

 private:
  std::shared_ptr<CollectiveQueue> queue_;
  FlightPtr flight_;
  bool waited_ = false;
};

class Adversary final : public ForwardingCommunicator {
 public:
  Adversary(std::shared_ptr<comm::Communicator> real, const AdversaryOptions& options)
      : ForwardingCommunicator(std::move(real)), queue_(std::make_shared<CollectiveQueue>()) {
    queue_->options = options;
    queue_->rank = real_->rank();
    queue_->slow_rank =
        static_cast<int>(reference::hash(options.seed) % static_cast<uint64_t>(world_size()));
  }
  ~Adversary() override {
    try {
      for (auto& orphan : queue_->orphans) orphan->finish();
    } catch (...) {
      // A peer is lost, and nobody waits for these.
    }
  }

  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const auto real = real_.get();
    return launch("all_gather", false, output, input,
                  [real](const auto& to, const auto& from) { return real->all_gather(to, from); });
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    const auto real = real_.get();
    return launch(
        "reduce_scatter_sum", true, output, input,
        [real](const auto& to, const auto& from) { return real->reduce_scatter_sum(to, from); });
  }
  // In place: nobody may read or write it, so what is sent lies in the block from the beginning.
  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    const auto real = real_.get();
    return launch("all_reduce_sum", true, tensor, {},
                  [real](const auto& to, const auto&) { return real->all_reduce_sum(to); });
  }
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    const auto real = real_.get();
    const bool sends = root == rank();
    return launch("broadcast", false, sends ? at::Tensor() : tensor, sends ? tensor : at::Tensor(),
                  [real, root](const auto& to, const auto&) { return real->broadcast(to, root); });
  }

 private:
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    const auto real = real_.get();
    const char* name = by == &comm::Communicator::trade ? "trade" : "all_to_all";
    return launch(name, true, output, input,
                  [real, by](const auto& to, const auto& from) { return (*real.*by)(to, from); });
  }

  PendingPtr launch(const char* kind, bool is_sum, const at::Tensor& output,
                    const at::Tensor& input, Begin begin) {
    auto flight = std::make_shared<Flight>();
    flight->name = fmt::format("{} {}", kind, ++queue_->number);
    flight->begin = std::move(begin);
    flight->input = input;
    if (input.defined()) flight->sent = bytes_of(input).clone();
    if (output.defined()) {
      flight->output = output;
      flight->block = output.clone();
      flight->poison = bytes_of(output);
      flight->poison.fill_(queue_->options.seed % 2 == 1 ? 0xFF : 0x5A);
      flight->poison = flight->poison.clone();
    }
    queue_->maybe_sleep(5);
    enter(flight, is_sum);
    return std::make_unique<Waiting>(queue_, std::move(flight));
  }

  void enter(const FlightPtr& flight, bool is_sum) {
    const bool is_late =
        (is_sum && queue_->options.always_late) || queue_->own_dice(is_sum ? 1 : 2) % 2 == 1;
    queue_->line.push_back(flight);
    if (!is_late) queue_->begin_to(flight);
  }

  std::shared_ptr<CollectiveQueue> queue_;
};

}  // namespace

std::shared_ptr<comm::Communicator> adversarial(std::shared_ptr<comm::Communicator> real,
                                                AdversaryOptions options) {
  return std::make_shared<Adversary>(std::move(real), options);
}

std::shared_ptr<comm::Communicator> adversarial(std::shared_ptr<comm::Communicator> real,
                                                uint64_t seed, bool is_one_of_several) {
  if (seed == 0) return real;
  return adversarial(std::move(real),
                     AdversaryOptions{.seed = seed, .arrives_early = !is_one_of_several});
}

}  // namespace equigrad::conformance::faults
