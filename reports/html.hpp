// Html: the report people read, one page that opens from disk.
//
//   banner     verdict, counts, what was not run        memory       bytes by stage, as bars
//   matrix     stage x precision by style x ranks       not run      reasons with counts
//   failures   message, lanes, replay line              cases        every case, folded by group
//   claims     what was promised, what was found        environment, definitions
//
// Invariants: no network, no other file, under kPageBytes. Everything is said in text, so it reads
//   without styles, without scripts and without colours; a script only adds sorting, filtering and
//   the opening of folded groups. Every section, group and case has an id to link to.
// Units: bytes; where a list does not fit, the page says how many it leaves to run.json.
// Errors: none; foreign text is escaped and, where very long, cut with a note.
// Depends on: reports/page.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

inline constexpr size_t kPageBytes = 2'000'000;

std::string to_html(const Run& run);

}  // namespace equigrad::reports
