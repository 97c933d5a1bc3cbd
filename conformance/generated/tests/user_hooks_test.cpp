#include "conformance/generated/user_hooks.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include "conformance/generated/other_engine.hpp"

namespace equigrad::conformance {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Workload hooked(const std::string& kind) {
  Workload workload;
  workload.tensors = {{.name = "a.weight", .sizes = {4}, .hook = kind},
                      {.name = "b.weight", .sizes = {2, 3}}};
  workload.groups.resize(1);
  return workload;
}

struct Case {
  explicit Case(const std::string& kind)
      : workload(hooked(kind)), model(workload, false), hooks(workload, model) {}
  void pass() const { model.loss_of({0, 0, 0}, at::kFloat).backward(); }
  const at::Tensor& first() const { return model.tensors().at(0); }
  void clear() const {
    for (const auto& tensor : model.tensors()) tensor.mutable_grad() = at::Tensor();
  }

  Workload workload;
  GeneratedModel model;
  UserHooks hooks;
};

TEST(UserHooks, WhatIsKeptMayNotBeWrittenTo) {
  for (const char* kind : {"keeps", "keeps_alias", "replaces"}) {
    const Case one(kind);
    one.pass();
    one.hooks.judge_kept();
    one.first().mutable_grad().mul_(2);
    EXPECT_THAT([&] { one.hooks.judge_kept(); },
                ThrowsMessage<HarmlessEventFailed>(HasSubstr("a gradient of a.weight")))
        << kind;
  }
}

TEST(UserHooks, AGradientThatIsTakenAwayIsStillTheUsers) {
  const Case one("keeps");
  one.pass();
  one.clear();
  one.pass();
  one.hooks.judge_kept();
}

TEST(UserHooks, WithoutAnEngineParametersArePlain) {
  for (const char* kind : {"none", "observes", "halves", "keeps", "keeps_alias", "replaces"}) {
    const Case one(kind);
    one.pass();
    EXPECT_THAT([&] { one.hooks.judge_without_engine(true); },
                ThrowsMessage<HarmlessEventFailed>(HasSubstr("a gradient that nobody asked for")));
    one.clear();
    one.hooks.judge_without_engine(true);
    one.hooks.judge_without_engine(false);
  }
}

TEST(UserHooks, AHookThatIsLostIsNamed) {
  const Case one("keeps");
  torch::autograd::impl::set_post_acc_grad_hooks(one.first(), nullptr);
  EXPECT_THAT([&] { one.hooks.judge_without_engine(false); },
              ThrowsMessage<HarmlessEventFailed>(HasSubstr("a.weight has lost the hook")));
}

TEST(UserHooks, AHookThatStaysBehindIsNamed) {
  const Case one("none"), other("keeps");
  auto& left = torch::autograd::impl::post_acc_grad_hooks(other.first());
  torch::autograd::impl::set_post_acc_grad_hooks(one.first(), std::move(left));
  EXPECT_THAT([&] { one.hooks.judge_without_engine(false); },
              ThrowsMessage<HarmlessEventFailed>(HasSubstr("a.weight has a hook")));
}

TEST(UserHooks, ATensorHookThatIsAddedIsNamed) {
  const Case one("none");
  one.first().register_hook([](const at::Tensor&) {});
  EXPECT_THAT([&] { one.hooks.judge_without_engine(false); },
              ThrowsMessage<HarmlessEventFailed>(HasSubstr("another number of tensor hooks")));
}

TEST(UserHooks, AGradientThatIsChangedOnItsWayIsNamed) {
  const Case one("none");
  one.hooks.judge_without_engine(true);
  const Case changed("keeps");
  changed.first().register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  EXPECT_THROW(changed.hooks.judge_without_engine(true), HarmlessEventFailed);
}

}  // namespace
}  // namespace equigrad::conformance
