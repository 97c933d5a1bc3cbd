// 15. What an engine says of itself: the bytes that it holds, as forecast; the ledger that counts
// them, and the memory that a process keeps.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/forecast.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/memory/malloc_policy.hpp"

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
  std::string buckets = R"("reduce_bucket_size": 40, "allgather_bucket_size": 70)";
  std::string optimizer = "AdamW";
  int passes_a_step = 1;  // several, where the caller counts them
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
       .smallest_stage = 1},
      {.keys = "", .buckets = R"("reduce_bucket_size": 1, "allgather_bucket_size": 1)"},
      {.keys = R"(, "prescale_gradients": true)",
       .buckets = R"("reduce_bucket_size": 500000000, "allgather_bucket_size": 90)"},
      {.keys = R"(, "managed_gradient_accumulation": false)",
       .optimizer = "SGD",
       .passes_a_step = 2},
      {.keys = R"(, "communication_data_type": "fp16", "gradient_predivide_factor": 3)"},
      {.keys = R"(, "fp16": {"enabled": true, "loss_scale": 64})"},
      {.keys = kExact, .zero = R"(, "stage3_param_persistence_threshold": 9)", .smallest_stage = 3},
      {.keys = kBf16, .zero = R"(, "stage3_param_persistence_threshold": 63)", .smallest_stage = 3},
      {.keys = "",
       .zero = R"(, "stage3_param_persistence_threshold": 62,
                                "stage3_max_live_parameters": 1)",
       .smallest_stage = 3}};
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
      ", " + mode.buckets +
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
                                                      .optimizer = mode.optimizer,
                                                      .zero = zero + mode.zero,
                                                      .keys = mode.keys}),
                                 play.group());
  const auto table = table_of(model, engine->config());
  MemoryOptions options;
  options.world_size = play.context().world;
  const auto rest = forecast(table, engine->config(), options);
  check_rest(play, engine->ledger(), rest, "when the engine is new");
  for (int64_t pass = 0; pass < 2 * accumulation; ++pass) {
    for (int i = 0; i < mode.passes_a_step; ++i) {
      arrivals.clear();
      at::Tensor loss;
      {
        const auto guard = engine->autocast();
        loss = model.loss(play.batch(pass).input);
      }
      engine->backward(loss);
    }
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

// ---- The ledger, and what a process keeps -------------------------------------------------------
void check_ledger(Play& play) {
  std::mt19937_64 engine(play.context().seed);
  memory::Ledger ledger;
  std::array<int64_t, memory::kCategories> now{}, peak{};
  int64_t total = 0, total_peak = 0;
  for (int i = 0; i < 200; ++i) {
    const auto at = static_cast<std::size_t>(engine() % now.size());
    const auto category = static_cast<Category>(at);
    const int64_t bytes = static_cast<int64_t>(engine() % 1000);
    const bool gives = engine() % 2 == 0 && now[at] >= bytes;
    if (gives)
      ledger.credit(category, bytes);
    else
      ledger.charge(category, bytes);
    total += gives ? -bytes : bytes;
    peak[at] = std::max(peak[at], now[at] += gives ? -bytes : bytes);
    total_peak = std::max(total_peak, total);
    bool holds = ledger.total_bytes() == total && ledger.total_peak_bytes() == total_peak;
    for (std::size_t j = 0; j < now.size(); ++j)
      holds = holds && ledger.bytes(static_cast<Category>(j)) == now[j] &&
              ledger.peak_bytes(static_cast<Category>(j)) == peak[j];
    play.check("every category and all of them are as counted", holds);
  }
  memory::Ledger other;
  {
    const memory::Charge first(other, Category::Gathered, 5);
    const memory::Charge second(other, Category::Gathered, 7);
    play.check("a charge is there while it lives", other.bytes(Category::Gathered) == 12);
  }
  play.check("and no longer", other.bytes(Category::Gathered) == 0 && other.total_bytes() == 0 &&
                                  other.total_peak_bytes() == 12);
}

#ifdef __GLIBC__
bool user_decides() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"})
    if (std::getenv(name) != nullptr) return true;
  const char *const tunables = std::getenv("GLIBC_TUNABLES"), *const wanted = std::getenv(
                                                                  "EQUIGRAD_KEEP_MEMORY");
  return (tunables != nullptr &&
          std::string(tunables).find("glibc.malloc.") != std::string::npos) ||
         (wanted != nullptr && std::string(wanted) == "0");
}

// A block of 40 MB that is freed is malloc's, where the kernel would have had it back.
void check_kept_memory(Play& play) {
  constexpr std::size_t kBytes = std::size_t{40} << 20;
  const bool keeps = keep_freed_memory();
  play.check("it is as before when it is asked again", keep_freed_memory() == keeps);
  if (user_decides()) return play.check("what the user has said is not changed", !keeps);
  if (!keeps) return play.check("malloc declines", mallopt(M_MMAP_THRESHOLD, 0x7fffffff) != 1);
  const auto before = mallinfo2();
  void* volatile block = std::malloc(kBytes);
  const auto during = mallinfo2();
  std::free(block);
  const auto after = mallinfo2();
  play.check("a large block is no mapping of its own", during.hblkhd == before.hblkhd);
  play.check("what is freed stays", after.arena >= during.arena);
}
#else
void check_kept_memory(Play& play) { play.check("nothing is kept", !keep_freed_memory()); }
#endif

void bytes_that_are_counted(Play& play) {
  if (play.group()) {
    check_ledger(play);
    check_kept_memory(play);
    play.check("there are six categories", memory::kCategories == (play.fault() ? 7 : 6));
  }
  train_along(play);
}

}  // namespace

std::vector<Case> bytes() {
  return {
      case_beside(
          {.section = "15",
           .name = "bytes_are_those_of_the_forecast",
           .sentence = "what a rank holds is forecast to the byte: at rest, and at the peak",
           .fault = "a byte more is found",
           .program = as_forecast}),
      case_beside(
          {.section = "15",
           .name = "bytes_that_are_counted",
           .sentence = "the ledger adds up, and what is freed stays unless the user has said how",
           .fault = "another number of categories is expected",
           .program = bytes_that_are_counted})};
}

}  // namespace equigrad::conformance::contract
