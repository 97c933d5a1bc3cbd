#include "engine/comm/relay.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::comm {

struct Relay::Gather {
  at::Tensor output, input;
  bool is_done = false;
  std::exception_ptr failure = nullptr;
};

class Relay::Waiting final : public Pending {
 public:
  Waiting(Relay& relay, std::shared_ptr<Gather> gather)
      : relay_(relay), gather_(std::move(gather)) {}
  void wait() override {
    std::unique_lock lock(relay_.mutex_);
    relay_.changed_.wait(lock, [this] { return gather_->is_done; });
    if (gather_->failure) std::rethrow_exception(gather_->failure);
  }

 private:
  Relay& relay_;
  std::shared_ptr<Gather> gather_;
};

Relay::Relay(Communicator& communicator, int first_tag)
    : communicator_(communicator), first_tag_(first_tag), thread_([this] { run(); }) {}

Relay::~Relay() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

PendingPtr Relay::all_gather(const at::Tensor& output, const at::Tensor& input) {
  EQUIGRAD_CHECK(
      output.is_contiguous() && input.is_contiguous() && output.is_cpu() &&
          output.nbytes() == input.nbytes() * static_cast<std::size_t>(communicator_.world_size()),
      "comm.relay", "what is gathered is contiguous, on the CPU, and fits");
  auto gather = std::make_shared<Gather>(Gather{output, input});
  {
    const std::lock_guard lock(mutex_);
    begun_.push_back(gather);
  }
  changed_.notify_all();
  return std::make_unique<Waiting>(*this, std::move(gather));
}

void Relay::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !begun_.empty(); });
    if (begun_.empty()) return;
    const auto gather = std::move(begun_.front());
    begun_.pop_front();
    lock.unlock();
    if (!failure_) try {
        carry_out(*gather);
      } catch (...) {
        failure_ = std::current_exception();
      }
    lock.lock();
    gather->failure = failure_;
    gather->is_done = true;
    changed_.notify_all();
  }
}

// In plain memory: no operator runs on this thread, which those who watch operators would see.
void Relay::carry_out(const Gather& gather) const {
  const auto world = static_cast<std::size_t>(communicator_.world_size());
  const auto rank = static_cast<std::size_t>(communicator_.rank());
  const std::size_t bytes = gather.input.nbytes();
  std::vector<char> heard(world * bytes);  // of ranks r, r + 1, ..
  std::memcpy(heard.data(), gather.input.const_data_ptr(), bytes);
  const auto part = [&](std::size_t begin, std::size_t ranks) {
    return at::from_blob(heard.data() + begin * bytes, {static_cast<int64_t>(ranks * bytes)},
                         at::kByte);
  };
  int tag = first_tag_;
  for (std::size_t known = 1; bytes > 0 && known < world; known *= 2, ++tag) {
    const std::size_t more = std::min(known, world - known);
    const auto received =
        communicator_.receive(part(known, more), static_cast<int>((rank + known) % world), tag);
    communicator_.send(part(0, more), static_cast<int>((rank + world - known) % world), tag)
        ->wait();
    received->wait();
  }
  auto* output = static_cast<char*>(gather.output.mutable_data_ptr());
  const std::size_t first = (world - rank) * bytes;  // of ranks r .. W - 1
  std::memcpy(output + rank * bytes, heard.data(), first);
  std::memcpy(output, heard.data() + first, rank * bytes);
}

int relay_rounds(int world_size) {
  int rounds = 0;
  for (int64_t known = 1; known < world_size; known *= 2) ++rounds;
  return rounds;
}

}  // namespace equigrad::comm
