// Offloading: whether parameters (stage 3) and the optimizer's state are in the CPU's memory.
#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

constexpr const char* kPlaces[] = {"none", "cpu"};
constexpr const char* kDisk[] = {"nvme"};
constexpr Choice kDevices{.names = kPlaces,
                          .refused = kDisk,
                          .why_refused = ", which is not supported by this version. Use \"cpu\"."};
constexpr Values kDevice = one_of(kDevices);

constexpr Field kPinParam =
    default_of<&EngineConfig::zero, &ZeroConfig::offload_param, &OffloadParamConfig::pin_memory>;
constexpr Field kPinOptimizer =
    default_of<&EngineConfig::offload_optimizer, &OffloadOptimizerConfig::pin_memory>;

constexpr const char* kDiskOnly = "only offloading to a disk uses it";
constexpr const char* kPinned = "Whether the memory is page-locked.";
constexpr const char* kPath = "A folder on a disk.";
constexpr const char* kBuffers = "Buffers for transfers to a disk.";

constexpr Row kRows[] = {
    section("zero_optimization.offload_param", "Where a rank's parameters are at stage 3."),
    key(".device", kDevice, "\"none\"", "Where they are between their uses.",
        "\"cpu\" needs stage 3."),
    key(".pin_memory", boolean(), kPinParam, kPinned),
    no_effect(".nvme_path", kPath, kDiskOnly),
    no_effect(".buffer_count", kBuffers, kDiskOnly),
    no_effect(".buffer_size", "Elements of such a buffer.", kDiskOnly),
    no_effect(".max_in_cpu", "Elements that stay in the CPU's memory.", kDiskOnly),
    section("zero_optimization.offload_optimizer",
            "Where master weights and optimizer state are, and who updates them."),
    key(".device", kDevice, "\"none\"", "Where they are, and where the update runs.",
        "\"cpu\" needs stage 1, 2 or 3."),
    key(".pin_memory", boolean(), kPinOptimizer, kPinned),
    key(".ratio", number(), "1.0", "The part of the optimizer's state that is offloaded.",
        "1, where it is on."),
    no_effect(".nvme_path", kPath, kDiskOnly),
    no_effect(".buffer_count", kBuffers, kDiskOnly),
    no_effect(".pipeline", "Transfers overlap with updates.", kDiskOnly),
    no_effect(".pipeline_read", "The next tensor is read during an update.", kDiskOnly),
    no_effect(".pipeline_write", "The last tensor is written during an update.", kDiskOnly),
    no_effect(".fast_init", "A faster start from a disk.", kDiskOnly),
    no_effect(".convert_grad_on_cpu", "Gradients are widened to fp32 on the CPU.",
              "a gradient is widened to the same bits on both"),
    unsupported(".super_offload", "Updates on the CPU that go on during backward.", "[false]"),
    no_effect(".cpuadam_cores_perc", "The part of the cores that updates.",
              "only super_offload uses it"),
    key("zero_optimization.cpu_offload", boolean(), "false",
        "The old name of offload_optimizer with device \"cpu\"."),
    key("zero_optimization.cpu_offload_use_pin_memory", boolean(), kPinOptimizer,
        "The old name of offload_optimizer.pin_memory."),
    unsupported("zero_optimization.cpu_offload_param", "The old name of offload_param.", "[false]",
                "Write \"offload_param\": {\"device\": \"cpu\"}."),
};

const std::string kZero = "zero_optimization.";
const std::string kParam = kZero + "offload_param.";
const std::string kOptimizer = kZero + "offload_optimizer.";
const std::string kOldDevice = kZero + "cpu_offload";
const std::string kOldPin = kZero + "cpu_offload_use_pin_memory";

void read_optimizer(Reading& reading) {
  const std::string device = kOptimizer + "device", pin = kOptimizer + "pin_memory";
  const bool by_old_name = reading.take(kOldDevice), is_pinned_by_old_name = reading.take(kOldPin);
  const bool to_cpu = reading.take(device) == "cpu" || by_old_name;
  bool is_pinned = reading.take(pin);
  const double ratio = reading.take(kOptimizer + "ratio");
  if (is_by_old_name(kOldDevice, kZero + "offload_optimizer", "\"offload_optimizer\"", reading))
    reading.note(device).derived = "as cpu_offload, its old name";
  if (!reading.has(pin)) is_pinned = is_pinned_by_old_name;
  if (is_by_old_name(kOldPin, pin, "offload_optimizer.pin_memory", reading))
    reading.note(pin).derived = "as cpu_offload_use_pin_memory, its old name";
  reading.note(device).shown = kPlaces[to_cpu];
  if (!to_cpu) {
    reading.note(kOldPin).without_effect = "it is off";
    return;
  }
  reading.config.offload_optimizer = {true, is_pinned};
  reading.note(pin).shown = is_pinned;
  if (ratio != 1.0)
    reading.reader.problem(kOptimizer + "ratio",
                           "expected 1, got " + text_of(ratio) +
                               ", which is not supported by this version. All of the optimizer's "
                               "state is offloaded; drop the key.");
}

void read(Reading& reading) {
  const bool to_cpu = reading.take(kParam + "device") == "cpu";
  const bool is_pinned = reading.take(kParam + "pin_memory");
  if (to_cpu) reading.config.zero.offload_param = {true, is_pinned};
  read_optimizer(reading);
}

void check(const EngineConfig& config, Checks& checks) {
  if (config.zero.offload_param.to_cpu && config.zero.stage != 3)
    checks.problem(kParam + "device",
                   "expected \"none\" below stage 3, got \"cpu\". Parameters are whole on every "
                   "rank there; set stage 3, or drop the section.");
  if (config.offload_optimizer.to_cpu && config.zero.stage < 1)
    checks.problem(kOptimizer + "device", "expected ZeRO stage 1, 2 or 3 with \"cpu\", got stage " +
                                              std::to_string(config.zero.stage) +
                                              ". Set zero_optimization.stage, or \"none\".");
}

}  // namespace

Section offload_section() { return {kRows, read, check}; }

}  // namespace equigrad
