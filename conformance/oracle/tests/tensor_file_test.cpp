#include "conformance/oracle/tensor_file.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance::oracle {
namespace {

class TensorFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "equigrad-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "tensors.safetensors";
  }
  // Not remove_all: LibTorch exports an older copy of it, which crashes.
  void TearDown() override {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      ::unlink(entry.path().c_str());
    }
    ::rmdir(folder_.c_str());
  }

  // A file of this header text and this many bytes of data.
  void write_raw(const std::string& header, size_t data_bytes, uint64_t claimed) {
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&claimed), sizeof(claimed));
    file << header << std::string(data_bytes, '\1');
  }
  void write_raw(const std::string& header, size_t data_bytes) {
    write_raw(header, data_bytes, header.size());
  }
  std::string error_of_reading() {
    try {
      read_tensors(path_);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_, path_;
};

TEST_F(TensorFileTest, EveryDtypeAndShapeComesBackWithItsBits) {
  std::map<std::string, at::Tensor> tensors;
  const auto values = at::randn({3, 5}, at::kDouble) * 100;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong}) {
    tensors[c10::toString(dtype)] = values.to(dtype);
  }
  tensors["bytes"] = at::arange(7, at::kByte);
  tensors["scalar"] = at::tensor(2.5f).reshape({});
  tensors["empty"] = at::empty({4, 0, 2}, at::kFloat);
  tensors["strided"] = values.to(at::kFloat).t();
  tensors["a name with \"quotes\" and \u00e9"] = at::tensor({-0.0f, std::nanf("7")});
  write_tensors(path_, tensors, {{"step", "3"}});
  const TensorFile file = read_tensors(path_);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"step", "3"}}));
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto report = compare(file.tensors.at(name), tensor);
    EXPECT_TRUE(report.equal()) << name << ": " << describe(report);
    EXPECT_EQ(report.compared, tensor.numel()) << name;
  }
}

TEST_F(TensorFileTest, NoTensorsIsAFileToo) {
  write_tensors(path_, {});
  EXPECT_TRUE(read_tensors(path_).tensors.empty());
}

TEST_F(TensorFileTest, TheBytesAreThoseOfTheFormat) {
  write_tensors(path_, {{"w", at::tensor({1.0f, 2.0f})}});
  std::ifstream stream(path_, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_THAT(bytes.substr(8, header_bytes),
              testing::StartsWith(R"({"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})"));
  EXPECT_EQ(bytes.substr(8 + header_bytes), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
}

TEST_F(TensorFileTest, TensorsOutliveTheFileAndDoNotShareWrites) {
  write_tensors(path_, {{"w", at::ones({1000})}});
  at::Tensor first = read_tensors(path_).tensors.at("w");
  const at::Tensor second = read_tensors(path_).tensors.at("w");
  first.fill_(7);
  EXPECT_EQ(second.sum().item<float>(), 1000);
  ::unlink(path_.c_str());
  EXPECT_EQ(first.sum().item<float>(), 7000);
  EXPECT_EQ(second.sum().item<float>(), 1000);
}

TEST_F(TensorFileTest, WritingReplacesInOneMoveAndLeavesNothingBeside) {
  write_tensors(path_, {{"w", at::ones({2})}});
  const at::Tensor old = read_tensors(path_).tensors.at("w");
  write_tensors(path_, {{"w", at::zeros({500})}});
  EXPECT_EQ(old.sum().item<float>(), 2);
  EXPECT_EQ(read_tensors(path_).tensors.at("w").numel(), 500);
  EXPECT_THROW(write_tensors(path_, {{"w", at::ones({2}, at::kComplexFloat)}}), std::runtime_error);
  EXPECT_THROW(write_tensors(folder_ / "none" / "x", {}), std::runtime_error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(TensorFileTest, UnalignedTensorsOfOthersAreRead) {
  write_raw(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
            R"("w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
            9);
  const auto values = read_tensors(path_).tensors.at("w");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data_ptr()) % 4, 0u);
  EXPECT_EQ(values.view(at::kInt)[1].item<int>(), 0x01010101);
}

TEST_F(TensorFileTest, HostileFilesAreRefusedWithAReason) {
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string reason;
  };
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& at) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + at + "}}";
  };
  const std::string f32 = R"("F32")", good = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::vector<Case> cases = {
      {"{", 0, "not JSON"},
      {"[]", 0, "not a JSON object"},
      {std::string(2, '\xff'), 0, "not JSON"},
      {R"({"w":3})", 0, "expected an object"},
      {R"({"w":{"dtype":"F32"}})", 0, "expected an object"},
      {entry(R"("F7")", "[1]", "[0,4]"), 4, "dtype is not one of"},
      {entry("3", "[1]", "[0,4]"), 4, "dtype is not one of"},
      {entry(f32, "1", "[0,4]"), 4, "shape is not a list"},
      {entry(f32, "[1]", "[0]"), 4, "not a pair"},
      {entry(f32, "[-1]", "[0,4]"), 4, "expected a number >= 0"},
      {entry(f32, "[1.5]", "[0,4]"), 4, "expected a number >= 0"},
      {entry(f32, "[1]", "[-4,0]"), 4, "expected a number >= 0"},
      {entry(f32, "[1]", "[4,0]"), 4, "outside"},
      {entry(f32, "[2]", "[0,8]"), 4, "outside"},
      {entry(f32, "[1]", "[18446744073709551612,18446744073709551615]"), 4, "outside"},
      {entry(f32, "[2]", "[0,4]"), 4, "do not agree"},
      {entry(f32, "[4611686018427387904,4]", "[0,0]"), 0, "overflows"},
      {entry(f32, "[0,18446744073709551615]", "[0,0]"), 0, "overflows"},
      {entry(f32, "[1]", "[4,8]"), 8, "hole"},
      {entry(f32, "[1]", "[0,4]"), 8, "no tensor names"},
      {R"({"v":)" + good + R"(,"w":)" + good + "}", 4, "overlaps"},
      {R"({"w":)" + good + R"(,"w":)" + good + "}", 4, "twice"},
      {R"({"__metadata__":{},"w":)" + good + R"(,"__metadata__":{}})", 4, "twice"},
      {R"({"__metadata__":3})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"a":3}})", 0, "is not a text"},
  };
  for (const auto& [header, data_bytes, reason] : cases) {
    write_raw(header, data_bytes);
    EXPECT_THAT(error_of_reading(), testing::HasSubstr(reason)) << header;
  }
}

TEST_F(TensorFileTest, ShortFilesAndLyingLengthsAreRefused) {
  EXPECT_THAT(error_of_reading(), testing::HasSubstr("cannot open"));
  std::ofstream(path_) << "short";
  EXPECT_THAT(error_of_reading(), testing::HasSubstr("shorter than the 8 bytes"));
  for (const uint64_t claimed : {uint64_t{3}, uint64_t{1000}, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    write_raw("{}", 0, claimed);
    EXPECT_THAT(error_of_reading(), testing::HasSubstr("header claims")) << claimed;
  }
}

TEST_F(TensorFileTest, EveryTruncationIsRefused) {
  write_tensors(path_, {{"v", at::ones({3})}, {"w", at::ones({2, 2}, at::kBFloat16)}});
  const auto bytes = std::filesystem::file_size(path_);
  for (auto kept = bytes; kept-- > 0;) {
    std::filesystem::resize_file(path_, kept);
    EXPECT_NE(error_of_reading(), "no error") << kept << " of " << bytes << " bytes";
  }
}

}  // namespace
}  // namespace equigrad::conformance::oracle
