// Bridge: activations from a group of ranks that makes them to a group that goes on with them, and
// their gradients back. The groups may differ in size and in how they are parallel.
//
//   producer                                       consumer
//   const auto output = encoder(images);
//   bridge.send(output);                     ==>   auto embeddings = bridge.receive();
//                                                  engine->backward(loss(embeddings));
//   output.backward(bridge.receive_gradient());    bridge.send_gradient(embeddings.grad());
//                                            <==
//   engine->step();                                engine->step();
//
// The rows (dimension 0) of the whole batch are spread over the data ranks of either side, in their
// order; row_plan.hpp says who sends which to whom. Replicas (tensor-parallel ranks, which hold the
// same rows) all receive; what they hold is sent by the first of each row of replicas, and what the
// others give is checked, and not sent.
//
// Engines average over their data ranks. A loss that consumers average over C of them, as a loss of
// rows that P producers average over, has gradients P / C as large: by that the bridge multiplies
// (in the type of the gradient, rounded once; exact where P / C is a power of two).
//
// Invariants: both sides agree about the options when the bridge is made, or every rank has an
//   error. Messages are numbered; the n-th gradient answers the n-th message, and whoever gives the
//   gradient of another message in flight has an error. What arrives has the bits that were sent,
//   but for that factor. A message that is refused uses up its number, and the bridge goes on.
//   What is sent may be written at once: the bridge has a copy. A loss scale is not carried: divide
//   by it first.
// Shapes: a rank's tensors are [its rows, row_sizes...], in the bridge's type; on any device: they
//   travel over the ranks' group on the CPU (Communicator::words()).
// Errors: equigrad::Error for another shape or type, on who gives it and on who would have received
//   it, with what was expected and what came; for calls of the other side, out of order, or
//   beyond in_flight. CommunicationError naming the rank when one is lost or the time-out of the
//   communicator passes.
// Depends on: comm/communicator, parallel/row_plan.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/parallel/row_plan.hpp"

namespace equigrad::parallel {

class Channel;
struct Arrived;

struct BridgeOptions {
  int64_t rows = 0;                // of the whole batch
  std::vector<int64_t> row_sizes;  // of a row, such as {4, 32} of features [N, 4, 32]
  at::ScalarType dtype = at::kFloat;
  bool gradients = true;  // false: nothing comes back, as for evaluation
  int in_flight = 8;      // messages without an answer, at most
  // Instead of producer's / consumer's data ranks, where engines do not average over them.
  std::optional<double> gradient_factor = std::nullopt;
};

class Bridge {
 public:
  // `world` spans both sides, and nobody else; all of its ranks make the bridge, and several
  // bridges in the same order. One thread of a rank at a time uses a world.
  Bridge(std::shared_ptr<comm::Communicator> world, const Side& producer, const Side& consumer,
         BridgeOptions options);
  // As finish(), but for errors; after an error it waits for nothing.
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Of a producer: this rank's rows. Returns at once. The graph stays the caller's.
  void send(const at::Tensor& output);
  // Of the oldest message without one, on the device of what was sent.
  at::Tensor receive_gradient();

  // Of a consumer: this rank's rows, on the world's device; a leaf that requires grad, if gradients
  // go back.
  at::Tensor receive();
  // Of the oldest message without one.
  void send_gradient(const at::Tensor& gradient);

  // Returns when all that this rank has sent has been received.
  void finish();

  // This rank's, of the whole batch.
  Rows rows() const { return rows_; }

 private:
  struct Unanswered {
    int64_t number;
    at::Tensor leaf;     // of a consumer: what was received
    c10::Device device;  // of a producer: of what was sent
    bool refused;        // its answer is not for the caller
  };

  void check_side(bool of_producer, const char* call) const;
  void check_order(const at::Tensor& gradient) const;
  void drop_refused();
  at::Tensor take(Arrived arrived, int64_t number, const char* call) const;
  template <class Function>
  auto or_lost(Function&& function);

  std::shared_ptr<comm::Communicator> world_;
  BridgeOptions options_;
  bool is_producer_ = false;
  bool is_lost_ = false;
  Rows rows_;
  double gradient_factor_ = 1;
  int64_t next_number_ = 0;
  std::unique_ptr<Channel> activations_, gradients_;
  std::deque<Unanswered> unanswered_;
};

}  // namespace equigrad::parallel
