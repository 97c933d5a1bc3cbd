// Digest: XXH3-128 of bytes, which finds what a disk, a copy or a cable has changed. Not a
// signature: it does not withstand who changes bytes and digest both.
//
// Invariants: the same bytes give the same digest on every machine, in whatever parts they come.
// Shapes: text is 32 lower-case hexadecimal digits, the high 64 bits first (XXH128_canonical).
// Errors: equigrad::Error for a text that is no digest.
// Depends on: xxHash, in the source.
// Page: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace equigrad::checkpoint {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Digest&) const = default;
};

Digest digest_of(const void* data, std::size_t bytes);
std::string to_text(const Digest& digest);
Digest digest_from(std::string_view text, const std::string& where = "checkpoint");

// Of bytes that come in parts.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;
  void add(const void* data, std::size_t bytes);
  Digest digest() const;  // of what was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace equigrad::checkpoint
