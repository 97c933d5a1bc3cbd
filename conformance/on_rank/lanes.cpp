#include "conformance/on_rank/lanes.hpp"

#include <ATen/ATen.h>

#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance {
namespace {

void see(oracle::OtherRules& rules, const std::string& where, const at::Tensor& got,
         const at::Tensor& want) {
  const auto is = [&](const char* kind) { return where.find(kind) != std::string::npos; };
  if (is(" gradient ") || is(" master ") || is(" parameter ")) rules.see_tensor(got, want);
  if (where.ends_with(" loss")) rules.see_loss(got.item<float>(), want.item<float>());
}

}  // namespace

std::string at_step(int step, const std::string& what) {
  return "step " + std::to_string(step + 1) + " " + what;
}

std::string where_of(const Site& site) {
  return at_step(site.step, site.what + (site.parameter.empty() ? "" : " " + site.parameter));
}

bool Lanes::compare(const Site& site, const at::Tensor& of_engine, const at::Tensor& of_twin) {
  const auto got = of_engine.cpu(), want = of_twin.cpu();  // which hold the same bits there
  const auto where = where_of(site);
  const auto report = oracle::compare(got, want);
  if (with_other_rules && !report.equal()) see(other_rules, where, got, want);
  compared[site.what.substr(0, site.what.find(' '))] += report.compared;
  const bool held = exact.add(where, site.begin, report);
  if (!held) first.note(where, site.begin, got, want);
  return held;
}

}  // namespace equigrad::conformance
