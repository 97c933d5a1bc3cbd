// With exact sums a training on text has the same bits on any number of ranks: 12 micro-batches a
// step, dealt out to 1, 2, 3 and 4 ranks in other orders, at other stages and bucket sizes, and
// when the number of ranks and the stage change in mid-run, once or several times, over a
// checkpoint's files.
//
//   EQUIGRAD_STEPS=200 exact_training_test      the long run; 4 steps without it
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "conformance/cases/model_groups.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/oracle/digest.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::RankContext;

constexpr int kMicroBatches = 12;
constexpr uint64_t kSeed = 3;

struct Split {
  int world;
  int stage;
  int bucket_size;
  int stride = 1;  // 1, 5, 7 or 11: micro-batch i is the (i stride mod 12)-th
  // Ranks of new engines, each at the next stage, after equal parts of the steps: they load what
  // the one before has saved.
  std::vector<int> then = {};
  const char* reduction = "exact";
};

int steps() {
  const char* given = std::getenv("EQUIGRAD_STEPS");
  return given == nullptr ? 4 : std::atoi(given);
}

std::string config_of(const Split& split, int world, int stage) {
  return json{{"train_micro_batch_size_per_gpu", 2},
              {"gradient_accumulation_steps", kMicroBatches / world},
              {"gradient_clipping", 1.0},
              {"reduction", split.reduction},
              {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
              {"zero_optimization",
               {{"stage", stage},
                {"reduce_bucket_size", split.bucket_size},
                {"allgather_bucket_size", split.bucket_size},
                {"stage3_prefetch_bucket_size", split.bucket_size},
                {"stage3_param_persistence_threshold", 100}}}}
      .dump();
}

class Training {
 public:
  Training(const Split& split, std::string folder, RankContext& context)
      : split_(split),
        folder_(std::move(folder)),
        context_(context),
        data_(reference::read_text({find_data("", false).text}), {}) {
    make(split.world, split.stage);
  }

  // By step: a digest of every master, state and parameter, and the elements in it.
  json run() {
    json rows = json::array();
    const auto parts = split_.then.size() + 1;
    for (std::size_t part = 0; part < parts; ++part) {
      if (part > 0) change_ranks(split_.then[part - 1], part);
      const auto end = steps() * static_cast<int>(part + 1) / static_cast<int>(parts);
      for (int step = static_cast<int>(rows.size()); step < end; ++step) {
        if (engine_) train(step);
        rows.push_back(engine_ ? digest(step) : json());
      }
    }
    return rows;
  }

 private:
  void make(int world, int stage) {
    world_ = world;
    stage_ = stage;
    model_ = reference::make_gpt({2, 32, 4, 24}, kSeed);
    engine_.reset();
    if (context_.rank() < world)
      engine_ = initialize(groups_of(*model_), load_config(config_of(split_, world, stage), world),
                           context_.group(world));
  }

  void change_ranks(int world, std::size_t part) {
    const auto tag = "part" + std::to_string(part);
    if (engine_) engine_->save_checkpoint(folder_, tag);
    context_.group()->broadcast(at::zeros({1}), 0)->wait();  // all have saved
    make(world, (split_.stage + static_cast<int>(part)) % 4);
    if (!engine_) return;
    for (auto& [name, tensor] : reference::unique_parameters(*model_)) {
      const at::NoGradGuard no_grad;
      at::Tensor(tensor).zero_();  // all that counts is in the files
    }
    engine_->load_checkpoint(folder_, tag);
  }

  void train(int step) {
    for (int i = context_.rank(); i < kMicroBatches; i += world_) {
      context_.note("step " + std::to_string(step + 1) + " micro-batch " + std::to_string(i + 1));
      const int which = i * split_.stride % kMicroBatches;
      engine_->backward(model_->loss(data_.text_batch(2, 24, {kSeed, step, 0, which})));
      engine_->step();
    }
  }

  json digest(int step) {
    uint64_t sum = 0;
    int64_t numel = 0;
    const auto add = [&](const std::string& what, int64_t begin, const at::Tensor& values) {
      sum += oracle::digest(what, step, begin, values.flatten());
      numel += values.numel();
    };
    for (const auto& shard : engine_->local_shards()) {
      if (stage_ == 0 && context_.rank() > 0) continue;
      add("master/" + shard.name, shard.begin, shard.master);
      for (const auto& [name, state] : shard.state)
        add(name + "/" + shard.name, shard.begin, state);
    }
    for (const auto& [name, tensor] : reference::unique_parameters(*model_)) {
      const auto whole = engine_->full_parameter(name);
      if (context_.rank() == 0) add("parameter/" + name, 0, whole);
    }
    const auto mine = at::tensor({static_cast<int64_t>(sum), numel}, at::kLong);
    const auto all = comm::exchange(*context_.group(world_), mine).sum(0);
    return {all[0].item<int64_t>(), all[1].item<int64_t>()};
  }

  Split split_;
  std::string folder_;
  RankContext& context_;
  reference::Data data_;
  std::shared_ptr<reference::Model> model_;
  std::unique_ptr<Engine> engine_;
  int world_ = 0, stage_ = 0;
};

json train(const Split& split) {
  const ScratchFolder folder;
  int most = split.world;
  for (const int world : split.then) most = std::max(most, world);
  const auto outcomes = ranks::run_ranks(most,
                                         [split, path = folder.path()](RankContext& context) {
                                           return Training(split, path, context).run();
                                         },
                                         {.timeout = std::chrono::hours(2)});
  EXPECT_EQ(ranks::failures(outcomes), "");
  if (!ranks::all_ok(outcomes)) return {};
  return outcomes[0].answer;  // rank 0 is of every engine
}

int64_t elements(const json& rows) {
  int64_t sum = 0;
  for (const auto& row : rows) sum += row.at(1).get<int64_t>();
  return sum;
}

void expect_equal(const std::vector<Split>& splits) {
  const auto want = train(splits[0]);
  ASSERT_EQ(static_cast<int>(want.size()), steps());
  for (std::size_t i = 1; i < splits.size(); ++i) {
    const auto got = train(splits[i]);
    ASSERT_EQ(got.size(), want.size());
    int differing = 0;
    for (std::size_t step = 0; step < want.size(); ++step) differing += got[step] != want[step];
    EXPECT_EQ(differing, 0) << "split " << i;
    std::printf("%d ranks%s, stage %d: %lld elements in %d steps, %d of them differ\n",
                splits[i].world, splits[i].then.empty() ? "" : ", then others", splits[i].stage,
                static_cast<long long>(elements(got)), steps(), differing);
    std::fflush(stdout);
  }
}

TEST(ExactTraining, AnyNumberOfRanksHasTheSameBits) {
  expect_equal({{1, 0, 100'000},
                {2, 1, 3'000, 5},
                {3, 3, 1'000, 7},
                {4, 2, 20'000, 11},
                {4, 0, 5'000, 1},
                {1, 2, 700, 5}});
}

// The first is never interrupted.
TEST(ExactTraining, RanksAndStageMayChangeInMidRun) {
  expect_equal({{2, 1, 10'000},
                {4, 3, 2'000, 5, {1}},
                {1, 0, 700, 7, {3, 2, 4}},
                {3, 2, 5'000, 1, {4, 1, 2}}});
}

TEST(ExactTraining, ThePinnedOrderHasOtherBitsOnOtherRanks) {
  Split one{1, 0, 100'000}, three{3, 0, 100'000};
  one.reduction = three.reduction = "pinned";
  EXPECT_NE(train(one)[0], train(three)[0]);
}

}  // namespace
}  // namespace equigrad::conformance
