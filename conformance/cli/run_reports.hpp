// RunReports: what `equigrad run` says and writes of a run, whatever its cases are of.
//
// Invariants: with --json - or --junit - stdout holds that document alone, and the words go to
// stderr.
// Units: none.   Errors: equigrad::Error where a folder or a file cannot be written.
// Depends on: cli.hpp, reports/record.hpp.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "conformance/cli/cli.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance::cli {

// False, with a complaint, where two documents would go to stdout.
bool has_one_document(const RunCommand& command);
// The folder, with nothing of an earlier run, and the files, before the work.
void prepare_reports(const RunCommand& command);
std::ostream& words_of(const RunCommand& command);     // where the words go
std::string timeout_words(const RunCommand& command);  // of a replay: " --timeout-scale 3", or none
void say_run(const RunCommand& command, const reports::Run& run);
// index.html, run.json, junit.xml; --json, --junit; what GitHub shows.
void write_run_reports(const RunCommand& command, const reports::Run& run);

// What a command has to say at the end of its run.
struct Ending {
  std::vector<std::string> notes;
  std::string again;     // the line that repeats what went wrong; empty: none
  bool is_whole = true;  // all files of failures were written
};
// The verdict, the reports and where they are, what the baseline says. Returns the exit code.
int end_run(const RunCommand& command, const reports::Run& run, const Ending& ending);

}  // namespace equigrad::conformance::cli
