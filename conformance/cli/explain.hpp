// Explain: what a case is, in plain words.
//
//   equigrad explain CASE    model, stage, precision, ranks, call style; what it is compared with,
//                            exactly or by which bound; the command that runs it alone; what the
//                            last report says of it
//
// Invariants: settings are those of the reference's own recipe and bounds those that a rank
// computes with it; words are here for what has none elsewhere: models, styles, clips. CASE is an
// id, or words that one case alone has, as for `equigrad run`.
// Units: none.
// Errors: equigrad::Error of explanation() for an id that no case has; the command says what is
// near, and ends with 2.
// Depends on: cli.hpp; recipe.hpp, oracle/bound.hpp, contract, generator, CLI11 (sources only).
#pragma once

#include <cstddef>
#include <string>

#include "conformance/cli/cli.hpp"

namespace equigrad::conformance::cli {

struct ExplainCommand {
  std::string id;
  std::string report = "equigrad-report";  // a run.json, or the folder that has it
  std::string program = "equigrad";
};
void add_explain(CLI::App& app, ExplainCommand& command);
int explain_command(const ExplainCommand& command);

// Without the report.
// `replay`: of a report that has the case; it has the run's seed, fault and model. Lines of at most
// so many columns, but for those to paste.
std::string explanation(const std::string& id, const std::string& program,
                        const std::string& replay = "", std::size_t columns = 100);
// Empty where it has none.
std::string model_words(const std::string& model);

}  // namespace equigrad::conformance::cli
