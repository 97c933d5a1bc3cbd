// 15. What an engine says of itself: bytes by hand, from sizes alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::conformance::contract {
namespace forecast_parts {
namespace {

using memory::Category;

constexpr int kPlaces = 100;
constexpr int64_t kHuge = 1'000'000'000;

int64_t width(DataType type) { return type == DataType::Fp32 ? 4 : 2; }
int64_t slice(int64_t numel, int64_t of) { return (numel + of - 1) / of; }

// A model and an engine, drawn; and what its header says that they hold.
struct Place {
  std::vector<layout::Registration> all;
  EngineConfig config;
  MemoryOptions options;

  int64_t world() const { return options.world_size; }
  int64_t shards() const { return config.zero.stage == 0 ? 1 : world(); }
  bool each_pass() const { return config.zero.stage >= 2; }
  bool is_exact() const { return config.reduction == ReductionOrder::Exact; }
  int64_t window() const {
    return is_exact() && each_pass() ? 16 : width(config.precision.accumulate);
  }
  int64_t own(const layout::Registration& one) const {
    return one.element_bytes != 0 ? one.element_bytes : width(config.precision.param);
  }
  static int64_t numel(const layout::Registration& one) { return one.shape[0]; }
  bool casts(const layout::Registration& one) const {
    return one.lower_precision && config.precision.autocast.enabled;
  }
  template <class Term>
  int64_t sum(Term term) const {
    int64_t total = 0;
    for (const auto& one : all) total += one.trainable ? term(one) : 0;
    return total;
  }
  int64_t sharded() const {
    return sum([&](const auto& one) { return slice(numel(one), shards()); });
  }

  int64_t parameters() const;
  int64_t states() const;
  int64_t step() const;
  int64_t later_pass(int64_t reached) const;
  int64_t buckets() const;
};

int64_t Place::parameters() const {
  const auto& precision = config.precision;
  const bool one_place =
      !options.on_cuda || config.offload_optimizer.to_cpu == config.zero.offload_param.to_cpu;
  const bool is_master = precision.master == precision.param && one_place;
  int64_t bytes = 0;
  for (const auto& one : all) {
    const int64_t mine = slice(numel(one), world());
    if (config.zero.stage < 3)
      bytes += numel(one) * own(one);
    else if (!one.trainable)
      bytes += mine * own(one);
    else
      bytes += (casts(one) && width(precision.param) == 4 ? mine * 2 : 0) +
               (is_master ? 0 : mine * width(precision.param));
  }
  return bytes;
}

int64_t Place::states() const {
  const bool adam = config.optimizer.kind != OptimizerConfig::Kind::Sgd;
  const int64_t count = adam ? 2 : config.optimizer.momentum != 0 ? 1 : 0;
  return sharded() * count * width(config.precision.optimizer_state);
}

int64_t Place::step() const {
  const int64_t master = width(config.precision.master);
  const bool copies = options.on_cuda && config.offload_optimizer.to_cpu;
  return sharded() *
         std::max(window() + (window() == master ? 0 : master), copies ? 2 * master : master);
}

int64_t Place::later_pass(int64_t reached) const {
  if (each_pass()) return sharded() * (window() + (is_exact() ? 16 : 4));
  return reached * width(config.precision.param);
}

// One bucket of each type. Of several passes those of stages 0 and 1 are the window.
int64_t Place::buckets() const {
  int64_t bytes = 0;
  for (const bool lower : {false, true}) {
    int64_t columns = 0;
    for (const auto& one : all)
      if (one.trainable && one.lower_precision == lower) columns += slice(numel(one), shards());
    const auto& sent = config.precision.communication;
    const int64_t as_sent = sent ? width(*sent)
                            : lower && config.precision.autocast.enabled
                                ? 2
                                : width(config.precision.param);
    const int64_t each = each_pass()  ? as_sent
                         : is_exact() ? 16
                                      : width(config.precision.accumulate);
    bytes += slice(columns * shards(), world()) * world() * each;
  }
  return bytes;
}

Place draw_place(std::mt19937_64& engine) {
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(engine);
  };
  static const std::array<int, 40> identities{};
  const std::array<DataType, 4> types{DataType::Fp32, DataType::Fp32, DataType::Bf16,
                                      DataType::Fp16};
  const auto type = [&] { return types[static_cast<std::size_t>(draw(0, 3))]; };
  Place place;
  for (int64_t i = draw(1, 9); i > 0; --i) {
    const bool trainable = draw(0, 3) > 0;
    place.all.push_back({.name = "p" + std::to_string(i),
                         .identity = &identities[static_cast<std::size_t>(i)],
                         .shape = {draw(0, 3) == 0 ? draw(0, 1) : draw(2, 40)},
                         .trainable = trainable,
                         .lower_precision = trainable && draw(0, 2) == 0,
                         .element_bytes = trainable || draw(0, 1) == 0 ? 0 : 8});
  }
  auto& config = place.config;
  config.zero.stage = static_cast<int>(draw(0, 3));
  config.zero.overlap_comm = draw(0, 1) == 0;
  config.gradient_accumulation_steps = draw(2, 4);
  config.reduction = draw(0, 2) == 0 ? ReductionOrder::Exact : ReductionOrder::Pinned;
  config.precision.param = type();
  config.precision.accumulate = type();
  config.precision.master = draw(0, 1) == 0 ? config.precision.param : DataType::Fp32;
  config.precision.optimizer_state = type();
  if (draw(0, 2) == 0) config.precision.communication = type();
  // What is sent is no wider than what it is made of.
  if (config.zero.stage < 2 && config.precision.communication == DataType::Fp32)
    config.precision.accumulate = DataType::Fp32;
  config.precision.autocast.enabled = draw(0, 1) == 0;
  config.offload_optimizer.to_cpu = draw(0, 1) == 0;
  config.zero.offload_param.to_cpu = draw(0, 1) == 0;
  config.optimizer.kind =
      draw(0, 1) == 0 ? OptimizerConfig::Kind::Sgd : OptimizerConfig::Kind::Adam;
  config.optimizer.momentum = draw(0, 1) == 0 ? 0 : 0.5;
  place.options.world_size = static_cast<int>(draw(1, 5));
  place.options.on_cuda = draw(0, 1) == 0;
  return place;
}

void is(Play& play, const std::string& what, int64_t got, int64_t want) {
  play.check(what + " is " + std::to_string(want) + " bytes, forecast are " + std::to_string(got),
             got == want);
}

void check_place(Play& play, const Place& place) {
  const layout::ParameterTable table(place.all);
  const auto held = forecast(table, place.config, place.options);
  const std::string at = " at stage " + std::to_string(place.config.zero.stage) + " of " +
                         std::to_string(place.world());
  const auto always = [&](const std::string& what, Category category, int64_t want) {
    const auto& got = held.of(category);
    is(play, what + at + " in rest", got.idle, want);
    is(play, what + at + " at the peak", got.peak, want);
    is(play, what + at + " at most", got.most, want);
  };
  always("parameters", Category::Parameters, place.parameters());
  always("masters", Category::MasterWeights,
         place.sharded() * width(place.config.precision.master));
  always("states", Category::OptimizerState, place.states());
  int64_t reached = place.sum([](const auto& one) { return Place::numel(one); });
  if (place.options.arrivals) {
    reached = 0;
    for (const auto i : *place.options.arrivals) reached += Place::numel(place.all[i]);
  }
  const auto whole = place.sum([](const auto& one) { return Place::numel(one); });
  const bool several = !place.config.expects_one_pass();
  const auto& gradients = held.of(Category::Gradients);
  is(play, "gradients" + at + " in rest", gradients.idle, play.fault() ? 1 : 0);
  is(play, "gradients" + at + " at the peak", gradients.peak,
     several ? std::max(place.step(), place.later_pass(reached)) : place.step());
  is(play, "gradients" + at + " at most", gradients.most,
     several ? std::max(place.step(), place.later_pass(whole)) : place.step());
  is(play, "buckets" + at + " in rest", held.of(Category::Buckets).idle, 0);
  if (several && !place.options.arrivals) {
    is(play, "buckets" + at + " at the peak", held.of(Category::Buckets).peak, place.buckets());
    is(play, "buckets" + at + " at most", held.of(Category::Buckets).most, place.buckets());
  }
  int64_t idle = 0, most = 0;
  for (const auto& one : held.categories) idle += one.idle, most += one.most;
  is(play, "all in rest", held.idle_bytes(), idle);
  is(play, "all at most", held.most_bytes(), most);
}

void check_drawn(Play& play) {
  std::mt19937_64 engine(play.context().seed);
  for (int i = 0; i < kPlaces; ++i) {
    auto place = draw_place(engine);
    check_place(play, place);
    place.options.arrivals.emplace();
    for (std::size_t j = 0; j < place.all.size(); j += 2)
      if (place.all[j].trainable) place.options.arrivals->push_back(j);
    check_place(play, place);
    place.config.gradient_accumulation_steps = 1;
    check_place(play, place);
    place.options.arrivals.reset();
    place.config.managed_gradient_accumulation = false;
    check_place(play, place);
  }
}

EngineConfig plain(int stage, int64_t accumulation = 1) {
  EngineConfig config;
  config.zero.stage = stage;
  config.gradient_accumulation_steps = accumulation;
  return config;
}

HeldBytes gathered(const std::vector<int64_t>& numels, const EngineConfig& config,
                   const MemoryOptions& options) {
  return forecast(table_of_sizes(numels, config), config, options).of(Category::Gathered);
}

// Weights of 12, 10, 7 elements come last first; two ranks pad the last of them to 8.
void check_all_gathers(Play& play) {
  constexpr int64_t kAlone = int64_t{1} << 17;
  const std::vector<std::pair<int64_t, int64_t>> limits = {
      {0, 12}, {1, 12}, {17, 12}, {18, 18}, {21, 18}, {29, 18}, {30, 30}, {kHuge, 30}};
  for (const int stage : {1, 2})
    for (const auto& [limit, numel] : limits) {
      auto config = plain(stage);
      config.zero.allgather_bucket_size = limit;
      const std::string what = "an all-gather of at most " + std::to_string(limit);
      const auto held = gathered({12, 10, 7}, config, {.world_size = 2});
      is(play, what, held.peak, 4 * numel);
      is(play, what + " at most", held.most, 4 * numel);
      is(play, what + " in rest", held.idle, 0);
      is(play, what + " of one rank", gathered({12, 10, 7}, config, {}).most, 0);
    }
  is(play, "an all-gather of stage 0", gathered({12}, plain(0), {.world_size = 2}).most, 0);
  for (const auto& [numel, world, want] :
       std::vector<std::array<int64_t, 3>>{{kAlone, 2, 0},
                                           {kAlone - 1, 2, kAlone},
                                           {kAlone + 1, 2, kAlone + 2},
                                           {kAlone, 3, kAlone + 1}})
    is(play, "an all-gather of " + std::to_string(numel),
       gathered({numel}, plain(2), {.world_size = static_cast<int>(world)}).peak, 4 * want);
}

// Sizes 10, 6, 4, 3 of two ranks: padded 10, 6, 4, 4. Where all stay, they come in one block, of
// which on CUDA each is copied out, the last when the block is gone.
void check_pages(Play& play) {
  const std::vector<int64_t> sizes{10, 6, 4, 3};
  struct Want {
    int64_t threshold, idle, peak, idle_on_cuda, peak_on_cuda;
  };
  const std::vector<Want> all = {{10, 23, 24 + 23, 24, 24 + 20}, {9, 13, 14 + 13, 14, 14 + 10},
                                 {6, 13, 14 + 13, 14, 14 + 10},  {5, 7, 7 + 10, 8, 8 + 10},
                                 {3, 3, 3 + 10, 4, 4 + 10},      {2, 0, 10, 0, 10}};
  for (const auto& want : all)
    for (const bool on_cuda : {false, true}) {
      auto config = plain(3);
      config.zero.stage3_param_persistence_threshold = want.threshold;
      const auto held = gathered(sizes, config, {.world_size = 2, .on_cuda = on_cuda});
      const std::string what = "pages that stay up to " + std::to_string(want.threshold);
      is(play, what, held.idle, 4 * (on_cuda ? want.idle_on_cuda : want.idle));
      const int64_t peak = 4 * (on_cuda ? want.peak_on_cuda : want.peak);
      is(play, what + ", at the peak", held.peak, peak);
      play.check(what + " are exact if all stay", held.is_exact == (want.threshold >= 10));
      if (held.is_exact) is(play, what + ", at most", held.most, held.peak);
    }
}

// Sizes 10, 7, 5, 3: 25 elements, padded 10, 8, 6, 4; a block of all on its way is 28.
void check_live(Play& play) {
  struct Want {
    int64_t limit, numel;
    std::vector<std::vector<std::size_t>> leaves;
    int64_t one;
  };
  const std::vector<Want> all = {{0, 10 + 7 + 3, {}, 10},
                                 {4, 4 + 10 + 7 + 3, {}, 10},
                                 {7, 7 + 10 + 7 + 3, {}, 10},
                                 {8, 28, {}, 10},
                                 {24, 28, {}, 10},
                                 {25, 28, {}, 10},
                                 {kHuge, 28, {}, 10},
                                 {0, 12 + 10 + 3, {{1, 2}}, 14},
                                 {1, 12 + 10 + 3 + 1, {{1, 2}}, 14},
                                 {0, 28, {{0, 1}, {2, 3}}, 18}};
  for (const auto& want : all) {
    auto config = plain(3);
    config.zero.stage3_param_persistence_threshold = 0;
    config.zero.stage3_max_live_parameters = want.limit;
    const auto held = gathered({10, 7, 5, 3}, config, {.world_size = 2, .leaves = want.leaves});
    const std::string what = "pages of at most " + std::to_string(want.limit);
    is(play, what, held.most, 4 * (want.numel + 28));
    is(play, what + ", one of them", held.peak, 4 * want.one);
    is(play, what + ", in rest", held.idle, 0);
  }
  auto config = plain(3);
  config.zero.stage3_param_persistence_threshold = 5;  // two of 8 elements count as live
  config.zero.stage3_max_live_parameters = 2;
  is(play, "pages beside those that stay", gathered({10, 7, 5, 3}, config, {.world_size = 2}).most,
     4 * (28 + 28));
  config.zero.stage3_param_persistence_threshold = 0;
  const MemoryOptions small{.world_size = 2, .arrivals = std::vector<std::size_t>{3, 2}};
  is(play, "pages of a pass that reaches the small ones",
     gathered({10, 7, 5, 3}, config, small).peak, 4 * 6);
}

// Buckets of one parameter each, of 5, 3, 4 elements and three ranks; last first.
void check_pass(Play& play) {
  struct Want {
    int stage;
    int64_t accumulation;
    std::vector<int64_t> after;
  };
  for (const auto& want : std::vector<Want>{{0, 2, {6, 9, 15}}, {1, 2, {6, 9, 15}}}) {
    auto config = plain(want.stage, want.accumulation);
    config.zero.reduce_bucket_size = 1;
    const auto pass = forecast_pass(table_of_sizes({5, 3, 4}, config), config, {.world_size = 3});
    play.check("a pass has as many arrivals as parameters", pass.size() == 3);
    for (std::size_t i = 0; i < pass.size(); ++i) {
      play.check("they arrive last first", pass[i].parameter == 2 - i);
      is(play, "arrival " + std::to_string(i), pass[i].after_bytes, 4 * want.after[i]);
      is(play, "arrival " + std::to_string(i) + " at most", pass[i].most_bytes, 4 * want.after[i]);
    }
  }
  auto config = plain(2, 2);
  const MemoryOptions one{.world_size = 3, .arrivals = std::vector<std::size_t>{1}};
  const auto pass = forecast_pass(table_of_sizes({5, 3, 4}, config), config, one);
  // A bucket of 6 + 3 + 6 elements, and the window of a third.
  play.check("a pass of one parameter", pass.size() == 1 && pass[0].parameter == 1);
  is(play, "the window after it", pass.at(0).after_bytes, 4 * 5);
  is(play, "bucket and window", pass.at(0).most_bytes, 4 * (15 + 5));
  const MemoryOptions none{.world_size = 3, .arrivals = std::vector<std::size_t>{}};
  play.check("a pass of none",
             forecast_pass(table_of_sizes({5, 3, 4}, config), config, none).empty());
}

// ---- Of many parameters: bytes of an element, W ranks -----------------------------------------
struct Rate {
  int stage;
  int64_t accumulation;
  DataType param;
  double parameters, master, gradients, buckets;  // the last two at the peak
  int64_t bucket_constant, gathered_constant;
};

void check_rates(Play& play) {
  constexpr auto kFp32 = DataType::Fp32, kBf16 = DataType::Bf16;
  // Rates are those of 4096 tensors, each a bucket: one bucket beside them is not many.
  constexpr double kOneBucket = 4.0 / 4096;
  const std::vector<Rate> all = {
      {0, 1, kFp32, 4, 4, 4, 4, 0, 0},          {0, 3, kBf16, 2, 4, 4, 4, 0, 0},
      {1, 1, kFp32, 4, 1, 1, 4, 0, 700 * 4},    {1, 3, kFp32, 4, 1, 4, 4, 0, 700 * 4},
      {1, 1, kBf16, 2, 1, 1, 4, 80, 700 * 2},   {2, 1, kFp32, 4, 1, 1, 0, 640, 700 * 4},
      {2, 3, kFp32, 4, 1, 2, 0, 640, 700 * 4},  {3, 1, kFp32, 0, 1, 1, 0, 640, 900 * 4},
      {3, 3, kBf16, 0.5, 1, 2, 0, 320, 900 * 2}};
  for (const auto& want : all) {
    auto config = plain(want.stage, want.accumulation);
    config.precision.param = want.param;
    if (want.param == kBf16 && want.stage == 1) config.precision.communication = kBf16;
    config.zero.reduce_bucket_size = want.stage == 1 ? 20 : 40;
    config.zero.allgather_bucket_size = 700;
    config.zero.stage3_max_live_parameters = 900;
    const auto got = rates(config, {.world_size = 4});
    const auto check = [&](const std::string& what, Category category, double idle, double peak,
                           int64_t constant) {
      const auto& rate = got[static_cast<std::size_t>(category)];
      const auto words = [](double a, double b, int64_t c) {
        return std::to_string(a) + ", " + std::to_string(b) + " and " + std::to_string(c);
      };
      play.check(what + " of stage " + std::to_string(want.stage) + " are " +
                     words(idle, peak, constant) + ", forecast are " +
                     words(rate.idle, rate.peak, rate.constant),
                 std::abs(rate.idle - idle) <= kOneBucket &&
                     std::abs(rate.peak - peak) <= kOneBucket && rate.constant == constant);
    };
    check("parameters", Category::Parameters, want.parameters, want.parameters, 0);
    check("masters", Category::MasterWeights, want.master, want.master, 0);
    check("states", Category::OptimizerState, 2 * want.master, 2 * want.master, 0);
    check("gradients", Category::Gradients, 0, want.gradients, 0);
    check("buckets", Category::Buckets, 0, want.buckets, want.bucket_constant);
    check("gathered", Category::Gathered, 0, 0, want.gathered_constant);
  }
}

void bytes_by_hand(Play& play) {
  if (play.group()) {
    check_drawn(play);
    check_all_gathers(play);
    check_pages(play);
    check_live(play);
    check_pass(play);
    check_rates(play);
  }
  train_along(play);
}

}  // namespace
}  // namespace forecast_parts

std::vector<Case> forecasts() {
  return {case_beside(
      {.section = "15",
       .name = "bytes_by_hand",
       .sentence = "a forecast is what its formulas say, at sizes drawn and at every limit",
       .fault = "a byte is expected where there is none",
       .program = forecast_parts::bytes_by_hand},
      Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
