// Every line of seams.def has the parameters that its symbol has, and leads to the station.
#include "conformance/faults/seams.hpp"

#include <cxxabi.h>
#include <gmock/gmock.h>

#include <string>
#include <typeinfo>

namespace equigrad::conformance::faults {
namespace {

std::string demangled(const char* symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  const std::string result = status == 0 ? text : "";
  std::free(text);
  return result;
}

// What is between the first bracket that is not part of "[abi:cxx11]" and the last one.
std::string parameters_in(const std::string& declaration) {
  const auto begin = declaration.find('(') + 1;
  return declaration.substr(begin, declaration.rfind(')') - begin);
}

bool is_const(const std::string& declaration) { return declaration.ends_with(" const"); }

// "equigrad::Window::begin(double)" -> "equigrad::Window"
std::string class_of(const std::string& declaration) {
  const auto name = declaration.substr(0, declaration.find('('));
  return name.substr(0, name.rfind("::"));
}

template <class Signature>
void expect_same(const std::string& name, const char* symbol, const char* parameter_names) {
  const std::string station = demangled(symbol);
  ASSERT_NE(station, "") << name;
  const std::string here = parameters_in(demangled(typeid(Signature).name()));
  std::string there = parameters_in(station);
  if (std::string(parameter_names).find("& self") != std::string::npos) {
    std::string self = class_of(station) + (is_const(station) ? " const&" : "&");
    if (!there.empty()) self += ", ";
    there = self + there;
  }
  EXPECT_EQ(here, there) << name;
}

TEST(Seams, HaveTheParametersOfTheirStations) {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, symbol) \
  expect_same<result parameters>(#name, symbol, #parameters);
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}

TEST(Seams, WithoutAFaultACallReachesItsStation) {
  const auto gradient = at::full({3}, 4.0F);
  EXPECT_EQ(shard::measure(gradient, nullptr, NormType::Infinity).norm, 4.0);
}

TEST(Seams, AFaultTakesTheCallsPlaceAndCanGoOn) {
  seams().measure = [](const at::Tensor& gradient, comm::Communicator* over, NormType type) {
    auto measure = through::measure(gradient, over, type);
    measure.norm *= 2;
    return measure;
  };
  const auto norm = shard::measure(at::full({3}, 4.0F), nullptr, NormType::Infinity).norm;
  seams() = {};
  EXPECT_EQ(norm, 8.0);
}

}  // namespace
}  // namespace equigrad::conformance::faults
