// Which modules are leaves, by class, name and suffix, and which parameters are theirs.
#include "engine/leaf_modules.hpp"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include "conformance/testing/sample.hpp"
#include "engine/parameter/leaf_parameters.hpp"
#include "engine/profile/flops_profiler.hpp"

namespace equigrad::leaf_test {

struct ExpertImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(4, 6));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(6, 4));
};
struct SpecialExpertImpl : ExpertImpl {};
struct MixtralSparseMoeBlockImpl : torch::nn::Module {
  torch::nn::Linear gate = register_module("gate", torch::nn::Linear(4, 2));
  std::shared_ptr<ExpertImpl> one = register_module("one", std::make_shared<ExpertImpl>());
  std::shared_ptr<ExpertImpl> two = register_module("two", std::make_shared<SpecialExpertImpl>());
};
struct Absent : torch::nn::Module {};
struct Model : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  std::shared_ptr<MixtralSparseMoeBlockImpl> block =
      register_module("block", std::make_shared<MixtralSparseMoeBlockImpl>());
  std::shared_ptr<ExpertImpl> last = register_module("last", std::make_shared<ExpertImpl>());
};

}  // namespace equigrad::leaf_test

namespace equigrad {
namespace {

using conformance::error_of;
using leaf_test::Model;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The names of the parameters of each leaf.
std::vector<std::vector<std::string>> groups(Model& model, const LeafModuleConfig& config) {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) {
    names.push_back(item.key());
    tensors.push_back(item.value());
  }
  std::vector<std::vector<std::string>> all;
  for (const auto& group : leaf_parameters(profile::modules_of(model), tensors, config)) {
    all.emplace_back();
    for (const auto i : group) all.back().push_back(names[i]);
  }
  return all;
}

std::vector<std::string> of_expert(const std::string& path) {
  return {path + ".up.weight", path + ".up.bias", path + ".down.weight", path + ".down.bias"};
}

TEST(LeafModules, AreToldByTheNameOfTheirClassBareOrInFull) {
  Model model;
  for (const char* name : {"Expert", "ExpertImpl", "leaf_test.Expert", "equigrad.leaf_test.Expert",
                           "equigrad::leaf_test::ExpertImpl"}) {
    const bool known = std::string(name) != "leaf_test.Expert";
    const auto found = [&] { return groups(model, {{name}, {}, {}}); };
    if (known) {
      EXPECT_THAT(found(), ElementsAre(of_expert("block.one"), of_expert("last"))) << name;
    } else {
      EXPECT_THAT(error_of(found), HasSubstr("expected the class of a module of the model, got"));
    }
  }
  EXPECT_THAT(groups(model, {{"torch.nn.Linear"}, {}, {}}).size(), 8u);
}

TEST(LeafModules, AreToldByNameAndBySuffixAndTheOutermostCounts) {
  Model model;
  EXPECT_THAT(groups(model, {{}, {"last"}, {}}), ElementsAre(of_expert("last")));
  EXPECT_THAT(groups(model, {{}, {}, {"t"}}),
              ElementsAre(ElementsAre("first.weight", "first.bias"), of_expert("last")));
  EXPECT_EQ(groups(model, {{}, {"block", "block.one"}, {}}).size(), 1u);
  EXPECT_EQ(groups(model, {{}, {"block", "block.one"}, {}})[0].size(), 10u);
  EXPECT_EQ(groups(model, {{}, {""}, {}})[0].size(), 16u) << "the model itself";
}

TEST(LeafModules, ClassesByDefaultAreDeepSpeedsInAnyNamespaceAndMayBeAbsent) {
  Model model;
  ASSERT_EQ(groups(model, {}).size(), 1u);
  EXPECT_EQ(groups(model, {})[0].size(), 10u);
  leaf_test::ExpertImpl none;
  EXPECT_THAT(leaf_parameters(profile::modules_of(none), none.parameters(), {}), IsEmpty());
  const std::string mixtral = LeafModuleConfig{}.classes[0];
  EXPECT_EQ(groups(model, {{mixtral}, {}, {}}).size(), 1u);
}

TEST(LeafModules, LeavesThatShareAParameterAreOne) {
  Model model;
  std::vector<layout::ModuleEntry> modules = profile::modules_of(model);
  for (auto& module : modules)
    if (module.name == "last.up")
      module.parameters[0] = model.block->one->up->weight.unsafeGetTensorImpl();
  const auto all = leaf_parameters(modules, model.parameters(), {{"Expert"}, {}, {}});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].size(), 7u) << "last.up.weight has another's tensor";
}

TEST(LeafModules, NamesThatMatchNothingAreErrorsWithASuggestion) {
  Model model;
  const auto error = [&](const LeafModuleConfig& config) {
    return error_of([&] { groups(model, config); });
  };
  EXPECT_THAT(error({{"Expret"}, {}, {}}), HasSubstr("got \"Expret\". Did you mean \"Expert\"?"));
  EXPECT_THAT(error({{}, {"blok"}, {}}),
              HasSubstr("expected the name of a module of the model, got \"blok\". Did you mean "
                        "\"block\"?"));
  EXPECT_THAT(error({{}, {}, {"experts_of_mine"}}), HasSubstr("The model has \"\", \"first\""));
  EXPECT_THAT(error({{"Expert"}, {"blok"}, {}}), HasSubstr("blok"))
      << "one that matches hides none";
}

TEST(LeafModules, AreSetReadAndUnsetLikeDeepSpeeds) {
  Model model;
  EXPECT_THAT(get_z3_leaf_modules(model), IsEmpty());
  EXPECT_THAT(set_z3_leaf_modules<leaf_test::ExpertImpl>(model),
              ElementsAre(model.block->one.get(), model.block->two.get(), model.last.get()))
      << "and what derives from it";
  EXPECT_TRUE(z3_leaf_module(*model.last));
  EXPECT_FALSE(z3_leaf_module(*model.block));
  EXPECT_THAT(unset_z3_leaf_modules(model, {"Expert"}),
              ElementsAre(model.block->one.get(), model.last.get()));
  EXPECT_THAT(get_z3_leaf_modules(model), ElementsAre(model.block->two.get()));
  unset_z3_leaf_modules<leaf_test::ExpertImpl>(model);
  EXPECT_THAT(get_z3_leaf_modules(model), IsEmpty());
  set_z3_leaf_modules_by_name(model, {"block"});
  set_z3_leaf_modules_by_suffix(model, {"ast"});
  EXPECT_THAT(get_z3_leaf_modules(model), ElementsAre(model.block.get(), model.last.get()));
  unset_z3_leaf_modules_by_name(model, {"block"});
  unset_z3_leaf_modules_by_suffix(model, {"last"});
  EXPECT_THAT(get_z3_leaf_modules(model), IsEmpty());
  EXPECT_THAT(error_of([&] { set_z3_leaf_modules(model, {"Nothing"}); }), HasSubstr("Nothing"));
  EXPECT_THAT(error_of([&] { set_z3_leaf_modules<leaf_test::Absent>(model); }),
              HasSubstr("expected a module of that class in the model, got none"));
}

TEST(LeafModules, AMarkGoesWithItsModule) {
  auto model = std::make_unique<Model>();
  set_z3_leaf_modules(*model, {"Expert"});
  const auto* gone = model.get();
  model.reset();
  for (int i = 0; i < 20; ++i) {
    Model next;
    EXPECT_THAT(get_z3_leaf_modules(next), IsEmpty()) << static_cast<const void*>(gone);
  }
}

}  // namespace
}  // namespace equigrad
