// Page: the sections of the HTML report, each a function from the run to a piece of the page.
//
// Invariants: every function returns balanced, escaped HTML and needs nothing from the others but
//   the ids below: #causes, #matrix, #cases, #contract, #claims, #self-checks, #memory,
//   #underflow, #generated, #not-run, #environment, #definitions; group_anchor() for a group;
//   anchor(case.id) for a case that went wrong: under #causes, or where it does not fit there, on
//   its row under #cases.
// Units: budgets in bytes.
// Errors: none.
// Depends on: reports/document.hpp, reports/summary.hpp.
#pragma once

#include <set>
#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

std::string page_matrix(const Run& run);
std::string page_claims(const Run& run);
std::string page_self_checks(const Run& run);
std::string page_memory(const Run& run);
std::string page_contract(const Run& run);
std::string page_underflow(const Run& run);
std::string page_generated(const Run& run);

// The same for a terminal: a line for each model, a line for each section; each ends its line.
std::string underflow_lines(const Run& run);
std::string contract_lines(const Run& run);

// The causes of what went wrong, for the page's first screen; empty where nothing did.
std::string cause_list(const Run& run);
// What is drawn of a failure: got against want, where, how far off, and which gradients by step.
std::string page_picture(const Picture& picture);
// Adds the cases it has shown, so that no id is given twice.
std::string page_causes(const Run& run, size_t budget_bytes, std::set<const Case*>& shown);
std::string page_cases(const Run& run, size_t budget_bytes, const std::set<const Case*>& shown);

// "8 of 8 planted faults"
std::string caught_text(const Run& run);

std::string group_anchor(const std::string& stage, const std::string& precision,
                         const std::string& ranks);

}  // namespace equigrad::reports
