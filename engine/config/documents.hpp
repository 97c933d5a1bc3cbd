// Documents: the table as a page for people and as a JSON Schema for editors and tests.
//
// Invariants: the committed page docs/configuration.md is markdown_page(); what the schema refuses,
// the parser refuses. The schema cannot say what is between keys, nor that a scale is a power of
// two.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <string>

namespace equigrad {

// Every key: what it may be, what it is by default, what it means, and what it does here.
std::string markdown_page();

// Draft 2020-12.
std::string json_schema();

}  // namespace equigrad
