#include "perf/race/activations.hpp"

#include <nlohmann/json.hpp>

namespace equigrad::perf {

ActivationBytes activation_bytes(const nlohmann::json& model, int64_t batch,
                                 const comm::MeshSizes& ranks) {
  const int64_t layers = model.at("layers"), features = model.at("dim");
  const int64_t heads = model.at("heads"), context = model.at("context");
  const int64_t entries = model.at("vocabulary");
  constexpr int64_t kFloat = 4, kLong = 8;
  const int64_t tokens = batch * context / ranks.sequence, hidden = tokens * features;
  // Queries, keys and values, what attention gives, up and its gelu: 3 + 1 + 4 + 4 of features; and
  // a weight of every token to every other, by heads.
  const int64_t weights = batch * heads * context * context / (ranks.tensor * ranks.sequence);
  const int64_t divided = 12 * hidden / ranks.tensor + weights;
  // Two norms: what each is given and gives, a mean and a deviation of each token.
  const int64_t norms = 4 * hidden + 4 * tokens;
  const int64_t last = 2 * hidden + 2 * tokens + tokens * entries;
  // Tokens and targets; the loss, and what it is divided by.
  return {.divided = kFloat * layers * divided,
          .whole = kFloat * (layers * norms + last + 2) + 2 * kLong * tokens};
}

}  // namespace equigrad::perf
