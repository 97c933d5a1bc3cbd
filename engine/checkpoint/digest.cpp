#include "engine/checkpoint/digest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "engine/checkpoint/strict_json.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

constexpr std::size_t kDigits = 32;

Digest of(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }

// -1 for what is no lower-case hexadecimal digit.
int value_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

}  // namespace

Digest digest_of(const void* data, std::size_t bytes) {
  return of(XXH3_128bits(bytes == 0 ? "" : data, bytes));
}

std::string to_text(const Digest& digest) {
  std::string text;
  for (const std::uint64_t half : {digest.high, digest.low})
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(half >> shift) & 15];
  return text;
}

Digest digest_from(std::string_view text, const std::string& where) {
  Digest digest;
  bool is_digest = text.size() == kDigits;
  for (std::size_t i = 0; is_digest && i < kDigits; ++i) {
    const int value = value_of(text[i]);
    is_digest = value >= 0;
    std::uint64_t& half = i < kDigits / 2 ? digest.high : digest.low;
    half = half << 4 | (static_cast<std::uint64_t>(value) & 15);
  }
  if (!is_digest)
    throw Error(where, "expected a digest, 32 digits of 0-9 and a-f, got " + quote(text) +
                           ". Restore the file that has it.");
  return digest;
}

struct Digester::State {
  XXH3_state_t state;
};

Digester::Digester() : state_(new State) { XXH3_128bits_reset(&state_->state); }
Digester::~Digester() = default;

void Digester::add(const void* data, std::size_t bytes) {
  if (bytes != 0) XXH3_128bits_update(&state_->state, data, bytes);
}

Digest Digester::digest() const { return of(XXH3_128bits_digest(&state_->state)); }

}  // namespace equigrad::checkpoint
