#include "perf/worker/recorded_wire.hpp"

#include <algorithm>
#include <utility>

namespace equigrad::perf {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

class RecordedWire::Received final : public comm::Pending {
 public:
  Received(comm::PendingPtr pending, int64_t bytes, std::shared_ptr<UnderWay> under_way)
      : pending_(std::move(pending)), bytes_(bytes), under_way_(std::move(under_way)) {
    under_way_->bytes += bytes_;
    under_way_->most_bytes = std::max(under_way_->most_bytes, under_way_->bytes);
  }
  void wait() override {
    pending_->wait();
    under_way_->bytes -= std::exchange(bytes_, 0);
  }

 private:
  comm::PendingPtr pending_;
  int64_t bytes_;
  std::shared_ptr<UnderWay> under_way_;
};

comm::PendingPtr RecordedWire::received(comm::PendingPtr pending, const at::Tensor& into) {
  return std::make_unique<Received>(std::move(pending), bytes_of(into), under_way_);
}

void RecordedWire::forget() {
  calls_ = nlohmann::json::array();
  under_way_ = std::make_shared<UnderWay>();
}

void RecordedWire::note(const char* what, const at::Tensor& sent, int64_t parts) {
  calls_.push_back({what, bytes_of(sent) / parts});
}

comm::PendingPtr RecordedWire::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  note("all_to_all", input, world_size());
  return received(real_->all_to_all(output, input), output);
}

comm::PendingPtr RecordedWire::trade(const at::Tensor& output, const at::Tensor& input) {
  note("all_to_all", input);
  return received(real_->trade(output, input), output);
}

comm::PendingPtr RecordedWire::all_gather(const at::Tensor& output, const at::Tensor& input) {
  note("all_gather", input);
  return real_->all_gather(output, input);
}

comm::PendingPtr RecordedWire::gather_words(const at::Tensor& output, const at::Tensor& input) {
  note("words", input);
  return real_->gather_words(output, input);
}

comm::PendingPtr RecordedWire::all_reduce_sum(const at::Tensor& tensor) {
  note("all_reduce", tensor);
  return real_->all_reduce_sum(tensor);
}

comm::PendingPtr RecordedWire::reduce_scatter_sum(const at::Tensor& output,
                                                  const at::Tensor& input) {
  note("reduce_scatter", input);
  return real_->reduce_scatter_sum(output, input);
}

comm::PendingPtr RecordedWire::broadcast(const at::Tensor& tensor, int root) {
  note("broadcast", rank() == root ? tensor : tensor.narrow(0, 0, 0));
  return real_->broadcast(tensor, root);
}

comm::PendingPtr RecordedWire::send(const at::Tensor& tensor, int to, int tag) {
  calls_.push_back({"send", bytes_of(tensor), to / local_ranks() != rank() / local_ranks()});
  return real_->send(tensor, to, tag);
}

comm::PendingPtr RecordedWire::receive(const at::Tensor& tensor, int from, int tag) {
  return received(real_->receive(tensor, from, tag), tensor);
}

}  // namespace equigrad::perf
