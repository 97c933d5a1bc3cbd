#include "engine/comm/backend.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "engine/comm/communication_error.hpp"
#include "engine/comm/relay.hpp"
#include "engine/comm/shared_rings.hpp"
#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

struct Caller {
  const char* collective;
  int rank;
  int world_size;
  std::shared_ptr<const Peers> peers;
  Communicator::Names names;
  std::optional<int> other = std::nullopt;  // of a message from one rank to another
  int name_of(int of) const { return names ? names->at(static_cast<std::size_t>(of)) : of; }
};

// A connection breaks a moment before its process has ended.
std::optional<int> lost_rank(const Caller& caller) {
  for (int tries = 0; tries < 20; ++tries) {
    for (const int rank : caller.peers->ended())
      if (rank != caller.rank) return rank;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (caller.world_size == 2) return 1 - caller.rank;
  return std::nullopt;
}

std::string joined(const Caller& caller, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks)
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(caller.name_of(rank));
  return text;
}

// [rank 3] of ranks 1, 3 where these are not all.
std::string place_of(const Caller& caller) {
  if (!caller.names)
    return fmt::format("rank {}/{}] [comm.{}", caller.rank, caller.world_size, caller.collective);
  return fmt::format("rank {} of ranks {}] [comm.{}", caller.name_of(caller.rank),
                     fmt::join(*caller.names, ", "), caller.collective);
}

// Who takes no part in a message of two others is silent, too.
std::vector<int> waited_for(const Caller& caller, const std::vector<int>& silent) {
  const bool by_other =
      caller.other && std::find(silent.begin(), silent.end(), *caller.other) != silent.end();
  return by_other ? std::vector<int>{*caller.other} : silent;
}

// c10d tells an address at most.
[[noreturn]] void fail(const Caller& caller, const char* reason,
                       std::optional<int> known = std::nullopt) {
  auto lost = known ? known : lost_rank(caller);
  std::string whom = lost ? joined(caller, {*lost}) + ", which ended, threw, or made" : "";
  if (!lost && caller.world_size > 2) {
    const auto silent = caller.peers->roll_call().silent();
    if (!silent)
      whom = "the host of rank 0, which serves the store and does not answer, or a rank that made";
    else if (!silent->empty())
      whom = joined(caller, waited_for(caller, *silent)) +
             ", without a word since, which ended, hangs, or made";
    if (silent && silent->size() == 1) lost = silent->front();
  }
  if (whom.empty() && caller.other) whom = joined(caller, {*caller.other}) + ", which made";
  if (whom.empty()) whom = "a rank, which ended, threw, or made";
  throw CommunicationError(
      place_of(caller),
      fmt::format("expected {} to take part in time, got: {}. Look for {} other calls than this "
                  "one.",
                  caller.other ? joined(caller, {*caller.other})
                               : fmt::format("all {} ranks", caller.world_size),
                  reason, whom),
      lost ? std::optional(caller.name_of(*lost)) : lost);
}

// c10d's own messages end in a backtrace; the first line says what happened.
template <class Function>
auto with_context(const Caller& caller, Function&& function) {
  try {
    return function();
  } catch (const LostRank& error) {
    fail(caller, error.what(), error.rank());
  } catch (const c10::Error& error) {
    fail(caller, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(caller, error.what());
  }
}

class BackendPending final : public Pending {
 public:
  BackendPending(c10::intrusive_ptr<c10d::Work> work, Caller caller, Workspace::Block sent = {})
      : work_(std::move(work)), caller_(std::move(caller)), sent_(std::move(sent)) {}
  void wait() override {
    with_context(caller_, [&] { return work_->wait(); });
    sent_.give_back();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Caller caller_;
  Workspace::Block sent_;  // copies under way
};

class RingsPending final : public Pending {
 public:
  RingsPending(std::shared_ptr<SharedRings> rings, Caller caller, std::vector<Row> rows)
      : rings_(std::move(rings)),
        caller_(std::move(caller)),
        exchange_(rings_->post(std::move(rows))) {}
  void wait() override {
    with_context(caller_, [&] { rings_->wait(*exchange_); });
  }

 private:
  std::shared_ptr<SharedRings> rings_;
  Caller caller_;
  std::shared_ptr<SharedRings::Exchange> exchange_;
};

class BackendCommunicator final : public Communicator {
 public:
  BackendCommunicator(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device,
                      GatherBy gather_by, Beside beside)
      : backend_(std::move(backend)),
        device_(device),
        gather_by_(gather_by),
        peers_(std::move(beside.peers)),
        words_(std::move(beside.words)),
        rings_(std::move(beside.rings)) {
    const bool has_few = rings_ || world_size() <= Relay::kDirectRanks;
    if (gather_by != GatherBy::AllToAll || has_few) return;
    words_relay_ = std::make_unique<Relay>(*this, Relay::kWordsTag);
    small_relay_ = std::make_unique<Relay>(*this, Relay::kSmallTag);
  }

  Communicator& words() override { return words_ ? *words_ : *this; }
  int rank() const override { return backend_->getRank(); }
  int world_size() const override { return backend_->getSize(); }
  c10::Device device() const override { return device_; }
  int local_ranks() const override {
    return device_.is_cuda() ? world_size() : peers_->local_ranks(world_size());
  }

  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return send_rows("all_to_all", output, input);
  }
  bool trades() const override { return world_size() == 2 && !device_.is_cuda(); }
  PendingPtr trade(const at::Tensor& output, const at::Tensor& input) override {
    return trade("all_to_all", output, input);
  }
  PendingPtr gather_words(const at::Tensor& output, const at::Tensor& input) override {
    return words_relay_ ? words_relay_->all_gather(output, input) : all_gather(output, input);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (small_relay_ && static_cast<int64_t>(input.nbytes()) <= Relay::kSmallBytes)
      return small_relay_->all_gather(output, input.contiguous());
    if (gather_by_ == GatherBy::AllToAll)
      return send_rows("all_gather", output, input.expand({world_size(), input.numel()}));
    return start("all_gather", [&] {
      at::Tensor to = output;
      at::Tensor from = input;
      return backend_->_allgather_base(to, from);
    });
  }
  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    return start("all_reduce_sum", [&] {
      std::vector<at::Tensor> tensors{tensor};
      return backend_->allreduce(tensors);
    });
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return start("reduce_scatter_sum", [&] {
      at::Tensor to = output;
      at::Tensor from = input;
      return backend_->_reduce_scatter_base(to, from);
    });
  }
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    if (rings_) return broadcast_rows(tensor, root);
    return start("broadcast", [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return backend_->broadcast(tensors, options);
    });
  }
  PendingPtr send(const at::Tensor& tensor, int to, int tag) override {
    return start({"send", rank(), world_size(), peers_, names(), to}, [&] {
      std::vector<at::Tensor> tensors{tensor};
      return backend_->send(tensors, to, tag);
    });
  }
  PendingPtr receive(const at::Tensor& tensor, int from, int tag) override {
    return start({"receive", rank(), world_size(), peers_, names(), from}, [&] {
      std::vector<at::Tensor> tensors{tensor};
      return backend_->recv(tensors, from, tag);
    });
  }

 private:
  PendingPtr send_rows(const char* collective, const at::Tensor& output, const at::Tensor& input) {
    const int64_t w = world_size();
    if (trades() || rings_)
      return trade_rows(collective, output.view({w, output.numel() / w}),
                        input.view({w, input.numel() / w}));
    Workspace::Block copies;
    if (!input.is_contiguous()) {
      copies = workspace().take(input.numel(), input.options());
      copies.tensor().view(input.sizes()).copy_(input);
    }
    const Caller caller = caller_of(collective);
    auto work = with_context(caller, [&] {
      at::Tensor to = output;
      at::Tensor from = copies.tensor().defined() ? copies.tensor() : input.view({-1});
      std::vector<int64_t> equal_splits;
      return backend_->alltoall_base(to, from, equal_splits, equal_splits);
    });
    return std::make_unique<BackendPending>(std::move(work), caller, std::move(copies));
  }

  PendingPtr trade_rows(const char* collective, const at::Tensor& output, const at::Tensor& input) {
    output[rank()].copy_(input[rank()]);
    if (!rings_) return trade(collective, output[1 - rank()], input[1 - rank()]);
    // Each begins with the next one, so that not all write to one rank.
    std::vector<Row> rows;
    for (int step = 1; step < world_size(); ++step) {
      const int peer = (rank() + step) % world_size();
      rows.push_back({peer, input[peer], output[peer]});
    }
    return std::make_unique<RingsPending>(rings_, caller_of(collective), std::move(rows));
  }
  PendingPtr broadcast_rows(const at::Tensor& tensor, int root) {
    const auto nothing = at::empty({0}, tensor.options());
    std::vector<Row> rows;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      if (root == rank()) rows.push_back({peer, tensor, nothing});
      if (root == peer) rows.push_back({peer, nothing, tensor});
    }
    return std::make_unique<RingsPending>(rings_, caller_of("broadcast"), std::move(rows));
  }
  Caller caller_of(const char* collective) const {
    return {collective, rank(), world_size(), peers_, names()};
  }

  // Each of two ranks sends one message, from where it lies.
  PendingPtr trade(const char* collective, const at::Tensor& output, const at::Tensor& input) {
    if (rings_)
      return std::make_unique<RingsPending>(rings_, caller_of(collective),
                                            std::vector<Row>{{1 - rank(), input, output}});
    return start(collective, [&] {
      at::Tensor to = output;
      at::Tensor from = input;
      std::vector<int64_t> in(2, 0);
      in[static_cast<std::size_t>(1 - rank())] = from.numel();
      auto out = in;  // each is moved from
      return backend_->alltoall_base(to, from, out, in);
    });
  }

  template <class Function>
  PendingPtr start(const char* collective, Function&& function) {
    return start(caller_of(collective), function);
  }
  template <class Function>
  PendingPtr start(const Caller& caller, Function&& function) {
    return std::make_unique<BackendPending>(with_context(caller, function), caller);
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::Device device_;
  GatherBy gather_by_;
  std::shared_ptr<const Peers> peers_;
  std::shared_ptr<Communicator> words_;
  std::shared_ptr<SharedRings> rings_;
  // Of many ranks: what is small is passed on. Last: their threads use the others.
  std::unique_ptr<Relay> words_relay_, small_relay_;
};

}  // namespace

std::shared_ptr<Communicator> wrap(const c10::intrusive_ptr<c10d::Backend>& backend,
                                   c10::Device device, GatherBy gather_by, Beside beside) {
  return std::make_shared<BackendCommunicator>(backend, device, gather_by, std::move(beside));
}

PendingPtr Communicator::trade(const at::Tensor&, const at::Tensor&) {
  throw Error("comm.trade",
              "expected a communicator that trades, got one that does not. Ask "
              "trades() before, and use all_to_all.");
}

PendingPtr Communicator::send(const at::Tensor&, int, int) {
  throw Error("comm.send",
              "expected a communicator that sends from one rank to another, got one that does not. "
              "Take one of connect().");
}

PendingPtr Communicator::receive(const at::Tensor&, int, int) {
  throw Error(
      "comm.receive",
      "expected a communicator that receives from one rank, got one that does not. Take one "
      "of connect().");
}

Exchange::Exchange(Communicator& communicator, const at::Tensor& message) {
  EQUIGRAD_CHECK(message.scalar_type() == at::kLong, "comm.exchange", "words are int64");
  auto& words = communicator.words();
  mine_ = message.to(words.device());
  all_ = at::empty({words.world_size() * mine_.numel()}, mine_.options());
  pending_ = words.gather_words(all_, mine_);
}

at::Tensor Exchange::wait() {
  pending_->wait();
  return all_.cpu().view({-1, mine_.numel()});
}

at::Tensor exchange(Communicator& communicator, const at::Tensor& message) {
  return Exchange(communicator, message).wait();
}

}  // namespace equigrad::comm
