#include "engine/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "engine/checkpoint/strict_json.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

constexpr std::int64_t kMostHeaderBytes = 100'000'000;  // as the library of that name has it
constexpr std::int64_t kLengthBytes = 8;
constexpr int kHeaderLevels = 3;  // the tensors, one of them, its shape
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kRestore = ". Restore the file from another copy.";

struct TypeRow {
  std::string_view text;
  std::int64_t bytes;
};
// By ElementType.
constexpr std::array<TypeRow, 10> kTypes{{{"BOOL", 1},
                                          {"U8", 1},
                                          {"I8", 1},
                                          {"I16", 2},
                                          {"I32", 4},
                                          {"I64", 8},
                                          {"F16", 2},
                                          {"BF16", 2},
                                          {"F32", 4},
                                          {"F64", 8}}};

const TypeRow& row_of(ElementType type) { return kTypes.at(static_cast<std::size_t>(type)); }

std::int64_t length_in(std::span<const std::byte> file, std::int64_t file_bytes,
                       const std::string& where) {
  if (file_bytes < kLengthBytes || file.size() < kLengthBytes)
    throw Error(where, "expected a safetensors file, of at least 8 bytes, got " +
                           std::to_string(file_bytes) + kRestore);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<std::uint64_t>(file[i]);
  if (length > static_cast<std::uint64_t>(kMostHeaderBytes))
    throw Error(where, "expected a header of at most 100000000 bytes, got one of " +
                           std::to_string(length) + kRestore);
  if (length > file.size() - kLengthBytes)
    throw Error(where, "expected a header of " + std::to_string(length) + " bytes, got " +
                           std::to_string(file.size() - kLengthBytes) + kRestore);
  return static_cast<std::int64_t>(length);
}

std::int64_t size_from(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX)
    throw Error(where, "expected a size, a whole number from 0 to 2^63 - 1, got " + shown(value) +
                           kRestore);
  return value.get<std::int64_t>();
}

TensorHeader tensor_from(const std::string& name, const Json& value, const std::string& where) {
  const bool is_tensor = value.is_object() && value.size() == 3 && value.contains("dtype") &&
                         value.contains("shape") && value.contains("data_offsets");
  if (!is_tensor || !value["dtype"].is_string() || !value["shape"].is_array() ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2)
    throw Error(where, R"(expected {"dtype": "...", "shape": [...], "data_offsets": [begin, end]})"
                       ", got " +
                           shown(value) + kRestore);
  TensorHeader tensor{name, element_type_from(value["dtype"].get<std::string>(), where), {}, 0};
  for (const Json& size : value["shape"]) {
    tensor.shape.push_back(size_from(size, where));
    if (tensor.shape.size() > kMostDimensions) break;
  }
  tensor.offset_bytes = size_from(value["data_offsets"][0], where);
  const std::int64_t end = size_from(value["data_offsets"][1], where);
  const std::int64_t bytes = bytes_of(tensor, where);
  if (end < tensor.offset_bytes || end - tensor.offset_bytes != bytes)
    throw Error(where, "expected data_offsets " + std::to_string(bytes) +
                           " bytes apart, as its shape has, "
                           "got " +
                           shown(value["data_offsets"]) + kRestore);
  return tensor;
}

std::map<std::string, std::string> metadata_from(const Json& value, const std::string& where) {
  std::map<std::string, std::string> metadata;
  const bool is_object = value.is_object();
  if (is_object)
    for (const auto& [key, text] : value.items())
      if (text.is_string()) metadata[key] = text.get<std::string>();
  if (!is_object || metadata.size() != value.size())
    throw Error(where,
                "expected __metadata__ to be an object of texts, got " + shown(value) + kRestore);
  return metadata;
}

// Every byte belongs to one tensor.
void check_cover(const SafetensorsHeader& header, const std::string& where) {
  std::vector<const TensorHeader*> order;
  for (const TensorHeader& tensor : header.tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const TensorHeader* a, const TensorHeader* b) {
    return std::pair(a->offset_bytes, bytes_of(*a)) < std::pair(b->offset_bytes, bytes_of(*b));
  });
  std::int64_t end = 0;
  for (const TensorHeader* tensor : order) {
    if (tensor->offset_bytes != end)
      throw Error(where, "expected tensor " + quote(tensor->name) + " at byte " +
                             std::to_string(end) + ", where the one before it ends, got byte " +
                             std::to_string(tensor->offset_bytes) + kRestore);
    const std::int64_t bytes = bytes_of(*tensor);
    if (bytes > header.tensor_bytes - end)
      throw Error(where, "expected tensor " + quote(tensor->name) + " to end at or before byte " +
                             std::to_string(header.tensor_bytes) +
                             ", the last one of the file, got byte " + std::to_string(end) +
                             " and " + std::to_string(bytes) + " more" + kRestore);
    end += bytes;
  }
  if (end != header.tensor_bytes)
    throw Error(where, "expected " + std::to_string(end) +
                           " bytes behind the header, as its tensors have, "
                           "got " +
                           std::to_string(header.tensor_bytes) + kRestore);
}

void check_length(std::size_t length, const std::string& where) {
  if (length > static_cast<std::size_t>(kMostHeaderBytes))
    throw Error(where, "expected a header of at most 100000000 bytes, got one of " +
                           std::to_string(length) + ". Split the file.");
}

void check_names(const SafetensorsHeader& header, const std::string& where) {
  std::set<std::string_view> names{kMetadata};
  for (const TensorHeader& tensor : header.tensors) {
    check_writable(Json(tensor.name), where, 0);
    if (!names.insert(tensor.name).second)
      throw Error(where, "expected every tensor's name once, and none __metadata__, got " +
                             quote(tensor.name) + ". Rename one.");
  }
  check_writable(Json(header.metadata), where, 1);
}

}  // namespace

std::int64_t element_bytes(ElementType type) { return row_of(type).bytes; }
std::string_view to_text(ElementType type) { return row_of(type).text; }

ElementType element_type_from(std::string_view text, const std::string& where) {
  std::string known;
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes.at(i).text == text) return static_cast<ElementType>(i);
    known += (i == 0 ? "" : ", ") + std::string(kTypes.at(i).text);
  }
  throw Error(where, "expected a type of " + known + ", got " + quote(text) +
                         ". Convert the tensor to one of them.");
}

std::int64_t numel_of(const std::vector<std::int64_t>& shape, const std::string& where) {
  if (shape.size() > kMostDimensions)
    throw Error(where, "expected a shape of at most 64 sizes, got more. Reshape the tensor.");
  std::int64_t product = 1;
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    is_empty = is_empty || size == 0;
    const bool overflows = size != 0 && __builtin_mul_overflow(product, size, &product);
    if (size < 0 || overflows)
      throw Error(where, "expected sizes from 0, whose product is below 2^63, got " +
                             shown(Json(shape)) + kRestore);
  }
  return is_empty ? 0 : product;
}

std::int64_t bytes_of(const TensorHeader& tensor, const std::string& where) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(numel_of(tensor.shape, where), element_bytes(tensor.type), &bytes))
    throw Error(where, "expected a tensor of fewer than 2^63 bytes, got " +
                           std::string(to_text(tensor.type)) + " " + shown(Json(tensor.shape)) +
                           kRestore);
  return bytes;
}

std::string make_header(SafetensorsHeader& header, const std::string& where) {
  std::size_t least = 0;
  for (const TensorHeader& tensor : header.tensors) least += tensor.name.size();
  check_length(least, where);
  check_names(header, where);
  std::string text;
  if (!header.metadata.empty())
    text += ',' + Json(kMetadata).dump() + ':' + Json(header.metadata).dump();
  header.tensor_bytes = 0;
  for (TensorHeader& tensor : header.tensors) {
    tensor.offset_bytes = header.tensor_bytes;
    if (__builtin_add_overflow(tensor.offset_bytes, bytes_of(tensor, where), &header.tensor_bytes))
      throw Error(where, "expected a file of fewer than 2^63 bytes, got more. Split it.");
    const std::string offsets =
        std::to_string(tensor.offset_bytes) + ',' + std::to_string(header.tensor_bytes);
    text += ',' + Json(tensor.name).dump() + R"(:{"dtype":")" + std::string(to_text(tensor.type)) +
            R"(","shape":)" + Json(tensor.shape).dump() + R"(,"data_offsets":[)" + offsets + "]}";
  }
  if (text.empty()) text = ",";
  text.front() = '{';
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check_length(text.size(), where);
  header.header_bytes = kLengthBytes + static_cast<std::int64_t>(text.size());
  std::string length;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length += static_cast<char>(text.size() >> (8 * i) & 255);
  return length + text;
}

SafetensorsHeader read_header(std::span<const std::byte> file, std::int64_t file_bytes,
                              const std::string& where) {
  const std::int64_t length = length_in(file, file_bytes, where);
  SafetensorsHeader header;
  header.header_bytes = kLengthBytes + length;
  header.tensor_bytes = file_bytes - header.header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{'))
    throw Error(where,
                "expected a header that begins with {, got " + quote(text.substr(0, 8)) + kRestore);
  read_members(text, where, kHeaderLevels, [&](const std::string& name, Json&& value) {
    if (name == kMetadata)
      header.metadata = metadata_from(value, where);
    else
      header.tensors.push_back(tensor_from(name, value, where + ": tensor " + quote(name)));
  });
  check_cover(header, where);
  return header;
}

}  // namespace equigrad::checkpoint
