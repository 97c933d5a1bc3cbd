// export_model(): what it writes is read by a reader of the format of this file's own.
#include "engine/checkpoint/exported_model.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "conformance/testing/saved_folder.hpp"
#include "engine/checkpoint/convert.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using conformance::damage;
using conformance::engine_of;
using conformance::place_of;
using conformance::save_folder;
using conformance::saved_tensor;
using conformance::SavedFolder;
using conformance::SavedTensor;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(const Path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

struct ReadTensor {
  std::string type;
  std::vector<std::int64_t> shape;
  std::string bytes;
  std::size_t offset = 0;
};
struct ReadFile {
  std::map<std::string, ReadTensor> tensors;
  std::map<std::string, std::string> metadata;
  bool is_covered = false;
};

ReadFile read_safetensors(const Path& file) {
  const std::string text = text_of(file);
  std::size_t header = 0;
  for (std::size_t i = 0; i < 8; ++i)
    header |= static_cast<std::size_t>(static_cast<unsigned char>(text.at(i))) << 8 * i;
  ReadFile read;
  std::size_t bytes = 0;
  const json all = json::parse(text.substr(8, header));
  for (const auto& [name, about] : all.items()) {
    if (name == "__metadata__") {
      read.metadata = about.get<std::map<std::string, std::string>>();
      continue;
    }
    const auto begin = about.at("data_offsets").at(0).get<std::size_t>();
    const auto end = about.at("data_offsets").at(1).get<std::size_t>();
    read.tensors[name] = {about.at("dtype"), about.at("shape"),
                          text.substr(8 + header + begin, end - begin), begin};
    bytes += end - begin;
  }
  read.is_covered = 8 + header + bytes == text.size() && header % 8 == 0;
  return read;
}

template <class T>
std::vector<T> values_of(const ReadTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

class ExportedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "equigrad-export-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  SavedCheckpoint saved(const std::vector<SavedTensor>& tensors, const json& engine,
                        int world_size = 1) {
    save_folder(folder_, "step7", tensors, SavedFolder{world_size, engine});
    return SavedCheckpoint::open(folder_, "step7");
  }
  Path out() const { return folder_ / "out" / "model"; }
  std::vector<std::string> files_there() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(out()))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  Path folder_;
};

const std::vector<float> kWeights = {1, -2.5F, 1.00390625F, 3e38F, 1e-42F, 0, -0.0F};

std::vector<SavedTensor> a_model() {
  return {
      saved_tensor<float>("master/w", ElementType::F32, {7}, kWeights),
      saved_tensor<float>("exp_avg/w", ElementType::F32, {7}, {7, 6, 5, 4, 3, 2, 1}),
      saved_tensor<double>("master/b", ElementType::F64, {2, 1},
                           {1 + 1.0 / 256 + 1.0 / (1LL << 40), 1e300}),
      saved_tensor<std::uint16_t>("parameter/frozen", ElementType::BF16, {3}, {0x3F80, 0x4000, 1}),
      saved_tensor<std::int64_t>("rank0/buffer/norm.count", ElementType::I64, {}, {42}),
      saved_tensor<std::uint8_t>("rank0/buffer/mask", ElementType::Bool, {3}, {1, 0, 1}),
      saved_tensor<float>("rank0/buffer/norm.mean", ElementType::F32, {2}, {0.5F, 0.25F}),
      saved_tensor<float>("rank1/buffer/norm.mean", ElementType::F32, {2}, {9, 9}),
      saved_tensor<std::uint8_t>("rank0/rng/cpu", ElementType::U8, {3}, {1, 2, 3})};
}
json an_engine() { return engine_of({{"w", {"tied", "tied.too"}}, {"frozen", {}, false}, {"b"}}); }

TEST_F(ExportedModel, IsMastersFrozenOnesAndBuffersOfRank0) {
  for (const int world_size : {1, 2, 3}) {
    const auto checkpoint = saved(a_model(), an_engine(), world_size);
    EXPECT_THAT(export_model(checkpoint, out(), {}), ElementsAre("model.safetensors"));
    EXPECT_THAT(files_there(), ElementsAre("model.safetensors"));
    const auto read = read_safetensors(out() / "model.safetensors");
    EXPECT_TRUE(read.is_covered);
    EXPECT_EQ(read.metadata, (std::map<std::string, std::string>{
                                 {"format", "pt"}, {"tied", "w"}, {"tied.too", "w"}}));
    ASSERT_EQ(read.tensors.size(), 6u);
    const auto& w = read.tensors.at("w");
    EXPECT_EQ(w.type, "F32");
    EXPECT_EQ(w.shape, std::vector<std::int64_t>{7});
    EXPECT_EQ(w.bytes, std::string(reinterpret_cast<const char*>(kWeights.data()), 28));
    EXPECT_THAT(values_of<float>(read.tensors.at("b")),
                ElementsAre(1 + 1.0F / 256, std::numeric_limits<float>::infinity()));
    EXPECT_EQ(read.tensors.at("b").shape, (std::vector<std::int64_t>{2, 1}));
    EXPECT_THAT(values_of<float>(read.tensors.at("frozen")),
                ElementsAre(1, 2, std::ldexp(1.0F, -133)));
    EXPECT_EQ(read.tensors.at("norm.count").type, "I64");
    EXPECT_THAT(values_of<std::int64_t>(read.tensors.at("norm.count")), ElementsAre(42));
    EXPECT_EQ(read.tensors.at("norm.count").shape, std::vector<std::int64_t>{});
    EXPECT_EQ(read.tensors.at("mask").type, "BOOL");
    EXPECT_THAT(values_of<float>(read.tensors.at("norm.mean")), ElementsAre(0.5F, 0.25F));
    std::filesystem::remove_all(folder_);
  }
}

// Gate and up in one, cut over two ranks and put together again; a damaged part is found.
TEST_F(ExportedModel, OfPartsOfATensorGroupIsTheWholeInItsPacking) {
  std::vector<float> packed(16);
  std::iota(packed.begin(), packed.end(), 1.0F);
  auto tensor = saved_tensor<float>("master/w", ElementType::F32, {8, 2}, packed);
  tensor.cut = Cut{.dimension = 0, .segments = {4, 4}, .parts = 2};
  const auto checkpoint = saved({tensor}, engine_of({{"w"}}), 4);
  export_model(checkpoint, out(), {});
  const auto read = read_safetensors(out() / "model.safetensors");
  EXPECT_EQ(read.tensors.at("w").shape, (std::vector<std::int64_t>{8, 2}));
  EXPECT_THAT(values_of<float>(read.tensors.at("w")), testing::ElementsAreArray(packed));
  conformance::damage({checkpoint.folder() / checkpoint.manifest().files[3].name,
                       checkpoint.manifest().files[3].header_bytes});
  EXPECT_THROW(export_model(checkpoint, folder_ / "other", {}), Error);
}

TEST_F(ExportedModel, EveryTensorIsAlignedToItsElements) {
  const auto checkpoint = saved(a_model(), an_engine());
  export_model(checkpoint, out(), {.type = ElementType::BF16});
  const auto read = read_safetensors(out() / "model.safetensors");
  const std::map<std::string, std::size_t> widths = {{"BF16", 2}, {"I64", 8}, {"BOOL", 1}};
  for (const auto& [name, tensor] : read.tensors)
    EXPECT_EQ(tensor.offset % widths.at(tensor.type), 0u) << name;
}

TEST_F(ExportedModel, InSixteenBitsEveryNumberIsRoundedOnce) {
  const auto checkpoint = saved(a_model(), an_engine(), 2);
  export_model(checkpoint, out() / "bf16", {.type = ElementType::BF16});
  const auto brain = read_safetensors(out() / "bf16" / "model.safetensors");
  EXPECT_EQ(brain.tensors.at("w").type, "BF16");
  EXPECT_THAT(values_of<std::uint16_t>(brain.tensors.at("w")),
              ElementsAre(0x3F80, 0xC020, 0x3F80, 0x7F62, 0, 0, 0x8000));
  EXPECT_THAT(values_of<std::uint16_t>(brain.tensors.at("b")), ElementsAre(0x3F81, 0x7F80));
  EXPECT_THAT(values_of<std::uint16_t>(brain.tensors.at("norm.mean")), ElementsAre(0x3F00, 0x3E80));
  EXPECT_EQ(brain.tensors.at("norm.count").type, "I64");
  export_model(checkpoint, out() / "fp16", {.type = ElementType::F16});
  const auto half = read_safetensors(out() / "fp16" / "model.safetensors");
  EXPECT_EQ(half.tensors.at("frozen").type, "F16");
  EXPECT_THAT(values_of<std::uint16_t>(half.tensors.at("w")),
              ElementsAre(0x3C00, 0xC100, 0x3C04, 0x7C00, 0, 0, 0x8000));
}

TEST_F(ExportedModel, AsTheModelComputesIsTheTypeOfParametersAndOfAllElseItsOwn) {
  auto tensors = a_model();
  const auto checkpoint = saved(tensors, an_engine());
  export_model(checkpoint, out(), {.type = std::nullopt});
  const auto read = read_safetensors(out() / "model.safetensors").tensors;
  EXPECT_EQ(read.at("w").type, "BF16");
  EXPECT_EQ(read.at("b").type, "BF16");
  EXPECT_EQ(read.at("frozen").type, "BF16");
  EXPECT_EQ(read.at("norm.mean").type, "F32");
}

TEST_F(ExportedModel, AsTheModelComputesIsAParameterThatWasSavedBesideItsMaster) {
  auto tensors = a_model();
  tensors.push_back(
      saved_tensor<std::uint16_t>("parameter/b", ElementType::F16, {2, 1}, {0x3C00, 0x4000}));
  const auto checkpoint = saved(tensors, an_engine());
  export_model(checkpoint, out(), {.type = std::nullopt});
  const auto& as_computed = read_safetensors(out() / "model.safetensors").tensors.at("b");
  EXPECT_EQ(as_computed.type, "F16");
  EXPECT_THAT(values_of<std::uint16_t>(as_computed), ElementsAre(0x3C00, 0x4000));
  export_model(checkpoint, out() / "fp32", {});
  EXPECT_EQ(values_of<float>(read_safetensors(out() / "fp32" / "model.safetensors").tensors.at("b"))
                .front(),
            1 + 1.0F / 256);
}

TEST_F(ExportedModel, ALargeOneIsCutIntoFilesWithAnIndex) {
  const auto checkpoint = saved(a_model(), an_engine(), 2);
  // In the order of the model: w 28, frozen 12, b 8, then buffers by name: mask 3, count 8, mean 8.
  EXPECT_THAT(export_model(checkpoint, out(), {.file_bytes = 20}),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(files_there().size(), 4u);
  const auto index = json::parse(text_of(out() / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata"), (json{{"total_size", 67}}));
  EXPECT_EQ(index.at("weight_map").size(), 6u);
  for (const auto& [name, file] : index.at("weight_map").items()) {
    const auto read = read_safetensors(out() / file.get<std::string>());
    EXPECT_TRUE(read.is_covered && read.tensors.contains(name)) << name;
    EXPECT_EQ(read.metadata.at("format"), "pt");
    EXPECT_EQ(read.metadata.contains("tied"), name == "w");
  }
  EXPECT_EQ(index["weight_map"]["w"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["frozen"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["b"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["mask"], "model-00003-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["norm.mean"], "model-00003-of-00003.safetensors");
}

TEST_F(ExportedModel, AFileThatIsJustFullIsNotCut) {
  const auto checkpoint = saved(a_model(), an_engine());
  EXPECT_EQ(export_model(checkpoint, out() / "all", {.file_bytes = 67}).size(), 1u);
  EXPECT_EQ(export_model(checkpoint, out() / "one less", {.file_bytes = 66}).size(), 3u);
  EXPECT_EQ(export_model(checkpoint, out() / "each", {.file_bytes = 1}).size(), 7u);
}

TEST_F(ExportedModel, FrozenOnesMayBeLeftOutAndMustBeIfTheyWereNotSaved) {
  auto tensors = a_model();
  export_model(saved(tensors, an_engine()), out(), {.exclude_frozen = true});
  const auto read = read_safetensors(out() / "model.safetensors").tensors;
  EXPECT_FALSE(read.contains("frozen"));
  EXPECT_EQ(read.size(), 5u);
  tensors.erase(tensors.begin() + 3);
  std::filesystem::remove_all(folder_);
  const auto without = saved(tensors, an_engine());
  EXPECT_THAT([&] { export_model(without, out(), {}); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("expected \"parameter/frozen\" in "),
                                                  HasSubstr("saved without frozen parameters"),
                                                  HasSubstr("--exclude-frozen"))));
  EXPECT_FALSE(std::filesystem::exists(out()));
  EXPECT_EQ(export_model(without, out(), {.exclude_frozen = true}).size(), 1u);
}

TEST_F(ExportedModel, WhatHasNoElementsIsThereThoughItIsNotSaved) {
  auto engine = engine_of({{"w"}, {"none"}, {"frozen none", {}, false}});
  engine["parameters"][1]["shape"] = {2, 0, 3};
  engine["parameters"][2]["shape"] = {0};
  const auto checkpoint = saved({a_model().front()}, engine);
  export_model(checkpoint, out(), {.type = ElementType::F16});
  const auto read = read_safetensors(out() / "model.safetensors");
  EXPECT_TRUE(read.is_covered);
  EXPECT_EQ(read.tensors.at("none").shape, (std::vector<std::int64_t>{2, 0, 3}));
  EXPECT_EQ(read.tensors.at("none").type, "F16");
  EXPECT_EQ(read.tensors.at("frozen none").shape, std::vector<std::int64_t>{0});
  engine["parameters"][1]["shape"] = {2, 1, 3};
  std::filesystem::remove_all(folder_);
  const auto lacking = saved({a_model().front()}, engine);
  EXPECT_THAT([&] { export_model(lacking, out(), {}); },
              testing::ThrowsMessage<Error>(HasSubstr("master/none")));
}

TEST_F(ExportedModel, ATensorOfManyPartsAndPiecesIsWhole) {
  constexpr std::int64_t kNumel = (std::int64_t{5} << 19) + 3;
  std::vector<float> values(kNumel);
  for (std::int64_t i = 0; i < kNumel; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>(i) * 0.7F;
  const auto checkpoint =
      saved({saved_tensor("master/w", ElementType::F32, {kNumel}, values)}, engine_of({{"w"}}), 2);
  export_model(checkpoint, out() / "fp32", {});
  EXPECT_EQ(values_of<float>(read_safetensors(out() / "fp32" / "model.safetensors").tensors["w"]),
            values);
  export_model(checkpoint, out() / "bf16", {.type = ElementType::BF16});
  std::vector<std::uint16_t> rounded(kNumel);
  convert(values.data(), ElementType::F32, rounded.data(), ElementType::BF16, kNumel);
  EXPECT_EQ(
      values_of<std::uint16_t>(read_safetensors(out() / "bf16" / "model.safetensors").tensors["w"]),
      rounded);
}

TEST_F(ExportedModel, AModelThatIsThereIsNotTouched) {
  const auto checkpoint = saved(a_model(), an_engine());
  for (const std::string name :
       {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}) {
    disk().make_directories(out());
    std::ofstream(out() / name) << "mine";
    EXPECT_THAT([&] { export_model(checkpoint, out(), {}); },
                testing::ThrowsMessage<Error>(
                    AllOf(HasSubstr("expected a folder without a model, got "), HasSubstr(name))));
    EXPECT_EQ(text_of(out() / name), "mine");
    EXPECT_THAT(files_there(), ElementsAre(name));
    std::filesystem::remove_all(out());
  }
  disk().make_directories(out());
  std::ofstream(out() / "config.json") << "{}";
  std::ofstream(out() / "model.safetensors.saving") << "of an export that was killed";
  export_model(checkpoint, out(), {});
  EXPECT_THAT(files_there(), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(read_safetensors(out() / "model.safetensors").tensors.size(), 6u);
}

TEST_F(ExportedModel, WhatHasBeenChangedIsNotExported) {
  const auto checkpoint = saved(a_model(), an_engine());
  damage(place_of(checkpoint, "master/b", 1));
  EXPECT_THAT([&] { export_model(checkpoint, out(), {.file_bytes = 30}); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("master/b"), HasSubstr("changed"))));
  EXPECT_THAT(files_there(), ElementsAre("model-00001-of-00003.safetensors",
                                         "model-00002-of-00003.safetensors.saving"))
      << "no model, for there is no index";
}

TEST_F(ExportedModel, AnEngineThatIsNotOursIsSaidToBe) {
  const auto checkpoint = saved(a_model(), json{{"parameters", {{{"name", 3}}}}});
  EXPECT_THAT([&] { export_model(checkpoint, out(), {}); },
              testing::ThrowsMessage<Error>(HasSubstr("expected the engine's parameters in ")));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

}  // namespace
}  // namespace equigrad::checkpoint
