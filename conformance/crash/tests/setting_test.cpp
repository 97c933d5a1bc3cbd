// Names of points: what is written is read, and nothing else.
#include "conformance/crash/setting.hpp"

#include <gmock/gmock.h>

#include <set>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using ::testing::SizeIs;

TEST(Setting, NamesOfPointsAreReadAsTheyAreWritten) {
  for (const char* name :
       {"zero2.w3.fp16.new.power.7-4-4.s12", "zero0.w2.fp32.same.kill.9-5.s1",
        "zero3.w4.bf16.new.signal-1.r2.o17", "zero3.w4.bf16.new.signal-4.r0.o0",
        "zero1.w1.fp16.same.ENOSPC.r0.o8", "zero1.w1.fp16.same.EIO.r0.o8", "flip.small.rank1.4711",
        "flip.large.manifest.77", "flip.parts.latest.3", "zero0.w1.fp32.new.power.0.s999999999",
        "zero1.w2t2.bf16.new.power.7-4.s12", "zero3.w4s2.fp16.same-beside.EIO.r3.o8",
        "zero2.w4s2t2.fp32.new.call.r3.o1", "zero0.w3t3.fp32.new.kill.1-2-3.s1"})
    EXPECT_EQ(to_text(point_from(name)), name);
}

TEST(Setting, WhatIsNoNameIsRefused) {
  for (const char* name : {"",
                           "power",
                           "zero4.w3.fp16.new.power.7-4-4.s12",
                           "zero2.w5.fp16.new.power.7-4-4-4-4.s12",
                           "zero2.w3.fp16.new.power.7-4.s12",
                           "zero2.w3.fp64.new.power.7-4-4.s12",
                           "zero2.w3.fp16.old.power.7-4-4.s12",
                           "zero2.w3.fp16.new.flood.7-4-4.s12",
                           "zero2.w3.fp16.new.power.7-4-4.12",
                           "zero2.w3.fp16.new.EIO.r3.o1",
                           "flip.small.rank1",
                           "flip.medium.rank1.7",
                           "zero2.w3.fp16.new.power.7-4-4.s12.more",
                           "zero-2.w3.fp16.new.power.7-4-4.s12",
                           "zero3.w2t2.fp16.new.power.7-4.s12",
                           "zero1.w3t2.fp16.new.power.7-4-4.s12",
                           "zero1.w2t1.fp16.new.power.7-4.s12",
                           "zero1.w4t2s2.fp16.new.power.7-4-4-4.s12",
                           "zero1.t2.fp16.new.power.7-4.s12",
                           "zero1.w2t0.fp16.new.power.7-4.s12",
                           "zero1.w2t.fp16.new.power.7-4.s12"})
    EXPECT_THROW(point_from(name), Error) << name;
}

TEST(Setting, EveryStageMeetsEveryNumberOfRanksInBothWays) {
  std::set<std::string> names, precisions;
  for (const auto& one : settings({0, 1, 2, 3}, {1, 2, 3, 4})) {
    if (one.sequence * one.tensor > 1) continue;
    names.insert(to_text(one));
    precisions.insert(one.precision);
  }
  EXPECT_THAT(names, SizeIs(32));
  EXPECT_THAT(precisions, SizeIs(3));
}

TEST(Setting, RanksThatShareAModelAreAmongThem) {
  std::set<int> tensor, sequence;
  for (const auto& one : settings({0, 1, 2, 3}, {1, 2, 3, 4})) {
    EXPECT_EQ(nlohmann::json(one).get<Setting>(), one);
    tensor.insert(one.tensor);
    sequence.insert(one.sequence);
    const auto point = to_text(one) + ".EIO.r0.o1";
    EXPECT_EQ(to_text(point_from(point)), point);
  }
  EXPECT_EQ(tensor, (std::set{1, 2, 3}));
  EXPECT_EQ(sequence, (std::set{1, 2}));
  for (const auto& one : settings({3}, {2})) EXPECT_TRUE(one.stage == 3 && one.world == 2);
}

}  // namespace
}  // namespace equigrad::conformance::crash
