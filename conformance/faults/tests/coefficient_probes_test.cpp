// What the engine adds up, read off a probe: at every stage, with one to four ranks and one to five
// micro-batches, every contribution counts once, and a planted fault gives the matrix that it must.
#include <gmock/gmock.h>

#include "conformance/diagnosis/coefficients.hpp"
#include "conformance/faults/seams.hpp"
#include "conformance/testing/small_run.hpp"

namespace equigrad::conformance {
namespace {

using oracle::Matrix;

// The contribution of (rank, micro_batch) counts so many times, the average so many times too much.
struct Planted {
  std::string words;  // of two ranks and three micro-batches
  std::function<double(int rank, int64_t micro_batch, int64_t steps)> contribution;
  std::function<double(double world, double steps)> average;
};

const std::vector<Planted>& planted() {
  const auto once = [](int, int64_t, int64_t) { return 1.0; };
  const auto right = [](double, double) { return 1.0; };
  static const std::vector<Planted> all = {
      {"", once, right},
      {"micro-batch 2 of rank 1 is missing",
       [](int rank, int64_t m, int64_t) { return rank == 1 && m == 1 ? 0 : 1; }, right},
      {"micro-batch 1 of rank 0 is counted twice",
       [](int rank, int64_t m, int64_t) { return rank == 0 && m == 0 ? 2 : 1; }, right},
      {"rank 1 is missing", [](int rank, int64_t, int64_t) { return rank == 1 ? 0 : 1; }, right},
      {"only the last micro-batch",
       [](int, int64_t m, int64_t steps) { return m + 1 == steps ? 1 : 0; }, right},
      {"averaged twice over 2 ranks", once, [](double world, double) { return 1 / world; }},
      {"summed, not averaged over 3 micro-batches", once,
       [](double, double steps) { return steps; }}};
  return all;
}

void plant(const Planted& fault, int rank, int world, int64_t steps, const int64_t& micro_batch) {
  faults::seams().window_ready = [&fault, &micro_batch, rank, steps](gradient::Window& self,
                                                                     std::size_t parameter,
                                                                     const at::Tensor& gradient) {
    faults::through::window_ready(self, parameter,
                                  gradient * fault.contribution(rank, micro_batch, steps));
  };
  faults::seams().window_average = [&fault, world, steps](gradient::Window& self, double factor) {
    return faults::through::window_average(
        self, factor * fault.average(world, static_cast<double>(steps)));
  };
}

Matrix expected(const Planted& fault, int world, int64_t steps) {
  Matrix matrix;
  for (int rank = 0; rank < world; ++rank) {
    matrix.emplace_back();
    for (int64_t m = 0; m < steps; ++m)
      matrix.back().push_back(oracle::as_read(fault.contribution(rank, m, steps) *
                                              fault.average(world, static_cast<double>(steps))));
  }
  return matrix;
}

// One window of an engine whose only parameter is a probe; the matrix that this rank's shard shows.
Matrix measured(ranks::RankContext& context, int stage, int64_t steps, const Planted& fault) {
  const int world = context.world_size(), rank = context.rank();
  NamedParameter parameter{"probe", at::zeros({world * world * steps}).requires_grad_()};
  int64_t micro_batch = 0;
  auto engine =
      initialize({ParameterGroup{{parameter}, {}, {}}},
                 config_of({.stage = stage, .accumulation = steps}, world), context.group());
  Matrix matrix;
  engine->on_step([&](const std::vector<LocalShard>& shards) {
    matrix = oracle::decode_probe(shards.at(0).gradient, shards[0].begin, world, steps);
  });
  plant(fault, rank, world, steps, micro_batch);
  for (; micro_batch < steps; ++micro_batch) {
    engine->backward((parameter.tensor * oracle::probe(world, steps, rank, micro_batch)).sum());
    engine->step();
  }
  faults::seams() = {};
  return matrix;
}

TEST(CoefficientProbes, EveryContributionCountsOnceAndAFaultShowsItsMatrix) {
  for (const int world : {1, 2, 3, 4})
    at_every_stage(world, [](ranks::RankContext& context, int stage) {
      for (int64_t steps = 1; steps <= 5; ++steps)
        for (const auto& fault : planted()) {
          const auto matrix = measured(context, stage, steps, fault);
          EXPECT_EQ(matrix, expected(fault, context.world_size(), steps))
              << steps << " micro-batches, " << fault.words;
          if (context.world_size() == 2 && steps == 3)
            EXPECT_EQ(oracle::in_words(matrix), fault.words);
        }
    });
}

}  // namespace
}  // namespace equigrad::conformance
