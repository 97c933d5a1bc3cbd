#include <stdexcept>
#include <string>

#include "property_tests/parsers/parsers.hpp"
#include "reports/json.hpp"

namespace equigrad::property_tests {
namespace {

constexpr std::string_view kRefusal = "[reports.json] expected ";

}  // namespace

bool takes_run(std::string_view bytes) {
  reports::Run run;
  try {
    run = reports::from_json(std::string(bytes));
  } catch (const std::runtime_error& error) {
    if (!std::string_view(error.what()).starts_with(kRefusal)) throw std::logic_error(error.what());
    return false;
  }
  const std::string written = to_json(run);
  if (to_json(reports::from_json(written)) != written)
    throw std::logic_error("a run that is another one when it is read again");
  return true;
}

}  // namespace equigrad::property_tests
