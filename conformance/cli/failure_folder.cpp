#include "conformance/cli/failure_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <regex>

#include "conformance/cli/report_folder.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {
namespace {

bool readable(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

std::string script_text(const Failure& failure) {
  return "#!/bin/sh\n# Repeats " + failure.id + "\nexec " + failure.command + " \"$@\"\n";
}

std::string cmake_text() {
  return std::string("cmake_minimum_required(VERSION 3.25)\n") + "set(EQUIGRAD_BUILD \"" +
         build_info::binary_directory() + "\" CACHE PATH \"A build of Equigrad\")\n" + R"(
if(NOT EXISTS "${EQUIGRAD_BUILD}/program.cmake")
  message(FATAL_ERROR "Expected a build of Equigrad's own tree, got none at ${EQUIGRAD_BUILD}. "
    "Name one: -D EQUIGRAD_BUILD=DIR (the preset `run` makes build/dev).")
endif()
include("${EQUIGRAD_BUILD}/program.cmake")
project(failure LANGUAGES CXX)
equigrad_outside_program(program program.cpp)
)";
}

std::string readme_text(const Failure& failure, bool has_program) {
  std::string text = "# " + failure.id + "\n\n`message.txt` says what went wrong. `./repro.sh`, " +
                     "from anywhere, repeats it:\n\n    " + failure.command + "\n";
  if (!has_program) return text;
  text +=
      "\n`program.cpp` does the same without the harness around it: it makes the model, the engine "
      "from\n`config.json` and the steps up to the failure, and prints the first value of each "
      "rank that differs from\nthe one that a single device computes. It ends with 1, or with 0 if "
      "nothing differs any more:\n\n"
      "    cmake -G Ninja -S . -B build && cmake --build build && build/program\n\n"
      "`-D EQUIGRAD_BUILD=DIR` takes another build of Equigrad, such as one with a remedy.\n\n"
      "| file | |\n|---|---|\n"
      "| `config.json` | what `equigrad::initialize` got, byte for byte |\n"
      "| `rank<N>.first.safetensors` | what rank N compared when it first saw a difference: `got` "
      "and `want`; where, in the metadata |\n"
      "| `rank<N>.safetensors` | the same of its first wrong gradient |\n"
      "| `rank<N>.inputs.safetensors` | what every micro-batch of every rank contributes to that "
      "gradient |\n";
  return text;
}

}  // namespace

std::vector<std::string> write_failure(const std::string& folder, const Failure& failure) {
  make_directory(folder);
  const bool has_program = failure.candidate && readable(folder + "/config.json");
  std::vector<std::pair<std::string, std::string>> files = {
      {"README.md", readme_text(failure, has_program)},
      {"message.txt", failure.message},
      {"repro.sh", script_text(failure)}};
  if (has_program) {
    files.emplace_back("program.cpp", program_text(failure));
    files.emplace_back("CMakeLists.txt", cmake_text());
  }
  std::vector<std::string> names;
  for (const auto& [name, text] : files) {
    write_file(folder + "/" + name, text);
    names.push_back(name);
  }
  chmod((folder + "/repro.sh").c_str(), 0755);
  return names;
}

bool is_failure_file(const std::string& name) {
  static const std::regex ours(
      "rank[0-9]+(\\.inputs|\\.first)?\\.safetensors|config\\.json|message\\.txt|repro\\.sh|"
      "program\\.cpp|CMakeLists\\.txt|README\\.md");
  return std::regex_match(name, ours);
}

void clear_failure(const std::string& folder) {
  for (const auto& name : entries(folder))
    if (is_failure_file(name)) unlink((folder + "/" + name).c_str());
  rmdir(folder.c_str());  // stays unless it is empty now
}

std::string absolute_program(const std::string& as_called) {
  if (as_called.find('/') != std::string::npos) return absolute(as_called);
  const std::string built = build_info::binary_directory() + std::string("/equigrad");
  return absolute("/proc/self/exe") == built
             ? built
             : as_called;  // the shell finds it by its name, as it did now
}

}  // namespace equigrad::conformance::cli
