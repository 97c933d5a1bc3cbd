// Every row of seams.def is led through its wrapper, and from there to the station.
#include "conformance/faults/seams.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "conformance/faults/station.hpp"

namespace equigrad::conformance::faults {
namespace {

// Of a member function that is not virtual: the first word of the pointer to it.
template <class Function>
const void* address_of(Function function) {
  const void* address = nullptr;
  std::memcpy(&address, &function, sizeof address);
  return address;
}

TEST(Seams, EveryCallOfAStationIsLedThroughItsWrapper) {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  EXPECT_EQ(address_of(Station<result parameters>::of(&station)), wrapper_of(#name)) << #station;
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}

TEST(Seams, WithoutAFaultACallReachesItsStation) {
  const auto gradient = at::full({3}, 4.0F);
  EXPECT_EQ(shard::measure(gradient, nullptr, NormType::Infinity).norm, 4.0);
}

TEST(Seams, AFaultTakesTheCallsPlaceAndCanGoOn) {
  seams().measure = [](const at::Tensor& gradient, comm::Communicator* over, NormType type,
                       const std::vector<shard::Span>& repeated) {
    auto measure = through::measure(gradient, over, type, repeated);
    measure.norm *= 2;
    return measure;
  };
  const auto norm = shard::measure(at::full({3}, 4.0F), nullptr, NormType::Infinity).norm;
  seams() = {};
  EXPECT_EQ(norm, 8.0);
}

}  // namespace
}  // namespace equigrad::conformance::faults
