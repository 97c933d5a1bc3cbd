#include "perf/worker/raced_wire.hpp"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <thread>

#include "perf/worker/operators.hpp"

namespace equigrad::perf {
namespace {

using Overlapped = std::map<std::string, int64_t>;

class Watched final : public comm::Pending {
 public:
  Watched(const char* name, comm::PendingPtr pending, Overlapped& overlapped)
      : name_(name), pending_(std::move(pending)), overlapped_(overlapped), began_(operators()) {}

  void wait() override {
    if (began_ && operators() != *began_) ++overlapped_[name_];
    began_.reset();
    pending_->wait();
  }

 private:
  const char* name_;
  comm::PendingPtr pending_;
  Overlapped& overlapped_;
  std::optional<int64_t> began_;  // none once it was waited for
};

}  // namespace

void RacedWire::reset() {
  CountingCommunicator::reset();
  overlapped_.clear();
}

at::Tensor RacedWire::sent_for(const at::Tensor& input) {
  if (fault_.sleep_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(fault_.sleep_us));
  return fault_.copies ? input.clone() : input;
}

comm::PendingPtr RacedWire::started(const char* name, comm::PendingPtr pending) {
  comm::PendingPtr watched = std::make_unique<Watched>(name, std::move(pending), overlapped_);
  if (fault_.waits) watched->wait();
  const std::string_view collective = name;
  if (fault_.one_more && (collective == "all_to_all" || collective == "all_reduce"))
    comm::exchange(*this, at::zeros({1}, at::kLong));
  return watched;
}

}  // namespace equigrad::perf
