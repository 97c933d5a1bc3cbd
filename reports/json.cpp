#include "reports/json.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <stdexcept>

#include "reports/json_text.hpp"
#include "reports/summary.hpp"

namespace equigrad::reports {

template <>
inline constexpr auto kFields<Lane> = std::tuple(Field{"name", &Lane::name},
                                                 Field{"verdict", &Lane::verdict},
                                                 Field{"compared", &Lane::compared},
                                                 Field{"differing", &Lane::differing},
                                                 Field{"margin", &Lane::margin},
                                                 Field{"worst", &Lane::worst, true});

template <>
inline constexpr auto kFields<Sample> = std::tuple(Field{"index", &Sample::index},
                                                   Field{"got", &Sample::got},
                                                   Field{"want", &Sample::want});

template <>
inline constexpr auto kFields<Slice> = std::tuple(Field{"rank", &Slice::rank},
                                                  Field{"begin", &Slice::begin},
                                                  Field{"end", &Slice::end},
                                                  Field{"wrong", &Slice::wrong});

template <>
inline constexpr auto kFields<GradientSteps> = std::tuple(Field{"name", &GradientSteps::name},
                                                          Field{"wrong_ranks",
                                                                &GradientSteps::wrong_ranks});

template <>
inline constexpr auto kFields<Picture> = std::tuple(
    Field{"tensor", &Picture::tensor}, Field{"what", &Picture::what}, Field{"step", &Picture::step},
    Field{"rank", &Picture::rank}, Field{"numel", &Picture::numel},
    Field{"samples", &Picture::samples}, Field{"ulps", &Picture::ulps},
    Field{"slices", &Picture::slices}, Field{"gradients", &Picture::gradients});

template <>
inline constexpr auto kFields<Case> =
    std::tuple(Field{"id", &Case::id}, Field{"dimensions", &Case::dimensions},
               Field{"verdict", &Case::verdict}, Field{"lanes", &Case::lanes},
               Field{"message", &Case::message}, Field{"replay", &Case::replay},
               Field{"seconds", &Case::seconds}, Field{"files", &Case::files},
               Field{"picture", &Case::picture, true}, Field{"acted", &Case::acted, true});

template <>
inline constexpr auto kFields<SelfCheck> = std::tuple(Field{"fault", &SelfCheck::fault},
                                                      Field{"what", &SelfCheck::what},
                                                      Field{"caught", &SelfCheck::caught},
                                                      Field{"by", &SelfCheck::by});

template <>
inline constexpr auto kFields<Part> = std::tuple(Field{"name", &Part::name},
                                                 Field{"cases", &Part::cases},
                                                 Field{"wall_s", &Part::wall_s});

template <>
inline constexpr auto kFields<MemoryRow> = std::tuple(Field{"stage", &MemoryRow::stage},
                                                      Field{"precision", &MemoryRow::precision},
                                                      Field{"ranks", &MemoryRow::ranks},
                                                      Field{"category", &MemoryRow::category},
                                                      Field{"bytes", &MemoryRow::bytes},
                                                      Field{"peak_bytes", &MemoryRow::peak_bytes},
                                                      Field{"model", &MemoryRow::model, true});

template <>
inline constexpr auto kFields<UnderflowRow> = std::tuple(
    Field{"precision", &UnderflowRow::precision}, Field{"model", &UnderflowRow::model},
    Field{"scale", &UnderflowRow::scale}, Field{"numel", &UnderflowRow::numel},
    Field{"zero", &UnderflowRow::zero}, Field{"subnormal", &UnderflowRow::subnormal},
    Field{"overflow", &UnderflowRow::overflow}, Field{"lossless", &UnderflowRow::lossless});

template <>
inline constexpr auto kFields<GeneratedAxis> = std::tuple(Field{"name", &GeneratedAxis::name},
                                                          Field{"cases", &GeneratedAxis::cases},
                                                          Field{"never", &GeneratedAxis::never});

template <>
inline constexpr auto kFields<GeneratedCases> = std::tuple(
    Field{"seed", &GeneratedCases::seed}, Field{"cases", &GeneratedCases::cases},
    Field{"failed", &GeneratedCases::failed}, Field{"workloads", &GeneratedCases::workloads},
    Field{"replaced", &GeneratedCases::replaced}, Field{"compared", &GeneratedCases::compared},
    Field{"pairs", &GeneratedCases::pairs}, Field{"wall_s", &GeneratedCases::wall_s},
    Field{"axes", &GeneratedCases::axes});

template <>
inline constexpr auto kFields<Statement> = std::tuple(Field{"section", &Statement::section},
                                                      Field{"name", &Statement::name},
                                                      Field{"sentence", &Statement::sentence},
                                                      Field{"answers", &Statement::answers});

template <>
inline constexpr auto kFields<Run> = std::tuple(
    Field{"environment", &Run::environment}, Field{"seed", &Run::seed},
    Field{"command", &Run::command}, Field{"interrupted", &Run::interrupted},
    Field{"wall_s", &Run::wall_s}, Field{"self_checks", &Run::self_checks},
    Field{"not_run", &Run::not_run}, Field{"memory", &Run::memory}, Field{"cases", &Run::cases},
    Field{"failure", &Run::failure, true}, Field{"engine_failure", &Run::engine_failure, true},
    Field{"merged_commands", &Run::merged_commands, true}, Field{"signal", &Run::signal, true},
    Field{"shard", &Run::shard, true}, Field{"underflow", &Run::underflow, true},
    Field{"parts", &Run::parts, true}, Field{"statements", &Run::statements, true},
    Field{"generated", &Run::generated, true}, Field{"planted", &Run::planted, true});

void to_json(Json& json, Verdict verdict) { json = word(verdict); }

void from_json(const Json& json, Verdict& read) {
  const auto text = json.get<std::string>();
  for (const Verdict verdict : kVerdicts) {
    if (word(verdict) != text) continue;
    read = verdict;
    return;
  }
  throw std::runtime_error("expected a verdict, got \"" + text + "\"");
}

namespace {

std::string bits_of(double value) {
  std::array<char, 24> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "0x%016llx",
                static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
  return buffer.data();
}

double read_bits(const Json& json) {
  const auto text = json.get<std::string>();
  uint64_t bits = 0;
  const char* const end = text.data() + text.size();
  if (text.size() != 18 || !text.starts_with("0x") ||
      std::from_chars(text.data() + 2, end, bits, 16).ptr != end) {
    throw std::runtime_error("expected 0x and 16 hex digits, got \"" + text + "\"");
  }
  return std::bit_cast<double>(bits);
}

}  // namespace

void to_json(Json& json, const Worst& worst) {
  json = {{"tensor", worst.tensor}, {"index", worst.index},
          {"got", worst.got},       {"got_bits", bits_of(worst.got)},
          {"want", worst.want},     {"want_bits", bits_of(worst.want)},
          {"bound", worst.bound},   {"ulp", worst.ulp}};
}

void from_json(const Json& json, Worst& worst) {
  worst = {.tensor = json.at("tensor"),
           .got = read_bits(json.at("got_bits")),
           .want = read_bits(json.at("want_bits"))};
  read(json.at("index"), worst.index);
  read(json.at("bound"), worst.bound);
  read(json.at("ulp"), worst.ulp);
}

namespace {
Json verdict_of(const Run& run) {
  const Counts sum = counts(run);
  return {
      {"outcome", word(outcome(run))}, {"exit_code", exit_code(run)}, {"equal", sum.equal},
      {"within", sum.within},          {"failed", sum.failed},        {"skipped", sum.skipped},
      {"crashed", sum.crashed},        {"timed_out", sum.timed_out},  {"not_run", sum.not_run},
      {"vacuous", sum.vacuous},        {"compared", sum.compared},    {"differing", sum.differing}};
}

// How many of a statement's cases held at each stage.
Json stages_of(const ContractRow& row) {
  Json stages = Json::object();
  for (const auto& [stage, sum] : row.stages)
    stages[stage] = {{"held", sum.held()}, {"executed", sum.executed()}};
  return stages;
}

// Copies of what is nested deeper need more stack than there may be; the parser makes some.
Json parse_shallow(const std::string& text) {
  constexpr int kMostLevels = 32;
  return Json::parse(text, [](int depth, Json::parse_event_t event, const Json&) {
    using Event = Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMostLevels) {
      throw std::runtime_error("expected JSON of at most " + std::to_string(kMostLevels) +
                               " levels, got more");
    }
    return true;
  });
}

// Whoever counts adds them.
void check_sums(const Run& run) {
  constexpr int64_t kLargest = int64_t{1} << 62;
  int64_t left = kLargest;
  const auto take = [&](int64_t count) {
    if (count > left) {
      throw std::runtime_error("expected counts whose sum is at most " + std::to_string(kLargest) +
                               ", got more");
    }
    left -= count;
  };
  for (const Case& one : run.cases)
    for (const Lane& lane : one.lanes) {
      take(lane.compared);
      take(lane.differing);
    }
  for (const auto& [reason, count] : run.not_run) take(count);
  if (!run.generated) return;
  take(run.generated->cases);
  take(run.generated->failed);
  take(run.generated->compared);
}

Run read_run(Json json) {
  Run run;
  int version = 0;
  read(json.at("schema_version"), version);
  if (version != run.schema_version) {
    throw std::runtime_error("expected schema_version " + std::to_string(run.schema_version) +
                             ", got " + std::to_string(version) +
                             ". Read it with the equigrad that wrote it.");
  }
  const auto seed = json.at("seed").get<std::string>();
  json["seed"] = std::stoull(seed);
  json.get_to(run);
  if (std::to_string(run.seed) != seed) {
    throw std::runtime_error("expected a decimal seed, got \"" + seed + "\"");
  }
  if (run.signal != 0 && run.signal != SIGINT && run.signal != SIGTERM) {
    throw std::runtime_error("expected signal 2 or 15, got " + std::to_string(run.signal));
  }
  check_sums(run);
  return run;
}

}  // namespace

std::string to_json(const Run& run) {
  Json out = {{"schema_version", run.schema_version}, {"verdict", verdict_of(run)}};
  add_fields(out, run);
  out["seed"] = std::to_string(run.seed);
  const std::vector<ContractRow> rows = contract_rows(run);
  for (size_t i = 0; i < rows.size(); ++i) out["statements"][i]["stages"] = stages_of(rows[i]);
  return indented_lines(std::move(out));
}

Run from_json(const std::string& text) {
  try {
    return read_run(parse_shallow(text));
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("[reports.json] expected a run.json, got: ") +
                             error.what() + ". Write it again with `equigrad run --json FILE`.");
  }
}

}  // namespace equigrad::reports
