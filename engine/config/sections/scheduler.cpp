// The scheduler: what the learning rate, and one momentum, are at a step.
#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Config = SchedulerConfig;
using Kind = Config::Kind;

// In the order of Kind.
constexpr const char* kKinds[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                  "LRRangeTest"};
// DeepSpeed looks up any other name among torch's schedulers, which are Python classes.
constexpr const char* kOfTorch[] = {
    "LambdaLR",          "MultiplicativeLR", "StepLR",
    "MultiStepLR",       "ConstantLR",       "LinearLR",
    "ExponentialLR",     "SequentialLR",     "PolynomialLR",
    "CosineAnnealingLR", "ChainedScheduler", "ReduceLROnPlateau",
    "CyclicLR",          "OneCycleLR",       "CosineAnnealingWarmRestarts"};
constexpr Choice kTypes{.names = kKinds,
                        .refused = kOfTorch,
                        .why_refused = ", a Python class of torch. Choose one of the five.",
                        .otherwise = " Choose one of them.",
                        .any_case = true,
                        .is_quoted = false};
constexpr Choice kWarmups{.names = kWarmupTypes};

// The field of a key that only some kinds have.
template <auto kMember, auto* kOf>
constexpr Field parameter{
    [](const EngineConfig& config) {
      return json_of(config.scheduler.value_or(SchedulerConfig{}).*kMember);
    },
    [](EngineConfig& config, const Json& value) { assign((*config.scheduler).*kMember, value); },
    kOf};

template <Kind... kOwners>
bool of(const EngineConfig& config) {
  return config.scheduler && ((config.scheduler->kind == kOwners) || ...);
}
constexpr auto* kAny = of<Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr, Kind::OneCycle,
                          Kind::LrRangeTest>;
constexpr auto* kWarmup = of<Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr>;
constexpr auto* kOfRates = of<Kind::WarmupLr, Kind::WarmupDecayLr>;
constexpr auto* kOfTotal = of<Kind::WarmupDecayLr, Kind::WarmupCosineLr>;
constexpr auto* kCosine = of<Kind::WarmupCosineLr>;
constexpr auto* kCycle = of<Kind::OneCycle>;
constexpr auto* kRangeTest = of<Kind::LrRangeTest>;

// Sums of two of them must fit in 64 bits, and each must be exact in a double.
constexpr double kMostSteps = 0x1p53;

constexpr Values count(int least) { return between(least, kMostSteps, ValueType::Whole); }

constexpr Values rates(bool is_required) {
  return {.type = ValueType::PerGroup, .least = 0.0, .is_fp32 = true, .is_required = is_required};
}

constexpr Values kMomenta{.type = ValueType::PerGroup,
                          .least = 0.0,
                          .most = 1.0,
                          .is_below_most = true,
                          .is_fp32 = true,
                          .is_required = true,
                          .remedy = "Write 0.9."};

constexpr Row kRows[] = {
    section("scheduler", "How the learning rate changes from step to step."),
    key(".type", one_of(kTypes), "null", "Which scheduler.")
        .noting("the learning rate is constant"),
    section("scheduler.params", "The scheduler's own parameters."),
    key(".warmup_min_lr", rates(true), parameter<&Config::warmup_min_lr, kOfRates>,
        "Warm-up: the rate that it begins with."),
    key(".warmup_max_lr", rates(false), parameter<&Config::warmup_max_lr, kOfRates>,
        "Warm-up: the rate that it ends with.",
        "By default, WarmupLR takes each parameter group's own lr, and WarmupDecayLR 0.001."),
    key(".warmup_min_ratio", not_negative(), parameter<&Config::warmup_min_ratio, kCosine>,
        "WarmupCosineLR: the part of a group's lr that it begins with."),
    key(".cos_min_ratio", not_negative(), parameter<&Config::cos_min_ratio, kCosine>,
        "WarmupCosineLR: the part of a group's lr that it ends with."),
    key(".warmup_num_steps", count(1), parameter<&Config::warmup_num_steps, kWarmup>,
        "Warm-up: its steps."),
    key(".warmup_type", one_of(kWarmups), parameter<&Config::warmup_type, kWarmup>,
        "Warm-up: the rate grows with the step's logarithm, or with the step."),
    key(".total_num_steps", {.type = ValueType::Whole, .most = kMostSteps},
        parameter<&Config::total_num_steps, kOfTotal>,
        "WarmupDecayLR, WarmupCosineLR: steps of the whole training.",
        "Must be given, and be at least warmup_num_steps."),
    key(".cycle_min_lr", rates(true), parameter<&Config::cycle_min_lr, kCycle>,
        "OneCycle: the rate at both ends.", "Must be given."),
    key(".cycle_max_lr", rates(true), parameter<&Config::cycle_max_lr, kCycle>,
        "OneCycle: the rate in the middle.", "Must be given."),
    key(".cycle_first_step_size", count(1), parameter<&Config::cycle_first_step_size, kCycle>,
        "OneCycle: steps of the first half."),
    key(".cycle_second_step_size", count(0), parameter<&Config::cycle_second_step_size, kCycle>,
        "OneCycle: steps of the second half.", "As cycle_first_step_size by default."),
    key(".cycle_first_stair_count", count(0), parameter<&Config::cycle_first_stair_count, kCycle>,
        "OneCycle: stairs of the first half; 0 is a slope."),
    key(".cycle_second_stair_count", count(0), parameter<&Config::cycle_second_stair_count, kCycle>,
        "OneCycle: stairs of the second half.", "As cycle_first_stair_count by default."),
    key(".decay_step_size", count(0), parameter<&Config::decay_step_size, kCycle>,
        "OneCycle: steps between decays after the cycle.", "0: no decay."),
    key(".decay_lr_rate", not_negative(), parameter<&Config::decay_lr_rate, kCycle>,
        "OneCycle: how much the rate decays."),
    key(".decay_mom_rate", not_negative(), parameter<&Config::decay_mom_rate, kCycle>,
        "OneCycle: how much the momentum decays."),
    key(".cycle_momentum", boolean(), parameter<&Config::cycle_momentum, kCycle>,
        "OneCycle: whether Adam's first beta is cycled, too.", "False for SGD."),
    key(".cycle_min_mom", kMomenta, parameter<&Config::cycle_min_mom, kCycle>,
        "OneCycle: the momentum in the middle."),
    key(".cycle_max_mom", kMomenta, parameter<&Config::cycle_max_mom, kCycle>,
        "OneCycle: the momentum at both ends."),
    key(".lr_range_test_min_lr", rates(true), parameter<&Config::lr_range_test_min_lr, kRangeTest>,
        "LRRangeTest: the rate that it begins with."),
    key(".lr_range_test_step_size", count(1),
        parameter<&Config::lr_range_test_step_size, kRangeTest>,
        "LRRangeTest: steps of an interval."),
    key(".lr_range_test_step_rate", not_negative(),
        parameter<&Config::lr_range_test_step_rate, kRangeTest>,
        "LRRangeTest: how much the rate grows in an interval."),
    key(".lr_range_test_staircase", boolean(),
        parameter<&Config::lr_range_test_staircase, kRangeTest>,
        "LRRangeTest: it grows between intervals only."),
    key(".last_batch_iteration", count(-1), parameter<&Config::last_batch_iteration, kAny>,
        "The iteration to go on from; -1 is the beginning."),
};

const std::string kParams = "scheduler.params.";

// What stands for a key that is absent and has no constant default.
void derive(SchedulerConfig& scheduler, bool is_sgd, Reading& reading) {
  const auto is_absent = [&](const char* name) {
    return reading.reader.find(kParams + name) == nullptr;
  };
  const auto derived = [&](const char* name, const char* why) {
    reading.note(kParams + name).derived = why;
  };
  if (scheduler.kind == Kind::WarmupLr && is_absent("warmup_max_lr"))
    derived("warmup_max_lr", "each parameter group's own lr");
  if (scheduler.kind == Kind::WarmupDecayLr && is_absent("warmup_max_lr"))
    scheduler.warmup_max_lr = {1e-3};
  if (scheduler.kind != Kind::OneCycle) return;
  if (is_absent("cycle_second_step_size")) {
    scheduler.cycle_second_step_size = scheduler.cycle_first_step_size;
    derived("cycle_second_step_size", "as cycle_first_step_size");
  }
  if (is_absent("cycle_second_stair_count")) {
    scheduler.cycle_second_stair_count = scheduler.cycle_first_stair_count;
    derived("cycle_second_stair_count", "as cycle_first_stair_count");
  }
  if (is_sgd && is_absent("cycle_momentum")) {
    scheduler.cycle_momentum = false;
    derived("cycle_momentum", "SGD keeps its momentum, as in DeepSpeed");
  }
}

void note_idle_keys(const SchedulerConfig& scheduler, Reading& reading) {
  const auto idle = [&](const char* name, const char* why) {
    reading.note(kParams + name).without_effect = why;
  };
  if (scheduler.decay_step_size == 0)
    for (const char* name : {"decay_lr_rate", "decay_mom_rate"}) idle(name, "decay_step_size is 0");
  if (!scheduler.cycle_momentum)
    for (const char* name : {"cycle_min_mom", "cycle_max_mom", "decay_mom_rate"})
      idle(name, "cycle_momentum is false");
  const bool uses_lr = scheduler.kind == Kind::WarmupCosineLr ||
                       (kOfRates(reading.config) && scheduler.warmup_max_lr.empty());
  if (!uses_lr)
    reading.note("optimizer.params.lr").without_effect =
        std::string(name_of(scheduler.kind)) + " sets the learning rate";
}

void read(Reading& reading) {
  const Json type = reading.take("scheduler.type");
  if (type.is_null()) {
    if (reading.has("scheduler.params") && !reading.reader.is_bad("scheduler.type"))
      reading.reader.problem("scheduler.type", "expected " + joined(kKinds, "") +
                                                   ", got parameters and no type. Add the key.");
    return;
  }
  SchedulerConfig& scheduler = reading.config.scheduler.emplace();
  assign(scheduler.kind, type);
  reading.store(kParams);
  derive(scheduler, reading.config.optimizer.kind == OptimizerConfig::Kind::Sgd, reading);
  note_idle_keys(scheduler, reading);
  reading.refuse_others(kParams, type);
}

void check(const EngineConfig& config, Checks& checks) {
  if (!config.scheduler) return;
  const SchedulerConfig& scheduler = *config.scheduler;
  if (kOfTotal(config)) {
    const std::int64_t steps = scheduler.warmup_num_steps, total = scheduler.total_num_steps;
    const std::string path = kParams + "total_num_steps";
    if (total == 0)
      checks.problem(path,
                     "expected the number of updates of the whole training, got none. Add the "
                     "key.");
    else if (total < steps)
      checks.problem(path, "expected at least warmup_num_steps = " + std::to_string(steps) +
                               ", got " + std::to_string(total) + ". Raise it, or lower them.");
  }
  if (kCycle(config) && scheduler.cycle_momentum &&
      config.optimizer.kind == OptimizerConfig::Kind::Sgd)
    checks.problem(kParams + "cycle_momentum",
                   "expected false for SGD, got true. Only Adam's first beta is cycled, as in "
                   "DeepSpeed; set it to false, or use Adam.");
}

}  // namespace

const char* name_of(SchedulerConfig::Kind kind) { return kKinds[static_cast<int>(kind)]; }

Section scheduler_section() { return {kRows, read, check}; }

}  // namespace equigrad
