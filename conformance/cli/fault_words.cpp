// What --fault takes, in words.
#include "conformance/cli/cli.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/faults/planted_faults.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad::conformance::cli {

std::vector<std::pair<std::string, std::string>> faults_by_name() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& fault : faults::catalogue()) names.emplace_back(fault.name, fault.what);
  names.emplace_back("Contract", "every case of the contract plays its wrong way");
  for (const auto& one : contract::cases()) names.emplace_back(one.family(), one.fault);
  return names;
}

std::string fault_problem(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [fault, words] : faults_by_name()) {
    if (fault == name) return {};
    names.push_back(fault);
  }
  return "expected a fault that can be planted, got \"" + name + "\"." + did_you_mean(name, names) +
         " equigrad list --faults has all " + std::to_string(names.size()) + " in words.";
}

std::string fault_help() {
  std::string help = "Plant this fault into every case that can have it, to see it fail:";
  for (const auto& fault : faults::planted_faults()) help += " " + fault.name + ",";
  return help +
         " Contract (the wrong way of every case of the contract), or that of one, such as "
         "Contract.2.two_losses_on_one_forward; equigrad list --faults has all";
}

}  // namespace equigrad::conformance::cli
