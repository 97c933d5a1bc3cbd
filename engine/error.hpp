// Error: what every part of Equigrad throws for bad input or a failed run; and EQUIGRAD_CHECK, for
// what can only be wrong by a mistake of Equigrad's own.
//
//   EQUIGRAD_CHECK(run.end <= shard_numel, "optimizer.update", "a run ends within the shard");
//
// The text is "[where] expected X, got Y. Remedy."; `where` names the call the user made. Of a
// check it is "[where] broken invariant: WHAT. ...".
//
// Invariants: an error's text is valid UTF-8, whatever it quotes. A check is made with NDEBUG too;
// its condition is evaluated once.
// Errors: a check that does not hold throws Error.
// Depends on: the C++ standard library only.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace equigrad {

// Bytes of the valid UTF-8 sequence at the front of `text`, 0 if there is none.
inline std::size_t utf8_sequence_bytes(std::string_view text) {
  const auto byte = [text](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [byte](std::size_t i, unsigned least = 0x80, unsigned most = 0xBF) {
    return byte(i) >= least && byte(i) <= most;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {  // neither longer than need be nor half of a pair
    const bool is_second = continues(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return is_second && continues(2) ? 3 : 0;
  }
  if (first < 0xF0 || first > 0xF4) return 0;
  const bool is_second = continues(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
  return is_second && continues(2) && continues(3) ? 4 : 0;
}

// `text` with U+FFFD for each byte that belongs to no valid UTF-8 sequence.
inline std::string valid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    valid += bytes == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return valid;
}

class Error : public std::runtime_error {
 public:
  Error(const std::string& where, const std::string& what)
      : std::runtime_error(valid_utf8("[" + where + "] " + what)) {}
};

[[noreturn]] inline void throw_broken_invariant(const char* where, const char* what) {
  throw Error(where, std::string("broken invariant: ") + what +
                         ". This is a mistake in Equigrad: report it, with the configuration.");
}

}  // namespace equigrad

#define EQUIGRAD_CHECK(condition, where, what) \
  static_cast<void>((condition) || (::equigrad::throw_broken_invariant(where, what), false))
