// The optimizer: which rule updates a parameter, and with which scalars.
#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Kind = OptimizerConfig::Kind;

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

template <auto kMember>
constexpr Field scalar = field<&EngineConfig::optimizer, kMember>;

constexpr Field kBetas{[](const EngineConfig& config) {
                         return Json::array({config.optimizer.beta1, config.optimizer.beta2});
                       },
                       [](EngineConfig& config, const Json& betas) {
                         config.optimizer.beta1 = betas[0].get<double>();
                         config.optimizer.beta2 = betas[1].get<double>();
                       }};

bool is_adam(const EngineConfig& config) { return config.optimizer.kind != Kind::Sgd; }
bool is_sgd(const EngineConfig& config) { return config.optimizer.kind == Kind::Sgd; }

constexpr const char* kKernelChoice = "the update rule has one implementation";

constexpr Row kRows[] = {
    section("optimizer", "The update of the parameters."),
    key("optimizer.type", {.type = ValueType::Choice, .is_required = true, .choice = &kTypes},
        "\"AdamW\"", "Which optimizer.",
        "\"Adam\" is AdamW unless adam_w_mode is false, as in DeepSpeed."),
    unsupported("optimizer.legacy_fusion", "The old fused kernels of fp16.", "[false]"),
    section("optimizer.params", "The optimizer's own parameters."),
    key("optimizer.params.lr", not_negative(), scalar<&OptimizerConfig::lr>, "The learning rate.",
        "A scheduler may set it instead."),
    key("optimizer.params.weight_decay", not_negative(), scalar<&OptimizerConfig::weight_decay>,
        "How much of a weight is taken off it in a step.",
        "0.01 by default where torch_adam asks for torch's AdamW."),
    key("optimizer.params.momentum", not_negative(), scalar<&OptimizerConfig::momentum>,
        "SGD: how much of the last direction is kept.")
        .only(is_sgd),
    key("optimizer.params.dampening", {.type = ValueType::Number, .is_fp32 = true},
        scalar<&OptimizerConfig::dampening>, "SGD: how much of a gradient is left out of momentum.")
        .only(is_sgd),
    key("optimizer.params.nesterov", boolean(), scalar<&OptimizerConfig::nesterov>,
        "SGD: Nesterov's momentum.", "Needs a momentum above 0 and no dampening.")
        .only(is_sgd),
    key("optimizer.params.eps", not_negative(), scalar<&OptimizerConfig::eps>,
        "Adam: what is added to the denominator.")
        .only(is_adam),
    key("optimizer.params.betas",
        {.type = ValueType::Pair,
         .least = 0.0,
         .most = 1.0,
         .is_below_most = true,
         .expected = "at least 0 and below 1",
         .remedy = "Write [0.9, 0.999]."},
        kBetas, "Adam: decay of the running means of gradients and of their squares.")
        .only(is_adam),
    key("optimizer.params.adam_w_mode", boolean(), "true",
        "Adam: decay weights directly (AdamW), and not by the gradient (L2).")
        .only(is_adam),
    key("optimizer.params.torch_adam", boolean(), "false",
        "Adam: torch's class instead of a kernel.",
        "Changes nothing but the default of weight_decay.")
        .noting("only the default of weight_decay depends on it")
        .only(is_adam),
    unsupported("optimizer.params.bias_correction",
                "Adam: means are corrected for their start at 0.", "[true]"),
    unsupported("optimizer.params.amsgrad", "Adam: the largest second moment so far counts.",
                "[false]"),
    unsupported("optimizer.params.maximize", "The objective is maximized.", "[false]"),
    unsupported("optimizer.params.differentiable", "Autograd goes through the step.", "[false]"),
    no_effect("optimizer.params.foreach", "torch: many tensors in one call.", kKernelChoice),
    no_effect("optimizer.params.fused", "torch: the fused kernel.", kKernelChoice),
    no_effect("optimizer.params.capturable", "torch: may be captured in a CUDA graph.",
              kKernelChoice),
    unsupported("optimizer.params.max_grad_norm", "An old place of gradient clipping.", "[]",
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
  if (!is_known && !reading.reader.is_bad("optimizer") && !reading.reader.is_bad("optimizer.type"))
    reading.reader.problem("optimizer.type",
                           "expected SGD, Adam or AdamW, got no optimizer. Add \"optimizer\": "
                           "{\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}.");
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
