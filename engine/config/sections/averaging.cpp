#include <cctype>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

const std::string kPrescale = "prescale_gradients";
const std::string kPredivide = "gradient_predivide_factor";
const std::string kOperation = "gradient_allreduce_op";
const std::string kNorm = "gradient_norm_type";
const std::string kCpuOffload = "zero_optimization.cpu_offload";
const std::string kPinned = "zero_optimization.cpu_offload_use_pin_memory";
const std::string kOffload = "zero_optimization.offload_optimizer.";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

void read_kind(ConfigReader& reader, AveragingConfig& averaging) {
  using Kind = AveragingConfig::Kind;
  const bool before = reader.boolean(kPrescale, false);
  const double factor = reader.number(kPredivide, 1.0);
  const std::string written = reader.text(kOperation, "mean"), operation = lower(written);
  if (before)
    averaging.kind = Kind::BeforeSum;
  else if (factor != 1.0)
    averaging = {Kind::Around, factor};
  if (operation == "mean") return;
  if (operation != "sum") {
    reader.problem(kOperation, "expected \"mean\" or \"sum\", got \"" + written + "\"." +
                                   did_you_mean(operation, {"mean", "sum"}));
    return;
  }
  averaging = {Kind::Never, 1.0};
  const std::string remedy = ". A sum is not divided; drop one of the two keys.";
  if (before)
    reader.problem(kPrescale,
                   "expected false with gradient_allreduce_op = \"sum\", got true" + remedy);
  if (factor != 1.0)
    reader.problem(kPredivide, "expected 1 with gradient_allreduce_op = \"sum\", got " +
                                   text_of(factor) + remedy);
}

void read_norm(ConfigReader& reader, NormType& norm) {
  if (!reader.has(kNorm)) return;
  const Json& given = *reader.find(kNorm);
  if (given == Json("inf"))
    norm = NormType::Infinity;
  else if (!given.is_number() || given != Json(2))
    reader.problem(kNorm, "expected 2 or \"inf\", got " + shown(given) + ". Use one of the two.");
}

bool read_device(ConfigReader& reader, Notes& notes) {
  const std::string path = kOffload + "device";
  const bool by_old_name = reader.boolean(kCpuOffload, false);
  if (reader.has(kCpuOffload) && reader.has("zero_optimization.offload_optimizer"))
    reader.problem(kCpuOffload,
                   "expected it or \"offload_optimizer\", got both. Drop it; it is the old name.");
  const bool to_cpu = reads_cpu(reader, path);
  if (reader.has(kCpuOffload)) notes[path] = "as cpu_offload, its old name";
  return by_old_name || to_cpu;
}

void read_offload(ConfigReader& reader, Notes& notes, OffloadOptimizerConfig& offload) {
  const std::string path = kOffload + "pin_memory";
  const bool to_cpu = read_device(reader, notes);
  const bool by_old_name = reader.boolean(kPinned, offload.pin_memory);
  const bool pin_memory = reader.boolean(path, by_old_name);
  if (reader.has(path) && reader.has(kPinned))
    reader.problem(kPinned,
                   "expected it or offload_optimizer.pin_memory, got both. Drop it; it is the old "
                   "name.");
  if (reader.has(kPinned)) notes[path] = "as cpu_offload_use_pin_memory, its old name";
  const double ratio = reader.number(kOffload + "ratio", 1.0);
  if (!to_cpu) return;
  offload = {true, pin_memory};
  if (ratio != 1.0)
    reader.problem(kOffload + "ratio", "expected 1, got " + text_of(ratio) +
                                           ", which is not supported by this version. All of the "
                                           "optimizer's state is offloaded; drop the key.");
}

Json json_of(AveragingConfig::Kind kind) {
  return kind == AveragingConfig::Kind::Never ? "sum" : "mean";
}

}  // namespace

void read_averaging(ConfigReader& reader, Notes& notes, EngineConfig& config) {
  read_kind(reader, config.averaging);
  read_norm(reader, config.gradient_norm);
  read_offload(reader, notes, config.offload_optimizer);
}

void add_averaging(const EngineConfig& config, SettingList& list) {
  list.add(kNorm, config.gradient_norm == NormType::Two ? Json(2) : Json("inf"));
  list.add_as_given(kPrescale, false);
  const bool before = config.averaging.kind == AveragingConfig::Kind::BeforeSum;
  list.add_as_given(kPredivide, 1.0,
                    before ? "prescale_gradients divides by all ranks before the sum, as in "
                             "DeepSpeed"
                           : "");
  list.add(kOperation, json_of(config.averaging.kind));
}

void add_offload(const EngineConfig& config, SettingList& list) {
  const OffloadOptimizerConfig& offload = config.offload_optimizer;
  const std::string why = offload.to_cpu ? "" : "it is off";
  list.add(kOffload + "device", offload.to_cpu ? "cpu" : "none");
  list.add_as_given(kOffload + "pin_memory", offload.pin_memory, why);
  list.add_as_given(kOffload + "ratio", 1.0, why);
  if (list.reader().has(kCpuOffload)) list.add_as_given(kCpuOffload, false);
  if (list.reader().has(kPinned)) list.add_as_given(kPinned, true, why);
}

}  // namespace equigrad
