#include "conformance/on_rank/rest_ledger.hpp"

#include "conformance/cases/device.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance {
namespace {

using memory::Category;

// What is the same inside a window: only gradients and buckets wait there.
bool is_constant(Category category) {
  return category != Category::Gradients && category != Category::Buckets;
}

// The forecast of pages is of contiguous parameters that come and go one by one.
bool knows_pages(const Engine& engine, const std::vector<NamedTensors>& groups) {
  const auto& leaves = engine.config().zero.leaf_module;
  if (!leaves.names.empty() || !leaves.name_suffixes.empty()) return false;
  if (leaves.classes != LeafModuleConfig{}.classes) return false;
  for (const auto& group : groups)
    for (const auto& [name, tensor] : group)
      if (!tensor.is_contiguous()) return false;
  return true;
}

}  // namespace

RestLedger::RestLedger(const CaseFacts& facts, const std::vector<NamedTensors>& groups,
                       const std::unique_ptr<Engine>& engine, Lanes& lanes)
    : facts_(facts),
      engine_(engine),
      lanes_(lanes),
      knows_gathered_(engine->config().zero.stage < 3 || knows_pages(*engine, groups)) {
  MemoryOptions options;
  options.world_size = static_cast<int>(facts.recipe.world);
  options.on_cuda = !device().is_cpu();
  forecast_ =
      forecast(layout::ParameterTable(registrations_of(facts, groups)), engine->config(), options);
}

void RestLedger::when_new() { check("ledger of the new engine", /*is_rest=*/true); }

void RestLedger::after_step(int step, int micro_batch) {
  const bool is_boundary = micro_batch + 1 == facts_.recipe.accumulation_steps;
  const std::string of = " of micro-batch " + std::to_string(micro_batch + 1);
  check(at_step(step, "ledger after step()" + of), is_boundary);
}

void RestLedger::check(const std::string& where, bool is_rest) {
  const auto& ledger = engine_->ledger();
  const auto compare = [&](const std::string& what, int64_t got, int64_t want) {
    ++lanes_.compared["ledger"];
    if (got == want) return lanes_.exact.add_held(1);
    lanes_.exact.add_finding(where, what + " holds " + std::to_string(got) +
                                        " bytes, expected the " + std::to_string(want) +
                                        " of the forecast");
  };
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    if (!is_rest && !is_constant(category)) continue;
    if (category == Category::Gathered && !knows_gathered_) continue;
    compare(memory::kCategoryNames[static_cast<std::size_t>(i)], ledger.bytes(category),
            forecast_.of(category).idle);
  }
  if (is_rest && knows_gathered_)
    compare("all of it", ledger.total_bytes(), forecast_.idle_bytes());
}

}  // namespace equigrad::conformance
