// Safetensors headers: the official layout, and every claim that a file does not keep refused.
#include "engine/checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "engine/checkpoint/tests/largest_allocation.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string length_of(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 255);
  return bytes;
}

// The front of a file with this header.
std::string front_of(const std::string& json) { return length_of(json.size()) + json; }

SafetensorsHeader read(const std::string& front, std::int64_t tensor_bytes) {
  return read_header(std::as_bytes(std::span(front)),
                     static_cast<std::int64_t>(front.size()) + tensor_bytes, "a.safetensors");
}

std::string error_of(const std::string& front, std::int64_t tensor_bytes) {
  try {
    read(front, tensor_bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string with_tensor(const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
  return front_of(R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" +
                  offsets + "}}");
}

TEST(SafetensorsHeader, IsOfTheOfficialLayout) {
  SafetensorsHeader header;
  header.tensors = {{"z", ElementType::F32, {2, 3}, 7}, {"a", ElementType::BF16, {}, 0}};
  header.metadata = {{"format", "pt"}};
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  const std::string padded = json + std::string(7 - (json.size() + 7) % 8, ' ');
  EXPECT_EQ(make_header(header), length_of(padded.size()) + padded);
  EXPECT_EQ(header.header_bytes, static_cast<std::int64_t>(8 + padded.size()));
  EXPECT_EQ(header.header_bytes % 8, 0);
  EXPECT_EQ(header.tensor_bytes, 26);
  EXPECT_EQ(header.tensors[0].offset_bytes, 0);
  EXPECT_EQ(header.tensors[1].offset_bytes, 24);
}

// What safetensors.serialize() of the library's version 0.8.0 gives for these tensors.
TEST(SafetensorsHeader, IsWhatTheOfficialLibraryWrites) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},)"
      "\"\u00e4\\\"\":{\"dtype\":\"BOOL\",\"shape\":[0,3],\"data_offsets\":[10,10]}}";
  SafetensorsHeader header;
  header.tensors = {{"z", ElementType::F32, {2}, 0},
                    {"a", ElementType::BF16, {}, 0},
                    {"\u00e4\"", ElementType::Bool, {0, 3}, 0}};
  header.metadata = {{"format", "pt"}};
  EXPECT_EQ(make_header(header), length_of(200) + json);
  EXPECT_EQ(read(length_of(200) + json, 10).tensors, header.tensors);
}

TEST(SafetensorsHeader, OfNoTensorsIsAnEmptyObject) {
  SafetensorsHeader header;
  EXPECT_EQ(make_header(header), length_of(8) + "{}      ");
  EXPECT_EQ(read(make_header(header), 0).tensors.size(), 0U);
  EXPECT_EQ(header.header_bytes, 16);
}

void expect_read_as_made(SafetensorsHeader header) {
  const std::string front = make_header(header);
  const SafetensorsHeader again = read(front, header.tensor_bytes);
  EXPECT_EQ(again.tensors, header.tensors);
  EXPECT_EQ(again.metadata, header.metadata);
  EXPECT_EQ(again.header_bytes, header.header_bytes);
  EXPECT_EQ(again.tensor_bytes, header.tensor_bytes);
  EXPECT_THAT(error_of(front, header.tensor_bytes + 1), HasSubstr("bytes behind the header"));
}

TEST(SafetensorsHeader, KeepsTheOrderOfTensorsAndEveryType) {
  SafetensorsHeader header;
  for (const char* type : {"I16", "BOOL", "F64", "U8", "I8", "BF16", "I32", "I64", "F16", "F32"})
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {0}, {3}, {0, 5}, {2, 1, 7}, {1, 1, 1, 1, 1, 1, 1, 1, 2}})
      header.tensors.push_back({"t" + std::to_string(header.tensors.size() * 7919 % 100),
                                element_type_from(type), shape, 0});
  ASSERT_EQ(header.tensors.size(), 60U);
  expect_read_as_made(header);
}

// As UTF-8.
std::string text_of(char32_t point) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (point < 0x80) return {byte(point)};
  if (point < 0x800) return {byte(0xC0 | point >> 6), byte(0x80 | (point & 63))};
  if (point < 0x10000)
    return {byte(0xE0 | point >> 12), byte(0x80 | (point >> 6 & 63)), byte(0x80 | (point & 63))};
  return {byte(0xF0 | point >> 18), byte(0x80 | (point >> 12 & 63)), byte(0x80 | (point >> 6 & 63)),
          byte(0x80 | (point & 63))};
}

TEST(SafetensorsHeader, TakesNamesOfEveryCharacter) {
  SafetensorsHeader header;
  header.tensors.push_back({"", ElementType::U8, {1}, 0});
  for (char32_t point = 0; point < 0x11000; point += point < 0x800 ? 1 : 251) {
    if (point >= 0xD800 && point < 0xE000) continue;
    header.tensors.push_back({text_of(point), ElementType::U8, {1}, 0});
    header.metadata["m" + text_of(point)] = text_of(point);
  }
  header.tensors.push_back({text_of(0x10FFFF), ElementType::U8, {1}, 0});
  header.tensors.push_back({std::string(100'000, 'n'), ElementType::U8, {1}, 0});
  expect_read_as_made(header);
}

TEST(SafetensorsHeader, IsReadWithOffsetsInAnotherOrderThanItsText) {
  const SafetensorsHeader header =
      read(front_of("{\"b\":{\"data_offsets\":[2,4],\"dtype\":\"I8\",\"shape\":[2]},\n\t"
                    R"("e":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},)"
                    R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}} )"),
           4);
  EXPECT_THAT(header.tensors, ElementsAre(TensorHeader{"b", ElementType::I8, {2}, 2},
                                          TensorHeader{"e", ElementType::F32, {0}, 2},
                                          TensorHeader{"a", ElementType::BF16, {1}, 0}));
}

TEST(SafetensorsHeader, IsReadFromTheFileOrFromItsFront) {
  SafetensorsHeader header;
  header.tensors = {{"a", ElementType::U8, {3}, 0}};
  const std::string front = make_header(header);
  const std::string file = front + "xyz";
  const auto bytes = std::as_bytes(std::span(file));
  EXPECT_EQ(read_header(bytes, 3 + header.header_bytes, "f").tensors, header.tensors);
  EXPECT_EQ(read_header(bytes.first(front.size()), 3 + header.header_bytes, "f").tensors,
            header.tensors);
}

TEST(SafetensorsHeader, AFrontThatIsCutAnywhereIsRefused) {
  SafetensorsHeader header;
  header.tensors = {{"a", ElementType::U8, {3}, 0}};
  const std::string front = make_header(header);
  for (std::size_t bytes = 0; bytes < front.size(); ++bytes)
    for (const std::int64_t behind : {0, 3, 1000})
      EXPECT_THAT(error_of(front.substr(0, bytes), behind),
                  StartsWith("[a.safetensors] expected a "));
}

TEST(SafetensorsHeader, ALengthThatIsClaimedIsNotBelieved) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'000}, std::uint64_t{100'000'001},
        std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    largest_allocation = 0;
    const std::string error = error_of(length_of(length) + "{}", std::int64_t{1} << 60);
    EXPECT_LT(largest_allocation, 10'000U);
    EXPECT_THAT(error, AllOf(StartsWith("[a.safetensors] expected a header of "),
                             HasSubstr(std::to_string(length)),
                             HasSubstr(length > 100'000'000 ? "at most 100000000 bytes" : "got 2")))
        << length;
  }
}

TEST(SafetensorsHeader, WhatIsNoHeaderIsRefused) {
  for (const std::string json : {"",
                                 " {}",
                                 "[]",
                                 "1",
                                 "null",
                                 "{",
                                 "{}x",
                                 "{} {}",
                                 "\xEF\xBB\xBF{}",
                                 "{]",
                                 R"({"a"})",
                                 R"({"a":})",
                                 R"({"a":1})",
                                 R"({"a":null})",
                                 R"({"a":[]})",
                                 R"({"a":{}})",
                                 R"({"a":"b"})",
                                 R"({"__metadata__":1})",
                                 R"({"__metadata__":[]})",
                                 R"({"__metadata__":{"a":1}})",
                                 R"({"__metadata__":{"a":{}}})",
                                 R"({"__metadata__":{"a":"b","c":null}})",
                                 R"({"__metadata__":{},"__metadata__":{}})"})
    EXPECT_THAT(error_of(front_of(json), 0), StartsWith("[a.safetensors")) << json;
  EXPECT_THAT(error_of(front_of(std::string("{}\0\0", 4)), 0), HasSubstr("a byte of zero"));
  EXPECT_THAT(error_of(front_of("<html>\n"), 0),
              HasSubstr("expected a header that begins with {, got \"<html>"));
}

TEST(SafetensorsHeader, ATensorHasItsThreeKeysAndNoOther) {
  for (const std::string tensor :
       {R"({"dtype":"U8","shape":[1]})", R"({"dtype":"U8","data_offsets":[0,1]})",
        R"({"shape":[1],"data_offsets":[0,1]})",
        R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})",
        R"({"dtype":1,"shape":[1],"data_offsets":[0,1]})",
        R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})",
        R"({"dtype":"U8","shape":{"a":1},"data_offsets":[0,1]})",
        R"({"dtype":"U8","shape":[1],"data_offsets":1})",
        R"({"dtype":"U8","shape":[1],"data_offsets":[1]})",
        R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})"})
    EXPECT_THAT(error_of(front_of("{\"a\":" + tensor + "}"), 1),
                StartsWith("[a.safetensors: tensor \"a\"] expected {\"dtype\": \"...\", "))
        << tensor;
}

TEST(SafetensorsHeader, UnknownTypesAreNamed) {
  for (const std::string type : {"", "F31", "f32", "F32 ", "float", "U64", "F8_E4M3", "C64"})
    EXPECT_THAT(error_of(with_tensor('"' + type + '"', "[1]", "[0,1]"), 1),
                AllOf(HasSubstr("tensor \"a\"] expected a type of BOOL, U8, I8, I16, I32, I64, "
                                "F16, BF16, F32, F64, got \"" +
                                type + '"')));
}

TEST(SafetensorsHeader, SizesAreWholeNumbersAndTheirProductFits) {
  for (const std::string shape :
       {"[-1]", "[1.0]", "[1e0]", "[\"1\"]", "[null]", "[true]", "[9223372036854775808]",
        "[18446744073709551615]", "[18446744073709551616]", "[99999999999999999999999999]",
        "[9223372036854775807,2]", "[4294967296,4294967296]", "[0,4294967296,4294967296]",
        "[3037000500,3037000500]", "[9223372036854775807]", "[4611686018427387904]"}) {
    largest_allocation = 0;
    const std::string error = error_of(with_tensor("\"BF16\"", shape, "[0,2]"), 2);
    EXPECT_LT(largest_allocation, 10'000U);
    EXPECT_THAT(error,
                AllOf(StartsWith("[a.safetensors: tensor \"a\"] expected "), HasSubstr("2^63")))
        << shape;
  }
  std::string many = "[1";
  for (int i = 0; i < 63; ++i) many += ",1";
  EXPECT_EQ(error_of(with_tensor("\"U8\"", many + ']', "[0,1]"), 1), "no error");
  EXPECT_THAT(error_of(with_tensor("\"U8\"", many + ",1]", "[0,1]"), 1),
              HasSubstr("at most 64 sizes"));
}

TEST(SafetensorsHeader, OffsetsAreAsFarApartAsTheShapeHas) {
  for (const std::string offsets : {"[0,5]", "[0,7]", "[6,0]", "[0,0]", "[1,6]",
                                    "[0,9223372036854775807]", "[9223372036854775807,1]"})
    EXPECT_THAT(error_of(with_tensor("\"BF16\"", "[3]", offsets), 6),
                HasSubstr("expected data_offsets 6 bytes apart"))
        << offsets;
  for (const std::string offsets :
       {"[-6,0]", "[0,6.0]", "[\"0\",6]", "[null,6]", "[0,1e1]",
        "[9223372036854775808,9223372036854775814]", "[18446744073709551610,18446744073709551616]"})
    EXPECT_THAT(error_of(with_tensor("\"BF16\"", "[3]", offsets), 6),
                HasSubstr("expected a size, a whole number from 0 to 2^63 - 1"))
        << offsets;
}

std::string two(const std::string& a, const std::string& b, std::int64_t tensor_bytes) {
  const std::string u8 = R"({"dtype":"U8","shape":)";
  return error_of(front_of("{\"a\":" + u8 + a + "},\"b\":" + u8 + b + "}}"), tensor_bytes);
}

TEST(SafetensorsHeader, EveryByteBelongsToOneTensor) {
  EXPECT_EQ(two(R"([2],"data_offsets":[0,2])", R"([3],"data_offsets":[2,5])", 5), "no error");
  EXPECT_EQ(two(R"([2],"data_offsets":[3,5])", R"([3],"data_offsets":[0,3])", 5), "no error");
  EXPECT_THAT(
      two(R"([2],"data_offsets":[0,2])", R"([3],"data_offsets":[3,6])", 6),
      HasSubstr("expected tensor \"b\" at byte 2, where the one before it ends, got byte 3"));
  EXPECT_THAT(two(R"([2],"data_offsets":[1,3])", R"([3],"data_offsets":[3,6])", 6),
              HasSubstr("expected tensor \"a\" at byte 0"));
  EXPECT_THAT(two(R"([2],"data_offsets":[0,2])", R"([3],"data_offsets":[1,4])", 4),
              HasSubstr("expected tensor \"b\" at byte 2"));
  EXPECT_THAT(two(R"([2],"data_offsets":[0,2])", R"([2],"data_offsets":[0,2])", 2),
              HasSubstr("expected tensor \"b\" at byte 2"));
  EXPECT_THAT(two(R"([0],"data_offsets":[1,1])", R"([3],"data_offsets":[0,3])", 3),
              HasSubstr("expected tensor \"a\" at byte 3"));
  EXPECT_THAT(two(R"([2],"data_offsets":[0,2])", R"([3],"data_offsets":[2,5])", 4),
              HasSubstr("to end at or before byte 4"));
  EXPECT_THAT(two(R"([2],"data_offsets":[0,2])", R"([3],"data_offsets":[2,5])", 6),
              HasSubstr("expected 5 bytes behind the header, as its tensors have, got 6"));
}

TEST(SafetensorsHeader, ATensorLargerThanAnyFileIsNotAllocated) {
  largest_allocation = 0;
  const std::string error =
      error_of(with_tensor("\"F32\"", "[1099511627776]", "[0,4398046511104]"), 16);
  EXPECT_LT(largest_allocation, 10'000U);
  EXPECT_THAT(error, HasSubstr("to end at or before byte 16"));
  EXPECT_THAT(two(R"([9223372036854775807],"data_offsets":[0,9223372036854775807])",
                  R"([9223372036854775806],"data_offsets":[1,9223372036854775807])", 16),
              HasSubstr("to end at or before byte 16"));
}

TEST(SafetensorsHeader, NamesGivenTwiceAreRefused) {
  EXPECT_THAT(error_of(front_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                       0),
              HasSubstr("got \"a\" twice"));
  EXPECT_THAT(error_of(front_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],)"
                                R"("data_offsets":[0,0]}})"),
                       0),
              HasSubstr("got \"dtype\" twice"));
}

TEST(SafetensorsHeader, DeepNestingIsRefused) {
  for (const std::string opening : {"[", "{\"a\":"}) {
    std::string json = "{\"a\":";
    for (int i = 0; i < 100'000; ++i) json += opening;
    EXPECT_THAT(error_of(front_of(json), 0), HasSubstr("at most 3 levels"));
  }
  EXPECT_THAT(error_of(with_tensor("\"U8\"", "[[1]]", "[0,1]"), 1), HasSubstr("at most 3 levels"));
}

// There is no digest here: a changed name is another name. But nothing that was read lies outside.
TEST(SafetensorsHeader, EveryBitThatIsFlippedIsAnErrorOrAnotherWholeHeader) {
  SafetensorsHeader header;
  header.tensors = {{"a", ElementType::F32, {2, 3}, 0}, {"\u00e4", ElementType::BF16, {5}, 0}};
  header.metadata = {{"format", "pt"}};
  std::string front = make_header(header);
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < 8 * front.size(); ++bit) {
    const auto flip = [&] { front[bit / 8] = static_cast<char>(front[bit / 8] ^ (1 << bit % 8)); };
    flip();
    try {
      const SafetensorsHeader other = read(front, 34);
      std::int64_t bytes = 0;
      for (const TensorHeader& tensor : other.tensors) bytes += bytes_of(tensor);
      EXPECT_EQ(bytes, 34) << bit;
    } catch (const Error&) {
      ++refused;
    }
    flip();
  }
  EXPECT_GT(refused, 8 * front.size() * 3 / 4);
}

std::string error_of_making(std::vector<TensorHeader> tensors,
                            std::map<std::string, std::string> metadata = {}) {
  SafetensorsHeader header{std::move(tensors), std::move(metadata), 0, 0};
  try {
    make_header(header, "out");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MadeHeader, RefusesWhatCouldNotBeRead) {
  using Type = ElementType;
  EXPECT_THAT(error_of_making({{"a", Type::U8, {1}, 0}, {"a", Type::U8, {1}, 0}}),
              HasSubstr("[out] expected every tensor's name once"));
  EXPECT_THAT(error_of_making({{"__metadata__", Type::U8, {1}, 0}}),
              HasSubstr("none __metadata__"));
  EXPECT_THAT(error_of_making({{"\xff", Type::U8, {1}, 0}}), HasSubstr("text in UTF-8"));
  EXPECT_THAT(error_of_making({}, {{"a", "\xff"}}), HasSubstr("text in UTF-8"));
  EXPECT_THAT(error_of_making({}, {{"\xff", "a"}}), HasSubstr("text in UTF-8"));
  EXPECT_THAT(error_of_making({{"a", Type::U8, {-1}, 0}}), HasSubstr("sizes from 0"));
  EXPECT_THAT(error_of_making({{"a", Type::F64, {INT64_MAX / 8 + 1}, 0}}), HasSubstr("2^63 bytes"));
  EXPECT_THAT(error_of_making({{"a", Type::U8, {INT64_MAX}, 0}, {"b", Type::U8, {1}, 0}}),
              HasSubstr("a file of fewer than 2^63 bytes"));
  std::vector<TensorHeader> large(1);
  large[0].name.assign(100'000'001, 'a');
  EXPECT_THAT(error_of_making(std::move(large)),
              HasSubstr("a header of at most 100000000 bytes, got one of 100000001"));
}

TEST(ElementTypes, AreReadAsTheyAreWritten) {
  for (int i = 0; i < 10; ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_EQ(element_type_from(to_text(type)), type);
  }
  EXPECT_EQ(to_text(ElementType::Bool), "BOOL");
  EXPECT_EQ(to_text(ElementType::F64), "F64");
  EXPECT_EQ(element_bytes(ElementType::Bool), 1);
  EXPECT_EQ(element_bytes(ElementType::I16), 2);
  EXPECT_EQ(element_bytes(ElementType::BF16), 2);
  EXPECT_EQ(element_bytes(ElementType::F32), 4);
  EXPECT_EQ(element_bytes(ElementType::I64), 8);
}

TEST(Numel, IsTheProduct) {
  EXPECT_EQ(numel_of({}), 1);
  EXPECT_EQ(numel_of({7, 5}), 35);
  EXPECT_EQ(numel_of({0, 5}), 0);
  EXPECT_EQ(numel_of({INT64_MAX, 0}), 0);
  EXPECT_EQ(numel_of({1, INT64_MAX}), INT64_MAX);
  EXPECT_THROW(numel_of({2, INT64_MAX}), Error);
  EXPECT_THROW(numel_of({0, 2, INT64_MAX}), Error);
  EXPECT_THROW(numel_of({0, -1}), Error);
}

}  // namespace
}  // namespace equigrad::checkpoint
