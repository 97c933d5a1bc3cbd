// 15. What an engine says of itself: the bytes that it holds, as forecast.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::conformance::contract {
namespace {

using memory::Category;

constexpr int64_t kPassesOfAWindow = 3;

// Sizes that no number of ranks divides, one without elements, one that a pass does not reach, one
// that is not trained; layers that torch_autocast sends in 16 bits, and others.
struct Sizes : torch::nn::Module {
  Sizes() : torch::nn::Module("Sizes") {}
  at::Tensor unused = register_parameter("unused", at::ones({7}));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(7, 9));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(9, 5));
  at::Tensor frozen = register_parameter("frozen", at::ones({5}), /*requires_grad=*/false);
  at::Tensor empty = register_parameter("empty", at::ones({0}));
  at::Tensor scalar = register_parameter("scalar", at::ones({}));

  at::Tensor loss(const at::Tensor& x) {
    const auto hidden = at::tanh(up(x.to(scalar.scalar_type())));
    return (down(hidden) * scalar + frozen).to(at::kFloat).square().mean();
  }
};

struct Mode {
  std::string keys;  // of the configuration
  std::string zero = {};
  int smallest_stage = 0;
};

const std::vector<Mode>& modes() {
  static const std::string kAutocast = R"(, "torch_autocast": {"enabled": true, "dtype": "bf16"})",
                           kBf16 = R"(, "bf16": {"enabled": true})",
                           kExact = R"(, "reduction": "exact")";
  static const std::vector<Mode> kModes = {
      {.keys = ""},
      {.keys = "", .zero = R"(, "overlap_comm": false)"},
      {.keys = "", .zero = R"(, "stage3_param_persistence_threshold": 20)", .smallest_stage = 3},
      {.keys = R"(, "communication_data_type": "bf16")"},
      {.keys = kAutocast},
      {.keys = kExact},
      {.keys = kExact + kAutocast},
      {.keys = kBf16},
      {.keys = kBf16 + R"(, "data_types": {"grad_accum_dtype": "fp32"})"},
      {.keys = R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                             "bf16_optimizer_states": true})",
       .smallest_stage = 1}};
  return kModes;
}

layout::ParameterTable table_of(const Sizes& model, const EngineConfig& config) {
  std::vector<layout::Registration> all;
  for (const auto& item : model.named_parameters()) {
    const bool is_linear = item.key().starts_with("up.") || item.key().starts_with("down.");
    all.push_back({.name = item.key(),
                   .identity = item.value().unsafeGetTensorImpl(),
                   .shape = item.value().sizes().vec(),
                   .trainable = item.value().requires_grad(),
                   .lower_precision = config.precision.autocast.enabled && is_linear});
  }
  return layout::ParameterTable(all);
}

std::string bytes_of(const std::string& what, Category category, int64_t got, int64_t want) {
  return memory::kCategoryNames[static_cast<std::size_t>(category)] + (" " + what + " hold ") +
         std::to_string(got) + " bytes, forecast are " + std::to_string(want);
}

template <class Check>
void each_category(const Check& check) {
  for (int i = 0; i < memory::kCategories; ++i) check(static_cast<Category>(i));
}

void check_rest(Play& play, const memory::Ledger& ledger, const MemoryForecast& want,
                const std::string& when) {
  each_category([&](Category category) {
    const int64_t got = ledger.bytes(category), held = want.of(category).idle;
    play.check(bytes_of(when, category, got, held), got == held);
  });
}

void check_peaks(Play& play, const memory::Ledger& ledger, const MemoryForecast& want) {
  each_category([&](Category category) {
    const auto& held = want.of(category);
    const int64_t got = ledger.peak_bytes(category) + (play.fault() ? 1 : 0);
    play.check(bytes_of("at the peak", category, got, held.peak),
               held.is_exact ? got == held.peak : got >= held.peak);
    play.check(bytes_of("at the most", category, got, held.most), got <= held.most);
  });
  play.check("the peak of all is no more than all peaks",
             ledger.total_peak_bytes() <= want.most_bytes());
}

void check_mode(Play& play, const Mode& mode, int64_t accumulation) {
  const bool pages = mode.zero.find("threshold") != std::string::npos;
  const std::string zero =
      R"(, "reduce_bucket_size": 40, "allgather_bucket_size": 70)" +
      (pages ? "" : std::string(R"(, "stage3_param_persistence_threshold": 0)"));
  Sizes model;
  const auto parameters = model.named_parameters();
  std::vector<std::size_t> arrivals;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].value().requires_grad())
      parameters[i].value().register_hook([&arrivals, i](const at::Tensor& gradient) {
        arrivals.push_back(i);
        return gradient;
      });
  const auto engine = initialize(model,
                                 config_beside(play, {.accumulation = accumulation,
                                                      .optimizer = "AdamW",
                                                      .zero = zero + mode.zero,
                                                      .keys = mode.keys}),
                                 play.group());
  const auto table = table_of(model, engine->config());
  MemoryOptions options;
  options.world_size = play.context().world;
  const auto rest = forecast(table, engine->config(), options);
  check_rest(play, engine->ledger(), rest, "when the engine is new");
  for (int64_t pass = 0; pass < 2 * accumulation; ++pass) {
    arrivals.clear();
    at::Tensor loss;
    {
      const auto guard = engine->autocast();
      loss = model.loss(play.batch(pass).input);
    }
    engine->backward(loss);
    engine->step();
  }
  check_rest(play, engine->ledger(), rest, "after two steps");
  play.check("every parameter that is reached arrived once", arrivals.size() == 5);
  options.arrivals = arrivals;
  check_peaks(play, engine->ledger(), forecast(table, engine->config(), options));
}

// Half of the modes with several passes in a window, others at other stages and numbers of ranks.
void as_forecast(Play& play) {
  const auto& context = play.context();
  if (play.group())
    for (std::size_t i = 0; i < modes().size(); ++i) {
      if (context.stage < modes()[i].smallest_stage) continue;
      const bool is_one =
          (i + static_cast<std::size_t>(context.stage / 2 + context.world)) % 2 == 0;
      check_mode(play, modes()[i], is_one ? 1 : kPassesOfAWindow);
    }
  train_along(play);
}

}  // namespace

std::vector<Case> bytes() {
  return {{.section = "15",
           .name = "bytes_are_those_of_the_forecast",
           .sentence = "what a rank holds is forecast to the byte: at rest, and at the peak",
           .fault = "a byte more is found",
           .program = as_forecast,
           .models = {"tower"},
           .places = {.precisions = {Precision::Fp32}},
           .windows = 1}};
}

}  // namespace equigrad::conformance::contract
