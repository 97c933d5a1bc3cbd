// 15. What an engine says of itself: how a profile is written.

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/profile/flops_report.hpp"

namespace equigrad::conformance::contract {
namespace profile_reports {
namespace {

using profile::FlopsReport;
using profile::ProfiledRun;
using profile::Tally;

// A model of two blocks of one type, one of another, and a layer inside.
FlopsReport known_report() {
  FlopsReport report;
  const Tally none;
  const auto module = [&](std::string name, std::string type, int64_t depth, int64_t params_numel,
                          Tally forward) {
    report.modules.push_back({std::move(name),
                              std::move(type),
                              depth,
                              params_numel,
                              none,
                              none,
                              forward,
                              {3 * forward.flops, 3 * forward.macs, 5}});
  };
  module("", "Model", 0, 3000, {8'000'000, 4'000'000, 6'000'000});
  module("one", "Block", 1, 1000, {2'000'000, 1'000'000, 1'500'000});
  module("one.inner", "Layer", 2, 999, {1'000'000, 500'000, 0});
  module("two", "Block", 1, 500, {2'000'000, 1'000'000, 1'000'000});
  module("last", "Head", 1, 1500, {1'998'000, 999'000, 3'000'000});
  report.modules[1].own_forward = {1'000'000, 500'000, 7};
  report.modules[2].own_backward = {11, 12, 13};
  report.unknown = {{"aten::erfinv", 3}, {"aten::lgamma", 1}};
  report.forward_ns = 8'000'000;
  report.backward_ns = 16'000'000;
  return report;
}

std::string in_row(std::string name, std::string value) {
  name += ":";
  name.resize(std::max<std::size_t>(name.size(), 70), ' ');
  value.resize(std::max<std::size_t>(value.size(), 8), ' ');
  return name + "  " + value + "\n";
}

// (8 + 16 + 976) ms = 1 s; 3 and 4 times 8 M operations.
std::string head_of_table() {
  return "\n-------------------------- Equigrad Flops Profiler --------------------------\n"
         "Profile Summary at step 12:\n"
         "Notations:\n"
         "number of parameters (params), number of multiply-accumulate operations (MACs),\n"
         "number of floating-point operations (flops), floating-point operations per second "
         "(FLOPS),\n"
         "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
         "step (weights update latency), iter latency (sum of fwd, bwd and step latency)\n\n" +
         in_row("world size", "3") + in_row("data parallel size", "3") +
         in_row("batch size per GPU", "7") + in_row("params per GPU", "3 K") +
         in_row("fwd MACs per GPU", "4 MMACs") + in_row("fwd flops per GPU", "8 M") +
         in_row("bwd MACs per GPU, counted", "12 MMACs") +
         in_row("bwd flops per GPU, counted", "24 M") + in_row("fwd latency", "8 ms") +
         in_row("fwd FLOPS per GPU = fwd flops per GPU / fwd latency", "1 GFLOPS") +
         in_row("bwd latency", "16 ms") +
         in_row("bwd FLOPS per GPU = 2.5 * fwd flops per GPU / bwd latency", "1.25 GFLOPS") +
         in_row("fwd+bwd FLOPS per GPU = 3.5 * fwd flops per GPU / (fwd+bwd latency)",
                "1.17 GFLOPS") +
         in_row("step latency", "976 ms") + in_row("iter latency", "1 s") +
         in_row("FLOPS per GPU = 3.5 * fwd flops per GPU / iter latency", "28 MFLOPS") +
         in_row("samples/second", "21") +
         "\nOperators without a formula, counted as 0 flops:\n"
         "    aten::erfinv - 3 calls\n    aten::lgamma - 1 calls\n";
}

const std::string kDepth0 =
    "depth 0:\n"
    "    params      - {'Model': '3 K'}\n"
    "    MACs        - {'Model': '4 MMACs'}\n"
    "    fwd latency - {'Model': '6 ms'}\n";
// Two blocks have as many elements as the head: then it is by name.
const std::string kDepth1 =
    "depth 1:\n"
    "    params      - {'Block': '1.5 K', 'Head': '1.5 K'}\n"
    "    MACs        - {'Block': '2 MMACs', 'Head': '999 KMACs'}\n"
    "    fwd latency - {'Head': '3 ms', 'Block': '2.5 ms'}\n";
const std::string kDepth2 =
    "depth 2:\n"
    "    params      - {'Layer': '999'}\n"
    "    MACs        - {'Layer': '500 KMACs'}\n"
    "    fwd latency - {'Layer': '0 s'}\n";
const std::string kRule =
    "------------------------------------------------------------------------------\n";

std::string middle_of_table(const std::string& top) {
  return "\n----------------------------- Aggregated Profile per GPU ----------------------------\n"
         "Top " +
         top + " modules in terms of params, MACs or fwd latency at different model depths:\n";
}

std::string details_of_table() {
  return "\n------------------------------ Detailed Profile per GPU -----------------------------\n"
         "Each module profile is listed after its name in the following order:\n"
         "params, percentage of total params, MACs, percentage of total MACs, fwd latency, "
         "percentage of total fwd latency, fwd FLOPS\n"
         "A module's numbers include its submodules'. What a module computes itself, without a "
         "submodule, makes up the difference.\n\n"
         "Model: 3 K = 100% Params, 4 MMACs = 100% MACs, 6 ms = 100% latency, 1.33 GFLOPS\n"
         "  (one): Block: 1 K = 33.33% Params, 1 MMACs = 25% MACs, 1.5 ms = 25% latency, 1.33 "
         "GFLOPS\n"
         "    (inner): Layer: 999 = 33.3% Params, 500 KMACs = 12.5% MACs, 0 s = 0% latency, 0 "
         "FLOPS\n"
         "  (two): Block: 500 = 16.67% Params, 1 MMACs = 25% MACs, 1 ms = 16.67% latency, 2 "
         "GFLOPS\n"
         "  (last): Head: 1.5 K = 50% Params, 999 KMACs = 24.98% MACs, 3 ms = 50% latency, 666 "
         "MFLOPS\n";
}

constexpr ProfiledRun kRun{
    .step = 12, .world_size = 3, .micro_batch_size = 7, .step_ns = 976'000'000};

// The first line that differs, on both sides.
void check_text(Play& play, const std::string& what, const std::string& got,
                const std::string& want) {
  const auto differs = static_cast<std::size_t>(
      std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin());
  const auto begin = differs == 0 ? 0 : got.rfind('\n', differs - 1) + 1;
  const auto line = [&](const std::string& text) {
    return begin < text.size() ? text.substr(begin, text.find('\n', begin) - begin) : "no more";
  };
  play.check(
      got == want ? what : what + " says \"" + line(got) + "\", expected \"" + line(want) + "\"",
      got == want);
}

void check_tables(Play& play) {
  auto report = known_report();
  FlopsProfilerConfig config;
  config.recompute_fwd_factor = 0.5;
  config.top_modules = play.fault() ? 1 : 2;
  check_text(play, "the table", profile::table(report, kRun, config),
             head_of_table() + middle_of_table("2") + kDepth0 + kDepth1 + kDepth2 +
                 details_of_table() + kRule);
  config.detailed = false;
  config.top_modules = 2;
  for (const auto& [depth, text] :
       std::vector<std::pair<int64_t, std::string>>{{0, kDepth0},
                                                    {1, kDepth0 + kDepth1},
                                                    {2, kDepth0 + kDepth1 + kDepth2},
                                                    {9, kDepth0 + kDepth1 + kDepth2}}) {
    config.module_depth = depth;
    check_text(play, "the table of depth " + std::to_string(depth),
               profile::table(report, kRun, config),
               head_of_table() + middle_of_table("2") + text + kRule);
  }
  config.module_depth = 1;
  const std::string nobody = "    params      - {}\n    MACs        - {}\n    fwd latency - {}\n";
  for (const auto& [top, first, second] : std::vector<std::array<std::string, 3>>{
           {"0", nobody, nobody},
           {"-1", nobody, nobody},
           {"1", kDepth0.substr(kDepth0.find('\n') + 1),
            "    params      - {'Block': '1.5 K'}\n    MACs        - {'Block': '2 MMACs'}\n"
            "    fwd latency - {'Head': '3 ms'}\n"}}) {
    config.top_modules = std::stoll(top);
    check_text(play, "the table of the first " + top, profile::table(report, kRun, config),
               head_of_table() + middle_of_table(top) + "depth 0:\n" + first + "depth 1:\n" +
                   second + kRule);
  }
}

// What stands in the row of that name.
std::string value_of(const std::string& text, const std::string& name) {
  const auto at = text.find("\n" + name + ":");
  if (at == std::string::npos) return "no row";
  const auto begin = std::max(at + 1 + 72, at + 1 + name.size() + 3);
  auto value = text.substr(begin, text.find('\n', at + 1) - begin);
  while (!value.empty() && value.back() == ' ') value.pop_back();
  return value;
}

void check_units(Play& play) {
  const std::vector<std::array<std::string, 4>> all = {
      // number, as params, as MACs, as a time in ns
      {"0", "0", "0 MACs", "0 s"},
      {"1", "1", "1 MACs", "0 us"},
      {"10", "10", "10 MACs", "0.01 us"},
      {"999", "999", "999 MACs", "1 us"},
      {"1000", "1 K", "1 KMACs", "1 us"},
      {"1234", "1.23 K", "1.23 KMACs", "1.23 us"},
      {"999000", "999 K", "999 KMACs", "999 us"},
      {"999999", "1000 K", "1000 KMACs", "1000 us"},
      {"1000000", "1 M", "1 MMACs", "1 ms"},
      {"2567000", "2.57 M", "2.57 MMACs", "2.57 ms"},
      {"999000000", "999 M", "999 MMACs", "999 ms"},
      {"1000000000", "1 B", "1 GMACs", "1 s"},
      {"12340000000", "12.34 B", "12.34 GMACs", "12.34 s"},
      {"999000000000", "999 B", "999 GMACs", "999 s"},
      {"1000000000000", "1 T", "1 TMACs", "1 Ks"},
      {"7500000000000000", "7500 T", "7500 TMACs", "7.5 Ms"}};
  for (const auto& one : all) {
    const int64_t number = std::stoll(one[0]);
    FlopsReport report;
    report.modules = {{"", "Model", 0, number, {}, {}, {number, number, 0}, {0, number, 0}}};
    report.backward_ns = number;
    const auto text = profile::table(report, {.step_ns = 0}, {});
    const auto is = [&](const std::string& row, const std::string& want) {
      const auto got = value_of(text, row);
      play.check(row + " of " + one[0] + " is \"" + want + "\", got \"" + got + "\"", got == want);
    };
    is("params per GPU", one[1]);
    is("fwd MACs per GPU", one[2]);
    is("bwd MACs per GPU, counted", one[2]);
    is("bwd latency", one[3]);
    is("iter latency", one[3]);
    is("step latency", "0 s");
    is("fwd FLOPS per GPU = fwd flops per GPU / fwd latency", "0 FLOPS");
    is("bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency",
       number == 0 ? "0 FLOPS" : "2 GFLOPS");
    is("FLOPS per GPU = 3 * fwd flops per GPU / iter latency",
       number == 0 ? "0 FLOPS" : "3 GFLOPS");
    is("world size", "1");
    is("batch size per GPU", "1");
    if (number <= 1) is("samples/second", number == 0 ? "0" : "1e+09");
    play.check("a table without unknown operators has no list of them",
               text.find("without a formula") == std::string::npos &&
                   text.find("at step 1:") != std::string::npos);
  }
}

std::string tally_json(const std::string& name, const Tally& tally) {
  const std::string in = "\n        ";
  return ",\n      \"" + name + "\": {" + in + "\"flops\": " + std::to_string(tally.flops) + "," +
         in + "\"macs\": " + std::to_string(tally.macs) + "," + in +
         "\"time_ns\": " + std::to_string(tally.time_ns) + "\n      }";
}

std::string known_json(const FlopsReport& report) {
  std::string text =
      "{\n  \"step\": 12,\n  \"world_size\": 3,\n  \"micro_batch_size\": 7,\n"
      "  \"forward_ns\": 8000000,\n  \"backward_ns\": 16000000,\n  \"step_ns\": 976000000,\n"
      "  \"modules\": [";
  for (const auto& one : report.modules)
    text += (one.name.empty() ? "" : std::string(",")) + "\n    {\n      \"name\": \"" + one.name +
            "\",\n      \"type\": \"" + one.type +
            "\",\n      \"depth\": " + std::to_string(one.depth) +
            ",\n      \"params\": " + std::to_string(one.params_numel) +
            tally_json("own_forward", one.own_forward) +
            tally_json("own_backward", one.own_backward) + tally_json("forward", one.forward) +
            tally_json("backward", one.backward) + "\n    }";
  text += "\n  ],\n  \"unknown_operators\": [";
  for (const auto& one : report.unknown)
    text += (one.name == "aten::erfinv" ? "" : std::string(",")) + "\n    {\n      \"name\": \"" +
            one.name + "\",\n      \"count\": " + std::to_string(one.count) + "\n    }";
  return text + "\n  ]\n}\n";
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void check_files(Play& play) {
  const auto report = known_report();
  const std::string folder = file_beside(play, "reports");
  FlopsProfilerConfig config;
  const auto written = [&](const std::string& name) {
    config.output_file = folder + name;
    profile::write(report, kRun, config);
    return text_of(config.output_file);
  };
  check_text(play, "the JSON", profile::json(report, kRun), known_json(report));
  const auto table = profile::table(report, kRun, config);
  check_text(play, "a JSON file in folders that are new", written("/a/b/profile.json"),
             known_json(report));
  check_text(play, "a text file", written("/profile.txt"), table);
  check_text(play, "a file without an end, which is written again", written("/a/json"), table);
  check_text(play, "the same again", written("/a/json"), table);
  play.refuse("[flops_profiler.output_file] expected a file that can be written, got \"" + folder +
                  "/a/b\". Name another one, or none for standard output.",
              [&] { written("/a/b"); });
  play.refuse("got \"" + folder + "/profile.txt/x.json\"", [&] { written("/profile.txt/x.json"); });
  for (const char* made : {"/a/b/profile.json", "/a/b", "/a/json", "/a", "/profile.txt", ""})
    play.check("what was written can be removed", std::remove((folder + made).c_str()) == 0);
}

void report_row_by_row(Play& play) {
  if (play.group()) {
    check_tables(play);
    check_units(play);
    check_files(play);
  }
  train_along(play);
}

}  // namespace
}  // namespace profile_reports

std::vector<Case> profile_texts() {
  return {case_beside(
      {.section = "15",
       .name = "report_row_by_row",
       .sentence = "the printed profile and its JSON, letter by letter; units at their limits",
       .fault = "another number of modules is listed",
       .program = profile_reports::report_row_by_row},
      Plays::Once)};
}

}  // namespace equigrad::conformance::contract
