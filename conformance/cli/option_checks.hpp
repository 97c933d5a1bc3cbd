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
CLI::Validator above_zero();
// Whole numbers up to `most`, also as 7e9 or 7B; --option->transform(counted(...)).
CLI::Validator counted(int64_t most);

// Of a word where a command is expected, and none of `app` is called so: "expected a command, got
// "bogus": run, list, ..."; else empty.
std::string no_command(const CLI::App& app, int argc, const char* const* argv);

// " Did you mean ...?" for the first of the words that no command or option of `app` is called;
// empty where nothing is near.
std::string meant(const CLI::App& app, int argc, const char* const* argv);

}  // namespace equigrad::conformance::cli
