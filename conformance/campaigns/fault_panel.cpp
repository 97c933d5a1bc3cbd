#include "conformance/campaigns/fault_panel.hpp"

#include <algorithm>
#include <numeric>

#include "conformance/campaigns/covering_selection.hpp"

namespace equigrad::conformance {
namespace {

// Where nothing stands between a fault and what it does, the first line of its failure is about it:
// stage 3 publishes a parameter when it is read, clipping and a loss scale touch every gradient.
int shows(const CaseSpec& spec) {
  return 4 * (spec.model == "irregular") + 2 * (spec.world > 1) + 2 * (spec.accumulation > 1) +
         (spec.world == 2) + 2 * (spec.stage == 1 || spec.stage == 2) +
         2 * (spec.clip == Clip::Off || spec.clip == Clip::Below) +
         (scaling_of(spec.precision) == Scaling::None);
}

}  // namespace

const std::vector<CaseSpec>& fault_panel() {
  static const std::vector<CaseSpec> panel = [] {
    auto cases = covering_selection().cases;
    std::stable_sort(cases.begin(), cases.end(),
                     [](const auto& one, const auto& other) { return shows(one) > shows(other); });
    return cases;
  }();
  return panel;
}

ContractPanel contract_panel() {
  const auto& covering = covering_selection();
  const auto all = contract::default_specs();
  ContractPanel panel;
  panel.cases = covering.specs;
  panel.covering = panel.cases.size();
  // Neighbours are alike: steps of the golden ratio meet every kind of case early.
  std::size_t stride = all.size() * 618 / 1000;
  while (std::gcd(stride, all.size()) != 1) ++stride;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const auto& spec = all[i * stride % all.size()]; !covering.has(spec))
      panel.cases.push_back(spec);
  return panel;
}

}  // namespace equigrad::conformance
