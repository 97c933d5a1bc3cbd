// Schema: what PyPI's jsonschema says of documents and a published schema.
//
// Invariants: one line for each document, empty where it fits; NaN and infinities fit nothing. One
//   Python is started for all documents.
// Errors: fails the test where $EQUIGRAD_PYTHON, which ctest sets, has no jsonschema.
// Depends on: reports/tests/golden.hpp, schema_problems.py.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "reports/tests/golden.hpp"

namespace equigrad::conformance {

// `schema`: run.schema.json
inline std::vector<std::string> schema_problems(const std::string& schema,
                                                const std::vector<std::string>& documents) {
  const std::string list = testing::TempDir() + "documents-" + std::to_string(::getpid());
  std::ofstream file(list);
  for (std::size_t i = 0; i < documents.size(); ++i) file << (i == 0 ? "[" : ",") << documents[i];
  file << "]";
  file.close();
  const char* python = std::getenv("EQUIGRAD_PYTHON");
  const std::string command = "'" + std::string(python == nullptr ? "python3" : python) + "' '" +
                              golden_path("../tests/schema_problems.py") + "' '" +
                              golden_path("../" + schema) + "' '" + list + "'";
  std::vector<std::string> lines(1);
  const std::unique_ptr<FILE, int (*)(FILE*)> said(::popen(command.c_str(), "r"), ::pclose);
  for (int c = 0; said != nullptr && (c = std::fgetc(said.get())) != EOF;)
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += static_cast<char>(c);
  lines.pop_back();
  std::remove(list.c_str());
  EXPECT_EQ(lines.size(), documents.size()) << command;
  return lines;
}

}  // namespace equigrad::conformance
