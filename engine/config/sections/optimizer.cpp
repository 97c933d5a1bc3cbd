// The optimizer: which rule updates a parameter, and with which scalars.
#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Config = OptimizerConfig;
using Kind = Config::Kind;

constexpr const char* kKinds[] = {"SGD", "Adam", "AdamW"};  // in the order of Kind
constexpr const char* kInLowerCase[] = {"sgd", "adam", "adamw"};
constexpr const char* kOthers[] = {"adagrad",    "lamb",        "lion",   "muon",    "onebitadam",
                                   "onebitlamb", "zerooneadam", "muadam", "muadamw", "musgd"};
constexpr Choice kTypes{
    .names = kKinds,
    .refused = kOthers,
    .why_refused = ", which is not supported by this version. Choose one of the three.",
    .suggested = kInLowerCase,
    .any_case = true,
    .is_quoted = false};

bool is_adam(const EngineConfig& config) { return config.optimizer.kind != Kind::Sgd; }
bool is_sgd(const EngineConfig& config) { return config.optimizer.kind == Kind::Sgd; }

template <auto kMember, Field::Of kOf = nullptr>
constexpr Field scalar{field<&EngineConfig::optimizer, kMember>.get,
                       field<&EngineConfig::optimizer, kMember>.set, kOf};

constexpr Field kBetas{[](const EngineConfig& config) {
                         return Json::array({config.optimizer.beta1, config.optimizer.beta2});
                       },
                       [](EngineConfig& config, const Json& betas) {
                         config.optimizer.beta1 = betas[0].get<double>();
                         config.optimizer.beta2 = betas[1].get<double>();
                       },
                       is_adam};

constexpr const char* kKernelChoice = "the update rule has one implementation";

constexpr Row kRows[] = {
    section("optimizer", "The update of the parameters."),
    key(".type", {.type = ValueType::Choice, .is_required = true, .choice = &kTypes}, "\"AdamW\"",
        "Which optimizer.", "\"Adam\" is AdamW unless adam_w_mode is false, as in DeepSpeed."),
    unsupported(".legacy_fusion", "The old fused kernels of fp16.", "[false]"),
    section("optimizer.params", "The optimizer's own parameters."),
    key(".lr", not_negative(), scalar<&Config::lr>, "The learning rate.",
        "A scheduler may set it instead."),
    key(".weight_decay", not_negative(), scalar<&Config::weight_decay>,
        "How much of a weight is taken off it in a step.",
        "0.01 by default where torch_adam asks for torch's AdamW."),
    key(".momentum", not_negative(), scalar<&Config::momentum, is_sgd>,
        "SGD: how much of the last direction is kept."),
    key(".dampening", {.type = ValueType::Number, .is_fp32 = true},
        scalar<&Config::dampening, is_sgd>, "SGD: how much of a gradient is left out of momentum."),
    key(".nesterov", boolean(), scalar<&Config::nesterov, is_sgd>, "SGD: Nesterov's momentum.",
        "Needs a momentum above 0 and no dampening."),
    key(".eps", not_negative(), scalar<&Config::eps, is_adam>,
        "Adam: what is added to the denominator."),
    key(".betas",
        {.type = ValueType::Pair,
         .least = 0.0,
         .most = 1.0,
         .is_below_most = true,
         .expected = "at least 0 and below 1",
         .remedy = "Write [0.9, 0.999]."},
        kBetas, "Adam: decay of the running means of gradients and of their squares."),
    key(".adam_w_mode", boolean(), {"true", is_adam},
        "Adam: decay weights directly (AdamW), and not by the gradient (L2)."),
    key(".torch_adam", boolean(), {"false", is_adam}, "Adam: torch's class instead of a kernel.",
        "Changes nothing but the default of weight_decay.")
        .noting("only the default of weight_decay depends on it"),
    unsupported(
        ".bias_correction", "Adam: means are corrected for their start at 0.", "[true]",
        "Means are always corrected here; without it first steps would be larger. Drop the key."),
    unsupported(".amsgrad", "Adam: the largest second moment so far counts.", "[false]"),
    unsupported(".maximize", "The objective is maximized.", "[false]"),
    unsupported(".differentiable", "Autograd goes through the step.", "[false]"),
    no_effect(".foreach", "torch: many tensors in one call.", kKernelChoice),
    no_effect(".fused", "torch: the fused kernel.", kKernelChoice),
    no_effect(".capturable", "torch: may be captured in a CUDA graph.", kKernelChoice),
    unsupported(".max_grad_norm", "An old place of gradient clipping.", "[]",
                "Use the top-level \"gradient_clipping\"."),
};

const std::string kParams = "optimizer.params.";

void read_adam(const std::string& type, Reading& reading) {
  OptimizerConfig& optimizer = reading.config.optimizer;
  const bool decoupled = reading.take(kParams + "adam_w_mode");
  if (type == "adamw" && !decoupled)
    reading.reader.problem(
        kParams + "adam_w_mode",
        "expected true for AdamW, got false. Write \"type\": \"Adam\" for L2 decay.");
  optimizer.kind = decoupled ? Kind::AdamW : Kind::Adam;
  reading.note(kParams + "adam_w_mode").shown = decoupled;
  if (type == "adam" && decoupled)
    reading.note("optimizer.type").derived = "\"Adam\" is AdamW here, as in DeepSpeed";
  // DeepSpeed hands torch_adam to torch's classes, whose AdamW decays by default.
  const bool torch_adam = reading.take(kParams + "torch_adam");
  if (torch_adam && decoupled && !reading.has(kParams + "weight_decay")) {
    optimizer.weight_decay = 1e-2;
    reading.note(kParams + "weight_decay").derived = "torch_adam: the default of torch's AdamW";
  }
}

void read(Reading& reading) {
  const std::string written = reading.take("optimizer.type");
  const bool is_known = reading.has("optimizer.type");
  const bool is_bad = reading.reader.is_bad("optimizer") || reading.reader.is_bad("optimizer.type");
  if (!is_known && reading.needs_optimizer && !is_bad)
    reading.reader.problem("optimizer.type",
                           "expected SGD, Adam or AdamW, got no optimizer. Add \"optimizer\": "
                           "{\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, or give "
                           "initialize() an optimizer of yours.");
  if (!reading.needs_optimizer && reading.has("optimizer"))
    reading.reader.problem("optimizer",
                           "expected no optimizer beside the one that initialize() is given, got "
                           "one. Drop the key, or the argument.");
  if (written == "SGD")
    reading.config.optimizer.kind = Kind::Sgd;
  else
    read_adam(is_known ? lower(written) : "", reading);
  reading.note("optimizer.type").shown = kKinds[static_cast<int>(reading.config.optimizer.kind)];
  reading.store(kParams);
  if (is_known) reading.refuse_others(kParams, written);
}

void check(const EngineConfig& config, Checks& checks) {
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.nesterov && (optimizer.momentum <= 0.0 || optimizer.dampening != 0.0))
    checks.problem(kParams + "nesterov",
                   "expected a momentum above 0 and no dampening, got momentum " +
                       text_of(optimizer.momentum) + " and dampening " +
                       text_of(optimizer.dampening) + ". Set it to false, or them.");
}

}  // namespace

Section optimizer_section() { return {kRows, read, check}; }

}  // namespace equigrad
