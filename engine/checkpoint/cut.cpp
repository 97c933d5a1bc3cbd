#include "engine/checkpoint/cut.hpp"

#include <cstddef>

namespace equigrad::checkpoint {
namespace {

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// Indices along the dimension, and elements behind each of them.
struct Sizes {
  std::int64_t along = 1;
  std::int64_t inner = 1;
};

Sizes sizes_of(const Cut& cut, const std::vector<std::int64_t>& shape) {
  Sizes sizes{.along = shape[static_cast<std::size_t>(cut.dimension)], .inner = 1};
  for (std::size_t i = static_cast<std::size_t>(cut.dimension) + 1; i < shape.size(); ++i)
    sizes.inner *= shape[i];
  return sizes;
}

// A flat element by its row of the dimension, its index along it, and what is left.
struct Index {
  std::int64_t outer = 0;
  std::int64_t along = 0;
  std::int64_t inner = 0;
};

Index index_of(std::int64_t element, std::int64_t along, std::int64_t inner) {
  return {element / (along * inner), element / inner % along, element % inner};
}

// A segment: where it begins in the whole, and where its piece in every part; the piece's length.
struct Segment {
  std::int64_t whole = 0;
  std::int64_t local = 0;
  std::int64_t length = 0;
};

// The one of which the whole, or a part, has `along`.
template <class IsIn>
Segment segment_of(const Cut& cut, IsIn is_in) {
  Segment segment;
  for (const std::int64_t size : cut.segments) {
    segment.length = size / cut.parts;
    if (is_in(segment, size)) break;
    segment.whole += size;
    segment.local += segment.length;
  }
  return segment;
}

}  // namespace

std::string problem_of(const Cut& cut, const std::vector<std::int64_t>& shape) {
  const auto dimensions = static_cast<std::int64_t>(shape.size());
  if (cut.dimension < 0 || cut.dimension >= dimensions)
    return "expected a cut along a dimension of " + sizes_text(shape) + ", got " +
           std::to_string(cut.dimension);
  if (cut.parts < 1) return "expected at least 1 part, got " + std::to_string(cut.parts);
  const std::int64_t along = shape[static_cast<std::size_t>(cut.dimension)];
  std::int64_t left = along;
  for (const std::int64_t segment : cut.segments) {
    if (segment < 1 || segment > left) left = -1;
    if (left < 0) break;
    left -= segment;
  }
  if (left != 0)
    return "expected segments that add up to " + std::to_string(along) + ", got " +
           sizes_text(cut.segments);
  for (const std::int64_t segment : cut.segments)
    if (segment % cut.parts != 0)
      return "expected segments that " + std::to_string(cut.parts) + " parts divide, got " +
             sizes_text(cut.segments);
  return {};
}

Stretch stretch_of_whole(const Cut& cut, const std::vector<std::int64_t>& shape,
                         std::int64_t whole) {
  const auto [along, inner] = sizes_of(cut, shape);
  const Index at = index_of(whole, along, inner);
  const Segment segment = segment_of(
      cut, [&](const Segment& one, std::int64_t size) { return at.along < one.whole + size; });
  const std::int64_t within = at.along - segment.whole, index = within % segment.length;
  return {.part = within / segment.length,
          .whole = whole,
          .local = (at.outer * (along / cut.parts) + segment.local + index) * inner + at.inner,
          .numel = (segment.length - index) * inner - at.inner};
}

Stretch stretch_of_part(const Cut& cut, const std::vector<std::int64_t>& shape, std::int64_t part,
                        std::int64_t local) {
  const auto [along, inner] = sizes_of(cut, shape);
  const Index at = index_of(local, along / cut.parts, inner);
  const Segment segment = segment_of(
      cut, [&](const Segment& one, std::int64_t) { return at.along < one.local + one.length; });
  const std::int64_t index = at.along - segment.local;
  return {.part = part,
          .whole =
              (at.outer * along + segment.whole + part * segment.length + index) * inner + at.inner,
          .local = local,
          .numel = (segment.length - index) * inner - at.inner};
}

}  // namespace equigrad::checkpoint
