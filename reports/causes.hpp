// Causes: the cases of a run that went wrong, those of one cause together.
//
// A cause is what the diagnosis says that a failure looks like; where it says nothing, what was
// wrong first, or the first line of the message. Numbers in it do not tell causes apart: a lost
// micro-batch of rank 0 and one of rank 1 are the same fault.
//
// Invariants: every case of wrong_cases() is in one cause; causes come in order of their number of
//   cases, failures before crashes before time-outs before empty comparisons. Conditions are values
//   of dimensions that a cause is limited to: of those that ran, none of other values had it.
// Units: counts of cases.
// Errors: none. The pointers live as long as the Run they came from.
// Depends on: reports/record.hpp, reports/summary.hpp (sources only).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

// The likely cause that a message names: "micro-batch 2 of rank 1 missing"; empty where it names
// none, or only a common factor, which could be anything.
std::string cause_in(const std::string& message);
// "micro-batch # of rank # missing"
std::string without_numbers(const std::string& text);

struct Condition {
  std::string dimension;            // stage, precision, ...
  std::vector<std::string> values;  // in the order of values()
};

struct Cause {
  Verdict verdict = Verdict::Failed;
  std::string text;  // with N for numbers in which its cases differ
  std::vector<const Case*> cases;
  std::vector<Condition> conditions;
  int64_t alike_held = 0;  // cases that meet the conditions and held
  int64_t executed = 0;    // of the run
};

// Of a case that went wrong, in words.
std::string cause_of(const Case& one);
// "failed  zero2.bf16...: averaged twice over 2 ranks"
std::string headline(const Case& one);
std::vector<Cause> causes(const Run& run);
// "4 cases, only with stage 2, 3; ranks 4. No such case held."
std::string where_text(const Cause& cause);

}  // namespace equigrad::reports
