// Manifests: read as they were written, every bit that was flipped seen, and every claim that the
// files do not keep refused.
#include "engine/checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/checkpoint/tests/largest_allocation.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_reading(std::string_view text) {
  return error_of([&] { read_manifest(text, "m"); });
}

Digest digest_of_text(const std::string& text) { return digest_of(text.data(), text.size()); }

// A tensor as one rank has it.
TensorEntry part(const std::string& name, ElementType type, std::vector<std::int64_t> shape,
                 std::int64_t begin, std::int64_t end, std::int64_t offset_bytes) {
  const Digest digest = digest_of_text(name + std::to_string(begin));
  return {name, type, std::move(shape), {{0, begin, end, offset_bytes, digest}}};
}

// master/b lies in both files, the others in one.
std::vector<RankFile> two_files() {
  return {{{"rank-0", 16 + 12, 16, digest_of_text("0")},
           {part("master/b", ElementType::F32, {5}, 0, 3, 0),
            part("master/c", ElementType::F32, {0, 2}, 0, 0, 12),
            part("master/a", ElementType::BF16, {}, 0, 0, 12)}},
          {{"rank-1", 24 + 10, 24, digest_of_text("1")},
           {part("master/b", ElementType::F32, {5}, 3, 5, 0),
            part("master/a", ElementType::BF16, {}, 0, 1, 8)}}};
}

Manifest a_manifest() {
  Manifest manifest;
  manifest.id = "3f9a";
  manifest.world_size = 2;
  manifest.engine = {{"stage", 3}, {"lr", 0.1}};
  manifest.client_state = {{"xxh3_128", std::string(32, '0')}, {"epoch", 7}};
  merge(manifest, two_files());
  return manifest;
}

constexpr std::size_t kDigestBegin = 61;

// `text` with the digest that it has.
std::string sealed(std::string text) {
  text.replace(kDigestBegin, 32, std::string(32, '0'));
  return text.replace(kDigestBegin, 32, to_text(digest_of_text(text)));
}

// A manifest in which `from` was replaced by `to`, once.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = write_manifest(a_manifest());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return sealed(text);
}

TEST(Manifest, IsReadAsItWasWritten) {
  Manifest manifest = a_manifest();
  EXPECT_EQ(read_manifest(write_manifest(manifest), "m"), manifest);
  manifest.client_state = nullptr;
  manifest.engine = {{"\u00e4\"\\/\b\n", {1, -1, 0.1, 1e300, true, nullptr, "\u0000"}},
                     {"least", std::numeric_limits<double>::denorm_min()},
                     {"zero", -0.0},
                     {"large", std::numeric_limits<std::uint64_t>::max()},
                     {"small", std::numeric_limits<std::int64_t>::min()}};
  const Manifest again = read_manifest(write_manifest(manifest), "m");
  EXPECT_EQ(again, manifest);
  EXPECT_EQ(again.engine.dump(), manifest.engine.dump());
  EXPECT_EQ(write_manifest(again), write_manifest(manifest));
}

TEST(Manifest, OfNothingIsReadToo) {
  Manifest manifest;
  manifest.id = "0";
  EXPECT_EQ(read_manifest(write_manifest(manifest), "m"), manifest);
}

TEST(Manifest, TakesTensorsOfEveryName) {
  RankFile file{{"f", 8, 8, {}}, {}};
  for (const std::string& name :
       {std::string(), std::string("\0", 1), std::string("a/../b"), std::string("\"\\\n\x7f"),
        std::string("\u00e4\U0001F600"), std::string(10'000, 'n'), std::string("xxh3_128")}) {
    file.tensors.push_back(part(name, ElementType::U8, {1}, 0, 1, file.file.bytes - 8));
    ++file.file.bytes;
  }
  Manifest manifest;
  manifest.id = "0";
  merge(manifest, {read_rank_file(write_rank_file(file))});
  EXPECT_EQ(read_manifest(write_manifest(manifest), "m"), manifest);
  for (const TensorEntry& tensor : file.tensors) {
    const TensorEntry* found = manifest.find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(*found, tensor);
  }
  EXPECT_EQ(manifest.find("a"), nullptr);
  EXPECT_EQ(manifest.find("zz"), nullptr);
}

TEST(Manifest, HasItsDigestAtItsPlace) {
  const std::string text = write_manifest(a_manifest());
  EXPECT_THAT(text, StartsWith(R"({"schema": "equigrad.checkpoint", "version": 1, "xxh3_128": ")"));
  EXPECT_EQ(sealed(text), text);
  const Json root = Json::parse(text);
  EXPECT_EQ(root["xxh3_128"], text.substr(kDigestBegin, 32));
  EXPECT_EQ(root["client_state"]["xxh3_128"], std::string(32, '0'));
}

TEST(Manifest, EveryBitThatIsFlippedIsSeen) {
  std::string text = write_manifest(a_manifest());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    const auto flip = [&] { text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8)); };
    flip();
    EXPECT_THAT(error_of_reading(text), StartsWith("[m] expected ")) << bit;
    flip();
  }
}

TEST(Manifest, ATextThatIsCutAnywhereOrGoesOnIsSeen) {
  const std::string text = write_manifest(a_manifest());
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_THAT(error_of_reading(text.substr(0, bytes)), StartsWith("[m] expected ")) << bytes;
  for (const std::string more : {" ", "\n", "}", text.c_str()})
    EXPECT_THAT(error_of_reading(text + more), HasSubstr("has been changed, or is not whole"));
  EXPECT_THAT(error_of_reading(text + '\0'), HasSubstr("has been changed, or is not whole"));
  EXPECT_THAT(error_of_reading(sealed(text + std::string("\0x", 2))), HasSubstr("a byte of zero"));
  EXPECT_THAT(error_of_reading(sealed(text + "{}")), HasSubstr("expected JSON"));
}

TEST(Manifest, TwoPartsThatChangedPlacesAreSeen) {
  std::string text = write_manifest(a_manifest());
  const std::size_t half = text.size() / 2;
  std::swap_ranges(text.begin() + kDigestBegin + 40, text.begin() + static_cast<long>(half),
                   text.begin() + static_cast<long>(half));
  EXPECT_THAT(error_of_reading(text), HasSubstr("expected the digest"));
}

TEST(Manifest, AnotherSchemaIsNamed) {
  EXPECT_THAT(error_of_reading(R"({"version": 1, "schema": "other.thing"})"),
              HasSubstr("[m] expected a manifest of schema equigrad.checkpoint, got one of schema "
                        "\"other.thing\""));
  EXPECT_THAT(error_of_reading(R"({"schema": 7})"), HasSubstr("got one of schema 7"));
  EXPECT_THAT(error_of_reading("<html>"), HasSubstr("got a text that begins with \"<html>\""));
  EXPECT_THAT(error_of_reading(""), HasSubstr("got a text that begins with \"\""));
  EXPECT_THAT(error_of_reading("{}"), HasSubstr("got a text that begins with \"{}\""));
  EXPECT_THAT(error_of_reading(std::string(100'000, '[')), HasSubstr("begins with \"[[["));
}

TEST(Manifest, ANewerVersionIsNamed) {
  const std::string newer =
      "[m] expected version 2 of equigrad.checkpoint or an earlier one, got version \"3\"";
  EXPECT_THAT(error_of_reading(edited("\"version\": 1", "\"version\": 3")), HasSubstr(newer));
  EXPECT_THAT(error_of_reading(R"({"schema": "equigrad.checkpoint", "version": 3, "new": 1})"),
              HasSubstr(newer));
  EXPECT_THAT(error_of_reading(R"({"schema": "equigrad.checkpoint", "version": 10)"),
              HasSubstr("got version \"10\""));
  std::string damaged = write_manifest(a_manifest());
  damaged[damaged.find("\"version\": 1") + 11] = '3';
  EXPECT_THAT(error_of_reading(damaged), HasSubstr("the file has been changed"));
  std::string front = R"({"schema": "equigrad.checkpoint", "version": )";
  EXPECT_THAT(error_of_reading(front + "1"), HasSubstr("expected a digest behind the version"));
  EXPECT_THAT(error_of_reading(front), HasSubstr("got version \"\""));
  EXPECT_THAT(error_of_reading(front + "-1"), HasSubstr("got version \"\""));
  EXPECT_THAT(error_of_reading(front + std::string(100'000, '9')), HasSubstr("got version \"99"));
}

struct Edit {
  std::string from, to, error;
};

void expect_refused(const std::vector<Edit>& edits) {
  for (const Edit& edit : edits) {
    const std::string text = edited(edit.from, edit.to);
    largest_allocation = 0;
    const std::string error = error_of_reading(text);
    EXPECT_LT(largest_allocation, 100'000U) << edit.to;
    EXPECT_THAT(error, AllOf(StartsWith("[m"), HasSubstr("] expected "), HasSubstr(edit.error)))
        << edit.from << " -> " << edit.to;
  }
}

TEST(ManifestRefuses, KeysThatItDoesNotKnowLacksOrHasTwice) {
  expect_refused({{"\"id\"", "\"di\"", "expected an object of schema, version, xxh3_128, id"},
                  {"\"id\"", "\"more\": 1, \"id\"", "expected an object of schema, version"},
                  {"\"id\"", "\"schema\": 1, \"id\"", "got \"schema\" twice"},
                  {"\"id\"", "\"xxh3_128\": 1, \"id\"", "got \"xxh3_128\" twice"},
                  {"\"id\"", "\"version\": 2, \"id\"", "got \"version\" twice"},
                  {"\"lr\"", "\"stage\": 1, \"lr\"", "got \"stage\" twice"},
                  {"\"header_bytes\"", "\"head_bytes\"", "expected an object of name, bytes"},
                  {"\"begin\"", "\"begun\"", "expected an object of file, begin, end"},
                  {"\"begin\"", "\"end\"", "got \"end\" twice"},
                  {"\"shape\"", "\"shapes\"", "expected an object of name, type, shape, pieces"},
                  {"\"shape\"", "\"x\":0,\"shape\"", "expected an object of name, type, shape"},
                  {"\"files\": [", "\"files\": [1,", "expected an object of name, bytes"},
                  {"\"tensors\": [", "\"tensors\": [[],", "expected an object of name, type"},
                  {"\"files\": [", "\"files\": 1, \"f\": [", "expected an object of schema"}});
}

TEST(ManifestRefuses, ValuesOfAnotherType) {
  const std::string no_whole = ", a whole number from 0 to 2^53, got ";
  std::vector<Edit> edits{
      {"\"3f9a\"", "7", "expected id, a text, got 7"},
      {"\"name\":\"rank-0\"", "\"name\":null", "expected name, a text"},
      {"\"name\":\"master/b\"", "\"name\":1", "expected name, a text"},
      {"\"shape\":[5]", "\"shape\":5", "expected shape, an array, got 5"},
      {"\"shape\":[5]", "\"shape\":{}", "expected shape, an array, got {}"},
      {"\"BF16\"", "16", "expected type, a text, got 16"},
      {"\"BF16\"", "\"BF17\"", "expected a type of BOOL"},
      {"8,\"xxh3_128\":\"", "8,\"xxh3_128\":\"A", "expected a digest, 32 digits"},
      {"8,\"xxh3_128\":\"", "8,\"xxh3_128\":null,\"x\":\"", "expected an object"}};
  const std::string bad[] = {"-1",
                             "1.0",
                             "1e0",
                             "\"1\"",
                             "null",
                             "true",
                             "[]",
                             "{}",
                             "-0.0",
                             "9007199254740993",
                             "9223372036854775808",
                             "18446744073709551616",
                             "1e300"};
  for (const std::string& number : bad) {
    edits.push_back({"\"world_size\": 2", "\"world_size\": " + number, "world_size" + no_whole});
    edits.push_back({"\"bytes\":28", "\"bytes\":" + number, "bytes" + no_whole});
    edits.push_back(
        {"\"header_bytes\":16", "\"header_bytes\":" + number, "header_bytes" + no_whole});
    edits.push_back({"\"shape\":[5]", "\"shape\":[" + number + "]", "a size" + no_whole});
    edits.push_back({"\"file\":1", "\"file\":" + number, "file" + no_whole});
    edits.push_back({"\"begin\":3", "\"begin\":" + number, "begin" + no_whole});
    edits.push_back({"\"end\":5", "\"end\":" + number, "end" + no_whole});
    edits.push_back(
        {"\"offset_bytes\":8", "\"offset_bytes\":" + number, "offset_bytes" + no_whole});
  }
  expect_refused(edits);
  for (const char* key : {"engine", "files", "tensors"})
    EXPECT_THAT(error_of_reading(edited(std::string("\"") + key + "\": ",
                                        std::string("\"") + key + "\": 1, \"more\": ")),
                HasSubstr("expected "));
}

TEST(ManifestRefuses, NumbersThatAreTooLarge) {
  const std::string most = "9007199254740992";  // 2^53
  expect_refused({{"\"world_size\": 2", "\"world_size\": 0", "expected a world_size from 1"},
                  {"\"world_size\": 2", "\"world_size\": 2147483648", "world_size below 2^31"},
                  {"\"file\":1", "\"file\":2", "expected a file below 2, got 2"},
                  {"\"file\":1", "\"file\":" + most, "expected a file below 2, got " + most},
                  {"\"shape\":[5]", "\"shape\":[" + most + "]", "at most 2^53 bytes"},
                  {"\"shape\":[5]", "\"shape\":[" + most + ",1024]", "2^63"},
                  {"\"shape\":[5]", "\"shape\":[4294967296,4294967296]", "product is below 2^63"},
                  {"\"shape\":[0,2]", "\"shape\":[0," + most + ',' + most + ']', "below 2^63"},
                  {"\"end\":5", "\"end\":" + most, "at 5 or before, got [3, " + most},
                  {"\"offset_bytes\":8", "\"offset_bytes\":" + most, "at byte " + most},
                  {"\"bytes\":28", "\"bytes\":" + most, "expected pieces of all 9007199254740976"},
                  {"\"header_bytes\":16", "\"header_bytes\":29", "got 29 in 28"},
                  {"\"header_bytes\":16", "\"header_bytes\":7", "a header of 8 bytes or more"}});
  std::string many = "\"shape\":[5";
  for (int i = 0; i < 64; ++i) many += ",1";
  expect_refused({{"\"shape\":[5", many, "a shape of at most 64 sizes, got 65"}});
}

TEST(ManifestRefuses, PiecesThatDoNotCoverTheirTensor) {
  expect_refused(
      {{"\"begin\":3", "\"begin\":2", "to begin at element 3 and to end behind that"},
       {"\"begin\":3", "\"begin\":4", "to begin at element 3 and to end behind that"},
       {"\"end\":5", "\"end\":4", "expected pieces of all 5 elements, got 4"},
       {"\"end\":5", "\"end\":3", "got [3, 3)"},
       {"\"end\":5", "\"end\":2", "got [3, 2)"},
       {"\"end\":5", "\"end\":6", "got [3, 6)"},
       {"\"shape\":[5]", "\"shape\":[4]", "at 4 or before, got [3, 5)"},
       {"\"shape\":[5]", "\"shape\":[2,3]", "expected pieces of all 6 elements, got 5"},
       {"\"shape\":[5]", "\"shape\":[0]", "got [0, 3)"},
       {"\"shape\":[0,2]", "\"shape\":[1,2]", "expected pieces of all 2 elements, got 0"},
       {"\"begin\":0", "\"begin\":1", "to begin at element 0"}});
}

TEST(ManifestRefuses, PiecesThatDoNotCoverTheirFile) {
  expect_refused({{"\"offset_bytes\":8", "\"offset_bytes\":7",
                   "expected the next piece at byte 8, got one of "
                   "tensor \"master/a\" at byte 7"},
                  {"\"offset_bytes\":8", "\"offset_bytes\":9", "at byte 9"},
                  {"\"file\":1", "\"file\":0", "expected the next piece at byte 12"},
                  {"\"bytes\":28", "\"bytes\":27",
                   "expected pieces of all 11 bytes behind its header, got 12"},
                  {"\"bytes\":28", "\"bytes\":29",
                   "expected pieces of all 13 bytes behind its header, got 12"},
                  {"\"header_bytes\":16", "\"header_bytes\":17", "expected pieces of all 11 bytes"},
                  {"\"type\":\"BF16\"", "\"type\":\"F32\"", "expected pieces of all 10 bytes"}});
}

TEST(ManifestRefuses, FilesWithFolders) {
  const std::string plain = "expected the plain name of a file, without folders, got ";
  std::vector<Edit> edits;
  for (const std::string name : {"", ".", "..", "/rank-0", "a/b", "../rank-0", "a/../b", "rank-0/",
                                 "a\\\\b", "a\\u0000b", "a\\nb", "\\u007f"}) {
    edits.push_back({"\"name\":\"rank-0\"", "\"name\":\"" + name + '"', plain});
    edits.push_back({"\"3f9a\"", '"' + name + '"', plain});
  }
  edits.push_back({"rank-0", std::string(256, 'a'), plain});
  expect_refused(edits);
  EXPECT_EQ(error_of_reading(edited("rank-0", std::string(255, 'a'))), "no error");
  EXPECT_EQ(error_of_reading(edited("rank-0", "a..b \u00e4")), "no error");
}

TEST(ManifestRefuses, NamesGivenTwice) {
  expect_refused(
      {{"rank-0", "rank-1", "expected every file once, got \"rank-1\" twice"},
       {"master/a", "master/b", "tensor \"master/b\"] expected every tensor once"},
       {"master/a", "master/d", "expected tensors by name, got it behind \"master/d\""}});
}

std::string nested(int levels) {
  return std::string(static_cast<std::size_t>(levels), '[') +
         std::string(static_cast<std::size_t>(levels), ']');
}

TEST(ManifestRefuses, NestingWithoutEnd) {
  EXPECT_EQ(error_of_reading(edited(":7", ':' + nested(98))), "no error");
  expect_refused({{":7", ':' + nested(99), "at most 100 levels, got more"}});
  std::string text = edited(":7", ':' + nested(100'000));
  EXPECT_THAT(error_of_reading(text), HasSubstr("at most 100 levels, got more"));
}

TEST(WrittenManifest, RefusesWhatCouldNotBeReadAgain) {
  const auto error_with = [](const std::function<void(Manifest&)>& change) {
    Manifest manifest = a_manifest();
    change(manifest);
    return error_of([&] { write_manifest(manifest); });
  };
  EXPECT_THAT(error_with([](Manifest& m) {
                m.client_state = {{"loss", std::nan("")}};
              }),
              HasSubstr("[save_checkpoint: client_state] expected a finite number, got nan"));
  EXPECT_THAT(error_with([](Manifest& m) { m.engine = HUGE_VAL; }),
              HasSubstr("[save_checkpoint: engine] expected a finite number, got inf"));
  EXPECT_THAT(error_with([](Manifest& m) { m.client_state = "\xff"; }), HasSubstr("in UTF-8"));
  EXPECT_THAT(error_with([](Manifest& m) { m.client_state = Json::parse(nested(99)); }),
              HasSubstr("no error"));
  EXPECT_THAT(error_with([](Manifest& m) { m.client_state = Json::parse(nested(100)); }),
              HasSubstr("expected fewer levels"));
  EXPECT_THAT(error_with([](Manifest& m) { m.files[0].name = "../a"; }), HasSubstr("plain name"));
  EXPECT_THAT(error_with([](Manifest& m) { m.files[0].name = "\xff"; }), HasSubstr("in UTF-8"));
  EXPECT_THAT(error_with([](Manifest& m) { m.files[0].bytes = -1; }), HasSubstr("got 16 in -1"));
  EXPECT_THAT(error_with([](Manifest& m) { m.files[0].bytes = (1LL << 53) + 1; }),
              HasSubstr("in a file of at most 2^53, got 16 in 9007199254740993"));
  EXPECT_THAT(error_with([](Manifest& m) { m.id = ""; }), HasSubstr("plain name"));
  EXPECT_THAT(error_with([](Manifest& m) { m.world_size = 0; }), HasSubstr("a world_size from 1"));
  EXPECT_THAT(error_with([](Manifest& m) { m.tensors[0].name = "\xff"; }), HasSubstr("UTF-8"));
  EXPECT_THAT(error_with([](Manifest& m) { std::swap(m.tensors[0], m.tensors[1]); }),
              HasSubstr("expected tensors by name"));
  EXPECT_THAT(error_with([](Manifest& m) { m.tensors[0].shape = {-1}; }), HasSubstr("from 0"));
  EXPECT_THAT(error_with([](Manifest& m) { m.tensors[0].pieces[0].offset_bytes = INT64_MAX; }),
              HasSubstr("expected an offset from 0 to 2^53"));
  EXPECT_THAT(error_with([](Manifest& m) { m.tensors[0].pieces[0].begin = INT64_MIN; }),
              HasSubstr("to begin at element 0"));
}

// ---- Ranks' files ------------------------------------------------------------------------------

TEST(RankFile, IsReadAsItWasWritten) {
  for (const RankFile& file : two_files()) {
    const RankFile again = read_rank_file(write_rank_file(file));
    EXPECT_EQ(again.file, file.file);
    EXPECT_EQ(again.tensors, file.tensors);
  }
}

TEST(RankFile, RefusesWhatIsNone) {
  const std::string good = write_rank_file(two_files()[0]);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"file\":{", "\"f\":{"},
                                                        {"\"tensors\":[", "\"tensors\":[1,"},
                                                        {"\"tensors\":", "\"more\":1,\"tensors\":"},
                                                        {"\"bytes\":28", "\"bytes\":-1"},
                                                        {"\"pieces\":[{", "\"pieces\":[],\"x\":[{"},
                                                        {"\"begin\":0", "\"begin\":-1"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_THAT(error_of([&, &bad = bad] { read_rank_file(bad); }), StartsWith("[save_checkpoint"))
        << bad;
  }
  RankFile two = two_files()[0];
  two.tensors[0].pieces.push_back(two.tensors[0].pieces[0]);
  EXPECT_THAT(error_of([&] { read_rank_file(write_rank_file(two)); }),
              HasSubstr("tensor \"master/b\"] expected one piece, got 2"));
  two.tensors[0].name = "\xff";
  EXPECT_THAT(error_of([&] { write_rank_file(two); }), HasSubstr("in UTF-8"));
}

std::string names_and_pieces(const Manifest& manifest) {
  std::string text;
  for (const TensorEntry& tensor : manifest.tensors) {
    text += tensor.name + ':';
    for (const Piece& piece : tensor.pieces)
      text += ' ' + std::to_string(piece.file) + '[' + std::to_string(piece.begin) + ',' +
              std::to_string(piece.end) + ")@" + std::to_string(piece.offset_bytes);
    text += '\n';
  }
  return text;
}

TEST(Merge, HasFilesByRankTensorsByNameAndPiecesInOrder) {
  Manifest manifest;
  manifest.id = "0";
  merge(manifest, two_files());
  EXPECT_EQ(names_and_pieces(manifest),
            "master/a: 1[0,1)@8\nmaster/b: 0[0,3)@0 1[3,5)@0\nmaster/c:\n");
  EXPECT_EQ(manifest.files[0], two_files()[0].file);
  EXPECT_EQ(manifest.find("master/b")->pieces[1].digest, digest_of_text("master/b3"));
  const std::vector<RankFile> reversed{two_files()[1], two_files()[0]};
  merge(manifest, reversed);
  EXPECT_EQ(names_and_pieces(manifest),
            "master/a: 0[0,1)@8\nmaster/b: 1[0,3)@0 0[3,5)@0\nmaster/c:\n");
}

TEST(Merge, RefusesRanksThatDoNotAgree) {
  const auto error_with = [](const std::function<void(std::vector<RankFile>&)>& change) {
    std::vector<RankFile> files = two_files();
    change(files);
    Manifest manifest;
    manifest.id = "0";
    return error_of([&] { merge(manifest, files); });
  };
  using Files = std::vector<RankFile>;
  EXPECT_THAT(error_with([](Files& f) {
                f[1].tensors[0].shape = {1, 5};
              }),
              HasSubstr("[save_checkpoint: tensor \"master/b\"] expected F32 [5] in file "
                        "\"rank-1\", as in \"rank-0\", got F32 [1,5]. "));
  EXPECT_THAT(error_with([](Files& f) { f[1].tensors[0].type = ElementType::I32; }),
              HasSubstr("got I32 [5]"));
  EXPECT_THAT(error_with([](Files& f) { f[1].tensors[0].pieces[0].begin = 2; }),
              HasSubstr("to begin at element 3"));
  EXPECT_THAT(error_with([](Files& f) { f[0].tensors[0].pieces[0].end = 2; }),
              HasSubstr("to begin at element 2"));
  EXPECT_THAT(error_with([](Files& f) { f[1].tensors[0].pieces[0].end = 4; }),
              HasSubstr("expected pieces of all 5 elements, got 4"));
  EXPECT_THAT(error_with([](Files& f) { f[1].tensors.erase(f[1].tensors.begin()); }),
              HasSubstr("expected pieces of all 5 elements, got 3"));
  EXPECT_THAT(error_with([](Files& f) { f[1].tensors[1] = f[1].tensors[0]; }),
              HasSubstr("tensor \"master/a\"] expected pieces of all 1 elements, got 0"));
  EXPECT_THAT(error_with([](Files& f) { f.push_back(f[1]); }), HasSubstr("every file once"));
  EXPECT_THAT(error_with([](Files& f) { f[0].file.bytes += 1; }),
              HasSubstr("expected pieces of all 13"));
}

TEST(Merge, OfManyRanksIsQuickAndWhole) {
  constexpr int kRanks = 64, kTensors = 100;
  std::vector<RankFile> files;
  for (int rank = 0; rank < kRanks; ++rank) {
    RankFile file{{"rank-" + std::to_string(rank), 8 + 12 * kTensors, 8, {}}, {}};
    for (int i = 0; i < kTensors; ++i)
      file.tensors.push_back(part("t" + std::to_string(i), ElementType::F32, {3 * kRanks}, 3 * rank,
                                  3 * rank + 3, 12 * i));
    files.push_back(std::move(file));
  }
  Manifest manifest;
  manifest.id = "0";
  merge(manifest, files);
  EXPECT_EQ(read_manifest(write_manifest(manifest), "m"), manifest);
}

}  // namespace
}  // namespace equigrad::checkpoint
