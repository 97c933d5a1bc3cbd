#include "conformance/check/check.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "conformance/campaigns/environment.hpp"
#include "conformance/campaigns/process_slots.hpp"
#include "conformance/campaigns/runner.hpp"
#include "conformance/campaigns/slots.hpp"
#include "conformance/cases/device.hpp"
#include "conformance/check/check_cases.hpp"
#include "conformance/check/own_faults.hpp"
#include "conformance/check/preflight.hpp"
#include "conformance/check/subject.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/on_rank/answer.hpp"
#include "engine/config/suggest.hpp"
#include "engine/error.hpp"
#include "reports/json.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad {
namespace conformance {
namespace {

constexpr double kPreflightTimeout_s = 180;

// What ranks that were forked know of the check.
struct Serving {
  MakeSubject make;
  std::map<std::string, CheckCase> cases;  // by id
};

nlohmann::json serve(const Serving& serving, const nlohmann::json& request,
                     ranks::RankContext& context) {
  device() = at::Device(context.device().name);
  const std::string id = request.at("id");
  auto one = serving.cases.at(id);
  one.may_overflow = request.value("may_overflow", true);
  if (request.at("do") != "twin") return check_on_rank(serving.make, one, request, context);
  context.note("twin of " + id);
  const auto losses = twin_of(serving.make, one, request.at("path"));
  return losses ? underflow_row(*losses) : nlohmann::json();
}

// In a process of its own: what is refused comes back as words, not as a process that ended.
nlohmann::json serve_preflight(const MakeSubject& make, const std::vector<CheckCase>& cases,
                               ranks::RankContext& context) {
  device() = at::Device(context.device().name);
  context.note("the first passes of the model, by plain autograd");
  auto found = look_at(make, widest_of(cases));
  require_precisions(make, cases);
  add_memory(found, *make_seeded(make, cases.front().seed), cases);
  return to_json(found);
}

Preflight preflight(const MakeSubject& make, const CheckOptions& options,
                    const std::vector<CheckCase>& cases, ranks::TakeDevice device) {
  ProcessSlots slots(
      {.slots = 1,
       .widest = 1,
       .most = 1,
       .timeout_scale = options.timeout_scale,
       .serve = [&](const nlohmann::json&,
                    ranks::RankContext& context) { return serve_preflight(make, cases, context); },
       .device = device});
  const auto outcomes = slots.ask(1, nullptr, kPreflightTimeout_s);
  if (!outcomes) throw Error("check", "expected an answer, got an interrupt. Run it again.");
  if (!ranks::all_ok(*outcomes)) refuse_model(outcomes->front());
  const auto found = preflight_of(outcomes->front().answer);
  if (device == nullptr) require_memory(found, available_memory_bytes());
  return found;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string line{std::istreambuf_iterator<char>(file), {}};
  std::replace(line.begin(), line.end(), '\0', ' ');
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

void make_folder(const std::string& path) {
  for (auto at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0777);
  mkdir(path.c_str(), 0777);
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw Error("check", "expected to write " + path +
                             ", got no file. Choose another "
                             "report folder.");
}

void write_reports(const std::string& folder, const CheckReport& report) {
  if (folder.empty()) return;
  auto around = reports::surroundings_of(folder);
  write(folder + "/index.html", reports::to_html(report.run, around));
  around.earlier.push_back(reports::past_run(report.run));
  write(folder + "/history.jsonl", reports::history_lines(around.earlier));
  write(folder + "/run.json", reports::to_json(report.run));
  write(folder + "/junit.xml", reports::to_junit(report.run));
  write(folder + "/check.txt", report.text());
  for (const auto& record : report.run.cases) {
    if (!reports::went_wrong(record.verdict)) continue;
    make_folder(folder + "/fail/" + record.id);
    write(folder + "/fail/" + record.id + "/message.txt", record.message);
  }
}

// How much of the machine the cases may have at once.
int slots_for(const CheckOptions& options, const Preflight& found) {
  const int64_t available = available_memory_bytes();
  if (options.slots > 0 || available == 0) return options.slots;
  const int64_t of_case = std::max<int64_t>(4 * found.all_bytes, 1);  // with its twin's file
  return available / of_case > 8 ? 0 : static_cast<int>(std::max<int64_t>(available / of_case, 1));
}

RunOptions run_options(const CheckOptions& options, const Serving& serving,
                       const std::vector<CheckCase>& cases) {
  RunOptions run;
  for (const auto& one : cases) run.cases.push_back(one.spec);
  run.seed = options.seed;
  if (!options.report.empty()) run.keep = options.report + "/fail";
  run.replay_prefix = options.replay;
  run.keep_tensors = options.keep_tensors;
  run.timeout_scale = options.timeout_scale;
  run.quiet = !options.progress;
  run.fault = options.fault;
  run.serve = [&serving](const nlohmann::json& request, ranks::RankContext& context) {
    return serve(serving, request, context);
  };
  return run;
}

// The case in which most faults can act.
const CheckCase& ground_of(const std::vector<CheckCase>& cases) {
  const auto rank = [](const CheckCase& one) {
    return std::tuple(std::min(one.spec.world, 2), std::min(one.spec.accumulation, 2),
                      one.spec.stage == 2, one.spec.stage > 0);
  };
  return *std::max_element(cases.begin(), cases.end(),
                           [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

reports::Run run_cases(const CheckOptions& options, const MakeSubject& make,
                       const CheckCases& cases, const Preflight& found, ranks::TakeDevice device) {
  const auto start = std::chrono::steady_clock::now();
  Serving serving{make, {}};
  for (const auto& one : cases.cases) serving.cases[one.spec.id()] = one;
  const auto run_of = run_options(options, serving, cases.cases);
  ProcessSlots slots({.slots = slots_for(options, found),
                      .widest = widest_of(cases.cases).spec.world,
                      .most = cases.cases.size() + 1,
                      .timeout_scale = options.timeout_scale,
                      .serve = run_of.serve,
                      .device = device});
  const auto& ground = ground_of(cases.cases);
  const auto checks = plant_own_faults(slots, ground, [&](const char* what) {
    // A fault that acts in a step that is skipped changes nothing.
    return nlohmann::json{{"do", what}, {"id", ground.spec.id()}, {"may_overflow", false}};
  });
  MatrixRun matrix(run_of, slots);
  matrix.run_until(cases.cases.size());
  auto run = matrix.take();
  run.self_checks = checks;
  run.not_run = cases.not_run;
  run.environment = environment_here(options.device == "cuda");
  run.command = options.command.empty() ? command_line() : options.command;
  if (options.replay.empty())
    for (auto& record : run.cases)
      record.replay = "EQUIGRAD_CHECK_ONLY=" + record.id + " " + run.command;
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return run;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// What cases that held did not compare.
std::set<std::string> not_compared(const reports::Run& run) {
  std::set<std::string> lines;
  for (const auto& record : run.cases) {
    std::istringstream text(record.message);
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("  not compared  ")) lines.insert(line.substr(2));
  }
  return lines;
}

void add_notes(CheckReport& report, const CheckCases& cases, const Preflight& found,
               const std::string& fault) {
  if (!fault.empty())
    report.notes.push_back("planted into every case, which is to fail where it acts: " + fault +
                           " (" + faults::fault_named(fault).what + ")");
  report.notes.insert(report.notes.end(), cases.notes.begin(), cases.notes.end());
  if (!found.unused.empty())
    report.notes.push_back("never got a gradient, and stayed as they were made: " +
                           listed(found.unused));
  if (!found.unseen.empty())
    report.notes.push_back("not compared  buffers of complex numbers: " + listed(found.unseen));
  for (const auto& line : not_compared(report.run)) report.notes.push_back(line);
}

struct Planned {
  CheckCases cases;
  Preflight found;
};

void require_fault(const std::string& name) {
  const auto known = faults::fault_names();
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) return;
  throw CheckRefused("check", "expected a fault that can be planted, got \"" + name + "\"." +
                                  did_you_mean(name, known) +
                                  " equigrad list --faults has them all.");
}

ranks::TakeDevice device_of(const CheckOptions& options) {
  return options.device == "cuda" ? ranks::take_cuda_device : nullptr;
}

Planned plan(const MakeSubject& make, const CheckOptions& options, ranks::TakeDevice device) {
  require_fault(options.fault);
  if (!options.report.empty()) make_folder(options.report);  // before ranks are forked
  Planned planned{cases_without_styles(options), {}};
  keep_possible(planned.cases, options.filters);
  planned.found = preflight(make, options, planned.cases.cases, device);
  add_styles(planned.cases, options, planned.found.gives_loss);
  keep_selected(planned.cases, options.filters);
  const char* only = std::getenv("EQUIGRAD_CHECK_ONLY");
  if (only != nullptr && options.replay.empty()) keep_only(planned.cases, only);
  return planned;
}

}  // namespace

CheckReport run_check(const MakeSubject& make, const CheckOptions& options,
                      ranks::TakeDevice device) {
  if (device == nullptr) device = device_of(options);
  const auto [cases, found] = plan(make, options, device);
  if (options.progress)
    std::cerr << cases.cases.size() << " cases, seed " << options.seed << std::endl;
  CheckReport report;
  report.run = run_cases(options, make, cases, found, device);
  add_notes(report, cases, found, options.fault);
  report.held = reports::outcome(report.run) == reports::Outcome::Held;
  report.compared = reports::counts(report.run).compared;
  return report;
}

std::vector<std::string> check_ids(const MakeSubject& make, const CheckOptions& options) {
  std::vector<std::string> ids;
  for (const auto& one : plan(make, options, device_of(options)).cases.cases)
    ids.push_back(one.spec.id());
  return ids;
}

}  // namespace conformance

std::string CheckReport::text() const {
  std::string text = reports::to_terminal(run);
  for (const auto& note : notes) text += "# note: " + note + "\n";
  return text;
}

std::string CheckReport::summary() const {
  const auto sum = reports::counts(run);
  std::string text = "equigrad: " + reports::counts_text(sum) + "; " +
                     reports::elements_text(sum, run.wall_s) + "\n";
  for (const auto& note : notes) text += "equigrad: note: " + note + "\n";
  return text;
}

CheckReport check(const conformance::MakeSubject& make, const CheckOptions& options) {
  auto report = conformance::run_check(make, options);
  conformance::write_reports(options.report, report);
  return report;
}

CheckReport check(const conformance::UserModel& model, const CheckOptions& options) {
  return check(conformance::subject_maker(model), options);
}

}  // namespace equigrad
