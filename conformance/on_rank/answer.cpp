#include "conformance/on_rank/answer.hpp"

#include "engine/memory/ledger.hpp"

namespace equigrad::conformance {

nlohmann::json cover_rows(const std::map<std::string, int64_t>& numels, const Engine& engine) {
  std::map<std::string, std::pair<int64_t, int64_t>> held;
  for (const auto& [name, numel] : numels)
    if (numel > 0) held[name] = {0, 0};
  for (const auto& shard : engine.local_shards()) held[shard.name] = {shard.begin, shard.end};
  auto rows = nlohmann::json::array();
  for (const auto& [name, range] : held) {
    const auto known = numels.find(name);
    rows.push_back({name, range.first, range.second, known == numels.end() ? -1 : known->second});
  }
  return rows;
}

nlohmann::json memory_rows(const Engine& engine) {
  auto rows = nlohmann::json::array();
  const auto& ledger = engine.ledger();
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<memory::Category>(i);
    rows.push_back({memory::kCategoryNames[static_cast<std::size_t>(i)], ledger.bytes(category),
                    ledger.peak_bytes(category)});
  }
  rows.push_back({"total", ledger.total_bytes(), ledger.total_peak_bytes()});
  return rows;
}

nlohmann::json underflow_row(const oracle::UnderflowLedger& ledger) {
  return {{"numel", ledger.numel()},
          {"zero", ledger.zero()},
          {"subnormal", ledger.subnormal()},
          {"overflow", ledger.overflow()},
          {"scale", ledger.scale()},
          {"lossless", ledger.smallest_lossless_scale().value_or(0)}};
}

}  // namespace equigrad::conformance
