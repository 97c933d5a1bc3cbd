// Mutants: every mutator at every site.
#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/mutant_sites.hpp"

namespace equigrad::conformance::faults {
namespace {

// A mutation of what passes; counts as an act where it changes a bit.
Mutate mutation(const Mutator& mutator, FaultContext& context) {
  auto memory = std::make_shared<Memory>();
  return [&mutator, &context, memory](const at::Tensor& values) {
    auto& before = (*memory)[values.numel()];
    const bool fits = before.defined() && before.scalar_type() == values.scalar_type();
    const auto last = fits ? before : at::Tensor();
    before = values.clone();
    if (!is_time(context) || values.numel() == 0) return values;
    const auto other = mutator.change(values, last).to(values.scalar_type());
    if (same_bits(other, values)) return values;
    context.acted();
    return other;
  };
}

Fault mutant_of(const Site& site, const Mutator& mutator) {
  Fault fault{.name = "mutant." + site.name + "." + mutator.name,
              .what = site.what + ": " + mutator.what,
              .seam = site.seam,
              .bugs = {},
              .phase = site.phase,
              .plant = nullptr,
              .wrap = nullptr};
  if (site.at_seams)
    fault.plant = [&site, &mutator](FaultContext& context) {
      site.at_seams(context, mutation(mutator, context));
    };
  else
    fault.wrap = [&site, &mutator](CommunicatorPtr communicator, FaultContext& context) {
      return site.on_communicator(std::move(communicator), context, mutation(mutator, context));
    };
  return fault;
}

}  // namespace

std::vector<Fault> mutant_faults() {
  std::vector<Fault> faults;
  for (const auto& site : sites())
    for (const auto& mutator : mutators()) faults.push_back(mutant_of(site, mutator));
  for (const auto& site : number_sites())
    for (const auto& mutator : scalar_mutators())
      faults.push_back(
          {"mutant." + site.name + "." + mutator.name,
           site.what + ": " + mutator.what,
           site.seam,
           {},
           site.phase,
           [&site, &mutator](FaultContext& context) { site.at_seams(context, mutator.change); },
           nullptr});
  for (const auto& site : call_sites())
    for (const int times : {0, 2})
      faults.push_back({"mutant." + site.name + (times == 0 ? ".left_out" : ".made_twice"),
                        site.what + (times == 0 ? " is left out" : " is done twice"),
                        site.seam,
                        {},
                        site.phase,
                        [&site, times](FaultContext& context) { site.at_seams(context, times); },
                        nullptr});
  return faults;
}

}  // namespace equigrad::conformance::faults
