// CompletedWords: all that a shell completes: the command's own words, those of `bench` and of
// `judge`, the faults that can be planted, and what filters are made of.
//
// Invariants: those of `bench` are the ones that equigrad_perf parses (bench_options.hpp). `judge`
// is Python's: its words are a list here, which python/judge_tests/test_command.py holds beside
// its parser.
// Units: none.
// Errors: those of completion.hpp.
// Depends on: completion.hpp; bench_options.hpp, faults, CLI11 (sources only).
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace equigrad::conformance::cli {

void add_judge_words(CLI::App& app);
// `app` is the command's own parser.
std::string completion_of_all(const CLI::App& app, const std::string& shell);

}  // namespace equigrad::conformance::cli
