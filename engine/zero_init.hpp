// zero::Init: a model is made without any rank ever holding all of it (DeepSpeed: zero.Init).
//
//   std::shared_ptr<Gpt> model;
//   {
//     equigrad::zero::Init init("ds_config.json", communicator);
//     model = std::make_shared<Gpt>(options);  // any unmodified module
//   }
//   auto engine = equigrad::initialize(*model, "ds_config.json", communicator);
//
// LibTorch's modules tell nobody when they register a parameter. So while it lives the operators of
// this thread are observed: a tensor that an operator made or used, a leaf which requires a
// gradient is a parameter; after kIdleOperators operators that did not touch it, every rank takes
// rank 0's values and keeps its shard of them. An operator that comes back to it (a model that
// initialises its weights at the end) gets the whole again, and what it writes is kept.
//
// Invariants: the bits are those of ordinary construction and initialize() on rank 0, whatever its
// generators drew there; ranks draw from their own as ever. Not partitioned until initialize() are
// frozen parameters, buffers, tensors that no operator made or used, that share their storage, or
// do not fill it. Below stage 3, where parameters are whole, it does nothing. After its end a
// parameter has no data until initialize(), with the same communicator, takes it over; pointers
// must not be kept from one operator to another: they are errors where they are asked for late.
// Units: bytes. A rank's peak is the model's / W, and what the last operators touched: a module or
// two; the communicator's workspace keeps what the last gather sent.
// Errors: equigrad::Error for ranks that do not make the same model; finish() throws, the
// destructor leaves its error to initialize(). A rank that throws inside tells the others.
// Collective.
// Depends on: the C++ standard library, comm/communicator by name.
// Paper: Rajbhandari et al., ZeRO-Infinity (arXiv 2104.07857), section 7.2.
#pragma once

#include <memory>
#include <string>

namespace equigrad::comm {
class Communicator;
}

namespace equigrad::zero {

class Init {
 public:
  // `config` as for initialize().
  Init(const std::string& config, std::shared_ptr<comm::Communicator> communicator);
  ~Init();
  Init(const Init&) = delete;
  Init& operator=(const Init&) = delete;

  // Its end, with the error here and now.
  void finish();

 private:
  class State;
  std::unique_ptr<State> state_;  // null: below stage 3, or over
  int exceptions_;
};

// Throws what a destructor could not.
void rethrow_init_failure();

}  // namespace equigrad::zero
