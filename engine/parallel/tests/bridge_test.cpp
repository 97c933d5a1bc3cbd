// Rows go over and gradients come back with their bits, between groups of any sizes; what does not
// fit is an error on both sides, and so is a rank that is lost.
#include "engine/parallel/bridge.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/parallel/layers.hpp"

namespace equigrad::parallel {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kWidth = 5;

struct Sides {
  Side producer, consumer;
  int world() const { return consumer.end(); }
};

Sides sides(int producers, int consumers, int producer_replicas = 1, int consumer_replicas = 1) {
  const Side producer{.first = 0, .data = producers, .replicas = producer_replicas};
  return {producer, {.first = producer.end(), .data = consumers, .replicas = consumer_replicas}};
}

BridgeOptions rows_of_five(int64_t rows, at::ScalarType dtype = at::kFloat) {
  return {.rows = rows, .row_sizes = {kWidth}, .dtype = dtype, .gradient_factor = std::nullopt};
}

// The whole batch of a message, as every rank can make it.
at::Tensor whole(int64_t rows, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return sample(rows * kWidth, seed, dtype).view({rows, kWidth});
}

at::Tensor part(const at::Tensor& all, const Bridge& bridge) {
  return all.narrow(0, bridge.rows().begin, bridge.rows().count());
}

bool speaks(const Side& side, int rank) { return (rank - side.first) % side.replicas == 0; }

// A message and its gradient, which only the first of each row of replicas makes right.
void expect_there_and_back(RankContext& context, const Sides& of, int64_t rows,
                           at::ScalarType dtype) {
  Bridge bridge(context.group(), of.producer, of.consumer, rows_of_five(rows, dtype));
  const bool produces = of.producer.has(context.rank());
  const bool speaker = speaks(produces ? of.producer : of.consumer, context.rank());
  const double factor = static_cast<double>(of.producer.data) / of.consumer.data;
  for (uint64_t turn = 0; turn < 2; ++turn) {
    const auto activations = whole(rows, 1 + turn, dtype);
    const auto gradients = whole(rows, 101 + turn, dtype);
    if (produces) {
      bridge.send(part(activations, bridge) * (speaker ? 1 : -3));
      EXPECT_THAT(bridge.receive_gradient(),
                  HasTheBitsOf((part(gradients, bridge) * factor).contiguous()));
    } else {
      const auto embeddings = bridge.receive();
      EXPECT_THAT(embeddings.detach(), HasTheBitsOf(part(activations, bridge).contiguous()));
      EXPECT_TRUE(embeddings.is_leaf() && embeddings.requires_grad());
      (embeddings * part(gradients, bridge)).sum().backward();
      bridge.send_gradient(embeddings.grad() * (speaker ? 1 : -3));
    }
  }
}

TEST(Bridge, RowsGoOverAndGradientsComeBackWithTheirBits) {
  for (const auto& of : {sides(1, 1), sides(1, 2), sides(2, 1), sides(2, 2), sides(3, 1),
                         sides(1, 3), sides(3, 2), sides(1, 1, 1, 2), sides(1, 1, 2, 2),
                         sides(2, 1, 1, 2), sides(1, 2, 2, 1), sides(2, 1, 2, 1)})
    EXPECT_EQ(on_ranks(of.world(),
                       [of](RankContext& context) {
                         for (const int64_t rows : {4, 7})
                           for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
                             expect_there_and_back(context, of, rows, dtype);
                       }),
              "")
        << of.producer.data << " x " << of.producer.replicas << " to " << of.consumer.data << " x "
        << of.consumer.replicas;
}

TEST(Bridge, BackwardPassesOnBothSidesAreOne) {
  const auto of = sides(2, 1);
  EXPECT_EQ(on_ranks(of.world(),
                     [of](RankContext& context) {
                       auto options = rows_of_five(4);
                       options.gradient_factor = 1;
                       Bridge bridge(context.group(), of.producer, of.consumer, options);
                       const auto input = whole(4, 1), weights = whole(1, 2),
                                  gradient = whole(4, 3);
                       if (of.producer.has(context.rank())) {
                         const auto weight = weights.clone().requires_grad_();
                         const auto output = part(input, bridge) * weight;
                         bridge.send(output);
                         output.backward(bridge.receive_gradient());
                         const auto mine = weights.clone().requires_grad_();
                         (part(input, bridge) * mine).backward(part(gradient, bridge));
                         EXPECT_THAT(weight.grad(), HasTheBitsOf(mine.grad()));
                       } else {
                         const auto embeddings = bridge.receive();
                         (embeddings * gradient).sum().backward();
                         bridge.send_gradient(embeddings.grad());
                       }
                     }),
            "");
}

// Integers small enough that every sum is exact: the mean over producers of what each has is the
// gradient of one process, whose loss is the mean over all rows.
TEST(Bridge, MeansOverBothSidesAreThoseOfOneProcess) {
  for (const auto& of : {sides(1, 1), sides(1, 2), sides(2, 1), sides(4, 1), sides(1, 4),
                         sides(4, 2), sides(2, 1, 1, 2), sides(1, 2, 2, 1)})
    EXPECT_EQ(on_ranks(of.world(),
                       [of](RankContext& context) {
                         constexpr int64_t kRows = 8;
                         const auto input = (whole(kRows, 1) * 64).round().clamp(-64, 64);
                         const auto target = (whole(kRows, 2) * 64).round().clamp(-64, 64);
                         const auto weight = at::arange(1, kWidth + 1, at::kFloat).requires_grad_();
                         (input * weight * target).sum(1).mean().backward();
                         const auto wanted = weight.grad().clone();
                         weight.mutable_grad().reset();

                         auto group = context.group();
                         Bridge bridge(group, of.producer, of.consumer, rows_of_five(kRows));
                         auto sum = at::zeros({kWidth});
                         if (of.producer.has(context.rank())) {
                           const auto output = part(input, bridge) * weight;
                           bridge.send(output);
                           output.backward(bridge.receive_gradient());
                           if (speaks(of.producer, context.rank())) sum += weight.grad();
                         } else {
                           const auto embeddings = bridge.receive();
                           (embeddings * part(target, bridge)).sum(1).mean().backward();
                           bridge.send_gradient(embeddings.grad());
                         }
                         group->all_reduce_sum(sum)->wait();
                         EXPECT_THAT(sum / of.producer.data, HasTheBitsOf(wanted));
                       }),
              "");
}

// Two producers; consumers that split a model of two matrices. Sums of small integers are exact.
TEST(Bridge, ATensorGroupReadsAndItsFirstRankAnswers) {
  const auto of = sides(2, 1, 1, 2);
  EXPECT_EQ(
      on_ranks(of.world(),
               [of](RankContext& context) {
                 constexpr int64_t kRows = 8, kHidden = 6;
                 const auto integers = [](int64_t rows, int64_t columns, uint64_t seed) {
                   const auto numbers = sample(rows * columns, seed) * 64;
                   return numbers.round().clamp(-8, 8).view({rows, columns});
                 };
                 const auto input = integers(kRows, kWidth, 1), target = integers(kRows, 3, 2);
                 const auto up = integers(kHidden, kWidth, 3), down = integers(3, kHidden, 4);
                 const auto leaf = input.clone().requires_grad_();
                 const auto unsplit = at::linear(at::linear(leaf, up), down);
                 (unsplit * target).sum(1).mean().backward();

                 Bridge bridge(context.group(), of.producer, of.consumer, rows_of_five(kRows));
                 if (of.producer.has(context.rank())) {
                   bridge.send(part(input, bridge));
                   const auto wanted = part(leaf.grad() * 2, bridge);  // means over two ranks
                   EXPECT_THAT(bridge.receive_gradient(), HasTheBitsOf(wanted.contiguous()));
                   return;
                 }
                 const int place = context.rank() - of.consumer.first;
                 const Group group = comm::connect_gloo(place, 2, context.directory() + "/tensor",
                                                        std::chrono::seconds(60));
                 const auto embeddings = bridge.receive();
                 const auto hidden = column_linear(
                     embeddings, up.narrow(0, place * kHidden / 2, kHidden / 2), {}, group);
                 const auto output = row_linear(
                     hidden, down.narrow(1, place * kHidden / 2, kHidden / 2), {}, group);
                 EXPECT_THAT(output.detach(), HasTheBitsOf(unsplit.detach()));
                 (output * target).sum(1).mean().backward();
                 bridge.send_gradient(embeddings.grad());
               }),
      "");
}

TEST(Bridge, SeveralAreInFlightAndAnsweredInTheirOrder) {
  for (const auto& of : {sides(1, 1), sides(2, 1), sides(1, 2), sides(2, 2)})
    EXPECT_EQ(
        on_ranks(
            of.world(),
            [of](RankContext& context) {
              Bridge bridge(context.group(), of.producer, of.consumer, rows_of_five(6));
              const double factor = static_cast<double>(of.producer.data) / of.consumer.data;
              std::deque<at::Tensor> held;
              for (uint64_t number = 0; number < 40; ++number) {
                if (of.producer.has(context.rank())) {
                  // Eight ahead; what was sent may be written at once.
                  const auto output = part(whole(6, number), bridge).clone();
                  bridge.send(output);
                  output.fill_(-1);
                  if (number < 7) continue;
                  EXPECT_THAT(
                      bridge.receive_gradient(),
                      HasTheBitsOf(
                          (part(whole(6, 1000 + number - 7), bridge) * factor).contiguous()));
                } else {  // three ahead
                  const auto embeddings = bridge.receive();
                  EXPECT_THAT(embeddings.detach(),
                              HasTheBitsOf(part(whole(6, number), bridge).contiguous()));
                  (embeddings * part(whole(6, 1000 + number), bridge)).sum().backward();
                  held.push_back(embeddings);
                  if (held.size() < 3) continue;
                  bridge.send_gradient(held.front().grad());
                  held.pop_front();
                }
              }
              for (; !held.empty(); held.pop_front()) bridge.send_gradient(held.front().grad());
              if (of.producer.has(context.rank()))
                for (uint64_t number = 33; number < 40; ++number)
                  EXPECT_THAT(
                      bridge.receive_gradient(),
                      HasTheBitsOf((part(whole(6, 1000 + number), bridge) * factor).contiguous()));
              bridge.finish();
            }),
        "");
}

TEST(Bridge, TwoBridgesOfOneWorldDoNotMeet) {
  const auto of = sides(1, 1);
  EXPECT_EQ(on_ranks(2,
                     [of](RankContext& context) {
                       Bridge training(context.group(), of.producer, of.consumer, rows_of_five(4));
                       auto options = rows_of_five(4);
                       options.gradients = false;
                       Bridge evaluation(context.group(), of.producer, of.consumer, options);
                       if (of.producer.has(context.rank())) {
                         training.send(whole(4, 1));
                         for (uint64_t number = 0; number < 30; ++number)
                           evaluation.send(whole(4, 10 + number));
                         EXPECT_THAT(training.receive_gradient(), HasTheBitsOf(whole(4, 2)));
                         EXPECT_THAT(error_of([&] { evaluation.receive_gradient(); }),
                                     HasSubstr("expected a bridge with gradients"));
                       } else {
                         for (uint64_t number = 0; number < 30; ++number) {
                           const auto rows = evaluation.receive();
                           EXPECT_THAT(rows, HasTheBitsOf(whole(4, 10 + number)));
                           EXPECT_FALSE(rows.requires_grad());
                         }
                         EXPECT_THAT(error_of([&] { evaluation.send_gradient(whole(4, 2)); }),
                                     HasSubstr("expected a bridge with gradients"));
                         EXPECT_THAT(training.receive().detach(), HasTheBitsOf(whole(4, 1)));
                         training.send_gradient(whole(4, 2));
                       }
                     }),
            "");
}

// What the producer's side hears of a wrong message, and the consumer's; then the next one.
void expect_refusal(RankContext& context, const at::Tensor& wrong, const std::string& got) {
  const auto of = sides(1, 1);
  Bridge bridge(context.group(), of.producer, of.consumer, rows_of_five(4));
  const auto says = [&](const std::string& wanted) {
    return AllOf(HasSubstr(wanted), HasSubstr("Float [4, 5], got " + got), HasSubstr("message 0"));
  };
  if (of.producer.has(context.rank())) {
    EXPECT_THAT(error_of([&] { bridge.send(wrong); }), says("[rank 0/2] [parallel.bridge.send]"));
    bridge.send(whole(4, 1));
    EXPECT_THAT(bridge.receive_gradient(), HasTheBitsOf(whole(4, 2)));
  } else {
    EXPECT_THAT(error_of([&] { bridge.receive(); }),
                says("[rank 1/2] [parallel.bridge.receive] expected rank 0 to send"));
    EXPECT_THAT(bridge.receive().detach(), HasTheBitsOf(whole(4, 1)));
    bridge.send_gradient(whole(4, 2));
  }
}

void expect_refused_gradient(RankContext& context, const at::Tensor& wrong,
                             const std::string& got) {
  const auto of = sides(1, 1);
  Bridge bridge(context.group(), of.producer, of.consumer, rows_of_five(4));
  for (uint64_t number = 0; number < 2; ++number) {
    const auto says = [&](const std::string& wanted) {
      return number == 0 ? testing::Matcher<std::string>(AllOf(
                               HasSubstr(wanted), HasSubstr("Float [4, 5], got " + got + " as")))
                         : testing::Matcher<std::string>(IsEmpty());
    };
    if (of.producer.has(context.rank())) {
      bridge.send(whole(4, 1));
      EXPECT_THAT(error_of([&] { bridge.receive_gradient(); }),
                  says("[rank 0/2] [parallel.bridge.receive_gradient] expected rank 1 to send"));
    } else {
      bridge.receive();
      EXPECT_THAT(error_of([&] { bridge.send_gradient(number == 0 ? wrong : whole(4, 2)); }),
                  says("[rank 1/2] [parallel.bridge.send_gradient]"));
    }
  }
}

TEST(Bridge, AnotherShapeOrTypeIsAnErrorOnBothSidesAndTheNextGoesOn) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       for (const auto expect : {expect_refusal, expect_refused_gradient}) {
                         expect(context, whole(3, 1), "Float [3, 5]");
                         expect(context, whole(4, 1).view({5, 4}), "Float [5, 4]");
                         expect(context, whole(4, 1).view({2, 2, 5}), "Float [2, 2, 5]");
                         expect(context, whole(4, 1, at::kBFloat16), "BFloat16 [4, 5]");
                         expect(context, at::Tensor(), "no tensor");
                       }
                     }),
            "");
}

// Of two producers one is refused: both of the consumers whose rows they share have an error, and
// so has the producer that did right, instead of waiting for its gradient.
TEST(Bridge, WhoShareAMessageThatIsRefusedAllHear) {
  const auto of = sides(2, 1);
  EXPECT_EQ(
      on_ranks(3,
               [of](RankContext& context) {
                 Bridge bridge(context.group(), of.producer, of.consumer, rows_of_five(4));
                 if (context.rank() == 0) {
                   EXPECT_THAT(error_of([&] { bridge.send(whole(1, 1)); }),
                               HasSubstr("expected Float [2, 5], got Float [1, 5] as message 0"));
                 } else if (context.rank() == 1) {
                   bridge.send(part(whole(4, 1), bridge));
                   EXPECT_THAT(error_of([&] { bridge.receive_gradient(); }),
                               AllOf(HasSubstr("expected rank 2 to send Float [4, 5]"),
                                     HasSubstr("got none, for it was refused what it answers")));
                 } else {
                   EXPECT_THAT(
                       error_of([&] { bridge.receive(); }),
                       HasSubstr("rank 0 to send Float [2, 5], got Float [1, 5] as message 0"));
                 }
                 if (context.rank() < 2) {
                   bridge.send(part(whole(4, 2), bridge));
                   EXPECT_THAT(bridge.receive_gradient(),
                               HasTheBitsOf((part(whole(4, 3), bridge) * 2).contiguous()));
                 } else {
                   EXPECT_THAT(bridge.receive().detach(), HasTheBitsOf(whole(4, 2)));
                   bridge.send_gradient(whole(4, 3));
                 }
               }),
      "");
}

TEST(Bridge, CallsOutOfOrderAreErrors) {
  const auto of = sides(1, 1);
  EXPECT_EQ(
      on_ranks(
          2,
          [of](RankContext& context) {
            auto options = rows_of_five(4);
            options.in_flight = 2;
            Bridge bridge(context.group(), of.producer, of.consumer, options);
            if (of.producer.has(context.rank())) {
              EXPECT_THAT(error_of([&] { bridge.receive(); }),
                          HasSubstr("expected a rank of the consumer, got one of the producer"));
              EXPECT_THAT(error_of([&] { bridge.send_gradient(whole(4, 1)); }),
                          HasSubstr("expected a rank of the consumer"));
              EXPECT_THAT(error_of([&] { bridge.receive_gradient(); }),
                          HasSubstr("expected a message without a gradient, got none"));
              bridge.send(whole(4, 1));
              bridge.send(whole(4, 2));
              EXPECT_THAT(error_of([&] { bridge.send(whole(4, 3)); }),
                          HasSubstr("expected at most 2 messages without a gradient"));
              EXPECT_THAT(bridge.receive_gradient(), HasTheBitsOf(at::full({4, 5}, 1.0f)));
              EXPECT_THAT(bridge.receive_gradient(), HasTheBitsOf(at::full({4, 5}, 2.0f)));
            } else {
              EXPECT_THAT(error_of([&] { bridge.send(whole(4, 1)); }),
                          HasSubstr("expected a rank of the producer, got one of the consumer"));
              EXPECT_THAT(error_of([&] { bridge.send_gradient(whole(4, 1)); }),
                          HasSubstr("expected a message without a gradient, got none"));
              const auto first = bridge.receive(), second = bridge.receive();
              (first.sum() + 2 * second.sum()).backward();
              EXPECT_THAT(error_of([&] { bridge.send_gradient(second.grad()); }),
                          HasSubstr("expected the gradient of message 0, got that of message 1"));
              bridge.send_gradient(first.grad());
              bridge.send_gradient(second.grad());
            }
          }),
      "");
}

TEST(Bridge, SidesThatDoNotAgreeAreAnErrorOnEveryRank) {
  EXPECT_EQ(
      on_ranks(
          3,
          [](RankContext& context) {
            const auto of = sides(1, 2);
            const auto refused = [&](Sides mine, BridgeOptions options) {
              return error_of([&] {
                Bridge(context.group(), mine.producer, mine.consumer, std::move(options));
              });
            };
            const bool odd = context.rank() == 2;
            EXPECT_THAT(refused(of, rows_of_five(odd ? 6 : 4)),
                        AllOf(HasSubstr("4 rows of Float [5]"), HasSubstr("on rank 0, and"),
                              HasSubstr("6 rows of Float [5]"), HasSubstr("on rank 2")));
            EXPECT_THAT(refused(of, rows_of_five(4, odd ? at::kBFloat16 : at::kFloat)),
                        HasSubstr("4 rows of BFloat16 [5]"));
            auto options = rows_of_five(4);
            options.row_sizes = odd ? std::vector<int64_t>{kWidth, 1} : options.row_sizes;
            EXPECT_THAT(refused(of, options), HasSubstr("Float [5, 1]"));
            options = rows_of_five(4);
            if (odd) options.gradient_factor = 3;
            EXPECT_THAT(refused(of, options), HasSubstr("gradient_factor 3"));
            // Alike, and wrong.
            EXPECT_THAT(refused(sides(1, 1), rows_of_five(4)),
                        HasSubstr("expected each of 3 ranks on one side, got rank 2 on neither"));
            EXPECT_THAT(refused(sides(2, 2), rows_of_five(4)),
                        HasSubstr("expected each of 3 ranks on one side, got rank 3 that is not"));
            EXPECT_THAT(refused(of, rows_of_five(1)), HasSubstr("at least one row"));
            EXPECT_THAT(refused(of, rows_of_five(4, at::kLong)),
                        HasSubstr("expected a floating type"));
            options = rows_of_five(4);
            options.in_flight = 0;
            EXPECT_THAT(refused(of, options), HasSubstr("messages in flight, got 0"));
            options = rows_of_five(4);
            options.row_sizes = std::vector<int64_t>(10, 1);
            EXPECT_THAT(refused(of, options), HasSubstr("at most 9 sizes of a row"));
            expect_there_and_back(context, of, 4, at::kFloat);
          }),
      "");
}

// Rank `lost` goes after the first message; the other side waits, and is told whom it waits for.
void expect_lost(RankContext& context, const Sides& of, int lost, const std::string& name) {
  const std::chrono::seconds timeout(6);
  auto group =
      comm::connect_gloo(context.rank(), of.world(), context.directory() + "/" + name, timeout);
  const auto start = std::chrono::steady_clock::now();
  try {
    Bridge bridge(group, of.producer, of.consumer, rows_of_five(4));
    const bool produces = of.producer.has(context.rank());
    const auto turn = [&] {
      if (produces) {
        bridge.send(part(whole(4, 1), bridge));
        bridge.receive_gradient();
      } else {
        bridge.send_gradient(bridge.receive().detach());
      }
    };
    turn();
    bridge.finish();
    if (context.rank() == lost) return group.reset();
    turn();
    turn();
    const bool shares = produces != of.producer.has(lost);
    EXPECT_FALSE(shares) << "a lost rank was not noticed";
  } catch (const comm::CommunicationError& error) {
    // Behind the words that every error has: who makes it, and of how many.
    const std::string text = error.what();
    EXPECT_THAT(text.substr(text.find("] [comm.")),
                HasSubstr("Look for rank " + std::to_string(lost) + ", "));
    EXPECT_EQ(error.lost_rank().value_or(lost), lost) << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4 * timeout);
}

TEST(Bridge, ALostRankIsAnErrorOfTheOtherSideThatNamesIt) {
  for (const auto& of : {sides(1, 1), sides(2, 1), sides(1, 2)})
    for (const int lost : {0, of.world() - 1})
      EXPECT_EQ(on_ranks(of.world(),
                         [of, lost](RankContext& context) {
                           expect_lost(context, of, lost, "lost" + std::to_string(lost));
                         }),
                "")
          << of.producer.data << " to " << of.consumer.data << ", rank " << lost << " lost";
}

}  // namespace
}  // namespace equigrad::parallel
