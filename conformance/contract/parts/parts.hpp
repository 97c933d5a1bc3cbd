// Parts: line 16 of the contract, a function for each of the engine's rooms or a few of them.
//
// A part is driven through its own header, beside any engine, on values that are drawn from the
// seed of the run, and judged by a definition that shares nothing with it: integers, doubles,
// plain torch, a model of a few lines, brute force. What a plain step of training shows is not
// asked again.
//
// Invariants: as those of programs.hpp. The player's engine is trained meanwhile.
// Units: none.   Errors: none.
// Depends on: contract_spec.hpp.
#pragma once

#include <string>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"

namespace equigrad::conformance::contract {

// A case of line 16. Most parts need no engine, and one place is enough for them.
Case of_part(const std::string& name, const std::string& sentence, const std::string& fault,
             void (*program)(Play&), Plays plays = Plays::Once);

std::vector<Case> numbers();  // conversions
std::vector<Case> sums();     // exact, of squares, of rows
std::vector<Case> threads();
std::vector<Case> updates();  // rules of update, on shards
std::vector<Case> clients();  // optimizers of the user
std::vector<Case> rate_schedules();
std::vector<Case> rules();                 // loss scales, factors
std::vector<Case> orders();                // layouts
std::vector<Case> launches();              // which bucket leaves when
std::vector<Case> contributions();         // buckets, sums, micro-batches
std::vector<Case> windows_of_gradients();  // on all ranks, and what is sent when
std::vector<Case> shards_of_gradients();   // measured, clipped
std::vector<Case> disagreements();         // what ranks say to each other
std::vector<Case> announcements();         // of full buckets
std::vector<Case> engines_apart();         // ranks that make different calls
std::vector<Case> made_within_init();      // zero::Init
std::vector<Case> pagings();               // pages, replicas
std::vector<Case> paging_plans();          // plans, uses, leaves
std::vector<Case> communicators();         // launches, collectives, lost ranks
std::vector<Case> reductions();            // sums over ranks
std::vector<Case> holdings();              // values and scopes of every kind
std::vector<Case> graphs();                // what is seen of a backward pass
std::vector<Case> scaled_graphs();         // the loss scale in it
std::vector<Case> seen_operators();        // what they read and cast

}  // namespace equigrad::conformance::contract
