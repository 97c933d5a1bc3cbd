// 16. Its parts: operators that read what is watched, casts of operators, the interpreter's lock.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/autograd/autocast.hpp"
#include "engine/autograd/interpreter_lock.hpp"
#include "engine/autograd/operator_observer.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace operator_parts {
namespace {

using autograd::Observation;
using autograd::Silence;
using Pages = std::vector<std::size_t>;

// Writes down what it is told; before an operator reads, it may write to what that reads.
struct Listener final : autograd::OperatorListener {
  std::string told;
  at::Tensor written;
  void write(const char* when, const Pages& pages) {
    for (const auto page : pages) told += when + std::to_string(page) + " ";
  }
  void before(const Pages& pages) noexcept override {
    write("<", pages);
    if (!written.defined()) return;
    const Silence silence;
    const at::NoGradGuard no_grad;
    written.fill_(7);
  }
  void after(const Pages& pages) noexcept override { write(">", pages); }
  std::string take() { return std::exchange(told, {}); }
};

struct Watched {
  Listener listener;
  at::Tensor a = at::ones({3, 4}).requires_grad_(), b = at::ones({3, 4}).requires_grad_(),
             x = at::ones({3, 4});
  Observation observation{listener, {a, at::Tensor(), b}};
};

// Each page before and after one operator, which runs no others.
void hears(Play& play, const std::string& what, Listener& listener, const std::string& want) {
  const auto got = listener.take();
  play.check(what + " tells \"" + want + "\", heard is \"" + got + "\"", got == want);
}

void check_reads(Play& play) {
  Watched it;
  auto& listener = it.listener;
  const at::NoGradGuard no_grad;
  at::maximum(it.x, it.a);
  hears(play, "a maximum", listener, "<0 >0 ");
  at::maximum(it.a, it.b);
  hears(play, "one of two pages", listener, play.fault() ? "<0 >0 " : "<0 <2 >0 >2 ");
  at::maximum(it.x, it.x);
  hears(play, "one of others", listener, "");
  const auto row = it.b[1].detach(), turned = it.a.t(), again = it.a.t();
  listener.take();
  at::neg(row);
  hears(play, "a view", listener, "<2 >2 ");
  at::maximum(turned, again);
  hears(play, "one page twice", listener, "<0 >0 ");
  at::cat({it.x, it.b});
  hears(play, "a list", listener, "<2 >2 ");
  at::index(it.x, {std::optional<at::Tensor>(), at::zeros({1}, at::kLong)});
  hears(play, "a list with none in it", listener, "");
  const auto flat = it.x.flatten();
  listener.take();
  const auto five = at::ones({5});
  try {
    at::maximum(it.a, five);
  } catch (const c10::Error&) {
    hears(play, "one that throws", listener, "<0 >0 ");
  }
  std::thread([&] {
    at::neg(it.a);
    hears(play, "an operator of another thread", listener, "<0 >0 ");
  }).join();
  listener.written = it.a;
  const auto result = at::mul(it.a, 2.0);
  listener.written = at::Tensor();
  play.check("what is written before is what is read", result.eq(14).all().item<bool>());
}

void check_backward(Play& play) {
  Watched it;
  const auto input = at::ones({3, 4}).requires_grad_();
  const auto loss = at::mul(it.a, input).sum();
  it.listener.take();
  loss.backward({}, true, false, std::vector<at::Tensor>{input});
  const auto got = it.listener.take();
  play.check(
      "backward reads what the gradient is made of, heard is \"" + got + "\"",
      got.find("<0 ") != std::string::npos && got.find('2') == std::string::npos &&
          std::count(got.begin(), got.end(), '<') == std::count(got.begin(), got.end(), '>'));
}

void check_silence(Play& play) {
  Watched it;
  const at::NoGradGuard no_grad;
  const auto use = [&](const std::string& what, bool silent) {
    at::neg(it.a);
    hears(play, what, it.listener, silent ? "" : "<0 >0 ");
    play.check(what + ": active() says so", Silence::active() == silent);
  };
  use("before silence", false);
  {
    const Silence outer;
    use("in silence", true);
    {
      const Silence inner;
      use("in an inner silence", true);
    }
    use("after an inner silence", true);
    std::thread([&] { use("on another thread", false); }).join();
  }
  use("after silence", false);
}

void check_lives(Play& play) {
  const at::NoGradGuard no_grad;
  Listener first, second;
  const auto x = at::ones({2}), y = at::ones({2});
  auto one = std::make_unique<Observation>(first, std::vector<at::Tensor>{x, y});
  auto two = std::make_unique<Observation>(second, std::vector<at::Tensor>{y});
  at::add(x, y);
  hears(play, "the first of two", first, "<0 >0 ");
  hears(play, "the later one, which took a page over", second, "<0 >0 ");
  one.reset();
  at::add(x, y);
  hears(play, "one that has ended", first, "");
  hears(play, "one that stays", second, "<0 >0 ");
  two.reset();
  at::add(x, y);
  hears(play, "both that have ended", second, "");
  const Observation nothing(first, {at::Tensor()});
  const Observation again(first, {at::Tensor(), at::Tensor(), x});
  at::neg(x);
  hears(play, "a page by its place", first, "<2 >2 ");
}

// As torch.compile records them.
class Recorded {
 public:
  Recorded(at::RecordScope scope, const char* name, std::vector<c10::IValue> inputs, int64_t number,
           uint64_t thread = 0)
      : inputs_(std::move(inputs)), record_(scope) {
    if (!record_.isActive()) return;
    if (thread != 0) record_.setForwardThreadId(thread);
    record_.before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()), number);
  }

 private:
  std::vector<c10::IValue> inputs_;
  at::RecordFunction record_;
};

void check_compiled(Play& play) {
  Watched it;
  const auto here = at::RecordFunction::currentThreadId();
  const auto back = [&](const std::string& what, const char* name, int64_t number, uint64_t thread,
                        const std::string& want) {
    { const Recorded one(at::RecordScope::BACKWARD_FUNCTION, name, {}, number, thread); }
    hears(play, what, it.listener, want);
  };
  const char *const forward = "CompiledFunction", *const backward = "CompiledFunctionBackward";
  { const Recorded one(at::RecordScope::FUNCTION, forward, {it.b, it.x, it.a}, 500); }
  hears(play, "a compiled forward", it.listener, "<2 <0 >2 >0 ");
  { const Recorded one(at::RecordScope::FUNCTION, forward, {it.a}, 501); }
  { const Recorded one(at::RecordScope::FUNCTION, "Compiled", {it.b}, 503); }
  it.listener.take();
  for (int again = 0; again < 2; ++again) {
    back("its backward", backward, 500, here, "<2 <0 >2 >0 ");
    back("the next one's", backward, 501, here, "<0 >0 ");
  }
  back("one without a forward", backward, 502, here, "");
  back("one of what is not compiled", backward, 503, here, "");
  back("one of another thread", backward, 500, here + 1, "");
  back("another node", "MmBackward0", 500, here, "");
  { const Recorded one(at::RecordScope::FUNCTION, forward, {it.b}, 500); }
  it.listener.take();
  back("the number again", backward, 500, here, "<2 >2 ");
  const auto region = [&](const std::string& what, const char* name, const std::string& want) {
    { const Recorded one(at::RecordScope::FUNCTION, name, {}, -1); }
    hears(play, what, it.listener, want);
  };
  const char* const name = "Torch-Compiled Region: 1/0";
  // Engines beside this one may have pages that need no gradient; this listener hears of its own.
  region("a region where all need a gradient", name, "");
  it.b.set_requires_grad(false);
  region("a region, of what needs none", name, "<2 >2 ");
  const at::NoGradGuard no_grad;
  region("a region without gradients", name, "<0 <2 >0 >2 ");
  region("one of another name", "Region", "");
}

// ---- An interpreter's lock ---------------------------------------------------------------------
int given_up = 0, taken_back = 0;
bool holds = true;
void* give_up() { return holds ? (++given_up, &given_up) : nullptr; }
void take_back(void* token) { taken_back += token == &given_up ? 1 : 1000; }

void check_lock(Play& play) {
  const at::NoGradGuard no_grad;
  Watched it;
  const auto use = [&](const std::string& what, int want) {
    given_up = taken_back = 0;
    at::neg(it.a);
    play.check(what + ": given up and taken back " + std::to_string(want) + " times, got " +
                   std::to_string(given_up) + " and " + std::to_string(taken_back),
               given_up == want && taken_back == want);
  };
  use("without an interpreter", 0);
  autograd::set_interpreter_lock({give_up, take_back});
  use("around what a listener is told", 2);
  holds = false;
  use("by a thread that does not hold it", 0);
  holds = true;
  {
    const autograd::WithoutInterpreter without;
    play.check("it is given up", given_up == 1 && taken_back == 0);
  }
  play.check("it is taken back", given_up == 1 && taken_back == 1);
  autograd::set_interpreter_lock({nullptr, nullptr});
  use("after the interpreter", 0);
}

// ---- Casts -----------------------------------------------------------------------------------
at::ScalarType product_type() { return at::mm(at::ones({1, 1}), at::ones({1, 1})).scalar_type(); }

AutocastConfig casts_to(DataType type, bool enabled = true) {
  AutocastConfig config;
  config.enabled = enabled;
  config.dtype = type;
  return config;
}

void check_casts(Play& play) {
  const auto type_before = at::autocast::get_autocast_dtype(at::kCPU);
  const auto other = type_before == at::kHalf ? DataType::Bf16 : DataType::Fp16;
  play.check("without autocast there is no guard",
             make_autocast_guard(casts_to(DataType::Bf16, false), at::kCPU) == nullptr &&
                 product_type() == at::kFloat);
  for (const auto type : {DataType::Bf16, other}) {
    const auto torch_type = type == DataType::Bf16 ? at::kBFloat16 : at::kHalf;
    auto guard = make_autocast_guard(casts_to(type), at::kCPU);
    play.check("products are of the type that is asked for", product_type() == torch_type);
    std::thread([&] {
      play.check("another thread is as before", product_type() == at::kFloat);
    }).join();
    auto inner = make_autocast_guard(casts_to(DataType::Bf16), at::kCPU);
    play.check("an inner guard's type", product_type() == at::kBFloat16);
    inner.reset();
    play.check("after an inner guard the outer's", product_type() == torch_type);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    guard.reset();
    play.check("after a guard all is as before",
               product_type() == at::kFloat && !at::autocast::is_autocast_enabled(at::kCPU) &&
                   at::autocast::get_autocast_dtype(at::kCPU) == type_before);
  }
}

// A weight is cast once as long as a guard lives; a cast is not kept beyond it.
void check_kept_casts(Play& play) {
  const auto weight = at::full({1, 1}, 3.0).requires_grad_(), one = at::ones({1, 1});
  const auto value = [&] { return at::mm(one, weight).item<double>(); };
  const auto write = [&](double number) {
    const at::NoGradGuard no_grad;
    weight.fill_(number);
  };
  const auto guarded = [&](DataType type) { return make_autocast_guard(casts_to(type), at::kCPU); };
  {
    const auto guard = guarded(DataType::Bf16);
    const bool first = value() == 3;
    write(5);
    play.check("a weight is cast once in a guard", first && value() == 3);
    {
      const auto inner = guarded(DataType::Bf16);
      play.check("an inner guard of the type keeps it", value() == 3);
    }
    play.check("and leaves it", value() == 3);
    {
      const auto inner = guarded(DataType::Fp16);
      play.check("one of another type takes none from it",
                 value() == 5 && at::mm(one, weight).scalar_type() == at::kHalf);
    }
    play.check("nor leaves one", value() == 5 && product_type() == at::kBFloat16 &&
                                     at::mm(one, weight).scalar_type() == at::kBFloat16);
    write(6);
    play.check("nor ends what is kept", value() == 5);
  }
  const auto guard = guarded(DataType::Bf16);
  play.check("the next guard casts anew", value() == 6);
}

void operators_as_they_are_told(Play& play) {
  if (play.group()) {
    check_reads(play);
    check_backward(play);
    check_silence(play);
    check_lives(play);
    check_compiled(play);
    check_lock(play);
    check_casts(play);
    check_kept_casts(play);
  }
  train_along(play);
}

}  // namespace
}  // namespace operator_parts

std::vector<Case> seen_operators() {
  return {of_part("operators_as_they_are_told",
                  "who reads what is watched, compiled or not; casts, and whom they are kept for",
                  "a page that is read is not expected",
                  operator_parts::operators_as_they_are_told)};
}

}  // namespace equigrad::conformance::contract
