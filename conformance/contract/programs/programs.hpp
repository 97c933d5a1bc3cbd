// Programs: the contract's cases, a function for each of its lines.
//
// Invariants: a program makes the same collective calls on every rank, its fault included.
// Units: none.   Errors: none.
// Depends on: contract_spec.hpp, play.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "conformance/contract/players/contract_spec.hpp"
#include "conformance/contract/players/play.hpp"

namespace equigrad::conformance::contract {

std::vector<Case> ways_in();                 // 1
std::vector<Case> several_backwards();       // 2
std::vector<Case> where_losses_come_from();  // 2
std::vector<Case> engine_forward();          // 2: with and without layer drop
std::vector<Case> several_engines();         // 2: chained, shared, independent
std::vector<Case> recomputation();           // 2: checkpointing, create_graph
std::vector<Case> accumulation();            // 3
std::vector<Case> loss_scale();              // 4
std::vector<Case> parameters();              // 5
std::vector<Case> exceptions();              // 6
std::vector<Case> zero_grad();               // 7
std::vector<Case> beside_the_window();       // 7: what does not reach it
std::vector<Case> the_step();                // 8, 9
std::vector<Case> the_update();              // 10
std::vector<Case> the_sums();                // 13
std::vector<Case> window_length();           // 8: boundary, batch size, no_sync
std::vector<Case> rates();                   // 11
std::vector<Case> access_to_values();        // 12
std::vector<Case> whole_parameters();        // 14
std::vector<Case> scopes_of_gather();  // 14: nested, broken, of pages that stay; marked leaves
std::vector<Case> lattice_sums();      // 13: by hand
std::vector<Case> autocast_of_the_caller();  // 7
std::vector<Case> configuration();           // 15
std::vector<Case> costs();                   // 15: operations, times
std::vector<Case> bytes();                   // 15
std::vector<Case> profiles();                // 15: what every operator costs
std::vector<Case> profilers();               // 15: the module of each; several profilers
std::vector<Case> profile_texts();           // 15: a profile as it is written
std::vector<Case> eigenvalues();             // 15
std::vector<Case> forecasts();               // 15: bytes by hand, and at the limits
std::vector<Case> refusals();                // 17: arguments of calls
std::vector<Case> refused_calls();           // 17: on one rank, known to all
std::vector<Case> checkpoints();             // 18: as the reference, which is not interrupted
std::vector<Case> checkpoint_pairs();        // 18: as an engine that is not
std::vector<Case> refused_checkpoints();     // 18: by name, and nothing has changed

// A scalar in fp32 that no output leaves untouched, nor any element alike.
at::Tensor uneven(const at::Tensor& output);
// A gradient for `output` whose elements differ.
at::Tensor uneven_gradient(const at::Tensor& output);

}  // namespace equigrad::conformance::contract
