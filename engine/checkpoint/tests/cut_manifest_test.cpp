// Manifests of tensors that a tensor group saved in parts: version 2, and what it refuses.
#include <gmock/gmock.h>

#include <functional>

#include "conformance/testing/error_of.hpp"
#include "engine/checkpoint/manifest.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using conformance::error_of;
using testing::HasSubstr;
using testing::StartsWith;

// `text` with the digest that it has.
std::string sealed(std::string text) {
  constexpr std::size_t kDigestBegin = 61;
  text.replace(kDigestBegin, 32, std::string(32, '0'));
  return text.replace(kDigestBegin, 32, to_text(digest_of(text.data(), text.size())));
}

// [2, 4] cut along its columns, in two parts of two files; the first part in two pieces of one.
Manifest a_cut_manifest() {
  const auto of_part = [](std::int64_t part_of, std::int64_t begin, std::int64_t end) {
    return TensorEntry{.name = "master/b",
                       .type = ElementType::F32,
                       .shape = {2, 4},
                       .pieces = {{.begin = begin, .end = end, .digest = {}, .part = part_of}},
                       .cut = Cut{.dimension = 1, .segments = {2, 2}, .parts = 2}};
  };
  Manifest manifest;
  manifest.id = "3f9a";
  manifest.world_size = 3;
  merge(manifest, {{{"rank-0", 16 + 4, 16, {}}, {of_part(0, 0, 1)}},
                   {{"rank-1", 16 + 16, 16, {}}, {of_part(1, 0, 4)}},
                   {{"rank-2", 16 + 12, 16, {}}, {of_part(0, 1, 4)}}});
  return manifest;
}

TEST(Manifest, PartsOfATensorGroupAreVersion2) {
  const Manifest manifest = a_cut_manifest();
  const std::string text = write_manifest(manifest);
  EXPECT_THAT(text, StartsWith(R"({"schema": "equigrad.checkpoint", "version": 2, ")"));
  EXPECT_EQ(read_manifest(text, "m"), manifest);
  std::vector<std::int64_t> order;
  for (const Piece& piece : manifest.tensors[0].pieces)
    order.push_back(10 * piece.part + piece.begin);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 10}));
  const auto error_of_edit = [&](const std::string& from, const std::string& to) {
    std::string bad = text;
    EXPECT_NE(bad.find(from), std::string::npos) << from;
    bad.replace(bad.find(from), from.size(), to);
    return error_of([&] { read_manifest(sealed(bad), "m"); });
  };
  EXPECT_THAT(error_of_edit("\"version\": 2", "\"version\": 1"),
              HasSubstr("expected an object of name, type, shape, pieces"));
  EXPECT_THAT(error_of_edit("\"segments\":[2,2]", "\"segments\":[2,1]"),
              HasSubstr("segments that add up to 4, got [2, 1]"));
  EXPECT_THAT(error_of_edit("\"segments\":[2,2]", "\"segments\":[4,0]"),
              HasSubstr("segments that add up to 4"));
  EXPECT_THAT(error_of_edit("\"segments\":[2,2]", "\"segments\":[3,1]"),
              HasSubstr("that 2 parts divide"));
  EXPECT_THAT(error_of_edit("\"dimension\":1", "\"dimension\":2"),
              HasSubstr("a dimension of [2, 4]"));
  EXPECT_THAT(error_of_edit("\"parts\":2", "\"parts\":0"), HasSubstr("at least 1 part"));
  EXPECT_THAT(error_of_edit("\"parts\":2", "\"parts\":1"), HasSubstr("got one of part 1"));
  EXPECT_THAT(error_of_edit("\"part\":1", "\"part\":0"),
              HasSubstr("to be of part 1, got one of part 0"));
  EXPECT_THAT(error_of_edit("\"part\":0,", ""), HasSubstr("expected an object of"));
  EXPECT_THAT(error_of_edit("\"begin\":1,\"end\":4", "\"begin\":0,\"end\":3"),
              HasSubstr("to begin at element 1"));
}

TEST(Merge, RefusesRanksThatCutOneTensorInTwoWays) {
  auto manifest = a_cut_manifest();
  RankFile one{{"a", 8, 8, {}}, {manifest.tensors[0]}}, other = one;
  one.tensors[0].pieces.resize(1);
  other.tensors[0].pieces.resize(1);
  other.file.name = "b";
  other.tensors[0].cut->segments = {4};
  EXPECT_THAT(error_of([&] {
                merge(manifest, {one, other});
              }),
              HasSubstr("expected one cut in files"));
}

}  // namespace
}  // namespace equigrad::checkpoint
