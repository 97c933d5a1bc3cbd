#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "conformance/campaigns/environment.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/option_checks.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/terminal_text.hpp"
#include "conformance/crash/campaign.hpp"
#include "engine/error.hpp"
#include "reports/folder_index.hpp"
#include "reports/losses.hpp"

namespace equigrad::conformance::cli {

void add_crash(CLI::App& app, CrashCommand& command) {
  app.add_option("PART", command.parts, "What is tried (default: all)")
      ->check(CLI::IsMember(crash::part_names()));
  app.add_option("--points", command.points,
                 "Losses after which engines load and train on; others are looked at without one")
      ->check(CLI::Range(int64_t{0}, int64_t{10'000'000}));
  app.add_option("--stages", command.stages, "ZeRO stages, such as 2,3")
      ->delimiter(',')
      ->check(CLI::Range(0, 3));
  app.add_option("--world", command.worlds, "Numbers of ranks, such as 2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 4));
  app.add_option("--seed", command.seed, "Of the losses")->check(between(0, kMostSeed));
  app.add_option("--replay", command.replay,
                 "One point alone, by its name in a report, such as "
                 "zero2.w3.fp16.new.power.7-4-4.s12");
  app.add_option("--json", command.json, "Also write the record here; - is stdout");
  app.add_option("--report", command.report, "Folder for crash.html, crash.json");
  app.add_option("--timeout-scale", command.timeout_scale, "Multiplies every time-out")
      ->check(above_zero());
  app.add_flag("-q,--quiet", command.quiet, "No progress");
}

int crash_command(const CrashCommand& command) {
  crash::CrashOptions options;
  options.seed = command.seed;
  options.points = command.points;
  options.stages = command.stages;
  options.worlds = command.worlds;
  options.parts = {command.parts.begin(), command.parts.end()};
  options.replay = command.replay;
  options.replay_prefix = shell_word(command.program) + " crash";
  options.timeout_scale = command.timeout_scale;
  options.quiet = command.quiet;
  if (!command.replay.empty()) {
    try {
      crash::point_from(command.replay);
    } catch (const Error& error) {
      std::cerr << "equigrad: " << error.what() << "\n";
      return kUsage;
    }
  }
  const std::string report = command.report + "/crash.json", page = command.report + "/crash.html";
  make_directory(command.report);
  for (const auto& file : {report, page}) unlink(file.c_str());
  check_writable(command.json);
  const auto environment = environment_here();
  auto losses = crash::run_crash(options);
  losses.environment = environment;
  losses.command = command.line;
  std::ostream& out = command.json == "-" ? std::cerr : std::cout;
  const int descriptor = command.json == "-" ? STDERR_FILENO : STDOUT_FILENO;
  out << reports::to_terminal(losses, limit_of_columns(descriptor)) << std::flush;
  const bool is_written = was_written([&] {
    const auto json = reports::to_json(losses);
    write_file(report, json);
    write_file(page, reports::to_html(losses));
    if (!command.json.empty()) write_file(command.json, json);
    reports::link_pages(command.report);
  });
  if (is_written) out << "# report: " << absolute(page) << "\n";
  const int code = reports::exit_code(losses);
  return code == kHeld && !is_written ? kInfrastructure : code;
}

}  // namespace equigrad::conformance::cli
