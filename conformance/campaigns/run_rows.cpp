#include "conformance/campaigns/run_rows.hpp"

#include <algorithm>

namespace equigrad::conformance {

void RunRows::add_memory(const CaseSpec& spec, const Judged& judged) {
  for (const auto& [category, bytes] : judged.memory) {
    const std::string key =
        std::to_string(spec.stage) + word(spec.precision) + std::to_string(spec.world) + category;
    auto& row = memory_[key];
    row = {spec.stage,
           word(spec.precision),
           spec.world,
           category,
           std::max(row.bytes, bytes.first),
           std::max(row.peak_bytes, bytes.second)};
  }
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
  for (const auto& [key, row] : memory_) run.memory.push_back(row);
  for (const auto& [key, row] : underflow_) run.underflow.push_back(row);
}

}  // namespace equigrad::conformance
