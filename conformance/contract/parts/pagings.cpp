// 16. Pages and replicas: what is gathered, kept and let go.
#include <ATen/ATen.h>
#include <torch/types.h>

#include <functional>
#include <stdexcept>
#include <utility>

#include "conformance/contract/parts/kinds.hpp"
#include "conformance/contract/parts/least_gathered.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance::contract {
namespace {

using Pages = std::vector<std::size_t>;
using Sizes64 = std::vector<int64_t>;

// Counts what is gathered; from a gather on that is chosen, breaks instead.
class Wire final : public comm::Communicator {
 public:
  explicit Wire(std::shared_ptr<comm::Communicator> real) : real_(std::move(real)) {}
  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  c10::Device device() const override { return real_->device(); }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return real_->all_to_all(output, input);
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (input.scalar_type() != at::kLong) {
      if (breaks) throw std::runtime_error("planted in a gather");
      ++gathers;
    }
    return std::make_unique<Awaited>(real_->all_gather(output, input), under_way);
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    return real_->all_reduce_sum(tensor);
  }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return real_->reduce_scatter_sum(output, input);
  }
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    return real_->broadcast(tensor, root);
  }
  int64_t taken() { return std::exchange(gathers, 0); }

  int64_t gathers = 0;
  int under_way = 0;  // and not waited for
  bool breaks = false;

 private:
  class Awaited final : public comm::Pending {
   public:
    Awaited(comm::PendingPtr real, int& under_way) : real_(std::move(real)), count_(under_way) {
      ++count_;
    }
    void wait() override {
      real_->wait();
      --count_;
    }

   private:
    comm::PendingPtr real_;
    int& count_;
  };
  std::shared_ptr<comm::Communicator> real_;
};

constexpr std::size_t kLayers = 6;
constexpr int64_t kLayerNumel = 36;
constexpr int64_t kUnlimited = 1'000'000;

// Layers that are used one by one, forwards and, but for the first, backwards.
struct Ladder : torch::nn::Module {
  Ladder() : torch::nn::Module("Ladder") {
    for (std::size_t i = 0; i < kLayers; ++i)
      layers.push_back(
          register_parameter("layer" + std::to_string(i),
                             held_values({kLayerNumel}, static_cast<double>(i)).mul_(1.0 / 64)));
  }
  at::Tensor loss(int64_t upto = kLayers) const {
    at::Tensor x = at::ones({kLayerNumel});
    for (int64_t i = 0; i < upto; ++i) x = x * layers[static_cast<std::size_t>(i)];
    return x.sum();
  }
  std::vector<at::Tensor> layers;
};

struct Limits {
  int64_t live = kUnlimited, reuse = kUnlimited, ahead = 0, persistent = 0;
  bool overlaps = true;
};

std::string paged_config(const Limits& limits, int stage = 3, int64_t bucket = kUnlimited) {
  const auto key = [](const std::string& name, int64_t value) {
    return ", \"" + name + "\": " + std::to_string(value);
  };
  return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params":
            {"lr": 0.001}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + key("stage3_max_live_parameters", limits.live) +
         key("stage3_max_reuse_distance", limits.reuse) +
         key("stage3_prefetch_bucket_size", limits.ahead) +
         key("stage3_param_persistence_threshold", limits.persistent) +
         key("allgather_bucket_size", bucket) +
         (limits.overlaps ? "" : R"(, "overlap_comm": false)") + "}}";
}

struct Climb {
  explicit Climb(Play& play, const Limits& limits, int stage = 3, int64_t bucket = kUnlimited)
      : wire(std::make_shared<Wire>(play.group())),
        engine(initialize(model, paged_config(limits, stage, bucket), wire)) {}
  void cycle() {
    engine->backward(model.loss());
    engine->step();
  }
  bool is_here(std::size_t layer) const { return has_data(model.layers[layer]); }
  bool all_gone() const {
    for (std::size_t i = 0; i < kLayers; ++i)
      if (is_here(i)) return false;
    return true;
  }

  std::shared_ptr<Wire> wire;
  Ladder model;
  std::unique_ptr<Engine> engine;
};

// From the second cycle on no more is gathered than any schedule must; what is far away goes.
void check_traffic(Play& play) {
  const Pages uses = {0, 1, 2, 3, 4, 5, 4, 3, 2, 1};
  const Sizes64 sizes(kLayers, kLayerNumel);
  for (const int64_t limit : {1, 2, 4, 6}) {
    Climb climb(play, {.live = limit * kLayerNumel + limit % 2});
    for (int cycle = 0; cycle < 3; ++cycle) climb.cycle();
    const auto& got = climb.engine->counters().gathering;
    const int64_t want = least_by_hand(uses, sizes, limit * kLayerNumel);
    play.check("with room for " + std::to_string(limit) + " pages the least is gathered",
               got.gathered_numel == want && got.planned_numel == want && got.least_numel == want &&
                   !play.fault());
    play.check("after a pass nothing is here", climb.all_gone());
  }
  for (const auto& [distance, kept] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {kLayerNumel - 1, 0}, {kLayerNumel, 1}, {3 * kLayerNumel, 2}}) {
    Climb climb(play, {.reuse = distance});
    for (int cycle = 0; cycle < 2; ++cycle) climb.cycle();
    play.check("within " + std::to_string(distance) + " elements a page stays",
               climb.engine->counters().gathering.gathered_numel == (10 - kept) * kLayerNumel);
  }
}

// What always stays is gathered after an update, and counts in no cycle.
void check_traffic_of_what_stays(Play& play) {
  Climb climb(play, {.persistent = kLayerNumel});
  for (int cycle = 0; cycle < 3; ++cycle) {
    climb.cycle();
    const auto& got = climb.engine->counters().gathering;
    play.check("pages that always stay count in no cycle, " + std::to_string(cycle + 1),
               got.gathered_numel == 0 && got.planned_numel == 0 && got.least_numel == 0);
  }
}

// Rounds of gathers in a cycle that is known: pages come in one message as far as is looked ahead.
void check_ahead(Play& play) {
  for (const auto& [ahead, rounds] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 6}, {35, 6}, {36, 5}, {72, 3}, {108, 2}, {179, 2}, {180, 1}}) {
    Climb climb(play, {.ahead = ahead});
    climb.cycle();
    climb.wire->taken();
    const auto loss = climb.model.loss();
    play.check("what is gathered ahead of " + std::to_string(ahead) + " elements takes " +
                   std::to_string(rounds) + " rounds",
               climb.wire->taken() == rounds);
    climb.engine->backward(loss);
    play.check("all that was sent was waited for", climb.wire->under_way == 0);
    play.check("nothing is sent again", climb.wire->taken() == 0 && climb.all_gone());
  }
  for (const bool overlaps : {true, false}) {
    Climb climb(play, {.ahead = kLayerNumel, .overlaps = overlaps});
    climb.cycle();
    (void)climb.model.loss(1 + 1);
    play.check("what is ahead is under way, if communication overlaps",
               (climb.wire->under_way > 0) == overlaps);
    climb.engine->zero_grad();
  }
}

void use_layer(const Climb& climb, std::size_t layer) { (void)climb.model.layers[layer].neg(); }

// Without a known order, over the limit of two pages the oldest goes.
void check_limit_of_pages(Play& play, const Climb& climb) {
  const torch::NoGradGuard no_grad;
  for (const std::size_t layer : Pages{5, 0, 1}) use_layer(climb, layer);
  play.check("at the limit nothing goes", climb.is_here(5));
  use_layer(climb, 2);
  play.check("over it the page that was used first of all",
             !climb.is_here(5) && climb.is_here(0) && climb.is_here(2));
}

// Without a known order, what four operators have not used goes.
void check_idle_pages(Play& play) {
  const torch::NoGradGuard no_grad;
  Climb climb(play, {});
  for (const std::size_t layer : Pages{0, 1, 1, 2}) use_layer(climb, layer);
  play.check("a page stays for three operators of others", climb.is_here(0));
  (void)at::ones({3}).neg();
  play.check("others do not count", climb.is_here(0));
  use_layer(climb, 2);
  play.check("and goes with the fourth", !climb.is_here(0) && climb.is_here(1));
  check_limit_of_pages(play, Climb(play, {.live = 2 * kLayerNumel}));
}

// Once a gather has broken outside of any pass, it is told, and nothing that was made up stays.
void check_broken_between(Play& play) {
  const torch::NoGradGuard no_grad;
  Climb climb(play, {.live = 2 * kLayerNumel});
  climb.wire->breaks = true;
  use_layer(climb, 3);
  climb.wire->breaks = false;
  play.refuse("planted in a gather", [&] { (void)climb.engine->full_parameter("layer1"); });
  play.check("what is read next is there",
             at::equal(climb.model.layers[3] * 1, Ladder().layers[3] * 1));
  check_limit_of_pages(play, climb);
}

// A threshold keeps what is not larger; what it keeps is all that is held.
void check_persistent(Play& play) {
  for (const int64_t threshold : {0, 1, 6, 7, 14, 15}) {
    Kinds model(0);
    const auto engine = initialize(model, paged_config({.persistent = threshold}), play.group());
    for (int step = 0; step < 2; ++step) {
      int64_t bytes = 0;
      for (const auto& item : model.named_parameters()) {
        const auto& tensor = item.value();
        if (tensor.numel() == 0 || item.key() == "tied") continue;
        const bool stays = tensor.numel() <= threshold;
        play.check(item.key() + " stays if it is not above " + std::to_string(threshold),
                   has_data(tensor) == stays);
        const int64_t world = play.context().world;
        const int64_t numel = tensor.is_floating_point()
                                  ? tensor.numel()
                                  : slice_numel(tensor.numel(), play.context().world) * world;
        bytes += stays ? numel * static_cast<int64_t>(tensor.element_size()) : 0;
      }
      play.check("those that stay are held",
                 engine->ledger().bytes(memory::Category::Gathered) == bytes);
      engine->backward(model.loss(2)), engine->step();
    }
  }
}

// A gather that breaks is read as NaN, and told by the next call; then all goes on.
void check_broken(Play& play) {
  Climb climb(play, {});
  const auto want = climb.model.loss().detach();
  climb.cycle();
  climb.wire->breaks = true;
  const auto loss = climb.model.loss();
  play.check("what has not arrived is NaN", at::isnan(loss.detach()).item<bool>());
  play.refuse("planted in a gather", [&] { climb.engine->backward(loss); });
  climb.wire->breaks = false;
  play.check("nothing of it stays", climb.all_gone());
  const auto again = climb.model.loss();
  play.check("the next pass has what there is",
             !at::isnan(again.detach()).item<bool>() && !at::equal(again.detach(), want));
  climb.engine->backward(again), climb.engine->step();
}

// With room for four pages no more are sent, however far is looked ahead.
void check_room(Play& play) {
  const int64_t world = play.context().world;
  const int64_t page_bytes = 4 * world * slice_numel(kLayerNumel, play.context().world);
  Climb climb(play, {.live = 4 * kLayerNumel, .ahead = 5 * kLayerNumel});
  climb.cycle();
  (void)climb.model.loss(1);
  play.check("four pages are sent, of which one is here",
             climb.engine->ledger().bytes(memory::Category::Gathered) == (4 + 1) * page_bytes);
  climb.engine->zero_grad();
}

// A row of each, whose neighbours belong to nobody: it gets memory of its own, row after row.
void check_apart(Play& play) {
  torch::nn::Module model("Apart");
  const auto all = held_values({4, 6}, 0);
  const auto part = model.register_parameter("part", all.slice(1, 1, 4));
  const auto want = part.detach().clone();
  const auto engine = initialize(model, paged_config({}, play.context().stage), play.group());
  play.check(
      "a parameter with gaps has none any more",
      part.strides() == at::IntArrayRef({3, 1}) && at::equal(engine->full_parameter("part"), want));
}

void paged(Play& play) {
  if (play.group()) {
    check_traffic(play);
    check_traffic_of_what_stays(play);
    check_ahead(play);
    check_idle_pages(play);
    check_persistent(play);
    check_broken(play);
    check_broken_between(play);
    check_room(play);
  }
  train_along(play);
}

// Gathers of an update: as many parameters together as fit, exactly.
void check_together(Play& play) {
  const int stage = 1 + play.context().stage % 2, world = play.context().world;
  const int64_t padded = slice_numel(kLayerNumel, world) * world;
  for (const auto& [bucket, gathers] : std::vector<std::pair<int64_t, int64_t>>{{1, 6},
                                                                                {padded, 6},
                                                                                {2 * padded - 1, 6},
                                                                                {2 * padded, 3},
                                                                                {3 * padded, 2},
                                                                                {6 * padded - 1, 2},
                                                                                {6 * padded, 1}}) {
    Climb climb(play, {}, stage, bucket);
    climb.wire->taken();
    climb.cycle();
    play.check("parameters are gathered together as far as they fit into " + std::to_string(bucket),
               climb.wire->taken() == (world == 1 ? 0 : gathers) && !play.fault());
  }
}

struct LargeAndSmall : torch::nn::Module {
  explicit LargeAndSmall(int64_t numel) : torch::nn::Module("LargeAndSmall") {
    large = register_parameter("large", at::ones({numel}));
    small = register_parameter("small", at::ones({3}));
  }
  at::Tensor large, small;
};

// One that is large goes alone, where it stays, if its shards fill it.
void check_alone(Play& play) {
  const auto& context = play.context();
  const int64_t world = context.world, alone = layout::kAloneNumel;
  for (const int64_t numel : {alone, alone - 1, alone + 1}) {
    LargeAndSmall model(numel);
    const auto wire = std::make_shared<Wire>(play.group());
    const auto engine = initialize(model, paged_config({}, 1 + context.stage % 2), wire);
    const bool fills = numel >= alone && numel % world == 0 && world > 1;
    const int64_t block =
        (fills ? 0 : slice_numel(numel, context.world)) + slice_numel(3, context.world);
    const int64_t want = world == 1 ? 0 : block * world * 4;
    play.check("a block holds what is sent together of " + std::to_string(numel) + " and 3",
               engine->ledger().peak_bytes(memory::Category::Gathered) == want);
    play.check("messages are two if one goes alone", wire->taken() == (world == 1 ? 0
                                                                       : fills    ? 2
                                                                                  : 1));
    play.check("both are there",
               at::equal(model.large, at::ones({numel})) && at::equal(model.small, at::ones({3})));
  }
}

void published(Play& play) {
  if (play.group()) {
    check_together(play);
    check_alone(play);
    check_apart(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> pagings() {
  const std::string fault = "something else is expected";
  return {
      of_part("pages_come_and_go", "pages come no oftener than they must, and go when they may",
              fault, paged, Plays::EveryStage),
      of_part("updates_are_published", "what is gathered together, and what alone, is as it says",
              fault, published, Plays::EveryStage)};
}

}  // namespace equigrad::conformance::contract
