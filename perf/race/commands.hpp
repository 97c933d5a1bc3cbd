// Commands: the command line of `equigrad_perf`, which `equigrad bench` starts.
//
//   equigrad bench race --suite targets --report DIR    a suite, with the peers where they are
//   equigrad bench race --old WORKER                    the same, with another build beside
//   equigrad bench memory                               what a rank holds by phase and category
//   equigrad bench counts --baseline FILE               what a step counts, exactly
//   equigrad bench leaks                                nothing grows over many steps
//   equigrad bench gate --new WORKER --old WORKER       two builds by interleaved pairs; or `times`
//   equigrad bench noise --runs N                       a build against itself
//   equigrad bench scale                                a step of many ranks, played
//
// Errors: told on stderr; exit code 0, 1 for a finding, 2 for a wrong command, 3 when it broke, 4
// where `gate` stays inconclusive, 130 or 143 when it was interrupted: a race has then told the
// groups that it had run.
// Depends on: suites.hpp, gate.hpp.
#pragma once

namespace equigrad::perf {

int run_commands(int argc, char** argv);

}  // namespace equigrad::perf
