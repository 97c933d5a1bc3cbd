#include "engine/checkpoint/difference.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <set>

namespace equigrad::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t kPartNumel = std::int64_t{1} << 20;
constexpr std::uint64_t kNoNumber = std::numeric_limits<std::uint64_t>::max();

template <class Bits>
Bits element(const std::vector<std::byte>& bytes, std::int64_t i) {
  Bits bits;
  std::memcpy(&bits, bytes.data() + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
  return bits;
}

template <class Integer>
std::uint64_t integer_distance(Integer a, Integer b) {
  const auto wide = [](Integer x) { return static_cast<std::uint64_t>(x); };
  return a < b ? wide(b) - wide(a) : wide(a) - wide(b);  // modulo 2^64, in which it fits
}

template <class Bits>
std::uint64_t ulps(Bits a, Bits b, Bits infinite) {
  constexpr Bits kSize = std::numeric_limits<Bits>::max() >> 1;
  const std::uint64_t size_a = a & kSize, size_b = b & kSize;
  const bool is_nan_a = size_a > infinite, is_nan_b = size_b > infinite;
  if (is_nan_a || is_nan_b) return is_nan_a && is_nan_b ? 0 : kNoNumber;
  if ((a > kSize) != (b > kSize)) return size_a + size_b;
  return size_a < size_b ? size_b - size_a : size_a - size_b;
}

using Bytes = std::vector<std::byte>;

std::uint64_t distance(ElementType type, const Bytes& a, const Bytes& b, std::int64_t i) {
  const auto integers = [&]<class T>(T) {
    return integer_distance(element<T>(a, i), element<T>(b, i));
  };
  const auto numbers = [&]<class T>(T infinite) {
    return ulps<T>(element<T>(a, i), element<T>(b, i), infinite);
  };
  switch (type) {
    case ElementType::Bool:
    case ElementType::U8:
      return integers(std::uint8_t{});
    case ElementType::I8:
      return integers(std::int8_t{});
    case ElementType::I16:
      return integers(std::int16_t{});
    case ElementType::I32:
      return integers(std::int32_t{});
    case ElementType::I64:
      return integers(std::int64_t{});
    case ElementType::F16:
      return numbers(std::uint16_t{0x7C00});
    case ElementType::BF16:
      return numbers(std::uint16_t{0x7F80});
    case ElementType::F32:
      return numbers(std::uint32_t{0x7F800000});
    case ElementType::F64:
      return numbers(std::uint64_t{0x7FF0000000000000});
  }
  return kNoNumber;
}

void add_part(TensorDifference& found, ElementType type, const Bytes& a, const Bytes& b,
              std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = 0; i < end - begin; ++i) {
    const std::uint64_t apart = distance(type, a, b, i);
    if (apart == 0) continue;
    ++found.differ_numel;
    found.largest_ulps = std::max(found.largest_ulps, apart);
    if (found.first < 0) found.first = begin + i;
  }
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

struct Pair {
  const SavedCheckpoint& a;
  const SavedCheckpoint& b;
};

TensorDifference difference(const Pair& pair, const TensorEntry& a, const TensorEntry& b) {
  TensorDifference found{.name = a.name, .what = {}};
  if (a.type != b.type)
    found.what = "type " + std::string(to_text(a.type)) + " and " + std::string(to_text(b.type));
  else if (a.shape != b.shape)
    found.what = "shape " + shape_text(a.shape) + " and " + shape_text(b.shape);
  if (!found.what.empty()) return found;
  found.numel = numel_of(a.shape);
  if (found.numel == 0) return found;
  pair.a.verify(a.name, 0, found.numel);
  pair.b.verify(b.name, 0, found.numel);
  Bytes of_a, of_b;
  for (std::int64_t begin = 0; begin < found.numel; begin += kPartNumel) {
    const std::int64_t end = std::min(found.numel, begin + kPartNumel);
    of_a.resize(static_cast<std::size_t>((end - begin) * element_bytes(a.type)));
    of_b.resize(of_a.size());
    pair.a.read(a.name, begin, end, of_a.data());
    pair.b.read(b.name, begin, end, of_b.data());
    if (of_a != of_b) add_part(found, a.type, of_a, of_b, begin, end);
  }
  return found;
}

// Whether it belongs to a rank that only a larger one of the two runs has.
bool is_of_a_further_rank(std::string_view name, int world_size) {
  if (!name.starts_with("rank")) return false;
  int rank = -1;
  const auto read = std::from_chars(name.data() + 4, name.data() + name.size(), rank);
  const bool is_rank =
      read.ec == std::errc{} && read.ptr != name.data() + name.size() && *read.ptr == '/';
  return is_rank && rank >= world_size;
}

// What an engine says of its parameters, by their names.
json by_name(const json& parameters) {
  json named = json::object();
  for (const json& one : parameters)
    if (one.is_object() && one.contains("name") && one["name"].is_string())
      named[one["name"].get<std::string>()] = one;
  return named.size() == parameters.size() ? named : parameters;
}

std::map<std::string, std::string> settings_of(const Manifest& manifest) {
  json all = {{"engine", manifest.engine}, {"client_state", manifest.client_state}};
  json& engine = all["engine"];
  if (engine.is_object()) {
    engine.erase("stage");
    engine.erase("mesh");
  }
  if (engine.contains("parameters")) engine["parameters"] = by_name(engine["parameters"]);
  std::map<std::string, std::string> settings;
  const json flat = all.flatten();
  for (const auto& [path, value] : flat.items()) settings[path] = value.dump();
  return settings;
}

}  // namespace

std::vector<TensorDifference> differences(const SavedCheckpoint& a, const SavedCheckpoint& b) {
  std::set<std::string> names;
  for (const SavedCheckpoint* saved : {&a, &b})
    for (const TensorEntry& entry : saved->manifest().tensors) names.insert(entry.name);
  const int world_size = std::min(a.manifest().world_size, b.manifest().world_size);
  std::vector<TensorDifference> found;
  for (const std::string& name : names) {
    if (is_of_a_further_rank(name, world_size)) continue;
    if (!a.has(name) || !b.has(name)) {
      found.push_back({.name = name, .what = a.has(name) ? "only in A" : "only in B"});
      continue;
    }
    auto one = difference({a, b}, a.entry(name), b.entry(name));
    if (!one.what.empty() || one.differ_numel > 0) found.push_back(std::move(one));
  }
  return found;
}

std::vector<SettingDifference> setting_differences(const Manifest& a, const Manifest& b) {
  auto of_a = settings_of(a), of_b = settings_of(b);
  std::set<std::string> paths;
  for (const auto* settings : {&of_a, &of_b})
    for (const auto& [path, value] : *settings) paths.insert(path);
  std::vector<SettingDifference> found;
  for (const std::string& path : paths)
    if (of_a[path] != of_b[path]) found.push_back({path, of_a[path], of_b[path]});
  return found;
}

}  // namespace equigrad::checkpoint
