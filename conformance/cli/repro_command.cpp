#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>

#include "conformance/cases/recipe.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/failure_folder.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/made_with.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/selected_cases.hpp"
#include "conformance/diagnosis/shrink.hpp"
#include "conformance/generator/draw.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/verdict/failure_kind.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{60'000};
constexpr milliseconds kGrace{500};                // for the other ranks, once one has failed
constexpr milliseconds kCandidateTimeout{10'000};  // a small case that holds takes milliseconds

// How a candidate ended.
struct Ended {
  Judged judged;
  std::string kind;   // failure_kind.hpp; empty: it held
  std::string cause;  // empty: none is known
};

class Repro {
 public:
  Repro(const ReproCommand& command, const CaseSpec& spec, const ranks::Handler& serve);
  int run();

 private:
  milliseconds scaled(milliseconds time) const {
    return milliseconds(
        static_cast<long long>(static_cast<double>(time.count()) * command_.timeout_scale));
  }
  std::vector<ranks::Outcome> ask(int world, const nlohmann::json& request, milliseconds timeout);
  nlohmann::json request(const char* what, const CaseSpec& spec) const;
  std::string twin_of(const CaseSpec& spec);
  std::optional<Ended> try_one(const Candidate& candidate, milliseconds timeout);
  std::optional<bool> fails_alike(const Candidate& candidate);
  void keep(const Candidate& candidate, const Ended& ended);
  std::string command_of(const Candidate& candidate, const std::string& program) const;
  std::string fresh() const { return command_.folder + ".candidate"; }
  std::string config() const { return pool_.directory() + "/config"; }
  int told(const Shrunk& shrunk) const;

  const ReproCommand& command_;
  Candidate original_;
  DataFiles data_;
  ranks::Pool pool_;
  Clock::time_point start_ = Clock::now();
  std::map<std::string, std::string> twins_;  // paths, by tuple; empty: it could not be made
  std::string twin_failure_;
  Candidate smallest_;  // so far
  Ended found_;         // how it ended
};

Repro::Repro(const ReproCommand& command, const CaseSpec& spec, const ranks::Handler& serve)
    : command_(command),
      original_{spec, command.steps},
      data_(case_data(command.data_dir)),
      pool_(spec.world, serve, {scaled(kTimeout), kGrace, false}) {}

// Empty after an interrupt.
std::vector<ranks::Outcome> Repro::ask(int world, const nlohmann::json& request,
                                       milliseconds timeout) {
  std::vector<int> ranks(static_cast<std::size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  pool_.start(ranks, request, scaled(timeout));
  while (ranks::interrupted() == 0)
    if (auto finished = pool_.wait(milliseconds(1'000))) return std::move(finished->outcomes);
  return {};
}

nlohmann::json Repro::request(const char* what, const CaseSpec& spec) const {
  return {{"do", what}, {"id", spec.id()}, {"seed", command_.seed}, {"data", to_json(data_)}};
}

// The path of a twin, made when it is first needed.
std::string Repro::twin_of(const CaseSpec& spec) {
  const auto found = twins_.find(spec.tuple());
  if (found != twins_.end()) return found->second;
  auto twin = request("twin", spec);
  const std::string path = pool_.directory() + "/twin." + spec.tuple();
  twin["path"] = path;
  const auto outcomes = ask(1, twin, kTimeout);
  const bool is_made = !outcomes.empty() && ranks::all_ok(outcomes);
  if (!is_made && !outcomes.empty()) twin_failure_ = ranks::failures(outcomes);
  return twins_[spec.tuple()] = is_made ? path : "";
}

// Nothing: interrupted, or there is no twin.
std::optional<Ended> Repro::try_one(const Candidate& candidate, milliseconds timeout) {
  const auto twin = twin_of(candidate.spec);
  if (twin.empty()) return std::nullopt;
  auto one = request("case", candidate.spec);
  one["twin"] = twin;
  one["steps"] = candidate.steps;
  one["keep"] = fresh();
  one["config"] = config();
  if (!command_.fault.empty()) one["fault"] = command_.fault;
  clear_failure(fresh());
  const auto outcomes = ask(candidate.spec.world, one, timeout);
  if (outcomes.empty()) return std::nullopt;
  Ended ended{judge(candidate.spec, "", outcomes), "", ""};
  ended.kind = failure_kind(ended.judged, outcomes);
  ended.cause = cause_in(ended.judged.record.message);
  return ended;
}

std::optional<bool> Repro::fails_alike(const Candidate& candidate) {
  if (data_.images.empty() && needs_images(candidate.spec)) return false;
  const auto ended = try_one(candidate, kCandidateTimeout);
  if (ranks::interrupted() != 0) return std::nullopt;
  if (!ended || ended->kind != found_.kind) return false;
  // Other ranks and micro-batches have other numbers.
  const bool same_numbers = candidate.spec.world == smallest_.spec.world &&
                            candidate.spec.accumulation == smallest_.spec.accumulation;
  const bool same_cause = same_numbers
                              ? ended->cause == found_.cause
                              : without_numbers(ended->cause) == without_numbers(found_.cause);
  if (!found_.cause.empty() && !same_cause) return false;
  keep(candidate, *ended);
  return true;
}

std::string Repro::command_of(const Candidate& candidate, const std::string& program) const {
  std::string text =
      program + " repro " + candidate.name() + " --as-is --seed " + std::to_string(command_.seed);
  if (!command_.data_dir.empty()) text += " --data-dir " + shell_word(absolute(command_.data_dir));
  return command_.fault.empty() ? text : text + " --fault " + command_.fault;
}

// So the folder always holds the smallest failure so far.
void Repro::keep(const Candidate& candidate, const Ended& ended) {
  smallest_ = candidate;
  found_ = ended;
  auto& message = found_.judged.record.message;
  const std::string in_a_report = "fail/" + candidate.spec.id() + "/";
  const auto at = message.find(in_a_report);
  if (at != std::string::npos) message.replace(at, in_a_report.size(), command_.folder + "/");
  clear_failure(command_.folder);
  make_directory(command_.folder);
  for (const auto& name : entries(fresh()))
    if (is_failure_file(name))
      rename((fresh() + "/" + name).c_str(), (command_.folder + "/" + name).c_str());
  if (access(config().c_str(), R_OK) == 0)
    write_file(command_.folder + "/config.json", read_file(config()));
  unlink(config().c_str());
  write_failure(command_.folder,
                {candidate.spec.id(), candidate, command_.seed, data_, command_.fault, message,
                 command_of(candidate, shell_word(absolute_program(command_.program))) +
                     " -o \"$(mktemp -d)/failure\""});
}

int Repro::told(const Shrunk& shrunk) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto path = path_between(original_, shrunk.smallest);
  std::printf("FAIL  %s  %s\n%s", shrunk.smallest.name().c_str(), found_.kind.c_str(),
              found_.judged.record.message.c_str());
  if (!found_.judged.record.message.ends_with('\n')) std::printf("\n");
  if (!command_.as_is)
    std::printf("# %s: %s (%d runs, %.1f s)\n", shrunk.stopped ? "shrunk so far" : "shrunk",
                path.empty() ? "nothing can be smaller" : path.c_str(), shrunk.tried + 1, seconds);
  std::printf("# folder: %s\n# replay: %s\n", absolute(command_.folder).c_str(),
              command_of(shrunk.smallest, shell_word(command_.program)).c_str());
  return found_.judged.record.verdict == reports::Verdict::Failed ? kFailed : kInfrastructure;
}

// Where the run in this folder found the case wrong, and was made with what this command was not
// given: the line that repeats it. Empty: it is not so, or no record says.
std::string what_its_run_had(const ReproCommand& command, const std::string& id) try {
  const auto run = read_record(RunCommand{}.report).run;
  const auto found = std::find_if(run.cases.begin(), run.cases.end(),
                                  [&](const reports::Case& one) { return one.id == id; });
  if (found == run.cases.end() || !reports::went_wrong(found->verdict)) return "";
  const auto made = made_with(run).front();
  if (made == MadeWith{command.fault, "", "", ""} && run.seed == command.seed) return "";
  const auto words = words_of(made) + " --seed " + std::to_string(run.seed);
  const bool has_its_options = made.knobs.empty() && made.model.empty() && made.device.empty();
  return "# note: it went wrong in " + absolute(RunCommand{}.report) + ", with" + words +
         ": another case, which this repeats:\n#   " +
         (has_its_options ? shell_word(command.program) + " repro " + id + words : found->replay) +
         "\n";
} catch (const Error&) {
  return "";
}

int Repro::run() {
  const auto first = try_one(original_, kTimeout);
  if (!first && ranks::interrupted() != 0) return kInfrastructure;
  if (!first) throw Error("repro", "expected a twin of the case, got: " + twin_failure_ + ".");
  if (first->kind.empty()) {
    clear_failure(fresh());
    std::printf("HELD  %s did not fail: %lld elements equal\n", original_.name().c_str(),
                static_cast<long long>(first->judged.record.lanes.at(0).compared));
    std::cout << what_its_run_had(command_, original_.spec.id()) << std::flush;
    return kHeld;
  }
  if (!command_.quiet) std::cerr << original_.name() << " fails: " << first->kind << "\n";
  keep(original_, *first);
  Shrunk shrunk{original_};
  if (!command_.as_is)
    shrunk = shrink(original_, [this](const Candidate& candidate) {
      const auto failed = fails_alike(candidate);
      if (!command_.quiet && failed.value_or(false))
        std::cerr << "  so does " << candidate.name() << "\n";
      return failed;
    });
  clear_failure(fresh());
  return told(shrunk);
}

// Files of a failure's names that are not a failure's are not to be lost.
bool is_somebody_elses(const std::string& folder) {
  const auto names = entries(folder);
  return !names.empty() && std::find(names.begin(), names.end(), "repro.sh") == names.end();
}

// Why a case cannot be repeated and shrunk; empty: it can.
std::vector<std::string> problems_of(const OneCase& one) {
  std::vector<std::string> problems;
  if (!one.problem.empty()) problems.push_back(one.problem);
  for (const auto& id : one.near) problems.push_back("near it is " + id);
  if (one.id.starts_with("Contract."))
    problems.push_back(
        "a case of the contract is a program of its own and cannot be shrunk. equigrad run " +
        one.id + " repeats it");
  else if (is_generated_id(one.id))
    problems.push_back(
        "a case that is drawn is shrunk by the run in which it fails. equigrad run " + one.id +
        " repeats it");
  return problems;
}

CaseSpec spec_of(const ReproCommand& command) {
  const auto one = one_case(command.id);
  auto problems = problems_of(one);
  CaseSpec spec;
  if (problems.empty()) {
    spec = parse_id(one.id);
    if (spec.world < 1 || spec.accumulation < 1 || spec.stage > 3)
      problems.push_back("expected a rank, a micro-batch and a stage up to 3, got " + one.id);
    if (!is_model(spec.model))
      problems.push_back("expected a model of the matrix or linear1 to linear7, got \"" +
                         spec.model + "\" in " + one.id +
                         ". A case of a model of your own is repeated by equigrad run --model");
  }
  if (command.fault.starts_with("Contract"))
    problems.push_back("the fault " + command.fault + " is one of the contract's cases");
  if (command.steps < 1 || command.steps > kSteps)
    problems.push_back("expected 1 to " + std::to_string(kSteps) + " steps, got " +
                       std::to_string(command.steps));
  if (is_somebody_elses(command.folder))
    problems.push_back("expected a folder that is new, empty or an earlier failure's, got " +
                       command.folder + ". Choose another with -o");
  if (!problems.empty()) throw ConfigError("repro", problems);
  return spec;
}

}  // namespace

int repro_command(const ReproCommand& command, const ranks::Handler& serve) {
  return Repro(command, spec_of(command), serve).run();
}

}  // namespace equigrad::conformance::cli
