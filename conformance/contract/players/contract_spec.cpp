#include "conformance/contract/players/contract_spec.hpp"

#include <array>

namespace equigrad::conformance::contract {

std::string word(Precision precision) {
  constexpr std::array kWords = {"fp32", "bf16", "fp16", "fp16-static"};
  return kWords[static_cast<std::size_t>(precision)];
}

Spec Spec::of_model(std::size_t which) const {
  Spec spec = *this;
  if (which > 0 && of->has(Feature::Fp32BehindFirst)) spec.precision = Precision::Fp32;
  return spec;
}

std::string Spec::place() const {
  return ".zero" + std::to_string(stage) + "." + word(precision) + ".w" + std::to_string(world) +
         ".accumulation" + std::to_string(accumulation);
}

std::string Spec::id() const { return of->family() + place(); }

std::map<std::string, std::string> Spec::dimensions() const {
  return {{"style", "contract"},
          {"section", of->section},
          {"case", of->name},
          {"stage", std::to_string(stage)},
          {"precision", word(precision)},
          {"ranks", std::to_string(world)},
          {"accumulate", std::to_string(accumulation)}};
}

}  // namespace equigrad::conformance::contract
