// 16. Its parts: engines of ranks that make different calls, all of which are told, and work on.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/parts/stations.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

struct TwoOfThem : torch::nn::Module {
  TwoOfThem() : torch::nn::Module("TwoOfThem") {}
  at::Tensor w = register_parameter("w", at::ones({5}));
  at::Tensor v = register_parameter("v", at::ones({3}));
  at::Tensor loss(double by) { return w.sum() * by + v.sum(); }
};

// Engine 0 of a communicator of its own. The last rank does something else.
struct Apart {
  Play& play;
  const int rank, last;
  std::shared_ptr<CountedWire> wire;
  TwoOfThem model = {};
  std::unique_ptr<Engine> engine;

  explicit Apart(Play& with)
      : play(with),
        rank(with.context().rank),
        last(with.context().world - 1),
        wire(std::make_shared<CountedWire>(with.group())),
        engine(initialize(model, config_beside(with), wire)) {}
  bool is_last() const { return rank == last; }
  bool reduces_passes() const { return play.context().stage >= 2; }
  void pass() { engine->backward(model.loss(1)); }
  std::string both(const std::string& of_first, const std::string& of_last) const {
    return "expected every rank at the same place, got rank 0 at " + of_first + " and rank " +
           std::to_string(last) + " at " + of_last;
  }
  // Every rank's call, both refused in the same words.
  void refused(const std::string& words, const Play::Call& of_others, const Play::Call& of_last) {
    play.refuse(words, is_last() ? of_last : of_others);
  }
  // Of every element of w the average of all ranks' factors is taken away.
  void works_on(const std::string& after) {
    const auto before = engine->full_parameter("w");
    engine->backward(model.loss(rank + 1));
    engine->step();
    const double average = (last + 2) / 2.0 + (play.fault() ? 1 : 0);
    play.check("the engine works on after " + after,
               at::equal(before - average, engine->full_parameter("w")));
  }
};

const std::string kStepOf1 = "step() of engine 0 after 1 backward passes",
                  kStepOf2 = "step() of engine 0 after 2 backward passes",
                  kReduction = "the reduction of bucket 0 of engine 0";

// One rank runs a pass while others step.
void check_passes(Play& play) {
  Apart it(play);
  const auto step = [&] { it.engine->step(); };
  it.pass();
  if (it.reduces_passes()) {
    it.refused(it.both(kStepOf1, kReduction), step, [&] { it.pass(); });
  } else {
    if (it.is_last()) it.pass();
    it.refused(it.both(kStepOf1, kStepOf2), step, step);
  }
  it.engine->zero_grad();
  it.works_on("other passes");
  it.pass();
  if (it.is_last()) {  // for which it is no boundary
    it.engine->set_gradient_accumulation_boundary(false);
    it.engine->step();
  }
  if (it.reduces_passes()) {
    it.refused(it.both(kStepOf1, kReduction), step, [&] { it.pass(); });
  } else {
    if (it.is_last()) it.pass();
    it.engine->set_gradient_accumulation_boundary(true);
    it.refused(it.both(kStepOf1, kStepOf2), step, step);
  }
  it.engine->set_gradient_accumulation_boundary(std::nullopt);
  it.engine->zero_grad();
  it.works_on("another boundary");
}

// One reads what others do not, writes what others read, or has other values.
void check_values(Play& play) {
  Apart it(play);
  auto& access = it.engine->access();
  const auto gradient = [&](const std::string& name) {
    return [&access, name] { (void)access.full_gradient(name); };
  };
  const auto master = [&] { (void)access.full_master("w"); };
  const auto set = [&](double value) {
    return [&access, value] { access.set_full_master("w", at::full({5}, value)); };
  };
  it.pass();
  const std::string of_gradient = "the getter of a gradient of engine 0, parameter ",
                    of_master = "the getter of a master of engine 0, parameter 0";
  it.refused(it.both(of_gradient + "0", of_gradient + "1"), gradient("w"), gradient("v"));
  it.refused(it.both(of_gradient + "0", of_master), gradient("w"), master);
  it.refused(it.both("the setter of a master of engine 0, parameter 0", of_master), set(1), master);
  it.refused(
      it.both(kStepOf1, of_master), [&] { it.engine->step(); }, master);
  it.refused("expected the same values on every rank for \"w\", got others on some", set(1),
             set(2));
  if (!it.reduces_passes()) {
    if (it.is_last()) it.pass();
    it.refused("expected as many backward passes on every rank for \"w\", got others on some",
               gradient("w"), gradient("w"));
  }
  it.refused(
      it.both("initialize()", of_master),
      [&] {
        TwoOfThem other;
        (void)initialize(other, config_beside(play), it.wire);
      },
      master);
  it.engine->zero_grad();
  it.works_on("other values");
}

// One throws: where it looks on, or before its pass begins.
void check_throws(Play& play) {
  Apart it(play);
  const std::string heard = ", got an exception on rank " + std::to_string(it.last);
  const auto of = [&](const std::string& other) { return it.is_last() ? "planted" : other; };
  it.engine->on_step([&](const std::vector<LocalShard>&) {
    if (it.is_last()) throw std::runtime_error("planted");
  });
  it.pass();
  play.refuse(of("expected every rank to finish its step()" + heard), [&] { it.engine->step(); });
  play.check("nothing was applied", !it.engine->was_step_applied());
  it.engine->on_step(nullptr);
  it.works_on("an observer that threw");
  if (it.is_last()) {
    const auto loss = at::ones({2}) * it.model.loss(1);
    play.refuse("expected a scalar", [&] { it.engine->backward(loss); });
  } else if (it.reduces_passes()) {
    play.refuse("expected every rank to finish its backward pass" + heard, [&] { it.pass(); });
  }
  it.works_on("a loss that one rank alone refused");
}

void apart(Play& play) {
  if (play.group() && play.context().world > 1) {
    check_passes(play);
    check_values(play);
    check_throws(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> engines_apart() {
  return {case_beside(
      {.section = "16",
       .name = "engines_of_ranks_that_call_apart",
       .sentence = "different calls are an error on every rank that names both, and no more",
       .fault = "another update is expected",
       .program = apart,
       .places = {.smallest_world = 2}})};
}

}  // namespace equigrad::conformance::contract
