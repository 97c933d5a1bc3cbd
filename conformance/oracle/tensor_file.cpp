#include "conformance/oracle/tensor_file.hpp"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace equigrad::conformance::oracle {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library
constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kDouble, "F64"},    {at::kLong, "I64"}, {at::kFloat, "F32"},
    {at::kBFloat16, "BF16"}, {at::kHalf, "F16"}, {at::kByte, "U8"}};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error("[oracle.tensor_file] " + path + ": " + what);
}

const char* dtype_name(const std::string& path, const std::string& name, at::ScalarType dtype) {
  for (const auto& [type, text] : kDtypes) {
    if (type == dtype) return text;
  }
  fail(path, "\"" + name + "\" has dtype " + c10::toString(dtype) +
                 "; expected F64, F32, F16, BF16, I64 or U8.");
}

// A file descriptor that closes itself.
struct File {
  int descriptor;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

void write_all(const std::string& path, int descriptor, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::write(descriptor, at, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail(path, std::string("cannot write: ") + std::strerror(errno));
    at += wrote;
    bytes -= static_cast<size_t>(wrote);
  }
}

struct Mapping {
  void* start = nullptr;
  uint64_t bytes = 0;
  ~Mapping() {
    if (start != nullptr) ::munmap(start, bytes);
  }
};

std::shared_ptr<Mapping> map_file(const std::string& path) {
  const File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.descriptor < 0) fail(path, std::string("cannot open: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(file.descriptor, &status) != 0) fail(path, "cannot read its size");
  if (status.st_size < 8) fail(path, "is shorter than the 8 bytes of a header's length");
  auto mapping = std::make_shared<Mapping>();
  const auto bytes = static_cast<uint64_t>(status.st_size);
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor, 0);
  if (start == MAP_FAILED) fail(path, std::string("cannot map: ") + std::strerror(errno));
  mapping->start = start;
  mapping->bytes = bytes;
  return mapping;
}

// The outermost names, as often as they come.
class OuterNames final : public json::json_sax_t {
 public:
  std::vector<std::string> names;

 private:
  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(std::string& name) override {
    if (depth_ == 1) names.push_back(name);
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }
  int depth_ = 0;
};

// The header as JSON; a name that comes twice is refused, which json::parse alone would not do.
json parse_header(const std::string& path, const char* text, uint64_t bytes) {
  OuterNames outer;
  json header;
  try {
    header = json::parse(text, text + bytes);
    json::sax_parse(text, text + bytes, static_cast<json::json_sax_t*>(&outer));
  } catch (const json::exception& error) {
    fail(path, std::string("the header is not JSON: ") + error.what());
  }
  if (!header.is_object()) fail(path, "the header is not a JSON object");
  std::set<std::string> seen;
  for (const auto& name : outer.names)
    if (!seen.insert(name).second) fail(path, "names \"" + name + "\" twice");
  return header;
}

uint64_t unsigned_number(const std::string& path, const std::string& name, const json& value) {
  if (!value.is_number_unsigned()) {
    fail(path, "\"" + name + "\": expected a number >= 0, got " + value.dump());
  }
  return value.get<uint64_t>();
}

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

Entry parse_entry(const std::string& path, const std::string& name, const json& value,
                  uint64_t data_bytes) {
  const auto expect = [&](bool good, const char* what) {
    if (!good) fail(path, "\"" + name + "\": " + what);
  };
  expect(value.is_object() && value.size() == 3 && value.contains("dtype") &&
             value.contains("shape") && value.contains("data_offsets"),
         "expected an object of dtype, shape and data_offsets");
  Entry entry;
  entry.name = name;
  const auto* known = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const auto& d) { return value["dtype"] == d.second; });
  expect(known != std::end(kDtypes), "the dtype is not one of F64 F32 F16 BF16 I64 U8");
  entry.dtype = known->first;
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  expect(shape.is_array(), "the shape is not a list");
  expect(offsets.is_array() && offsets.size() == 2, "data_offsets is not a pair");
  constexpr auto kMaxBytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t bytes = c10::elementSize(entry.dtype);
  for (const json& extent : shape) {
    const uint64_t size = unsigned_number(path, name, extent);
    expect(size == 0 || bytes <= kMaxBytes / size, "the shape overflows");
    expect(size <= kMaxBytes, "the shape overflows");
    bytes *= size;
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  entry.begin = unsigned_number(path, name, offsets[0]);
  entry.end = unsigned_number(path, name, offsets[1]);
  expect(entry.begin <= entry.end && entry.end <= data_bytes, "lies outside of the file's data");
  expect(entry.end - entry.begin == bytes, "its shape and its length do not agree");
  return entry;
}

}  // namespace

void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, at::Tensor>> order;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") fail(path, "a tensor may not be called __metadata__");
    order.emplace_back(name, tensor.detach().cpu().contiguous());
  }
  // Widest elements first: then every tensor starts at a multiple of its element size.
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : order) {
    const uint64_t end = offset + tensor.nbytes();
    header[name] = {{"dtype", dtype_name(path, name, tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();

  const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
  try {
    const File file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.descriptor < 0) fail(path, std::string("cannot create: ") + std::strerror(errno));
    write_all(path, file.descriptor, &header_bytes, sizeof(header_bytes));
    write_all(path, file.descriptor, text.data(), text.size());
    for (const auto& [name, tensor] : order) {
      write_all(path, file.descriptor, tensor.const_data_ptr(), tensor.nbytes());
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    ::unlink(temporary.c_str());
    fail(path, "cannot rename into place: " + reason);
  }
}

TensorFile read_tensors(const std::string& path) {
  const std::shared_ptr<Mapping> mapping = map_file(path);
  auto* bytes = static_cast<char*>(mapping->start);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes, sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > mapping->bytes - 8) {
    fail(path, "its header claims " + std::to_string(header_bytes) + " bytes of a file of " +
                   std::to_string(mapping->bytes));
  }
  const json header = parse_header(path, bytes + 8, header_bytes);
  char* data = bytes + 8 + header_bytes;
  const uint64_t data_bytes = mapping->bytes - 8 - header_bytes;

  TensorFile file;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) fail(path, "__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) fail(path, "__metadata__ \"" + key + "\" is not a text");
        file.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    entries.push_back(parse_entry(path, name, value, data_bytes));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) fail(path, "\"" + entry.name + "\" leaves a hole or overlaps");
    covered = entry.end;
    const auto options = at::TensorOptions().dtype(entry.dtype);
    char* start = data + entry.begin;
    // Others need not align their tensors; an element that is not aligned may not be looked at.
    const bool aligned = reinterpret_cast<uintptr_t>(start) % c10::elementSize(entry.dtype) == 0;
    if (aligned && entry.end > entry.begin) {
      file.tensors[entry.name] = at::from_blob(
          start, entry.shape, [mapping](void*) {}, options);
    } else {
      at::Tensor copy = at::empty(entry.shape, options);
      if (copy.nbytes() > 0) std::memcpy(copy.data_ptr(), start, copy.nbytes());
      file.tensors[entry.name] = copy;
    }
  }
  if (covered != data_bytes) fail(path, "has data that no tensor names");
  return file;
}

}  // namespace equigrad::conformance::oracle
