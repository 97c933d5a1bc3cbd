#include "reports/json.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "reports/contract.hpp"
#include "reports/json_text.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::array kVerdicts = {Verdict::Equal,   Verdict::Within,  Verdict::Failed,
                                  Verdict::Skipped, Verdict::Crashed, Verdict::TimedOut,
                                  Verdict::NotRun};

std::string bits_of(double value) {
  std::array<char, 24> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "0x%016llx",
                static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
  return buffer.data();
}

Json write(const Lane& lane) {
  Json out = {{"name", lane.name},
              {"verdict", word(lane.verdict)},
              {"compared", lane.compared},
              {"differing", lane.differing},
              {"margin", number(lane.margin)}};
  if (lane.worst) {
    const Worst& worst = *lane.worst;
    out["worst"] = {{"tensor", worst.tensor},       {"index", worst.index},
                    {"got", number(worst.got)},     {"got_bits", bits_of(worst.got)},
                    {"want", number(worst.want)},   {"want_bits", bits_of(worst.want)},
                    {"bound", number(worst.bound)}, {"ulp", number(worst.ulp)}};
  }
  return out;
}

Json write(const Case& one) {
  Json lanes = Json::array();
  for (const Lane& lane : one.lanes) lanes.push_back(write(lane));
  return {{"id", one.id},
          {"dimensions", one.dimensions},
          {"verdict", word(one.verdict)},
          {"lanes", lanes},
          {"message", one.message},
          {"replay", one.replay},
          {"seconds", number(one.seconds)},
          {"files", one.files}};
}

Json write(const SelfCheck& check) {
  return {{"fault", check.fault}, {"what", check.what}, {"caught", check.caught}, {"by", check.by}};
}

Json write(const MemoryRow& row) {
  return {{"stage", row.stage},       {"precision", row.precision}, {"ranks", row.ranks},
          {"category", row.category}, {"bytes", row.bytes},         {"peak_bytes", row.peak_bytes}};
}

Json write(const UnderflowRow& row) {
  return {{"precision", row.precision}, {"model", row.model},
          {"scale", number(row.scale)}, {"numel", row.numel},
          {"zero", row.zero},           {"subnormal", row.subnormal},
          {"overflow", row.overflow},   {"lossless", number(row.lossless)}};
}

Json verdict_of(const Run& run) {
  const Counts sum = counts(run);
  return {
      {"outcome", word(outcome(run))}, {"exit_code", exit_code(run)}, {"equal", sum.equal},
      {"within", sum.within},          {"failed", sum.failed},        {"skipped", sum.skipped},
      {"crashed", sum.crashed},        {"timed_out", sum.timed_out},  {"not_run", sum.not_run},
      {"vacuous", sum.vacuous},        {"compared", sum.compared},    {"differing", sum.differing}};
}

Json write(const ContractRow& row) {
  Json stages = Json::object();
  for (const auto& [stage, sum] : row.stages)
    stages[stage] = {{"held", sum.held()}, {"executed", sum.executed()}};
  const Statement& of = *row.statement;
  return {{"section", of.section},
          {"name", of.name},
          {"sentence", of.sentence},
          {"answers", of.answers},
          {"stages", stages}};
}

template <typename Item>
Json write_all(const std::vector<Item>& items) {
  Json out = Json::array();
  for (const Item& item : items) out.push_back(write(item));
  return out;
}

double read_number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const auto text = json.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error("expected a number, \"nan\", \"inf\" or \"-inf\", got \"" + text + "\"");
}

double read_bits(const Json& json) {
  const auto text = json.get<std::string>();
  size_t used = 0;
  const uint64_t bits = std::stoull(text, &used, 16);
  if (used != 18 || text.size() != 18) {
    throw std::runtime_error("expected 0x and 16 hex digits, got \"" + text + "\"");
  }
  return std::bit_cast<double>(bits);
}

Verdict read_verdict(const Json& json) {
  const auto text = json.get<std::string>();
  for (const Verdict verdict : kVerdicts) {
    if (word(verdict) == text) return verdict;
  }
  throw std::runtime_error("expected a verdict, got \"" + text + "\"");
}

Lane read_lane(const Json& json) {
  Lane lane{.name = json.at("name"),
            .verdict = read_verdict(json.at("verdict")),
            .compared = json.at("compared"),
            .differing = json.at("differing"),
            .margin = read_number(json.at("margin")),
            .worst = {}};
  if (json.contains("worst")) {
    const Json& worst = json.at("worst");
    lane.worst = Worst{.tensor = worst.at("tensor"),
                       .index = worst.at("index"),
                       .got = read_bits(worst.at("got_bits")),
                       .want = read_bits(worst.at("want_bits")),
                       .bound = read_number(worst.at("bound")),
                       .ulp = read_number(worst.at("ulp"))};
  }
  return lane;
}

Case read_case(const Json& json) {
  Case one{.id = json.at("id"),
           .dimensions = json.at("dimensions"),
           .verdict = read_verdict(json.at("verdict")),
           .lanes = {},
           .message = json.at("message"),
           .replay = json.at("replay"),
           .seconds = read_number(json.at("seconds")),
           .files = json.at("files")};
  for (const Json& lane : json.at("lanes")) one.lanes.push_back(read_lane(lane));
  return one;
}

Environment read_environment(const Json& json) {
  return {.version = json.at("version"),
          .commit = json.at("commit"),
          .torch = json.at("torch"),
          .compiler = json.at("compiler"),
          .device = json.at("device"),
          .cpu = json.at("cpu"),
          .cores = json.at("cores"),
          .threads_per_rank = json.at("threads_per_rank"),
          .os = json.at("os"),
          .time = json.at("time")};
}

SelfCheck read_self_check(const Json& json) {
  return {.fault = json.at("fault"),
          .what = json.at("what"),
          .caught = json.at("caught"),
          .by = json.at("by")};
}

MemoryRow read_memory(const Json& json) {
  return {.stage = json.at("stage"),
          .precision = json.at("precision"),
          .ranks = json.at("ranks"),
          .category = json.at("category"),
          .bytes = json.at("bytes"),
          .peak_bytes = json.at("peak_bytes")};
}

UnderflowRow read_underflow(const Json& json) {
  return {.precision = json.at("precision"),
          .model = json.at("model"),
          .scale = read_number(json.at("scale")),
          .numel = json.at("numel"),
          .zero = json.at("zero"),
          .subnormal = json.at("subnormal"),
          .overflow = json.at("overflow"),
          .lossless = read_number(json.at("lossless"))};
}

Run read_run(const Json& json) {
  Run run;
  const int version = json.at("schema_version");
  if (version != run.schema_version) {
    throw std::runtime_error("expected schema_version " + std::to_string(run.schema_version) +
                             ", got " + std::to_string(version) +
                             ". Read it with the equigrad that wrote it.");
  }
  run.environment = read_environment(json.at("environment"));
  const auto seed = json.at("seed").get<std::string>();
  run.seed = std::stoull(seed);
  if (std::to_string(run.seed) != seed) {
    throw std::runtime_error("expected a decimal seed, got \"" + seed + "\"");
  }
  run.command = json.at("command");
  for (const Json& check : json.at("self_checks"))
    run.self_checks.push_back(read_self_check(check));
  for (const Json& one : json.at("cases")) run.cases.push_back(read_case(one));
  if (json.contains("statements")) {
    for (const Json& one : json.at("statements"))
      run.statements.push_back(
          {one.at("section"), one.at("name"), one.at("sentence"), one.at("answers")});
  }
  run.not_run = json.at("not_run").get<std::map<std::string, int64_t>>();
  run.failure = json.value("failure", "");
  run.interrupted = json.at("interrupted");
  run.signal = json.value("signal", 0);
  run.wall_s = read_number(json.at("wall_s"));
  for (const Json& row : json.at("memory")) run.memory.push_back(read_memory(row));
  if (json.contains("underflow"))
    for (const Json& row : json.at("underflow")) run.underflow.push_back(read_underflow(row));
  return run;
}

}  // namespace

std::string to_json(const Run& run) {
  Json out = {{"schema_version", run.schema_version},
              {"verdict", verdict_of(run)},
              {"environment", write(run.environment)},
              {"seed", std::to_string(run.seed)},
              {"command", run.command},
              {"interrupted", run.interrupted},
              {"wall_s", number(run.wall_s)},
              {"self_checks", write_all(run.self_checks)},
              {"not_run", Json(run.not_run)},
              {"memory", write_all(run.memory)},
              {"cases", write_all(run.cases)}};
  if (!run.failure.empty()) out["failure"] = run.failure;
  if (run.signal != 0) out["signal"] = run.signal;
  if (!run.underflow.empty()) out["underflow"] = write_all(run.underflow);
  if (!run.statements.empty()) out["statements"] = write_all(contract_rows(run));
  // Bytes that are not UTF-8 become U+FFFD; the default would throw and lose the whole report.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Run from_json(const std::string& text) {
  try {
    return read_run(Json::parse(text));
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("[reports.json] expected a run.json, got: ") +
                             error.what() + ". Write it again with `equigrad run --json FILE`.");
  }
}

}  // namespace equigrad::reports
