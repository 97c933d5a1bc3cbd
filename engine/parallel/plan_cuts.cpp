#include "engine/parallel/plan_cuts.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

using Sizes = std::vector<std::int64_t>;

[[noreturn]] void refuse(const Candidate& candidate, const std::string& problem) {
  throw Error(kTensorPlan, candidate.name + ": " + problem);
}

std::int64_t size_along(const Candidate& candidate, std::int64_t dimension) {
  return candidate.shape[static_cast<std::size_t>(dimension)];
}

// ---- a caller's shape --------------------------------------------------------------------------

// The dimensions of the view that `shape` says, without the packing.
Sizes view_of(const Candidate& candidate, const std::vector<ShapeEntry>& shape, std::size_t cut) {
  Sizes view;
  std::vector<std::size_t> unknown;
  std::int64_t known = 1;
  const std::int64_t numel = std::accumulate(candidate.shape.begin(), candidate.shape.end(),
                                             std::int64_t{1}, std::multiplies<>());
  const auto wrong = [&] {
    refuse(candidate, "expected a shape that the weight " + shape_text(candidate.shape) +
                          " can be seen as, got another number of elements in " +
                          std::to_string(shape.size()) +
                          " dimensions. Correct shape; -1 is what is left.");
  };
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto& segments = shape[i].segments;
    const bool is_counted = i == cut && segments.empty();  // its size is not said
    std::int64_t size = is_counted ? -1 : shape[i].size;
    if (!segments.empty()) {
      size = 0;
      for (const std::int64_t segment : segments)
        if (segment < 1 || __builtin_add_overflow(size, segment, &size)) wrong();
    }
    view.push_back(size);
    if (size == -1)
      unknown.push_back(i);
    else if (size < 1 || __builtin_mul_overflow(known, size, &known))
      wrong();
  }
  if (unknown.size() > 1 && shape.size() == candidate.shape.size()) {
    for (const std::size_t i : unknown) view[i] = candidate.shape[i];
  } else if (unknown.size() > 1) {
    wrong();
  } else if (unknown.size() == 1) {
    view[unknown[0]] = numel / known;
  }
  const auto product = [](std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    return __builtin_mul_overflow(a, b, &result) ? std::int64_t{-1} : result;
  };
  if (std::accumulate(view.begin(), view.end(), std::int64_t{1}, product) != numel) wrong();
  return view;
}

// The dimensions of the view that make up `dimension` of the weight: [first, end).
std::pair<std::size_t, std::size_t> part_of_view(const Candidate& candidate, const Sizes& view,
                                                 std::int64_t dimension) {
  std::size_t first = 0, end = 0;
  for (std::int64_t d = 0; d <= dimension; ++d) {
    first = end;
    std::int64_t size = 1;
    const bool is_last = d + 1 == static_cast<std::int64_t>(candidate.shape.size());
    while (end < view.size() && (end == first || is_last || size < size_along(candidate, d)))
      size *= view[end++];
    if (size != size_along(candidate, d))
      refuse(candidate, "expected a shape that keeps the dimensions of the weight " +
                            shape_text(candidate.shape) + " apart, got " + shape_text(view) +
                            ". Divide one dimension at a time.");
  }
  return {first, end};
}

Split split_by_shape(const Candidate& candidate, const LayerSpec& spec, std::int64_t dimension,
                     std::int64_t size) {
  const std::int64_t cut = spec.partition_dim.value_or(dimension);
  if (cut < 0 || cut >= static_cast<std::int64_t>(spec.shape.size()))
    refuse(candidate, "expected a partition_dim of the shape's " +
                          std::to_string(spec.shape.size()) + " dimensions, got " +
                          std::to_string(cut) + ". Correct partition_dim.");
  const auto at = static_cast<std::size_t>(cut);
  const Sizes view = view_of(candidate, spec.shape, at);
  const auto [first, end] = part_of_view(candidate, view, dimension);
  if (at < first || at >= end)
    refuse(candidate, "expected a partition_dim within dimension " + std::to_string(dimension) +
                          " of the weight " + shape_text(candidate.shape) + ", got " +
                          std::to_string(cut) + " of " + shape_text(view) +
                          ". Change partition_dim or partition_type.");
  const ShapeEntry& entry = spec.shape[at];
  const std::int64_t count = std::max<std::int64_t>(entry.size, 1);
  if (entry.segments.empty() && view[at] % count != 0)
    refuse(candidate, "expected " + std::to_string(view[at]) + " to be " + std::to_string(count) +
                          " equal segments, got a rest. Write their sizes in a list.");
  const Sizes segments = !entry.segments.empty()
                             ? entry.segments
                             : Sizes(static_cast<std::size_t>(count), view[at] / count);
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = first; i < at; ++i) outer *= view[i];
  for (std::size_t i = at + 1; i < end; ++i) inner *= view[i];
  for (const std::int64_t segment : segments)
    if (segment % size != 0)
      refuse(candidate, "expected segments that the tensor size " + std::to_string(size) +
                            " divides, got " + shape_text(segments) +
                            ". Change the tensor size, or leave it whole with \"skip\".");
  Split split{.dimension = dimension, .segments = {}, .shape = candidate.shape};
  for (std::int64_t i = 0; i < outer; ++i)
    for (const std::int64_t segment : segments) split.segments.push_back(segment * inner);
  return split;
}

// ---- packings that rules know ------------------------------------------------------------------

// How many queries a packed module has: as many as the row beside it has inputs.
std::optional<std::int64_t> queries_by_row(const PlanInput& input,
                                           const std::vector<Decision>& decisions,
                                           const Candidate& packed) {
  const std::string beside = packed.name.substr(0, packed.name.rfind('.') + 1);
  for (std::size_t i = 0; i < decisions.size(); ++i)
    if (decisions[i].placement == Placement::Row && is_linear(input.candidates[i]) &&
        input.candidates[i].name.starts_with(beside))
      return inputs(input.candidates[i]);
  return std::nullopt;
}

struct Attention {
  std::int64_t queries = 0, keys = 0;  // outputs
};

Attention attention_of(const PlanInput& input, const std::vector<Decision>& decisions,
                       const Candidate& packed) {
  const std::int64_t whole = outputs(packed), heads = input.model.heads;
  const std::int64_t shared = input.model.key_value_heads > 0 ? input.model.key_value_heads : heads;
  std::optional<std::int64_t> queries = queries_by_row(input, decisions, packed);
  if (!queries && heads > 0 && whole % (heads + 2 * shared) == 0)
    queries = whole / (heads + 2 * shared) * heads;
  const std::int64_t rest = whole - queries.value_or(whole);
  if (!queries || rest < 2 || rest % 2 != 0 || *queries % (rest / 2) != 0)
    refuse(packed, "expected queries, keys and values in its " + std::to_string(whole) +
                       " outputs, got " +
                       (queries ? std::to_string(*queries) + " queries by the module that follows"
                                : std::string("no row-parallel module beside it")) +
                       ". Write their sizes at \"shape\" of a spec.");
  return {.queries = *queries, .keys = rest / 2};
}

void check_heads(const Candidate& candidate, std::int64_t heads, const char* of,
                 std::int64_t size) {
  if (heads > 0 && heads % size != 0)
    refuse(candidate, "expected a number of " + std::string(of) + " that the tensor size " +
                          std::to_string(size) + " divides, got " + std::to_string(heads) +
                          ". Lower autotp_size, or leave the attention whole with \"skip\".");
}

void check_packed_heads(const PlanInput& input, const Candidate& packed, const Attention& sizes,
                        std::int64_t size) {
  const std::int64_t heads = input.model.heads;
  if (heads == 0) return;
  const std::int64_t width = sizes.queries / heads;
  if (width == 0 || sizes.queries % heads != 0 || sizes.keys % width != 0)
    refuse(packed, "expected heads of one size, got " + std::to_string(sizes.queries) +
                       " queries and " + std::to_string(sizes.keys) + " keys of " +
                       std::to_string(heads) + " heads. Write their sizes at \"shape\" of a spec.");
  check_heads(packed, sizes.keys / width, "key/value heads", size);
}

Sizes packed_segments(const PlanInput& input, const std::vector<Decision>& decisions,
                      std::size_t module, std::int64_t whole) {
  constexpr std::int64_t kBlocks = 4;  // of CodeGen, whatever its size
  const Candidate& candidate = input.candidates[module];
  const Packing packing = decisions[module].packing;
  const std::int64_t parts = packing == Packing::GateUp          ? 2
                             : packing == Packing::CodeGenInput  ? 3 * kBlocks
                             : packing == Packing::CodeGenOutput ? kBlocks
                                                                 : 1;
  if (packing == Packing::Unknown)
    refuse(candidate,
           "expected a model type whose packing of queries, keys and values is known, "
           "got \"" +
               input.model.type +
               "\". Write a spec with \"shape\": [[q, k, v], -1], or without a shape "
               "where they are interleaved head by head.");
  if (whole % parts != 0)
    refuse(candidate, "expected a size that " + std::to_string(parts) +
                          " equal segments make up, got " + std::to_string(whole) +
                          ". Write a spec with their sizes at \"shape\".");
  if (packing != Packing::QueryKeyValue && packing != Packing::Interleaved)
    return Sizes(static_cast<std::size_t>(parts), whole / parts);
  const Attention sizes = attention_of(input, decisions, candidate);
  check_packed_heads(input, candidate, sizes, input.config.size());
  if (packing == Packing::QueryKeyValue) return {sizes.queries, sizes.keys, sizes.keys};
  if (sizes.keys != sizes.queries && input.model.heads == 0)
    refuse(candidate,
           "expected the number of heads, got none, though keys and values are fewer "
           "than queries. Give the model's num_attention_heads.");
  return {whole};
}

void check_known_heads(const PlanInput& input, const Decision& decision,
                       const Candidate& candidate) {
  if (decision.placement != Placement::Column || !has_heads(candidate.name)) return;
  check_heads(candidate, input.model.heads, "heads", input.config.size());
  if (decision.packing == Packing::Plain)
    check_heads(candidate, input.model.key_value_heads, "key/value heads", input.config.size());
  constexpr std::int64_t kBlocks = 4;
  if (decision.packing == Packing::CodeGenInput && input.model.heads > 0)
    check_heads(candidate, input.model.heads / kBlocks, "heads in each of four blocks",
                input.config.size());
}

// A spec without a shape, for what is known to be packed.
void check_packed_has_shape(const PlanInput& input, const Decision& decision,
                            const Candidate& candidate) {
  if (decision.placement != Placement::Column || !is_linear(candidate)) return;
  const bool is_pair = heuristic_rule(candidate.name, input.model.type)->packing == Packing::GateUp;
  const bool is_triple = holds_queries_keys_values(candidate.name) &&
                         packing_of_heads(input.model.type) == Packing::QueryKeyValue;
  if (is_pair || is_triple)
    refuse(candidate, std::string("expected \"shape\" in ") + decision.reason +
                          ", as the weight is packed, got none. Write " +
                          (is_pair ? "[2, -1]" : "[[q, k, v], -1] with their sizes") +
                          ", or [1, -1] if a part may be any of its rows.");
}

}  // namespace

std::int64_t output_dimension(const Candidate& candidate) {
  return candidate.kind == ModuleKind::Linear ? 0 : 1;
}

std::int64_t input_dimension(const Candidate& candidate) { return 1 - output_dimension(candidate); }

std::int64_t outputs(const Candidate& candidate) {
  return size_along(candidate, output_dimension(candidate));
}

std::int64_t inputs(const Candidate& candidate) {
  return size_along(candidate, input_dimension(candidate));
}

Split cut_of(const PlanInput& input, const std::vector<Decision>& decisions, std::size_t module) {
  const Candidate& candidate = input.candidates[module];
  const Decision& decision = decisions[module];
  const std::int64_t dimension = decision.placement == Placement::Column
                                     ? output_dimension(candidate)
                                     : input_dimension(candidate);
  check_known_heads(input, decision, candidate);
  const LayerSpec* spec = decision.spec;
  if (spec != nullptr && !spec->shape.empty())
    return split_by_shape(candidate, *spec, dimension, input.config.size());
  if (spec != nullptr && spec->partition_dim && *spec->partition_dim != dimension)
    refuse(candidate, "expected partition_dim " + std::to_string(dimension) + " for " +
                          (decision.placement == Placement::Column ? "the outputs" : "the inputs") +
                          " of the weight " + shape_text(candidate.shape) + ", got " +
                          std::to_string(*spec->partition_dim) +
                          ". Drop partition_dim, or change partition_type.");
  if (spec != nullptr) check_packed_has_shape(input, decision, candidate);
  Split split{
      .dimension = dimension,
      .segments = packed_segments(input, decisions, module, size_along(candidate, dimension)),
      .shape = candidate.shape};
  return split;
}

}  // namespace equigrad::parallel
