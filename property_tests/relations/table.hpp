// Table: all relations, and the settings in which they are tried.
//
// Invariants: every relation is there once, by a number that stays its own.
// Units, errors: those of relation.hpp.   Depends on: relation.hpp.
#pragma once

#include <vector>

#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

const std::vector<Relation>& table();
// Settings between them in which every guard holds.
std::vector<json> grid();

// Its pieces, each in its source.
std::vector<Relation> loss_relations();  // pass_relations.cpp
std::vector<Relation> pass_relations();
std::vector<Relation> bounded_relations();
std::vector<Relation> lattice_relations();  // reduction_relations.cpp
std::vector<Relation> reduction_relations();
std::vector<Relation> gather_relations();
std::vector<Relation> fingerprint_relations();  // fingerprint.cpp
std::vector<Relation> station_relations();      // step_relations.cpp
std::vector<Relation> step_relations();
std::vector<Relation> checkpoint_relations();

}  // namespace equigrad::property_tests::relations
