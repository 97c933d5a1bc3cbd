#include "conformance/vision/album.hpp"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace equigrad::conformance::vision {
namespace {

constexpr int64_t kHeldOut = 2000, kImagesOfADraw = 4;

reference::Images part(const reference::Images& all, int64_t first, int64_t count) {
  return {all.pixels.narrow(0, first, count), all.labels.narrow(0, first, count)};
}

}  // namespace

std::string caption(int label) {
  static const char* const kNames[kLabels] = {
      "a T-shirt", "trousers", "a pullover", "a dress", "a coat",
      "a sandal",  "a shirt",  "a sneaker",  "a bag",   "an ankle boot"};
  return std::string("a picture of ") + kNames[label] + ".";
}

at::Tensor captions(const at::Tensor& labels) {
  auto bytes = at::zeros({labels.size(0), kCaptionBytes}, at::kLong);
  for (int64_t i = 0; i < labels.size(0); ++i) {
    const auto text = caption(labels[i].item<int>());
    for (std::size_t place = 0; place < text.size(); ++place)
      bytes[i][static_cast<int64_t>(place)] = static_cast<int64_t>(text[place]);
  }
  return bytes;
}

std::string sentence_of(const at::Tensor& bytes) {
  std::string text;
  for (int64_t i = 0; i < bytes.size(0) && !text.ends_with('.'); ++i) {
    const auto byte = bytes[i].item<int64_t>();
    text += byte >= ' ' && byte <= '~' ? static_cast<char>(byte) : '?';
  }
  return text;
}

Album::Album(const std::string& images_path, const std::string& labels_path)
    : Album(reference::read_images(images_path, labels_path)) {}

Album::Album(const reference::Images& all)
    : train_("", part(all, 0, all.pixels.size(0) - kHeldOut)),
      held_out_(part(all, all.pixels.size(0) - kHeldOut, kHeldOut)) {}

// The zoo's batches have four images each: those of several micro-batches make one of ours.
reference::Batch Album::draw(const reference::Draw& draw, int64_t images) const {
  TORCH_CHECK(images > 0 && images % kImagesOfADraw == 0,
              "[album] expected a multiple of four images in a micro-batch, got ", images, ".");
  const int64_t draws = images / kImagesOfADraw;
  std::vector<at::Tensor> inputs, labels;
  for (int64_t i = 0; i < draws; ++i) {
    const auto batch = train_.make_batch("conv", {.seed = draw.seed,
                                                  .step = draw.step,
                                                  .rank = draw.rank,
                                                  .micro_batch = draw.micro_batch * draws + i});
    inputs.push_back(batch.input);
    labels.push_back(batch.target);
  }
  return {at::cat(inputs), captions(at::cat(labels))};
}

reference::Batch Album::rows(reference::Draw draw, int64_t images, int64_t first,
                             int64_t count) const {
  std::vector<at::Tensor> inputs, targets;
  const int64_t skipped = first / images * images;
  for (draw.rank = first / images; draw.rank * images < first + count; ++draw.rank) {
    auto batch = this->draw(draw, images);
    inputs.push_back(std::move(batch.input));
    targets.push_back(std::move(batch.target));
  }
  const auto cut = [&](const std::vector<at::Tensor>& all) {
    return at::cat(all).narrow(0, first - skipped, count).contiguous();
  };
  return {cut(inputs), cut(targets)};
}

reference::Batch Album::held_out(int64_t first, int64_t count) const {
  const auto images = part(held_out_, first, count);
  return {images.pixels.unsqueeze(1).to(at::kFloat) / 256, captions(images.labels.to(at::kLong))};
}

}  // namespace equigrad::conformance::vision
