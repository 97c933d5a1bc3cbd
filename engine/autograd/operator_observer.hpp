// Operator observer: tells a listener which of its storages an operator is about to read, and when
// the operator is done.
//
// LibTorch's modules have no forward hooks; every operator of the process, forward and backward,
// passes a RecordFunction callback instead, with its inputs. A view shares its parameter's storage,
// so it is found too. What torch.compile makes is one operator, CompiledFunction, with a backward
// node of its own, which reads what the forward read; a compiled region that needs no gradient
// reads any parameter that needs none.
//
// Invariants: before() runs on the operator's thread before it reads its inputs, after() when it
// ends, thrown or not; other operators cost one look-up per input. A listener is told one thing at
// a time, and nothing once its Observation has ended, which waits for a thread that is telling it.
// Operators that the listener itself runs are not reported (Silence).
// Errors: an exception must not leave before() or after(): autograd's observers swallow it.
// Depends on: ATen, shared_callback.hpp. The library and this project must be built with
// NDEBUG alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "engine/autograd/shared_callback.hpp"

namespace equigrad::autograd {

class OperatorListener {
 public:
  virtual ~OperatorListener() = default;
  virtual void before(const std::vector<std::size_t>& pages) noexcept = 0;
  virtual void after(const std::vector<std::size_t>& pages) noexcept = 0;
};

struct Watch;

// Reports uses of tensors[i]'s storage as page i while it lives; of none that is undefined. Without
// any, operators cost nothing. Its listener must not end it from before() or after().
class Observation {
 public:
  Observation(OperatorListener& listener, const std::vector<at::Tensor>& tensors);
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

 private:
  std::shared_ptr<Watch> watch_;
  std::vector<c10::StorageImpl*> storages_;
  std::optional<SharedCallback::Use> use_;  // with any storage
};

// Operators of this thread are not reported while one lives.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

  static bool active();  // on this thread

 private:
  bool before_;
};

}  // namespace equigrad::autograd
