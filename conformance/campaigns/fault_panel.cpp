#include "conformance/campaigns/fault_panel.hpp"

#include <algorithm>
#include <numeric>

#include "conformance/campaigns/covering_selection.hpp"
#include "conformance/cases/covering.hpp"

namespace equigrad::conformance {

const std::vector<CaseSpec>& fault_panel() {
  static const std::vector<CaseSpec> panel = [] {
    auto cases = covering_selection().cases;
    std::stable_sort(cases.begin(), cases.end(),
                     [](const auto& one, const auto& other) { return tells(one) > tells(other); });
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
