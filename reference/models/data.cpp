#include "reference/models/data.hpp"

#include <ATen/ATen.h>
#include <zlib.h>

#include <numeric>
#include <utility>

namespace equigrad::reference {
namespace {

// One number for each pair, and no two pairs share it, without knowing either range (Szudzik).
int64_t pair(int64_t a, int64_t b) { return a >= b ? a * a + a + b : b * b + a; }

// `size` of `count` places. The samples of a step are numbered over all batches and taken with a
// stride that has no common divisor with count: different numbers come to different places.
std::vector<int64_t> draw_places(int64_t size, int64_t count, const Draw& draw) {
  TORCH_CHECK(count > 0, "[data] expected text or images with room for a sample, got too little. ",
              "Give the trainer the files that its model needs.");
  const uint64_t key = hash(hash(draw.seed) + static_cast<uint64_t>(draw.step));
  const int64_t start = static_cast<int64_t>(key % static_cast<uint64_t>(count));
  int64_t stride = 1 + static_cast<int64_t>(hash(key) % static_cast<uint64_t>(count));
  while (std::gcd(stride, count) != 1) ++stride;
  std::vector<int64_t> places;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t sample = pair(draw.micro_batch, draw.rank) * size + i;
    places.push_back((start + sample % count * stride) % count);
  }
  return places;
}

// The content of a file, unpacked if it is gzipped (zlib passes other files through).
std::string read_file(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  TORCH_CHECK(file != nullptr, "[data] expected a readable file at ", path, ", got none.");
  std::string content;
  std::vector<char> chunk(1 << 16);
  int got = 0;
  while ((got = gzread(file, chunk.data(), static_cast<unsigned>(chunk.size()))) > 0) {
    content.append(chunk.data(), static_cast<size_t>(got));
  }
  const bool whole = gzclose(file) == Z_OK && got == 0;
  TORCH_CHECK(whole, "[data] expected a whole file, got damaged data in ", path, ".");
  return content;
}

// IDX: two zero bytes, 8 (unsigned bytes), the number of dimensions, each size as 4 big-endian
// bytes, then the elements.
at::Tensor read_idx(const std::string& path, int64_t dims) {
  const std::string file = read_file(path);
  const auto byte = [&](size_t i) { return int64_t{static_cast<unsigned char>(file.at(i))}; };
  const size_t header = 4 + 4 * static_cast<size_t>(dims);
  TORCH_CHECK(
      file.size() >= header && byte(0) == 0 && byte(1) == 0 && byte(2) == 8 && byte(3) == dims,
      "[data] expected IDX bytes with ", dims, " dimensions in ", path, ", got others.");
  std::vector<int64_t> sizes;
  size_t numel = 1;
  for (size_t i = 4; i < header; i += 4) {
    sizes.push_back(byte(i) << 24 | byte(i + 1) << 16 | byte(i + 2) << 8 | byte(i + 3));
    numel *= static_cast<size_t>(sizes.back());
  }
  TORCH_CHECK(file.size() == header + numel, "[data] expected ", numel, " elements in ", path,
              ", got ", file.size() - header, ".");
  const auto* elements = reinterpret_cast<const uint8_t*>(file.data()) + header;
  return at::tensor(at::ArrayRef<uint8_t>(elements, numel), at::kByte).view(sizes);
}

at::Tensor pick(const at::Tensor& rows, const std::vector<int64_t>& places) {
  return rows.index_select(0, at::tensor(places, at::kLong));
}

}  // namespace

std::string read_text(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += read_file(path);
  return text;
}

Images read_images(const std::string& images_path, const std::string& labels_path) {
  Images images{.pixels = read_idx(images_path, 3), .labels = read_idx(labels_path, 1)};
  TORCH_CHECK(images.pixels.size(0) == images.labels.size(0) && images.pixels.size(1) == 28 &&
                  images.pixels.size(2) == 28,
              "[data] expected as many labels as 28 x 28 images, got ", images.pixels.sizes(),
              " and ", images.labels.sizes(), ".");
  return images;
}

bool reads_images(const std::string& model) { return model == "vision" || model == "conv"; }

Data::Data(std::string text, Images images) : text_(std::move(text)), images_(std::move(images)) {}

Batch Data::make_batch(const std::string& model, const Draw& draw) const {
  if (model == "gpt") return text_batch(2, 16, draw);
  if (model == "irregular") return irregular_batch(draw);
  if (model == "vision") return vision_batch(draw);
  TORCH_CHECK(model == "conv", "[data] expected gpt, irregular, vision or conv, got ", model, ".");
  return conv_batch(draw);
}

Batch Data::text_batch(int64_t size, int64_t context, const Draw& draw) const {
  const int64_t count = static_cast<int64_t>(text_.size()) - context;
  const std::vector<int64_t> places = draw_places(size, count, draw);
  at::Tensor windows = at::empty({size, context + 1}, at::kLong);
  int64_t* out = windows.mutable_data_ptr<int64_t>();
  for (const int64_t place : places) {
    for (int64_t i = place; i <= place + context; ++i) {
      *out++ = static_cast<unsigned char>(text_[static_cast<size_t>(i)]);
    }
  }
  return {windows.narrow(1, 0, context).contiguous(), windows.narrow(1, 1, context).contiguous()};
}

// Seven bytes as numbers near -3 .. 1; the class is the last byte's remainder.
Batch Data::irregular_batch(const Draw& draw) const {
  const Batch bytes = text_batch(3, 7, draw);
  return {(bytes.input - 96).to(at::kFloat) / 32, bytes.target.select(1, 6).remainder(5)};
}

// Images as 16 patches of 7 x 7; targets are multiples of 1/64 in [-1, 1).
Batch Data::vision_batch(const Draw& draw) const {
  TORCH_CHECK(images_.pixels.defined(), "[data] expected images for the vision model, got none.");
  const at::Tensor picked = pick(images_.pixels, draw_places(2, images_.pixels.size(0), draw));
  at::Tensor patches = picked.view({2, 4, 7, 4, 7}).permute({0, 1, 3, 2, 4}).reshape({2, 16, 49});
  at::Tensor target = at::empty({2, 16, 24}, at::kFloat);
  uint64_t key = hash(draw.seed) + static_cast<uint64_t>(draw.step);
  key = hash(key) + static_cast<uint64_t>(pair(draw.micro_batch, draw.rank));
  float* out = target.mutable_data_ptr<float>();
  for (uint64_t i = 0; i < 2 * 16 * 24; ++i) {
    out[i] = static_cast<float>(hash(hash(key) + i) % 128) / 64 - 1;
  }
  return {patches.to(at::kFloat) / 256, target};
}

Batch Data::conv_batch(const Draw& draw) const {
  TORCH_CHECK(images_.pixels.defined(), "[data] expected images for the conv model, got none.");
  const std::vector<int64_t> places = draw_places(4, images_.pixels.size(0), draw);
  return {pick(images_.pixels, places).unsqueeze(1).to(at::kFloat) / 256,
          pick(images_.labels, places).to(at::kLong)};
}

Batch to_dtype(const Batch& batch, at::ScalarType dtype) {
  const auto convert = [dtype](const at::Tensor& x) {
    return x.is_floating_point() ? x.to(dtype) : x;
  };
  return {convert(batch.input), convert(batch.target)};
}

}  // namespace equigrad::reference
