// Rings whose bytes wrap around, memory that is seen from two places, and a bell between them.
#include "engine/comm/shared_segment.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace equigrad::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr SegmentSizes kSizes{2, 4096};

std::vector<std::byte> counted(std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 % 251);
  return values;
}

TEST(SharedSegment, AStreamLongerThanItsRingArrivesInOrder) {
  const auto owner = SharedSegment::make(kSizes);
  ASSERT_NE(owner, nullptr);
  const auto other = SharedSegment::map(owner->place(), kSizes);
  ASSERT_NE(other, nullptr);
  auto in = other->ring(1), out = owner->ring(1);
  const auto sent = counted(50'000);
  std::vector<std::byte> received(sent.size());
  std::size_t written = 0, read = 0;
  while (read < sent.size()) {
    written += in.write(sent.data() + written, std::min<std::size_t>(3'001, sent.size() - written));
    read += out.read(received.data() + read, std::min<std::size_t>(1'009, sent.size() - read));
    ASSERT_LE(written - read, kSizes.ring_bytes);
  }
  EXPECT_EQ(received, sent);
}

TEST(SharedSegment, ARingTakesWhatFitsAndGivesWhatIsThere) {
  const auto owner = SharedSegment::make(kSizes);
  ASSERT_NE(owner, nullptr);
  auto ring = owner->ring(0), another = owner->ring(1);
  const auto sent = counted(5'000);
  std::vector<std::byte> received(5'000);
  EXPECT_EQ(ring.read(received.data(), 10), 0u);
  EXPECT_EQ(ring.write(sent.data(), 5'000), 4'096u);
  EXPECT_EQ(ring.write(sent.data(), 1), 0u);
  EXPECT_EQ(another.read(received.data(), 10), 0u) << "of another writer";
  EXPECT_EQ(ring.read(received.data(), 5'000), 4'096u);
  EXPECT_EQ(ring.write(sent.data(), 1), 1u);
}

TEST(SharedSegment, WhoSleepsIsWokenByTheBell) {
  const auto owner = SharedSegment::make(kSizes);
  ASSERT_NE(owner, nullptr);
  const auto before = owner->bell();
  const auto start = steady_clock::now();
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    SharedSegment::map(owner->place(), kSizes)->ring_bell();
  });
  owner->sleep(before, milliseconds(20'000));
  EXPECT_LT(steady_clock::now() - start, milliseconds(10'000));
  other.join();
  EXPECT_NE(owner->bell(), before);
  owner->sleep(before, milliseconds(20'000));  // it has rung since: at once
  EXPECT_LT(steady_clock::now() - start, milliseconds(10'000));
}

TEST(SharedSegment, WhatIsClosedOrHiddenIsSo) {
  const auto owner = SharedSegment::make(kSizes);
  ASSERT_NE(owner, nullptr);
  const auto place = owner->place();
  const auto other = SharedSegment::map(place, kSizes);
  EXPECT_EQ(other->state(), 0u);
  owner->close(7);
  owner->close(8);
  EXPECT_EQ(other->state(), 7u) << "the first one stands";
  EXPECT_EQ(SharedSegment::map(place, {2, 8192}), nullptr) << "of another size";
  EXPECT_EQ(SharedSegment::map(place + "1", kSizes), nullptr) << "of another nonce";
  EXPECT_EQ(SharedSegment::map("nowhere", kSizes), nullptr);
  owner->hide();
  EXPECT_EQ(SharedSegment::map(place, kSizes), nullptr);
}

}  // namespace
}  // namespace equigrad::comm
