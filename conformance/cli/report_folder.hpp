// ReportFolder: the folder of a run's reports, and what an earlier run left there; and files and
// folders as all commands read and write them.
//
//   index.html  run.json  junit.xml  fail/<case>/: failure_folder.hpp
//   history.jsonl: a line for each run (reports/history.hpp); stays
//   faults.html  crash.html  compare.html  race.html: index.html links them (folder_index.hpp)
//
// Invariants: clearing removes these and nothing else: a file or folder of another name stays, and
// so does the folder that it is in.
// Units: none.
// Errors: equigrad::Error where a file cannot be written; ConfigError, a wrong word of the command,
// where a folder cannot be made or a check says so.
// Depends on: POSIX, matrix.hpp, engine/config/config.hpp, engine/error.hpp (sources only).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace equigrad::conformance::cli {

// With its parents, as far as they are missing.
void make_directory(const std::string& path);
void write_file(const std::string& path, const std::string& text);  // "-" is stdout
// Refuses what write_file() would: before hours of work, not after. Empty and "-" are no file.
void check_writable(const std::string& path);
// A verdict stands whatever becomes of its reports: an error in `write` is said on stderr.
bool was_written(const std::function<void()>& write);
std::string shell_word(const std::string& word);  // quoted where a shell would split or read it
std::string read_file(const std::string& path);   // empty if it cannot be read
std::vector<std::string> entries(const std::string& folder);  // names, but . and ..
std::string absolute(const std::string& path);                // as it is if nothing is there
// Where what is repeated of a run reports: beside the run, so that pasting it clears nothing; what
// is repeated of that, in the same folder again.
std::string replay_folder(const std::string& report);
// So that nothing in the folder is of another run, however this one ends.
void clear_report_folder(const std::string& folder);

}  // namespace equigrad::conformance::cli
