// What a leaf module is for: gathers and messages of a pass do not depend on the route that data
// takes; and what it costs is in the memory formula.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/engine.hpp"
#include "engine/leaf_modules.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad {
namespace {

using conformance::CountingCommunicator;
using conformance::sample;
using conformance::contract::Experts;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

constexpr int64_t kLeafNumel = 3 * (7 * 11 + 11 + 11 * 5 + 5);

std::string config_of(const std::string& zero) {
  return R"({"train_micro_batch_size_per_gpu": 1,
             "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
             "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0)" +
         zero + "}}";
}

struct Trained {
  std::shared_ptr<CountingCommunicator> communicator;
  std::shared_ptr<reference::Model> owner =
      conformance::contract::make_contract_model("experts", 3);
  Experts& model = dynamic_cast<Experts&>(*owner);
  std::unique_ptr<Engine> engine;

  Trained(RankContext& context, const std::string& zero)
      : communicator(std::make_shared<CountingCommunicator>(context.group())),
        engine(initialize(model, config_of(zero), communicator)) {}

  // A pass by these experts: the messages of its forward, and the gathers of all of it. (How many
  // messages a reduction takes depends on which buckets are full.)
  std::pair<int64_t, int64_t> pass(const std::vector<std::size_t>& route) {
    const auto x = sample(7, 5).view({1, 7});
    const auto gates = at::softmax(model.gate(x), 1);
    auto y = at::zeros({1, 5});
    const auto before = communicator->counts();
    for (const auto which : route) {
      auto& expert = *model.experts->all[which];
      y = y + expert.down(at::gelu(expert.up(x))) * gates[0][static_cast<int64_t>(which)];
    }
    const auto of_forward = communicator->counts().messages - before.messages;
    engine->backward(y.square().mean());
    return {of_forward, communicator->counts().gathers() - before.gathers()};
  }
};

const std::vector<std::vector<std::size_t>> kRoutes = {{0}, {1, 2}, {2, 0, 1, 0}, {1}, {0, 1, 2}};

TEST(LeafGathers, DoNotDependOnTheRoute) {
  for (const std::string paging :
       {R"(, "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0)",
        R"(, "stage3_prefetch_bucket_size": 100)", R"(, "stage3_max_live_parameters": 50)", ""}) {
    for (const int world : {2, 3}) {
      EXPECT_EQ(on_ranks(world,
                         [&](RankContext& context) {
                           Trained leaf(context,
                                        paging + R"(, "leaf_module": {"names": ["experts"]})");
                           const auto rank = static_cast<std::size_t>(context.rank());
                           for (int i = 0; i < 3; ++i) leaf.pass(kRoutes[4]);  // learnt
                           const auto want = leaf.pass(kRoutes[4]);
                           for (std::size_t i = 0; i < kRoutes.size(); ++i) {
                             EXPECT_EQ(leaf.pass(kRoutes[i]), want) << paging << i;
                             EXPECT_EQ(leaf.pass(kRoutes[(i + rank) % 5]), want) << paging << i;
                           }
                         }),
                "");
    }
  }
}

// The twin of the test above: it could fail.
TEST(LeafGathers, DependOnTheRouteWithoutALeaf) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Trained plain(context, R"(, "stage3_prefetch_bucket_size": 0)");
                       for (int i = 0; i < 3; ++i) plain.pass(kRoutes[4]);
                       EXPECT_NE(plain.pass(kRoutes[0]), plain.pass(kRoutes[4]));
                     }),
            "");
}

TEST(LeafGathers, MarksAndTheConfigurationAreTheSame) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 Trained by_config(context, R"(, "leaf_module": {"name_suffixes": ["experts"]})");
                 auto owner = conformance::contract::make_contract_model("experts", 3);
                 auto& model = dynamic_cast<Experts&>(*owner);
                 set_z3_leaf_modules<Experts::Group>(model);
                 const auto communicator = std::make_shared<CountingCommunicator>(context.group());
                 const auto engine = initialize(model, config_of(""), communicator);
                 EXPECT_EQ(engine->config().zero.leaf_module.names,
                           std::vector<std::string>{"experts"});
                 const auto x = sample(7, 5).view({1, 7});
                 for (auto* all : {&by_config.model, &model}) all->gate(x);
                 auto& weight = model.experts->all[2]->down->weight;
                 (void)model.experts->all[0]->up(x);
                 EXPECT_NE(weight.storage().data(), nullptr) << "came with another expert's";
                 (void)by_config.model.experts->all[0]->up(x);
                 EXPECT_NE(by_config.model.experts->all[2]->down->weight.storage().data(), nullptr);
               }),
      "");
}

TEST(LeafGathers, TheirBytesAreInTheFormula) {
  EXPECT_EQ(
      on_ranks(
          2,
          [](RankContext& context) {
            Trained leaf(context, R"(, "stage3_max_live_parameters": 50,
                                              "leaf_module": {"names": ["experts"]})");
            std::vector<layout::Registration> registrations;
            MemoryOptions options{
                .world_size = 2, .on_cuda = false, .arrivals = {}, .leaves = {{}}};
            for (const auto& item : leaf.model.named_parameters()) {
              if (item.key().starts_with("experts"))
                options.leaves[0].push_back(registrations.size());
              registrations.push_back(
                  {item.key(), item.value().unsafeGetTensorImpl(), item.value().sizes().vec()});
            }
            for (int i = 0; i < 3; ++i) leaf.pass(kRoutes[1]);
            const auto got = leaf.engine->ledger().peak_bytes(memory::Category::Gathered);
            const layout::ParameterTable table(registrations);
            const auto held = [&] {
              return forecast(table, leaf.engine->config(), options).of(memory::Category::Gathered);
            };
            EXPECT_GE(got, kLeafNumel * 4) << "all of it at once";
            EXPECT_GE(got, held().peak);
            EXPECT_LE(got, held().most);
            options.leaves.clear();
            EXPECT_LT(held().peak, kLeafNumel * 4);
          }),
      "");
}

}  // namespace
}  // namespace equigrad
