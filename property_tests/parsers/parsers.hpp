// Parsers: what reads texts that anybody may have written, each as one function of bytes, so that a
// fuzzer can call it (fuzz/main.cpp), and so that a test plays the corpus without one.
//
// Invariants: whatever the bytes, a parser throws what its header says, or takes them; what it took
// holds what its header says, and is the same when it is written and read again.
// Errors: std::logic_error where that is not so. Nothing else is thrown.
// Depends on: engine/checkpoint, engine/config, reports.
#pragma once

#include <span>
#include <string_view>

namespace equigrad::property_tests {

struct Parser {
  const char* name;  // corpus/NAME has bytes to begin with
  bool (*takes)(std::string_view bytes);
};

// The bytes are what stands in a manifest behind its digest; the digest is made to be right. They
// are tried as a whole manifest and as a rank's file too.
bool takes_manifest(std::string_view bytes);
// A line, the number of bytes of all tensors, and behind it the header's JSON. The bytes are tried
// as a whole file too.
bool takes_safetensors(std::string_view bytes);
// A configuration, for two ranks.
bool takes_configuration(std::string_view bytes);
// run.json.
bool takes_run(std::string_view bytes);

std::span<const Parser> parsers();

}  // namespace equigrad::property_tests
