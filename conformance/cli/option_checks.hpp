// OptionChecks: what numbers on a command line must be, and what a misspelt word may have meant.
//
// Invariants: a check that complains says what was expected and what came; it changes no text but
// that of a counted number, which becomes digits.
// Units: counts are whole numbers: 7e9, 7B, 350M, 12k, 100.
// Errors: those of CLI11, when the words are parsed.
// Depends on: CLI11, engine/config/suggest.hpp (source only).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace equigrad::conformance::cli {

CLI::Validator at_least(int64_t least);
CLI::Validator between(int64_t least, int64_t most);  // both of them, too
CLI::Validator above_zero();
CLI::Validator not_negative();
// The most that a seed may be where a record has it as a number of JSON: doubles have all up to it.
constexpr int64_t kMostSeed = int64_t{1} << 53;
// Whole numbers up to `most`, also as 7e9 or 7B; --option->transform(counted(...)).
CLI::Validator counted(int64_t most);

// Whether the first word is a command of `app`, an option, or not there.
bool names_a_command(const CLI::App& app, int argc, const char* const* argv);

// What the program called `name` says behind a complaint about words of its command line: the
// command or option that was meant, the commands that there are, where a FILTER stands; empty:
// nothing.
std::string hint(const CLI::App& app, const std::string& name, const std::string& complaint,
                 int argc, const char* const* argv);

// The exit code; where it is 2 and the job is GitHub's, with an annotation: of a job that ends
// before anything has run it shows no other line.
int annotated(int code);

}  // namespace equigrad::conformance::cli
