// A page's life: what the model's tensor and its views see while it comes and goes.
#include "engine/parameter/page.hpp"

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"

namespace equigrad::parameter {
namespace {

using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

TEST(Page, ViewsSeeTheDataWhileItIsThereAndTheVersionStays) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       memory::Ledger ledger;
                       const auto values = sample(5, 1);
                       Page page;
                       page.tensor = at::empty({5});
                       page.shard = at::zeros({3});
                       const int64_t begin = 3 * context.rank(),
                                     numel = context.rank() == 0 ? 3 : 2;
                       page.shard.narrow(0, 0, numel).copy_(values.narrow(0, begin, numel));
                       page.bytes = 6 * 4;
                       const auto view = page.tensor.narrow(0, 1, 3);
                       const auto version = page.tensor._version();
                       page.disown();
                       EXPECT_THROW(view.const_data_ptr<float>(), c10::Error);
                       page.gather = std::make_shared<PageGather>(
                           std::vector<at::Tensor>{page.shard}, *context.group(), ledger);
                       page.state = Page::State::Arriving;
                       EXPECT_FALSE(page.may_drop());
                       page.arrive(ledger);
                       EXPECT_THAT(page.tensor, HasTheBitsOf(values));
                       EXPECT_THAT(view, HasTheBitsOf(values.narrow(0, 1, 3)));
                       EXPECT_EQ(ledger.bytes(memory::Category::Gathered), 24);
                       page.pins = 1;
                       EXPECT_FALSE(page.may_drop()) << "an operator reads it";
                       page.pins = 0;
                       EXPECT_TRUE(page.may_drop());
                       page.drop(ledger);
                       EXPECT_THROW(view.const_data_ptr<float>(), c10::Error);
                       EXPECT_EQ(ledger.bytes(memory::Category::Gathered), 0);
                       EXPECT_EQ(page.tensor._version(), version);
                     }),
            "");
}

TEST(Page, AResidentOneIsFilledWhereItIs) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         memory::Ledger ledger;
                         const int w = context.world_size();
                         std::vector<at::Tensor> shards;
                         std::vector<Page> pages(2);
                         for (std::size_t i : {0U, 1U}) {
                           const auto values = sample(7 + static_cast<int64_t>(i), i + 1);
                           const int64_t shard_numel = (values.numel() + w - 1) / w;
                           const auto padded = at::zeros({w * shard_numel});
                           padded.narrow(0, 0, values.numel()).copy_(values);
                           pages[i].tensor = at::empty({values.numel()}).requires_grad_();
                           pages[i].shard = padded.view({w, shard_numel})[context.rank()];
                           pages[i].bytes = values.numel() * 4;
                           pages[i].resident = true;
                           shards.push_back(pages[i].shard);
                         }
                         const auto gather =
                             std::make_shared<PageGather>(shards, *context.group(), ledger);
                         for (std::size_t i : {0U, 1U}) {
                           auto& page = pages[i];
                           const auto* data = page.tensor.const_data_ptr();
                           const auto version = page.tensor._version();
                           const auto held = ledger.bytes(memory::Category::Gathered);
                           page.gather = gather;
                           page.offset = i == 0 ? 0 : shards[0].numel();
                           page.state = Page::State::Arriving;
                           page.arrive(ledger);
                           EXPECT_EQ(page.state, Page::State::Live);
                           EXPECT_THAT(page.tensor.detach(),
                                       HasTheBitsOf(sample(7 + static_cast<int64_t>(i), i + 1)));
                           page.drop(ledger);
                           EXPECT_EQ(page.state, Page::State::Released);
                           page.poison(ledger);
                           EXPECT_EQ(page.state, Page::State::Live);
                           EXPECT_TRUE(page.tensor.isnan().all().item<bool>());
                           EXPECT_EQ(page.tensor.const_data_ptr(), data);
                           EXPECT_EQ(page.tensor._version(), version);
                           EXPECT_EQ(ledger.bytes(memory::Category::Gathered), held);
                         }
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad::parameter
