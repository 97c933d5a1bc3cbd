#include "engine/parallel/split.hpp"

#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

constexpr const char* kSplit = "parallel.split";

[[noreturn]] void refuse(const std::string& name, const std::string& problem) {
  throw Error(kSplit, (name.empty() ? "" : name + ": ") + problem);
}

// Segments that add up to the size along the dimension.
void check_shape(const Split& split, const std::string& name) {
  const auto dimensions = static_cast<std::int64_t>(split.shape.size());
  if (split.dimension < 0 || split.dimension >= dimensions)
    refuse(name, "expected a dimension of the shape " + shape_text(split.shape) + ", got " +
                     std::to_string(split.dimension) + ". Count from 0.");
  const std::int64_t whole = split.shape[static_cast<std::size_t>(split.dimension)];
  std::int64_t left = whole;
  for (const std::int64_t segment : split.segments) {
    if (segment < 1 || segment > left) left = -1;
    if (left < 0) break;
    left -= segment;
  }
  if (left != 0)
    refuse(name, "expected segments of at least 1 that add up to " + std::to_string(whole) +
                     ", the size of dimension " + std::to_string(split.dimension) + ", got " +
                     shape_text(split.segments) + ". Correct their sizes.");
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

Split unpacked(const std::vector<std::int64_t>& shape, std::int64_t dimension) {
  Split split{.dimension = dimension, .segments = {}, .shape = shape};
  if (dimension >= 0 && dimension < static_cast<std::int64_t>(shape.size()))
    split.segments = {shape[static_cast<std::size_t>(dimension)]};
  check_shape(split, "");
  return split;
}

void check_split(const Split& split, std::int64_t size, const std::string& name) {
  if (size < 1)
    refuse(name, "expected at least 1 rank, got " + std::to_string(size) +
                     ". Give the size of the tensor group.");
  check_shape(split, name);
  for (const std::int64_t segment : split.segments) {
    if (segment % size == 0) continue;
    const bool is_whole = split.segments.size() == 1;
    refuse(name, "expected a size that the tensor size " + std::to_string(size) + " divides, got " +
                     std::to_string(segment) +
                     (is_whole ? "" : " of " + shape_text(split.segments)) + " along dimension " +
                     std::to_string(split.dimension) + " of " + shape_text(split.shape) +
                     ". Change the tensor size, or leave it whole with a spec of \"skip\".");
  }
}

std::vector<std::int64_t> local_shape(const Split& split, std::int64_t size) {
  check_split(split, size, "");
  std::vector<std::int64_t> shape = split.shape;
  shape[static_cast<std::size_t>(split.dimension)] /= size;
  return shape;
}

std::vector<Run> runs(const Split& split, std::int64_t rank, std::int64_t size) {
  check_split(split, size, "");
  if (rank < 0 || rank >= size)
    refuse("", "expected a rank from 0 to " + std::to_string(size - 1) + ", got " +
                   std::to_string(rank) + ". Give the rank within the tensor group.");
  std::vector<Run> runs;
  std::int64_t begin = 0, local = 0;
  for (const std::int64_t segment : split.segments) {
    const std::int64_t length = segment / size, whole = begin + rank * length;
    if (!runs.empty() && runs.back().whole + runs.back().length == whole)
      runs.back().length += length;
    else
      runs.push_back({.whole = whole, .local = local, .length = length});
    begin += segment;
    local += length;
  }
  EQUIGRAD_CHECK(local * size == begin, kSplit, "parts are equal and make up the whole");
  return runs;
}

Split bias_split(const Split& split) {
  check_shape(split, "");
  return {.dimension = 0,
          .segments = split.segments,
          .shape = {split.shape[static_cast<std::size_t>(split.dimension)]}};
}

}  // namespace equigrad::parallel
