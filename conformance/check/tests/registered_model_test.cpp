// A library with EQUIGRAD_MODEL gives its model; what is no such library is refused by name.
#include "conformance/check/registered_model.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "conformance/check/check.hpp"
#include "conformance/check/subject.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RegisteredModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "model-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    if (std::system(("rm -rf '" + folder_ + "'").c_str()) != 0) ADD_FAILURE() << folder_;
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  // A library of C, with the layout of RegisteredModel where it has one.
  std::string library_of(const std::string& source) const {
    const auto file = write("model.c", source), library = folder_ + "/libmodel.so";
    EXPECT_EQ(std::system(("cc -shared -fPIC -o '" + library + "' '" + file + "'").c_str()), 0);
    return library;
  }
  static std::string registered(const std::string& stamp, const std::string& get) {
    return "struct registered { const char* stamp; void (*get)(void*); };\n"
           "static const struct registered it = {\"" +
           stamp + "\", " + get +
           "};\nconst struct registered* equigrad_registered_model(void) { return &it; }\n";
  }
  static std::string refusal(const std::string& path) {
    try {
      load_model(path);
    } catch (const CheckRefused& error) {
      return error.what();
    }
    return "";
  }

  std::string folder_;
};

TEST_F(RegisteredModelTest, TheModelOfALibraryIsChecked) {
  const auto make = subject_maker(load_model(std::getenv("EQUIGRAD_TEST_MODEL")));
  const CheckOptions options{.stages = {1, 3}, .styles = {"engine_backward"}};
  const auto report = equigrad::check(make, options);
  EXPECT_TRUE(report.held) << report.text();
  EXPECT_EQ(report.run.cases.size(), 2u);
}

TEST_F(RegisteredModelTest, WhatIsNoLibraryIsRefused) {
  EXPECT_THAT(refusal(folder_ + "/libno.so"),
              AllOf(HasSubstr("[model] expected the file of a shared library"),
                    HasSubstr("libno.so\". Correct the path")));
  EXPECT_THAT(refusal(folder_), HasSubstr("expected the file of a shared library"));
  EXPECT_THAT(refusal("my_module:factory"), HasSubstr("equigrad of the Python package"));
  const auto text = write("text.so", "no library");
  EXPECT_THAT(refusal(text), AllOf(HasSubstr("a shared library that loads, got: "),
                                   HasSubstr("text.so: file too short")));
}

TEST_F(RegisteredModelTest, ALibraryWithoutTheMacroIsRefused) {
  EXPECT_THAT(refusal(library_of("int x;\n")),
              AllOf(HasSubstr("a library with EQUIGRAD_MODEL, got " + folder_),
                    HasSubstr("Write EQUIGRAD_MODEL(factory, loss)")));
}

// Nothing of it is called but what gives the stamp: its `get` would end this process.
TEST_F(RegisteredModelTest, ALibraryOfAnotherTorchIsRefused) {
  const auto library = library_of(registered("equigrad 0.0.1, torch 2.99.1, no NDEBUG", "0"));
  EXPECT_THAT(refusal(library),
              AllOf(HasSubstr("expected a library built with " EQUIGRAD_MODEL_STAMP),
                    HasSubstr("built with equigrad 0.0.1, torch 2.99.1, no NDEBUG")));
  EXPECT_THAT(EQUIGRAD_MODEL_STAMP,
              AllOf(HasSubstr("equigrad " EQUIGRAD_VERSION), HasSubstr("torch " TORCH_VERSION)));
}

TEST_F(RegisteredModelTest, ASymbolThatIsMissingIsNamedBeforeARankNeedsIt) {
  const auto library = library_of(
      "void of_no_library(void);\n"
      "static void get(void* model) { of_no_library(); }\n" +
      registered(EQUIGRAD_MODEL_STAMP, "get"));
  EXPECT_THAT(refusal(library), HasSubstr("undefined symbol: of_no_library"));
}

TEST_F(RegisteredModelTest, CasesAreNamedAfterTheLibrary) {
  EXPECT_EQ(model_name("/somewhere/libmine.so"), "mine");
  EXPECT_EQ(model_name("my model+2.so.1.0"), "my-model-2");
  EXPECT_EQ(model_name("lib.so"), "model");
}

}  // namespace
}  // namespace equigrad::conformance
