// Album: the 10,000 test images of Fashion-MNIST with captions; the last 2,000 are not trained on.
//
// Invariants: the rows of a batch depend on its number alone: every image once, in a fixed order,
//   before any comes again. A caption is made of the label's name and nothing else.
// Shapes: images [N, 1, 28, 28] fp32, exact in bf16; text [N, 27] int64 bytes, zeros behind the
//   caption.
// Errors: std::runtime_error for files that are not there or not whole.
// Depends on: ATen, zlib.
#pragma once

#include <ATen/ATen.h>
#include <zlib.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace disaggregated {

constexpr int64_t kImages = 10'000, kHeldOut = 2'000, kCaptionBytes = 27;

struct Batch {
  at::Tensor images, text;
};

inline std::string caption(int64_t label) {
  static const char* const kNames[] = {"a T-shirt", "trousers",     "a pullover", "a dress",
                                       "a coat",    "a sandal",     "a shirt",    "a sneaker",
                                       "a bag",     "an ankle boot"};
  return std::string("a picture of ") + kNames[label] + ".";
}

class Album {
 public:
  explicit Album(const std::string& folder)
      : pixels_(bytes(folder + "/t10k-images-idx3-ubyte.gz", 16, kImages * 28 * 28)
                    .view({kImages, 1, 28, 28})),
        labels_(bytes(folder + "/t10k-labels-idx1-ubyte.gz", 8, kImages)) {}

  // Rows [begin, end) of batch `number`, of `size` rows.
  Batch rows(int64_t number, int64_t size, int64_t begin, int64_t end) const {
    constexpr int64_t kStride = 3'001;  // has no common divisor with the number of images
    constexpr int64_t kTrained = kImages - kHeldOut;
    return pick((number * size + at::arange(begin, end)) % kTrained * kStride % kTrained);
  }
  Batch held_out(int64_t begin, int64_t end) const {
    return pick(at::arange(begin, end) + (kImages - kHeldOut));
  }

 private:
  static at::Tensor bytes(const std::string& path, int64_t header, int64_t count) {
    auto all = at::empty({header + count}, at::kByte);
    const auto file = gzopen(path.c_str(), "rb");
    if (file == nullptr) throw std::runtime_error("expected a file at " + path + ", got none");
    const auto got = gzread(file, all.data_ptr(), static_cast<unsigned>(all.numel()));
    gzclose(file);
    if (got != all.numel()) throw std::runtime_error("expected a whole file at " + path);
    return all.slice(0, header);
  }

  Batch pick(const at::Tensor& places) const {
    auto text = at::zeros({places.numel(), kCaptionBytes}, at::kLong);
    const auto labels = labels_.index_select(0, places).to(at::kLong);
    for (int64_t i = 0; i < places.numel(); ++i) {
      const auto words = caption(labels[i].item<int64_t>());
      for (std::size_t at = 0; at < words.size(); ++at)
        text[i][static_cast<int64_t>(at)] = words[at];
    }
    return {pixels_.index_select(0, places).to(at::kFloat) / 256, text};
  }

  at::Tensor pixels_, labels_;
};

}  // namespace disaggregated
