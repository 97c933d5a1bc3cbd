#include "conformance/campaigns/run_rows.hpp"

#include <algorithm>

namespace equigrad::conformance {
namespace {

using Stages = std::map<int, HeldMemory>;

int64_t most_bytes(const Stages& stages) {
  int64_t most = 0;
  for (const auto& [stage, memory] : stages) most = std::max(most, total_bytes(memory));
  return most;
}

}  // namespace

void RunRows::add_memory(const CaseSpec& spec, const Judged& judged) {
  auto& held = memory_[{word(spec.precision), spec.world}][spec.model][spec.stage];
  if (held.empty() || total_bytes(judged.memory) > total_bytes(held)) held = judged.memory;
}

void RunRows::add_underflow(const CaseSpec& spec, const nlohmann::json& answer) {
  if (answer.is_null()) return;
  const auto [found, is_new] = underflow_.try_emplace(word(spec.precision) + "." + spec.model +
                                                      "." + answer.at("scale").dump());
  auto& row = found->second;
  const double lossless = answer.at("lossless");
  const bool is_lossless = lossless > 0 && (is_new || row.lossless > 0);
  row = {word(spec.precision),
         spec.model,
         answer.at("scale"),
         row.numel + answer.at("numel").get<int64_t>(),
         row.zero + answer.at("zero").get<int64_t>(),
         row.subnormal + answer.at("subnormal").get<int64_t>(),
         row.overflow + answer.at("overflow").get<int64_t>(),
         is_lossless ? std::max(row.lossless, lossless) : 0};
}

void RunRows::give(reports::Run& run) const {
  for (const auto& [key, models] : memory_) {
    const auto largest = std::max_element(
        models.begin(), models.end(),
        [](const auto& a, const auto& b) { return most_bytes(a.second) < most_bytes(b.second); });
    for (const auto& [stage, memory] : largest->second)
      for (const auto& [category, bytes] : memory)
        run.memory.push_back(
            {stage, key.first, key.second, category, bytes.first, bytes.second, largest->first});
  }
  for (const auto& [key, row] : underflow_) run.underflow.push_back(row);
}

}  // namespace equigrad::conformance
