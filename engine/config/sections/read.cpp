#include <algorithm>
#include <cctype>
#include <optional>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

const std::string kTrain = "train_batch_size";
const std::string kMicro = "train_micro_batch_size_per_gpu";
const std::string kAccumulation = "gradient_accumulation_steps";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string product_text(std::int64_t a, std::int64_t b) {
  return std::to_string(a) + " x " + std::to_string(b);
}

// Reads one file into `config`, noting problems in `reader` and derivations in `notes`.
struct Parse {
  ConfigReader& reader;
  EngineConfig& config;
  Notes& notes;
  int world_size;

  void batch();
  void optimizer();
  void adam(const std::string& type);
  void sgd();
  void refuse_params(const std::vector<std::string>& keys, const std::string& type);
  void zero();
  void own_keys();

  std::optional<std::int64_t> positive(const std::string& path);
  std::optional<std::int64_t> quotient(std::int64_t a, std::int64_t b, const std::string& terms);
};

// Nothing if absent or wrong.
std::optional<std::int64_t> Parse::positive(const std::string& path) {
  if (!reader.has(path)) return std::nullopt;
  const std::int64_t value = reader.integer(path, 1);
  if (reader.is_bad(path)) return std::nullopt;
  if (value >= 1) return value;
  reader.problem(path, "expected at least 1, got " + std::to_string(value) +
                           ". Give a positive whole number.");
  return std::nullopt;
}

std::optional<std::int64_t> Parse::quotient(std::int64_t a, std::int64_t b,
                                            const std::string& terms) {
  if (a % b == 0) return a / b;
  reader.problem(kTrain, "expected a multiple of " + terms + " = " + std::to_string(b) + ", got " +
                             std::to_string(a) + ". Change one of the keys, or drop one.");
  return std::nullopt;
}

void Parse::batch() {
  const auto train = positive(kTrain);
  const auto micro = positive(kMicro);
  const auto accumulation = positive(kAccumulation);
  const std::int64_t world = world_size;
  config.train_batch_size = world;  // consistent, in case a problem ends this early
  if (reader.is_bad(kTrain) || reader.is_bad(kMicro) || reader.is_bad(kAccumulation)) return;
  if (!train && !micro) {
    reader.problem(kTrain, "expected it or " + kMicro + ", got neither. Give any two of " + kTrain +
                               ", " + kMicro + " and " + kAccumulation + ".");
    return;
  }
  // Absent ones count as 1 until they are derived.
  std::int64_t m = micro.value_or(1);
  std::int64_t k = accumulation.value_or(1);
  std::int64_t known = 0;
  if (!multiply(m, k, world, known)) {
    reader.problem(kTrain, "expected micro x accumulation x world to fit in 64 bits, got " +
                               std::to_string(m) + " x " + std::to_string(k) + " x " +
                               std::to_string(world) + ". Lower them.");
    return;
  }
  if (train && micro && !accumulation) {
    k = quotient(*train, known, "micro x world = " + product_text(m, world)).value_or(0);
    notes[kAccumulation] = "train / (micro x world)";
  } else if (train && !micro) {
    m = quotient(*train, known, "accumulation x world = " + product_text(k, world)).value_or(0);
    notes[kMicro] = "train / (accumulation x world)";
  } else if (!train) {
    notes[kTrain] = "micro x accumulation x world";
  }
  if (reader.is_bad(kTrain)) return;
  config.train_micro_batch_size_per_gpu = m;
  config.gradient_accumulation_steps = k;
  config.train_batch_size = train.value_or(known);
}

void Parse::refuse_params(const std::vector<std::string>& keys, const std::string& type) {
  for (const std::string& key : keys) {
    const std::string path = "optimizer.params." + key;
    if (reader.has(path))
      reader.problem(path, "expected a parameter of " + type + ", got \"" + key +
                               "\", which it does not have. Drop the key.");
  }
}

void Parse::adam(const std::string& type) {
  OptimizerConfig& optimizer = config.optimizer;
  const std::string params = "optimizer.params.";
  const bool decoupled = reader.boolean(params + "adam_w_mode", true);
  if (type == "adamw" && !decoupled)
    reader.problem(params + "adam_w_mode",
                   "expected true for AdamW, got false. Write \"type\": \"Adam\" for L2 decay.");
  optimizer.kind = decoupled ? OptimizerConfig::Kind::AdamW : OptimizerConfig::Kind::Adam;
  if (type == "adam" && decoupled)
    notes["optimizer.type"] = "\"Adam\" is AdamW here, as in DeepSpeed";
  // DeepSpeed hands torch_adam to torch's classes, whose AdamW decays by default.
  const bool torch_adam = reader.boolean(params + "torch_adam", false);
  if (torch_adam && decoupled && !reader.has(params + "weight_decay")) {
    optimizer.weight_decay = 1e-2;
    notes[params + "weight_decay"] = "torch_adam: the default of torch's AdamW";
  }
  optimizer.eps = reader.number(params + "eps", optimizer.eps);
  if (reader.has(params + "betas")) {
    const Json& betas = *reader.find(params + "betas");
    if (betas.is_array() && betas.size() == 2 && betas[0].is_number() && betas[1].is_number()) {
      optimizer.beta1 = betas[0].get<double>();
      optimizer.beta2 = betas[1].get<double>();
    } else {
      reader.problem(params + "betas",
                     "expected two numbers, got " + shown(betas) + ". Write [0.9, 0.999].");
    }
  }
  refuse_params({"momentum", "dampening", "nesterov"}, type == "adam" ? "Adam" : "AdamW");
}

void Parse::sgd() {
  OptimizerConfig& optimizer = config.optimizer;
  const std::string params = "optimizer.params.";
  optimizer.kind = OptimizerConfig::Kind::Sgd;
  optimizer.momentum = reader.number(params + "momentum", optimizer.momentum);
  optimizer.dampening = reader.number(params + "dampening", optimizer.dampening);
  optimizer.nesterov = reader.boolean(params + "nesterov", optimizer.nesterov);
  refuse_params({"betas", "eps", "adam_w_mode", "torch_adam"}, "SGD");
}

void Parse::optimizer() {
  if (!reader.has("optimizer.type")) {
    if (!reader.is_bad("optimizer") && !reader.is_bad("optimizer.type"))
      reader.problem("optimizer.type",
                     "expected SGD, Adam or AdamW, got no optimizer. Add \"optimizer\": {\"type\": "
                     "\"AdamW\", \"params\": {\"lr\": 1e-3}}.");
    return;
  }
  const std::string written = reader.text("optimizer.type", "AdamW");
  const std::string type = lower(written);
  if (type == "adam" || type == "adamw") {
    adam(type);
  } else if (type == "sgd") {
    sgd();
  } else {
    const std::vector<std::string> others{"adagrad",    "lamb",       "lion",        "muon",
                                          "onebitadam", "onebitlamb", "zerooneadam", "muadam",
                                          "muadamw",    "musgd"};
    const bool known = std::find(others.begin(), others.end(), type) != others.end();
    reader.problem("optimizer.type",
                   "expected SGD, Adam or AdamW, got \"" + written + "\"" +
                       (known ? ", which is not supported by this version. Choose one of the three."
                              : "." + did_you_mean(type, {"sgd", "adam", "adamw"})));
    return;
  }
  OptimizerConfig& optimizer = config.optimizer;
  optimizer.lr = reader.number("optimizer.params.lr", optimizer.lr);
  optimizer.weight_decay = reader.number("optimizer.params.weight_decay", optimizer.weight_decay);
}

void Parse::zero() {
  const std::string section = "zero_optimization.";
  const std::int64_t stage = reader.integer(section + "stage", 0);
  if (stage < 0 || stage > 3)
    reader.problem(section + "stage", "expected 0, 1, 2 or 3, got " + std::to_string(stage) +
                                          ". Use 0 for plain data parallelism.");
  else
    config.zero.stage = static_cast<int>(stage);
  const auto read = [&](const char* key, std::int64_t& value) {
    value = reader.integer(section + key, value);
  };
  config.zero.overlap_comm = reader.boolean(section + "overlap_comm", config.zero.overlap_comm);
  read("reduce_bucket_size", config.zero.reduce_bucket_size);
  read("allgather_bucket_size", config.zero.allgather_bucket_size);
  read("stage3_prefetch_bucket_size", config.zero.stage3_prefetch_bucket_size);
  read("stage3_param_persistence_threshold", config.zero.stage3_param_persistence_threshold);
  read("stage3_max_live_parameters", config.zero.stage3_max_live_parameters);
  read("stage3_max_reuse_distance", config.zero.stage3_max_reuse_distance);
}

void Parse::own_keys() {
  config.gradient_clipping = reader.number("gradient_clipping", 0.0);
  config.communication_timeout_s =
      reader.number("communication_timeout_s", config.communication_timeout_s);
  const std::string order = reader.text("reduction", "pinned");
  if (order == "native")
    config.reduction = ReductionOrder::Native;
  else if (order == "exact")
    config.reduction = ReductionOrder::Exact;
  else if (order != "pinned")
    reader.problem("reduction", "expected \"pinned\", \"native\" or \"exact\", got \"" + order +
                                    "\"." + did_you_mean(order, {"pinned", "native", "exact"}));
}

}  // namespace

EngineConfig read_config(ConfigReader& reader, Notes& notes, int world_size) {
  EngineConfig config;
  Parse parse{reader, config, notes, world_size};
  parse.batch();
  parse.optimizer();
  parse.zero();
  parse.own_keys();
  read_zero_sections(reader, config);
  read_precision(reader, notes, config);
  read_averaging(reader, notes, config);
  read_features(reader, notes, config);
  return config;
}

}  // namespace equigrad
