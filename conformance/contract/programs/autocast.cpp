// 7. torch's automatic casting is the thread's: the engine's guard and the caller's own.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

// The caller casts to fp16, and has what was there before when it ends.
class CastingToHalf {
 public:
  CastingToHalf() {
    set(true, at::kHalf);
    at::autocast::increment_nesting();
  }
  ~CastingToHalf() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    set(was_enabled_, was_dtype_);
  }
  CastingToHalf(const CastingToHalf&) = delete;
  CastingToHalf& operator=(const CastingToHalf&) = delete;

  bool holds() const {
    return at::autocast::is_autocast_enabled(at::kCPU) &&
           at::autocast::get_autocast_dtype(at::kCPU) == at::kHalf;
  }

 private:
  static void set(bool enabled, at::ScalarType dtype) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  bool was_enabled_ = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType was_dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
};

// A tower and an engine that casts to bf16.
struct Casting {
  explicit Casting(Play& play)
      : owner(make_contract_model("tower", play.context().seed)),
        engine(initialize(*owner,
                          config_beside(play, {.keys = R"(, "torch_autocast": {"enabled": true,
                                                                 "dtype": "bfloat16"})"}),
                          play.group())) {}
  at::Tensor forward(const at::Tensor& x) { return dynamic_cast<Tower&>(*owner).forward(x); }
  at::Tensor loss(const at::Tensor& x) {
    const auto guard = engine->autocast();
    return uneven(forward(x));
  }
  void train(const at::Tensor& loss_of_forward) {
    engine->backward(loss_of_forward);
    engine->step();
  }

  std::shared_ptr<reference::Model> owner;
  std::unique_ptr<Engine> engine;
};

// In fp32, and in the caller's fp16.
void refused_without_a_guard(Play& play, Casting& casting, const at::Tensor& input) {
  const std::string refused = "expected a forward pass under torch_autocast, got none";
  play.refuse(refused, [&] { casting.engine->backward(uneven(casting.forward(input))); });
  {
    const CastingToHalf caller;
    const auto output = casting.forward(input);
    play.check("the caller's type is fp16", output.scalar_type() == at::kHalf);
    play.refuse(refused, [&] { casting.engine->backward(uneven(output)); });
    play.check("the caller casts to fp16 after a refused pass", caller.holds());
  }
  for (const auto& item : casting.owner->named_parameters())
    play.check("a refused pass leaves no gradient of " + item.key(),
               !casting.engine->access().full_gradient(item.key()).defined());
}

// The loss of a forward under the engine's guard, within the caller's casting.
at::Tensor in_the_callers(Play& play, Casting& casting, const at::Tensor& input) {
  const CastingToHalf caller;
  casting.forward(input);  // torch keeps the weights that it has cast
  {
    const auto guard = casting.engine->autocast();
    const auto want = play.fault() ? at::kHalf : at::kBFloat16;
    play.check("the engine's type within its guard", casting.forward(input).scalar_type() == want);
  }
  play.check("the caller casts to fp16 after the guard",
             caller.holds() && casting.forward(input).scalar_type() == at::kHalf);
  const auto none = play.engine()->autocast();
  play.check("an engine that does not cast gives no guard", none == nullptr && caller.holds());
  return casting.loss(input);
}

void judge(Play& play) {
  Casting tried(play), plain(play);
  const auto input = play.batch().input;
  refused_without_a_guard(play, tried, input);
  tried.train(in_the_callers(play, tried, input));
  plain.train(plain.loss(input));
  play.check("the step was taken", tried.engine->was_step_applied());
  for (const auto& item : plain.owner->named_parameters()) {
    const auto& name = item.key();
    play.check(
        "the master of " + name + " is as without what was refused",
        tried.engine->access().full_master(name).equal(plain.engine->access().full_master(name)));
  }
}

void of_the_caller(Play& play) {
  if (play.group()) judge(play);
  train_along(play);
}

}  // namespace

std::vector<Case> autocast_of_the_caller() {
  return {case_beside(
      {.section = "7",
       .name = "autocast_of_the_caller",
       .sentence = "a pass that was not cast is refused, and the caller's own casting stays",
       .fault = "the caller's type is expected within the engine's guard",
       .program = of_the_caller})};
}

}  // namespace equigrad::conformance::contract
