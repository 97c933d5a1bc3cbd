#include "conformance/generated/user_hooks.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>
#include <utility>

#include "conformance/generated/other_engine.hpp"

namespace equigrad::conformance {
namespace {

constexpr std::size_t kMostKept = 4;  // of a parameter

bool has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.flatten().contiguous().view(at::kByte);
  };
  return bytes(a).equal(bytes(b));
}

bool is_of_user(const std::string& kind) {
  return kind == "keeps" || kind == "keeps_alias" || kind == "replaces";
}

}  // namespace

struct UserHooks::Hooked {
  struct Kept {
    at::Tensor gradient, copy;
  };
  std::string name, kind;
  at::Tensor tensor;
  std::size_t tensor_hooks = 0;  // C++'s are one to a tensor, however many
  int64_t calls = 0;
  std::deque<Kept> kept = {};

  void see(const at::Tensor& leaf) {
    ++calls;
    if (kind == "replaces") leaf.mutable_grad() = leaf.grad() * 0.5;
    const auto gradient = kind == "keeps_alias" ? leaf.grad().detach() : leaf.grad();
    kept.push_back({gradient, gradient.clone()});
    if (kept.size() > kMostKept) kept.pop_front();
  }
};

namespace {

class Keeper final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Keeper(std::weak_ptr<UserHooks::Hooked> to) : to_(std::move(to)) {}
  void operator()(const at::Tensor& leaf) override {
    if (const auto to = to_.lock()) to->see(leaf);
  }

 private:
  std::weak_ptr<UserHooks::Hooked> to_;  // which holds the tensor that holds this
};

}  // namespace

UserHooks::UserHooks(const Workload& workload, const GeneratedModel& model) {
  for (std::size_t i = 0; i < workload.tensors.size(); ++i) {
    const auto& tensor = model.tensors().at(i);
    if (!tensor.requires_grad()) continue;
    auto hooked = std::make_shared<Hooked>();
    hooked->name = workload.tensors[i].name;
    hooked->kind = workload.tensors[i].hook;
    hooked->tensor = tensor;
    hooked->tensor_hooks = torch::autograd::impl::hooks(tensor).size();
    if (is_of_user(hooked->kind))
      torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<Keeper>(hooked));
    all_.push_back(std::move(hooked));
  }
}

void UserHooks::judge_kept() const {
  for (const auto& hooked : all_)
    for (const auto& [gradient, copy] : hooked->kept)
      if (!has_same_bits(gradient, copy))
        throw HarmlessEventFailed("a gradient of " + hooked->name +
                                  " that a hook of the user's keeps was written to");
}

void UserHooks::judge_without_engine(bool has_values) const {
  for (const auto& hooked : all_) {
    const auto& tensor = hooked->tensor;
    const auto fail = [&](const char* what) {
      throw HarmlessEventFailed("without its engine " + hooked->name + " " + what);
    };
    const bool is_hooked = torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr;
    if (is_hooked && !is_of_user(hooked->kind))
      fail("has a hook that nobody of the user's put there");
    if (!is_hooked && is_of_user(hooked->kind)) fail("has lost the hook of the user's");
    if (torch::autograd::impl::hooks(tensor).size() != hooked->tensor_hooks)
      fail("has another number of tensor hooks than before it");
    if (tensor.grad().defined()) fail("has a gradient that nobody asked for");
    if (!has_values || tensor.numel() == 0) continue;
    const auto calls = hooked->calls;
    tensor.sum().backward();
    if (is_of_user(hooked->kind) && hooked->calls != calls + 1)
      fail("did not call the user's hook");
    const double want = hooked->kind == "halves" || hooked->kind == "replaces" ? 0.5 : 1.0;
    const auto got = std::exchange(tensor.mutable_grad(), at::Tensor());
    if (!got.defined() || !got.equal(at::full_like(got, want)))
      fail("has no gradient, or a wrong one, after a pass");
  }
}

}  // namespace equigrad::conformance
