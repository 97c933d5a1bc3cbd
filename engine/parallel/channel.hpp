// Channel: numbered messages of rows, one way between two groups of ranks.
//
//   parcel   [header | rows]: the number, what was given (type, shape), and its bytes; or, of a
//            message that is refused, the header and zeros
//
// Invariants: every message has a parcel for each transfer of the plan, refused or not, so numbers
//   never part. A parcel's tag is made of channel and number: kNumbers messages may be under way.
//   Parcels are kept until they have been received.
// Shapes: rows of the form, contiguous, on the CPU.
// Errors: equigrad::Error for what is not of the form, on the sender once its parcels are on their
//   way, and on the receiver once all have come; those of the communicator.
// Depends on: comm/communicator, parallel/row_plan.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/parallel/row_plan.hpp"

namespace equigrad::parallel {

struct Form {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> row_sizes;
};

enum class State {
  Whole,
  Refused,    // what was given is not of the form
  Unanswered  // an answer to what was refused
};

// Of a message that came: its rows, or why they are not there.
struct Arrived {
  at::Tensor rows;      // undefined: refused
  std::string refusal;  // "expected rank 1 to send X, got Y", of the first parcel without
};

class Channel {
 public:
  static constexpr int64_t kNumbers = int64_t{1} << 15;
  static constexpr int64_t kChannels = (int64_t{1} << 16) - 1;  // the last tags are comm's own

  // `plan` with the transfers of all ranks; `mine` are this rank's rows of the whole batch.
  Channel(std::shared_ptr<comm::Communicator> world, const std::vector<Transfer>& plan, Form form,
          Rows mine, int64_t channel);

  // "expected float32 [4, 4, 32], got float64 [4, 4, 32]"; empty: it is of the form.
  std::string refusal_of(const at::Tensor& given) const;
  // This rank's rows, or what was given instead of them.
  void send(int64_t number, State state, const at::Tensor& given);
  Arrived receive(int64_t number);
  // Returns when messages up to this number have been received.
  void settle(int64_t number);

 private:
  struct Parcel {
    int64_t number;
    at::Tensor bytes;
    comm::PendingPtr pending;
  };

  int tag_of(int64_t number) const;
  at::Tensor empty_parcel(const Transfer& transfer) const;
  at::Tensor rows_in(const at::Tensor& parcel, const Transfer& transfer) const;  // a view
  void take(const Transfer& transfer, const at::Tensor& parcel, int64_t number,
            Arrived& arrived) const;
  std::vector<int64_t> sizes_of(int64_t rows) const;

  std::shared_ptr<comm::Communicator> world_;
  std::vector<Transfer> outgoing_, incoming_;
  Form form_;
  Rows mine_;
  int64_t channel_;
  std::deque<Parcel> under_way_;
};

}  // namespace equigrad::parallel
