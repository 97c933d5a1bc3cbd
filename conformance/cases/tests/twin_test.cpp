// The twin of several cases is read once; one that is written anew is read anew.
#include "conformance/cases/twin.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "conformance/testing/scratch_folder.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance {
namespace {

TEST(Twin, IsReadOnceUntilItIsWrittenAnew) {
  const ScratchFolder folder;
  ASSERT_EQ(mkdir(folder.path().c_str(), 0700), 0);
  const auto path = folder.path() + "/twin";
  const reference::Data data(std::string(1009, 'a'));  // the model reads none of it
  const auto spec = parse_id(
      "Required.grad.zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine_backward");
  const auto order = orders_of(spec).at(0);
  make_twin(spec, 1, data, path);
  const Twin first(path, order), again(path, order);
  const std::string name = "head.bias";
  const auto values = first.tensor(0, "master", name);
  ASSERT_TRUE(values.defined());
  EXPECT_EQ(again.tensor(0, "master", name).const_data_ptr(), values.const_data_ptr());
  const auto copy = values.clone();
  make_twin(spec, 2, data, path);
  const Twin other(path, order);
  EXPECT_FALSE(other.tensor(0, "master", name).equal(copy));
  EXPECT_TRUE(values.equal(copy));
  const auto broken = folder.path() + "/broken";
  std::ofstream(broken) << "no tensors";
  EXPECT_ANY_THROW(Twin(broken, order));
  EXPECT_ANY_THROW(Twin(broken, order)) << "the one before it is no answer";
  make_twin(spec, 1, data, path);
  EXPECT_TRUE(Twin(path, order).tensor(0, "master", name).equal(copy));
}

}  // namespace
}  // namespace equigrad::conformance
