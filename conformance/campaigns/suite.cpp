#include "conformance/campaigns/suite.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "conformance/campaigns/covering_selection.hpp"
#include "conformance/campaigns/seconds.hpp"
#include "conformance/campaigns/self_check.hpp"
#include "conformance/cases/covering.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "reports/parts.hpp"

namespace equigrad::conformance {
namespace {

using Clock = std::chrono::steady_clock;

// Moves those of the covering selection to the front, and counts them.
template <class Spec>
std::size_t covering_first(std::vector<Spec>& specs) {
  const auto& covering = covering_selection();
  const auto end = std::stable_partition(specs.begin(), specs.end(),
                                         [&](const Spec& spec) { return covering.has(spec); });
  return static_cast<std::size_t>(end - specs.begin());
}

class Suite {
 public:
  explicit Suite(SuiteOptions options);
  reports::Run run();

 private:
  void run_in_parts(MatrixRun& matrix);
  void run_in_order(MatrixRun& matrix);
  void add_contract(std::size_t begin, std::size_t end, const MatrixRun& matrix);
  reports::Run first_part(const MatrixRun& matrix) const;
  reports::Run covering_part(const MatrixRun& matrix) const;
  void add_parts(reports::Run& run) const;
  void add_generated(reports::Run& run);
  bool is_over(const MatrixRun& matrix) const;
  bool goes_on(const MatrixRun& matrix) const;

  Clock::time_point start_ = Clock::now();
  SuiteOptions options_;
  std::size_t cases_, specs_;  // of the covering selection
  std::size_t first_;          // of its cases, those that have every value
  ProcessSlots slots_;
  Alone alone_;
  std::vector<reports::Case> contract_;
  double covering_s_ = 0;
};

int widest(const SuiteOptions& options) {
  int ranks = kSelfCheckRanks;
  for (const auto& spec : options.matrix.cases) ranks = std::max(ranks, spec.world);
  for (const auto& spec : options.contract.specs) ranks = std::max(ranks, spec.world);
  return options.generated ? std::max(ranks, kGeneratedRanks) : ranks;
}

Suite::Suite(SuiteOptions options)
    : options_(std::move(options)),
      cases_(options_.in_parts ? covering_first(options_.matrix.cases) : 0),
      specs_(options_.in_parts ? covering_first(options_.contract.specs) : 0),
      first_(every_value_first(options_.matrix.cases, cases_)),
      slots_({.slots = options_.one_process.empty() ? options_.matrix.slots : 1,
              .widest = widest(options_),
              .most = options_.generated
                          ? std::numeric_limits<std::size_t>::max()
                          : options_.matrix.cases.size() + options_.contract.specs.size() + 1,
              .timeout_scale = options_.matrix.timeout_scale,
              .serve = options_.matrix.serve,
              .device = options_.matrix.device}),
      alone_(alone_of(options_.matrix)) {
  if (!options_.one_process.empty()) options_.matrix.quiet = options_.contract.quiet = true;
  const auto all = options_.matrix.cases.size() + options_.contract.specs.size();
  options_.matrix.progress = options_.contract.progress =
      std::make_shared<Progress>(static_cast<int64_t>(all), options_.matrix.quiet);
}

void Suite::add_contract(std::size_t begin, std::size_t end, const MatrixRun& matrix) {
  auto part = options_.contract;
  const auto at = [&](std::size_t i) {
    return options_.contract.specs.begin() + static_cast<std::ptrdiff_t>(i);
  };
  part.specs.assign(at(begin), at(end));
  const auto reason = is_over(matrix) ? kNotAfterAFailure : matrix.failure();
  auto records = reason.empty() ? contract::run_contract(part, slots_, &alone_)
                                : contract::not_run(part, reason);
  std::move(records.begin(), records.end(), std::back_inserter(contract_));
}

bool Suite::is_over(const MatrixRun& matrix) const {
  const auto went_wrong = [](const reports::Case& one) { return reports::went_wrong(one.verdict); };
  return matrix.is_over() ||
         (options_.matrix.fail_fast && std::any_of(contract_.begin(), contract_.end(), went_wrong));
}

bool Suite::goes_on(const MatrixRun& matrix) const {
  return matrix.failure().empty() && !is_over(matrix) && ranks::interrupted() == 0;
}

reports::Run Suite::first_part(const MatrixRun& matrix) const {
  reports::Run part = matrix.so_far(first_);
  part.parts = {{"every value", static_cast<int64_t>(first_), seconds_since(start_)}};
  return part;
}

reports::Run Suite::covering_part(const MatrixRun& matrix) const {
  reports::Run part = matrix.so_far(cases_);
  part.cases.insert(part.cases.end(), contract_.begin(), contract_.end());
  part.parts = {{"covering", static_cast<int64_t>(part.cases.size()), covering_s_}};
  return part;
}

// The contract's cases of a part follow the matrix's.
void Suite::add_parts(reports::Run& run) const {
  const auto at = [](auto& list, std::size_t i) {
    return list.begin() + static_cast<std::ptrdiff_t>(i);
  };
  const auto of_contract = contract_;
  run.cases.insert(at(run.cases, cases_), of_contract.begin(), at(of_contract, specs_));
  run.cases.insert(run.cases.end(), at(of_contract, specs_), of_contract.end());
  if (!options_.in_parts) return;
  const auto covering = cases_ + specs_;
  run.parts = {{"covering", static_cast<int64_t>(covering), covering_s_}};
  if (const auto rest = run.cases.size() - covering; rest > 0)
    run.parts.push_back({"rest", static_cast<int64_t>(rest), seconds_since(start_) - covering_s_});
}

// Those that failed follow all others.
void Suite::add_generated(reports::Run& run) {
  const auto before = run.cases.size();
  if (!options_.generated_cases.empty()) {
    run_generated(*options_.generated, options_.generated_cases, slots_, run);
    run.generated.reset();  // none was drawn, and all are listed
    return;
  }
  run_generated(*options_.generated, slots_, run);
  if (!run.parts.empty())
    run.parts.push_back({reports::kGeneratedPart, static_cast<int64_t>(run.cases.size() - before),
                         run.generated->wall_s});
}

// With one slot, what is run until a case's place in its list is that case alone.
void Suite::run_in_order(MatrixRun& matrix) {
  std::size_t case_number = 0, spec_number = 0;
  for (const auto& id : options_.one_process) {
    if (id.starts_with("Contract.")) {
      add_contract(spec_number, spec_number + 1, matrix);
      ++spec_number;
    } else {
      matrix.run_until(++case_number);
    }
  }
}

void Suite::run_in_parts(MatrixRun& matrix) {
  if (first_ > 0 && first_ < cases_) {
    matrix.run_until(first_);
    if (goes_on(matrix)) options_.first_ended(first_part(matrix));
  }
  if (!is_over(matrix)) matrix.run_until(cases_);
  add_contract(0, specs_, matrix);
  covering_s_ = seconds_since(start_);
  const bool has_rest =
      cases_ < options_.matrix.cases.size() || specs_ < options_.contract.specs.size();
  if (options_.in_parts && has_rest && !is_over(matrix))
    options_.covering_ended(covering_part(matrix));
  if (!is_over(matrix)) matrix.run_until(options_.matrix.cases.size());
  add_contract(specs_, options_.contract.specs.size(), matrix);
}

reports::Run Suite::run() {
  MatrixRun matrix(options_.matrix, slots_, &alone_);
  matrix.check_itself();
  if (options_.one_process.empty())
    run_in_parts(matrix);
  else
    run_in_order(matrix);
  auto run = matrix.take();
  add_parts(run);
  alone_.repeat(slots_, run.cases);
  if (!options_.contract.specs.empty()) run.statements = contract::statements();
  const bool goes_on = run.failure.empty() && !run.interrupted && !is_over(matrix);
  if (options_.generated && goes_on) add_generated(run);
  run.wall_s = seconds_since(start_);
  return run;
}

}  // namespace

reports::Run run_suite(SuiteOptions options) { return Suite(std::move(options)).run(); }

}  // namespace equigrad::conformance
