// Contract: what a run found for each line of the contract, counted by stage.
//
// A contract case says where it belongs by its dimensions "section" and "case"; Run::statements say
// in words what each section and each case promises.
//
// Invariants: rows come in the order of Run::statements; a section's row counts all its cases.
// Units: counts of cases.
// Errors: none. The pointers live as long as the Run they came from.
// Depends on: reports/record.hpp.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

struct ContractRow {
  const Statement* statement = nullptr;
  std::map<std::string, Counts> stages;  // stage -> its cases
  Counts sum;                            // of all stages
};

std::vector<ContractRow> contract_rows(const Run& run);

// "22" when all hold, "20/22" when some do not, "-" where there is none.
std::string held_text(const Counts& counts);

// A line for each section, for a terminal; empty without statements.
std::string contract_lines(const Run& run);

// The section of the HTML page: a row for each section, and its cases folded below.
std::string page_contract(const Run& run);

}  // namespace equigrad::reports
