// Names tell of modules, and of what is whose.
#include "engine/layout/module_tree.hpp"

#include <gmock/gmock.h>

namespace equigrad::layout {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ModuleTree, NamesTellOfModulesParentsFirst) {
  const int deep = 0, top = 0;
  const auto modules = modules_of({{"a.b.weight", &deep}, {"top", &top}, {"a.b.bias", &top}});
  ASSERT_EQ(modules.size(), 3U);
  EXPECT_EQ(modules[0].name, "");
  EXPECT_THAT(modules[0].parameters, ElementsAre(&top));
  EXPECT_EQ(modules[1].name, "a");
  EXPECT_THAT(modules[1].parameters, IsEmpty());
  EXPECT_EQ(modules[2].name, "a.b");
  EXPECT_THAT(modules[2].parameters, ElementsAre(&deep, &top)) << "one under two modules";
}

}  // namespace
}  // namespace equigrad::layout
