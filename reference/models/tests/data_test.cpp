// The data: different everywhere, the same every time.
#include "reference/models/data.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "reference/models/model.hpp"
#include "reference/tests/same_bits.hpp"
#include "reference/tests/sample_data.hpp"

namespace equigrad::reference {
namespace {

using conformance::same_bits;
using conformance::sample_data;

std::string bytes_of(const Batch& batch) {
  std::string bytes;
  for (const at::Tensor& tensor : {batch.input.contiguous(), batch.target.contiguous()}) {
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return bytes;
}

TEST(Data, DiffersForEverySeedStepRankAndMicroBatch) {
  for (const std::string& model : model_names()) {
    std::set<std::string> seen;
    for (const uint64_t seed : {uint64_t{1}, uint64_t{2}}) {
      for (int64_t i = 0; i < 3 * 4 * 4; ++i) {
        const Draw draw{.seed = seed, .step = i / 16, .rank = i / 4 % 4, .micro_batch = i % 4};
        EXPECT_TRUE(seen.insert(bytes_of(sample_data().make_batch(model, draw))).second)
            << model << " seed " << seed << " draw " << i;
      }
    }
  }
}

TEST(Data, GivesNoSampleTwiceInAStep) {
  std::set<std::string> seen;
  for (int64_t i = 0; i < 4 * 4; ++i) {
    const Batch batch = sample_data().make_batch("conv", {1, 0, i / 4, i % 4});
    for (int64_t row = 0; row < 4; ++row) {
      EXPECT_TRUE(seen.insert(bytes_of({batch.input[row], batch.target[row]})).second) << i;
    }
  }
}

TEST(Data, IsTheSameEveryTime) {
  for (const std::string& model : model_names()) {
    at::manual_seed(1);
    const Batch first = sample_data().make_batch(model, {7, 1, 2, 3});
    at::manual_seed(2);
    const Batch again = sample_data().make_batch(model, {7, 1, 2, 3});
    EXPECT_TRUE(same_bits(again.input, first.input)) << model;
    EXPECT_TRUE(same_bits(again.target, first.target)) << model;
  }
}

TEST(Data, TextTargetsAreTheNextBytes) {
  const std::string text = conformance::sample_text();
  const Batch batch = sample_data().text_batch(5, 64, {3, 1, 0, 0});
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{5, 64}));
  for (int64_t row = 0; row < 5; ++row) {
    std::string window;
    for (int64_t i = 0; i < 64; ++i) {
      window.push_back(static_cast<char>(batch.input[row][i].item<int64_t>()));
    }
    window.push_back(static_cast<char>(batch.target[row][63].item<int64_t>()));
    EXPECT_NE(text.find(window), std::string::npos) << window;
    EXPECT_TRUE(same_bits(batch.input[row].slice(0, 1), batch.target[row].slice(0, 0, 63)));
  }
}

TEST(Data, FloatsAreExactInBfloat16) {
  for (const std::string& model : model_names()) {
    const Batch batch = sample_data().make_batch(model, {1, 2, 3, 4});
    const Batch rounded = to_dtype(to_dtype(batch, at::kBFloat16), at::kFloat);
    EXPECT_TRUE(same_bits(rounded.input, batch.input)) << model;
    EXPECT_TRUE(same_bits(rounded.target, batch.target)) << model;
  }
}

TEST(Data, RefusesTooLittleTextAndMissingImages) {
  const Data data("too short", {});
  EXPECT_THROW(data.make_batch("gpt", {}), c10::Error);
  EXPECT_THROW(data.make_batch("conv", {}), c10::Error);
  EXPECT_THROW(data.make_batch("no such model", {}), c10::Error);
}

std::string write(const std::string& name, const std::string& content, bool zipped = false) {
  const std::string path = testing::TempDir() + "equigrad_data_test_" + name;
  if (zipped) {
    const gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
  } else {
    std::ofstream(path, std::ios::binary) << content;
  }
  return path;
}

std::string idx(const std::string& sizes, const std::string& elements) {
  return std::string("\0\0\10", 3) + static_cast<char>(sizes.size() / 4) + sizes + elements;
}

TEST(Files, ImagesComeZippedOrNot) {
  std::string pixels;
  for (int i = 0; i < 2 * 784; ++i) pixels.push_back(static_cast<char>(i % 251));
  const std::string images = idx(std::string("\0\0\0\2\0\0\0\34\0\0\0\34", 12), pixels);
  const std::string labels = idx(std::string("\0\0\0\2", 4), "\7\11");
  const Images plain = read_images(write("images", images), write("labels", labels));
  const Images zipped = read_images(write("images.gz", images, true), write("labels", labels));
  EXPECT_TRUE(same_bits(zipped.pixels, plain.pixels));
  EXPECT_EQ(plain.pixels[1][27][27].item<int>(), (2 * 784 - 1) % 251);
  EXPECT_EQ(plain.labels[1].item<int>(), 9);
}

TEST(Files, DamagedImagesAreRefused) {
  const std::string labels = write("labels", idx(std::string("\0\0\0\2", 4), "\7\11"));
  EXPECT_THROW(read_images(labels, labels), c10::Error);
  const std::string cut = write("cut", idx(std::string("\0\0\0\2\0\0\0\34\0\0\0\34", 12), "x"));
  EXPECT_THROW(read_images(cut, labels), c10::Error);
  EXPECT_THROW(read_images("no such file", labels), c10::Error);

  const std::string images =
      idx(std::string("\0\0\0\2\0\0\0\34\0\0\0\34", 12), std::string(2 * 784, 'x'));
  EXPECT_NO_THROW(read_images(write("images", images), labels));
  std::string other = idx(std::string("\0\0\0\2", 4), "\7\11");
  other[2] = 11;  // 16-bit elements
  EXPECT_THROW(read_images(write("images", images), write("other", other)), c10::Error);
}

TEST(Files, AnUnfinishedDownloadIsRefused) {
  const std::string path = write("text.gz", conformance::sample_text(), true);
  std::ifstream file(path, std::ios::binary);
  const std::string zipped(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(read_text({path}), conformance::sample_text());
  EXPECT_THROW(read_text({write("cut.gz", zipped.substr(0, zipped.size() / 2))}), c10::Error);
}

TEST(Files, TextIsConcatenated) {
  EXPECT_EQ(read_text({write("a", "to be "), write("b", "or not")}), "to be or not");
  EXPECT_THROW(read_text({"no such file"}), c10::Error);
}

}  // namespace
}  // namespace equigrad::reference
