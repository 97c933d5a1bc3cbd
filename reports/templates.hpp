// Templates: the files of reports/templates/, which the build puts into the program.
//
// Invariants: the text of a file by its name, "page.css"; empty where there is none.
// Units: none.   Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <string_view>

namespace equigrad::reports {

std::string_view template_text(std::string_view name);

}  // namespace equigrad::reports
