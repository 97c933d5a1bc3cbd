// The batch: any two of three sizes give the third.
#include <optional>

#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kManaged = "managed_gradient_accumulation";
constexpr Values kSize{.type = ValueType::Whole,
                       .least = 1,
                       .is_derived = true,
                       .remedy = "Give a positive whole number."};

constexpr Row kRows[] = {
    key(kTrain, kSize, field<&EngineConfig::train_batch_size>,
        "Samples of one optimizer step, over all data ranks and micro-batches.",
        "Derived from the other two where it is absent; one of the two batch sizes must be given."),
    key(kMicro, kSize, field<&EngineConfig::train_micro_batch_size_per_gpu>,
        "Samples of one forward and backward pass on one rank.",
        "Derived from the other two where it is absent."),
    key(kAccumulation, kSize, field<&EngineConfig::gradient_accumulation_steps>,
        "Passes whose gradients are added up before a step.",
        "Derived from the other two where it is absent; 1 if one of them is, too."),
    key(kManaged, boolean(), field<&EngineConfig::managed_gradient_accumulation>,
        "Whether the engine, and not the caller, counts the passes of a step.",
        "Where it is false every step() acts, unless set_gradient_accumulation_boundary says no; "
        "overlap_comm is accepted at every stage, and changes nothing at 0 and 1."),
};

bool multiply(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_mul_overflow(product, c, &product);
}

std::string product_text(std::int64_t a, std::int64_t b) {
  return std::to_string(a) + " x " + std::to_string(b);
}

// What the batch is spread over: every rank, or those of other samples.
std::string word_of_ranks(const EngineConfig& config) {
  return config.tensor_parallel_size() > 1 || config.sequence_parallel_size > 1 ? "data ranks"
                                                                                : "world";
}

// Nothing if absent or wrong.
std::optional<std::int64_t> size_at(const char* path, Reading& reading) {
  const std::int64_t value = reading.take(path);
  if (!reading.has(path)) return std::nullopt;
  const std::vector<std::string> problems = range_problems(kSize, value);
  for (const std::string& problem : problems) reading.reader.problem(path, problem);
  return problems.empty() ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> quotient(std::int64_t a, std::int64_t b, const std::string& terms,
                                     Reading& reading) {
  if (a % b == 0) return a / b;
  reading.reader.problem(kTrain, "expected a multiple of " + terms + " = " + std::to_string(b) +
                                     ", got " + std::to_string(a) +
                                     ". Change one of the keys, or drop one.");
  return std::nullopt;
}

void read(Reading& reading) {
  ConfigReader& reader = reading.reader;
  const auto train = size_at(kTrain, reading);
  const auto micro = size_at(kMicro, reading);
  const auto accumulation = size_at(kAccumulation, reading);
  reading.store(kManaged);
  read_group_sizes(reading);
  // Of a world that is a problem of its own, any number will do.
  const bool divides = divides_world(reading.config, reading.world_size);
  const std::int64_t world = divides ? reading.config.data_parallel_size(reading.world_size) : 1;
  const std::string ranks = word_of_ranks(reading.config);
  reading.config.train_batch_size = world;  // consistent, in case a problem ends this early
  if (!divides) return;
  if (reader.is_bad(kTrain) || reader.is_bad(kMicro) || reader.is_bad(kAccumulation)) return;
  if (!train && !micro)
    return reader.problem(kTrain, std::string("expected it or ") + kMicro +
                                      ", got neither. Add \"" + kMicro +
                                      "\": 4, say; the others follow from it.");
  // Absent ones count as 1 until they are derived.
  std::int64_t m = micro.value_or(1);
  std::int64_t k = accumulation.value_or(1);
  std::int64_t known = 0;
  if (!multiply(m, k, world, known))
    return reader.problem(kTrain, "expected micro x accumulation x " + ranks +
                                      " to fit in 64 bits, got " + product_text(m, k) + " x " +
                                      std::to_string(world) + ". Lower them.");
  if (train && micro && !accumulation) {
    k = quotient(*train, known, "micro x " + ranks + " = " + product_text(m, world), reading)
            .value_or(0);
    reading.note(kAccumulation).derived = "train / (micro x " + ranks + ")";
  } else if (train && !micro) {
    m = quotient(*train, known, "accumulation x " + ranks + " = " + product_text(k, world), reading)
            .value_or(0);
    reading.note(kMicro).derived = "train / (accumulation x " + ranks + ")";
  } else if (!train) {
    reading.note(kTrain).derived = "micro x accumulation x " + ranks;
  }
  if (reader.is_bad(kTrain)) return;
  reading.config.train_micro_batch_size_per_gpu = m;
  reading.config.gradient_accumulation_steps = k;
  reading.config.train_batch_size = train.value_or(known);
}

// The number of ranks with which the three keys agree; empty: there is none.
std::string ranks_that_fit(const EngineConfig& config, int world_size) {
  std::int64_t product = 0, world = 0;
  const std::int64_t of_data = config.data_parallel_size(world_size);
  if (of_data < 1 || !multiply(config.train_micro_batch_size_per_gpu,
                               config.gradient_accumulation_steps, 1, product))
    return "";
  const std::int64_t data = product > 0 ? config.train_batch_size / product : 0;
  if (data < 1 || config.train_batch_size % product != 0 ||
      !multiply(data, world_size / of_data, 1, world))
    return "";
  return ", or start " + std::to_string(world) + (world == 1 ? " rank" : " ranks") +
         ", with which they agree";
}

void check(const EngineConfig& config, Checks& checks) {
  const std::int64_t micro = config.train_micro_batch_size_per_gpu;
  const std::int64_t accumulation = config.gradient_accumulation_steps;
  if (!divides_world(config, checks.world_size)) return;
  const std::int64_t ranks = config.data_parallel_size(checks.world_size);
  std::int64_t product = 0;
  const bool fits = multiply(micro, accumulation, ranks, product);
  if (fits && product == config.train_batch_size) return;
  checks.problem(kTrain, "expected micro x accumulation x " + word_of_ranks(config) + " = " +
                             product_text(micro, accumulation) + " x " + std::to_string(ranks) +
                             " = " + (fits ? std::to_string(product) : "more than 64 bits hold") +
                             ", got " + std::to_string(config.train_batch_size) +
                             ". Drop one of the three keys to have it derived" +
                             ranks_that_fit(config, checks.world_size) + ".");
}

}  // namespace

Section batch_section() { return {kRows, read, check}; }

}  // namespace equigrad
