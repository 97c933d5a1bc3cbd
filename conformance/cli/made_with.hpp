// MadeWith: the options of a run without which its cases mean something else: other cases would
// hold, or none would be found.
//
// Invariants: values are as they stand in the line of a run (RunCommand::line), its quotes taken
// off; one that is not there is empty. The model's is a place, which may be written in other ways.
// A line without the command `run` is that of a program which calls equigrad.check: its options are
// its own.
// Units: none.   Errors: none.   Depends on: reports/record.hpp. No torch.
#pragma once

#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::conformance::cli {

struct MadeWith {
  std::string fault, knobs, model;
  std::string device;  // empty: the CPU
  // Knobs are the same where their JSON is, however it is written.
  bool operator==(const MadeWith& other) const;
};

MadeWith made_with(const std::string& line);
// Of every run that the record was made of.
std::vector<MadeWith> made_with(const reports::Run& run);
// " --fault twice --model mine.so", to paste; empty where there are none.
std::string words_of(const MadeWith& made);

}  // namespace equigrad::conformance::cli
