// Commands: the command line of `equigrad_perf`.
//
//   equigrad_perf race --suite targets --report DIR    a suite, with the peers where they are
//   equigrad_perf race --old WORKER                    the same, with another build beside
//   equigrad_perf counts --baseline FILE               what a step counts, exactly
//   equigrad_perf leaks                                nothing grows over many steps
//   equigrad_perf times --new WORKER --old WORKER      two builds by interleaved pairs
//   equigrad_perf noise --runs N                       a build against itself
//
//   equigrad_perf memory                               what a rank holds by phase and category
//
// Errors: told on stderr; exit code 0, 1 for a finding, 2 for a wrong command, 3 when it broke, 4
// where `times` stays inconclusive.
// Depends on: suites.hpp, gate.hpp.
#pragma once

namespace equigrad::perf {

int run_commands(int argc, char** argv);

}  // namespace equigrad::perf
