// Whole parameters for the user's code: read on all ranks, written by one; what is refused, and
// what an exception in the scope leaves behind.
#include "engine/inspect/gathering.hpp"

#include <cstring>

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/linear_loss_run.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_same;
using conformance::LinearLossOptions;
using conformance::LinearLossRun;
using conformance::sample;
using conformance::ranks::RankContext;
using testing::HasSubstr;

const std::vector<std::string> kNames = {"seven", "grid", "scalar", "empty", "frozen"};

// In fp32 and bf16, at every stage and number of ranks, with pages that stay whole and without.
template <class Fn>
void everywhere(Fn fn) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [fn](RankContext& context, int stage) {
      for (const bool bf16 : {false, true}) {
        for (const int64_t persistent : {0, 10}) {
          SCOPED_TRACE((bf16 ? "bf16, " : "fp32, ") + std::to_string(persistent));
          LinearLossRun run(
              context,
              LinearLossOptions{.stage = stage, .bf16 = bf16, .persistent_numel = persistent});
          fn(run);
        }
      }
    });
  }
}

std::vector<at::Tensor> tensors(const LinearLossRun& run) {
  std::vector<at::Tensor> all;
  for (const auto& name : kNames) all.push_back(run[name]);
  return all;
}

// Everything that a rank can ask for. Collective.
std::map<std::string, at::Tensor> all_of(const LinearLossRun& run) {
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : run.parameters)
    all[parameter.name] = run.engine->full_parameter(parameter.name);
  for (const auto& name : LinearLossRun::trained()) {
    all["master of " + name] = run.engine->access().full_master(name);
    all["exp_avg of " + name] = run.engine->access().full_optimizer_state(name, "exp_avg");
  }
  return all;
}

void expect_all_same(const std::map<std::string, at::Tensor>& got,
                     const std::map<std::string, at::Tensor>& want) {
  for (const auto& [name, tensor] : want) expect_same(got.at(name), tensor, name);
}

TEST(Gathering, IsWholeForOperatorsAndPointersWhileItLives) {
  everywhere([](LinearLossRun& run) {
    const auto want = all_of(run);
    {
      const auto whole = run.engine->gather(tensors(run));
      for (const auto& name : kNames) {
        expect_same(run[name].detach().clone(), want.at(name), name);
        if (run[name].numel() > 0)
          EXPECT_EQ(std::memcmp(run[name].const_data_ptr(), want.at(name).const_data_ptr(),
                                run[name].nbytes()),
                    0);
      }
      run.backward(0);
      EXPECT_NE(run["grid"].storage().data(), nullptr) << "a pass ended";
    }
    if (run.options.stage == 3 && run.options.persistent_numel == 0)
      EXPECT_EQ(run["grid"].storage().data(), nullptr);
    expect_all_same(all_of(run), want);
    if (run.options.stage < 3 || run.options.persistent_numel == 0)
      EXPECT_EQ(run.engine->ledger().bytes(memory::Category::Gathered), 0);
  });
}

TEST(Gathering, WhatTheModifierRankWroteIsEveryRanksAndNoOtherBitChanges) {
  everywhere([](LinearLossRun& run) {
    for (int64_t pass = 0; pass < 3; ++pass) run.train(pass);  // masters of many bits
    auto want = all_of(run);
    const int writer = run.world - 1;
    {
      auto whole = run.engine->gather(tensors(run), writer);
      const at::NoGradGuard no_grad;
      if (run.rank == writer) {
        run["seven"].narrow(0, 5, 2).fill_(0.75);
        run["frozen"].detach().fill_(3);
        auto grid = run["grid"].detach();
        std::memset(grid.mutable_data_ptr(), 0, grid.itemsize());
      }
      whole.end();
    }
    for (const std::string of : {"", "master of "})
      want.at(of + "seven").narrow(0, 5, 2).fill_(0.75);
    for (const std::string of : {"", "master of "}) want.at(of + "grid").view({-1})[0].fill_(0);
    want.at("frozen").fill_(3);
    expect_all_same(all_of(run), want);
    run.train(3);  // and the engine trains on
    EXPECT_EQ(run.engine->counters().skipped_steps, 0);
  });
}

TEST(Gathering, AWriteElsewhereIsAnErrorOnEveryRankAndLeavesNoTrace) {
  everywhere([](LinearLossRun& run) {
    const auto want = all_of(run);
    for (const int modifier : {-1, 0}) {
      const bool here = run.rank == run.world - 1 && (modifier == -1 || run.world > 1);
      auto whole =
          modifier < 0 ? run.engine->gather(tensors(run)) : run.engine->gather(tensors(run), 0);
      const at::NoGradGuard no_grad;
      if (here) run["grid"].add_(1);
      if (here) run["seven"].add_(1);
      const auto error = error_of([&] { whole.end(); });
      // Operators read what was there at once.
      for (const char* name : {"grid", "seven"}) expect_same(run[name] * 1, want.at(name), name);
      if (modifier < 0 || run.world > 1) {
        EXPECT_THAT(error, HasSubstr("got a write to \"seven\" on another rank. Nothing was kept"));
      } else {
        EXPECT_EQ(error, "");
      }
      expect_all_same(all_of(run), want);
    }
  });
}

// Loses one broadcast on every rank, once it has arrived.
class LosingWire final : public conformance::faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    auto pending = ForwardingCommunicator::broadcast(tensor, root);
    if (countdown < 0 || countdown-- > 0) return pending;
    pending->wait();
    throw comm::CommunicationError("test", "the broadcast is lost");
  }

  int countdown = -1;  // broadcasts before the one that is lost; -1: none is
};

TEST(Gathering, ABroadcastThatIsLostLeavesNoMasterChanged) {
  for (const int world : {2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      for (const int countdown : {0, 1, 2}) {
        const auto communicator = std::make_shared<LosingWire>(context.group());
        LinearLossRun run(context, LinearLossOptions{.stage = stage}, communicator);
        for (int64_t pass = 0; pass < 2; ++pass) run.train(pass);
        const auto want = all_of(run);
        auto whole = run.engine->gather(tensors(run), 0);
        {
          const at::NoGradGuard no_grad;
          for (const char* name : {"seven", "grid", "scalar"})
            if (run.rank == 0) run[name].add_(1);
        }
        communicator->countdown = countdown;
        EXPECT_THAT(error_of([&] { whole.end(); }), HasSubstr("the broadcast is lost"));
        expect_all_same(all_of(run), want);
      }
    });
  }
}

TEST(Gathering, ADestructorLeavesItsErrorToTheNextCall) {
  everywhere([](LinearLossRun& run) {
    const auto want = all_of(run);
    {
      const auto whole = run.engine->gather({run["seven"]});
      const at::NoGradGuard no_grad;
      run["seven"].add_(1);
    }
    EXPECT_THAT(error_of([&] { run.engine->full_parameter("seven"); }),
                HasSubstr("expected no writes without a modifier rank"));
    expect_all_same(all_of(run), want);
  });
}

TEST(Gathering, AnExceptionInTheScopeOfOneRankIsToldToAllAndNothingIsWritten) {
  everywhere([](LinearLossRun& run) {
    const auto want = all_of(run);
    std::string error;
    try {
      auto whole = run.engine->gather(tensors(run), 0);
      const at::NoGradGuard no_grad;
      if (run.rank == 0) run["grid"].add_(1);
      if (run.rank == 0) run["seven"].add_(1);
      if (run.rank == 0) throw Error("mine", "it broke");
      whole.end();
    } catch (const Error& caught) {
      error = caught.what();
    }
    EXPECT_THAT(error, HasSubstr(run.rank == 0 ? "it broke"
                                               : "expected every rank to finish its gather(), got "
                                                 "an exception on rank 0"));
    for (const char* name : {"grid", "seven"}) expect_same(run[name] * 1, want.at(name), name);
    expect_all_same(all_of(run), want);
    run.train(0);
  });
}

TEST(Gathering, CallsThatDifferOrCannotBeAreRefusedOnAllRanks) {
  everywhere([](LinearLossRun& run) {
    auto& engine = *run.engine;
    const auto error = [&](auto call) { return error_of(call); };
    EXPECT_THAT(error([&] { (void)engine.gather({at::zeros({2})}); }),
                HasSubstr("expected parameters of this engine's model"));
    EXPECT_THAT(error([&] { (void)engine.gather({run["one"]}, run.world); }),
                HasSubstr("expected a modifier rank from 0 to"));
    if (run.world > 1) {
      EXPECT_THAT(error([&] { (void)engine.gather({run["one"]}, run.rank); }),
                  HasSubstr("expected the same parameters and modifier rank on every rank"));
      EXPECT_THAT(error([&] { (void)engine.gather({run[run.rank == 0 ? "one" : "seven"]}); }),
                  HasSubstr("expected the same parameters and modifier rank on every rank"));
      const auto alone = error([&] {
        if (run.rank == 0)
          (void)engine.gather({run["one"]});
        else
          engine.full_parameter("one"), engine.access().full_master("one");
      });
      EXPECT_THAT(alone, HasSubstr("expected every rank at the same place"));
    }
    {
      const auto whole = engine.gather({run["one"], run["one"]});
      EXPECT_THAT(error([&] { (void)engine.gather({run["one"]}); }),
                  HasSubstr("expected a parameter that no scope holds, got \"one\""));
      const auto other = engine.gather({run["seven"]});
      EXPECT_THAT(error([&] { engine.access().set_full_master("one", at::zeros({1})); }),
                  HasSubstr("expected a parameter that gather() has not pinned"));
      EXPECT_THAT(error([&] { engine.step(); }), HasSubstr("expected no scope of gather(), got 2"));
    }
    engine.access().set_full_master("one", at::zeros({1}));
  });
}

TEST(Gathering, AScopeThatOutlivesItsEngineEndsQuietly) {
  everywhere([](LinearLossRun& run) {
    const auto whole = run.engine->gather({run["seven"]});
    run.engine.reset();
  });
}

}  // namespace
}  // namespace equigrad
