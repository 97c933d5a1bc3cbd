// Digests: those that xxHash's own tests have, the same in whatever parts the bytes come, and a
// text that is read as it was written.
#include "engine/checkpoint/digest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using testing::HasSubstr;

std::string digest_text(const std::string& data) {
  return to_text(digest_of(data.data(), data.size()));
}

// The outputs of `xxhsum -H2` for these texts.
TEST(Digest, IsXxh3Of128Bits) {
  EXPECT_EQ(digest_text(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_text("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, OfNoBytesNeedsNoPlace) {
  EXPECT_EQ(digest_of(nullptr, 0), digest_of("", 0));
  Digester digester;
  digester.add(nullptr, 0);
  EXPECT_EQ(digester.digest(), digest_of("", 0));
}

TEST(Digest, IsTheSameInWhateverPartsTheBytesCome) {
  std::string data;
  for (int i = 0; i < 3000; ++i) data += static_cast<char>(i * 31 + i / 7);
  for (std::size_t bytes = 0; bytes < data.size(); bytes += bytes < 300 ? 1 : 97) {
    const Digest whole = digest_of(data.data(), bytes);
    for (const std::size_t part : {1U, 7U, 64U, 256U, 1000U}) {
      Digester digester;
      for (std::size_t at = 0; at < bytes; at += part)
        digester.add(data.data() + at, std::min(part, bytes - at));
      ASSERT_EQ(digester.digest(), whole) << bytes << " bytes by " << part;
    }
  }
}

TEST(Digest, OfWhatWasAddedSoFar) {
  Digester digester;
  digester.add("ab", 2);
  EXPECT_EQ(digester.digest(), digest_of("ab", 2));
  digester.add("c", 1);
  EXPECT_EQ(digester.digest(), digest_of("abc", 3));
}

TEST(Digest, EveryBitThatIsFlippedChangesIt) {
  for (const std::size_t bytes : {1U, 3U, 8U, 16U, 17U, 128U, 129U, 240U, 241U, 1025U}) {
    std::string data(bytes, 'x');
    std::set<std::string> seen{digest_text(data)};
    for (std::size_t bit = 0; bit < 8 * bytes; ++bit) {
      data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
      EXPECT_TRUE(seen.insert(digest_text(data)).second) << bit << " of " << bytes << " bytes";
      data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
    }
  }
}

TEST(DigestText, IsReadAsItWasWritten) {
  const Digest digest{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(to_text(digest), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(digest_from(to_text(digest)), digest);
  EXPECT_EQ(digest_from(std::string(32, '0')), Digest{});
}

TEST(DigestText, RefusesEveryOther) {
  const std::string good = "0123456789abcdeffedcba9876543210";
  std::vector<std::string> bad{"", good.substr(1), good + "0", good + std::string(1, '\0')};
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const char c : {'A', 'F', 'g', '/', ':', '`', ' ', '\0', '\xff'}) {
      bad.push_back(good);
      bad.back()[at] = c;
    }
  for (const std::string& text : bad) {
    try {
      digest_from(text, "here");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("[here] expected a digest, 32 digits of 0-9 and a-f"));
    }
  }
}

}  // namespace
}  // namespace equigrad::checkpoint
