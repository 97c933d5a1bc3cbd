// `equigrad checkpoint`, and beside its export the script that a save leaves behind.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "conformance/cli/tests/command_result.hpp"
#include "conformance/testing/saved_folder.hpp"
#include "engine/checkpoint/zero_to_fp32.hpp"

namespace equigrad::conformance::cli {
namespace {

using checkpoint::ElementType;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult say(std::vector<std::string> words) {
  words.insert(words.begin(), "checkpoint");
  return result_of_words(words);
}

class Checkpoint : public InAFolder {
 protected:
  std::vector<SavedTensor> tensors_ = {
      saved_tensor<float>("master/layer.weight", ElementType::F32, {2, 3}, {1, -2, 3, 4, 5.5F, 6}),
      saved_tensor<float>("exp_avg/layer.weight", ElementType::F32, {2, 3}, {0, 0, 0, 1, 2, 3}),
      saved_tensor<std::uint16_t>("parameter/frozen", ElementType::BF16, {2}, {0x3F80, 0x4000}),
      saved_tensor<std::int64_t>("rank0/buffer/count", ElementType::I64, {}, {42})};
  SavedFolder about_{2, engine_of({{"layer.weight", {"head.weight"}}, {"frozen", {}, false}}),
                     json{{"epoch", 3}}};

  std::string save(const std::string& tag) {
    save_folder(folder_ + "/saved", tag, tensors_, about_);
    return folder_ + "/saved/" + tag;
  }
};

TEST_F(Checkpoint, InspectPrintsWhatItIsAndItsTensors) {
  save("step7");
  const auto result = say({"inspect", folder_ + "/saved"});
  EXPECT_EQ(result.code, kHeld) << result.err;
  EXPECT_THAT(result.out, StartsWith("checkpoint    " + folder_ + "/saved/step7\n"));
  for (const char* line :
       {"id            0123456789abcdef\n", "ranks         2\n", "stage         3\n",
        "param_type    BF16\n", "counters      global_steps 7, micro_steps 14\n",
        "loss_scale    good_steps 3, scale 65536.0\n", "parameters    2\n", "schedule      null\n",
        "client_state  {\"epoch\":3}\n", "tensor                type  shape  pieces  bytes\n",
        "master/layer.weight   F32   [2,3]       2     24\n",
        "rank0/buffer/count    I64   []          1      8\n"})
    EXPECT_THAT(result.out, HasSubstr(line));
}

TEST_F(Checkpoint, InspectAsJsonIsADocumentAlone) {
  const auto folder = save("step7");
  const auto result = say({"inspect", folder, "--json", "-"});
  const auto record = json::parse(result.out);
  EXPECT_EQ(record["folder"], folder);
  EXPECT_EQ(record["world_size"], 2);
  EXPECT_EQ(record["engine"], about_.engine);
  EXPECT_EQ(record["client_state"]["epoch"], 3);
  EXPECT_EQ(record["files"].size(), 2u);
  EXPECT_EQ(record["tensors"].size(), 4u);
  const json wanted = {{"name", "master/layer.weight"},
                       {"type", "F32"},
                       {"shape", {2, 3}},
                       {"pieces", 2},
                       {"bytes", 24}};
  EXPECT_EQ(record["tensors"][1], wanted);
  EXPECT_THAT(result.err, StartsWith("checkpoint "));
  EXPECT_EQ(say({"inspect", folder, "--json", folder_ + "/record.json"}).code, kHeld);
  EXPECT_EQ(json::parse(text_of(folder_ + "/record.json")), record);
}

TEST_F(Checkpoint, TheFolderOrTheTagIsNamed) {
  const auto step7 = save("step7"), step8 = save("step8");
  for (const auto& [named, tag] :
       std::vector<std::pair<std::string, std::string>>{{folder_ + "/saved", step8},
                                                        {folder_ + "/saved/", step8},
                                                        {step7, step7},
                                                        {step7 + "/", step7},
                                                        {step8 + "/../step7", step7}})
    EXPECT_THAT(say({"inspect", named}).out, StartsWith("checkpoint    " + tag + "\n")) << named;
  std::filesystem::remove(folder_ + "/saved/latest");
  const auto without = say({"inspect", folder_ + "/saved"});
  EXPECT_EQ(without.code, kInfrastructure);
  EXPECT_THAT(without.err, HasSubstr("but the checkpoints step7, step8. Name one of them."));
  EXPECT_EQ(say({"inspect", folder_ + "/nowhere"}).code, kUsage);
}

TEST_F(Checkpoint, VerifyReadsAllAndNamesEveryPieceThatIsWrong) {
  const auto folder = save("step7");
  const auto held = say({"verify", folder_ + "/saved"});
  EXPECT_EQ(held.code, kHeld);
  EXPECT_THAT(held.out, AllOf(StartsWith("HELD  " + folder + ": 4 tensors in 2 files, "),
                              HasSubstr("every digest is that of what was saved")));
  const auto saved = checkpoint::SavedCheckpoint::open(folder_ + "/saved", "step7");
  damage(place_of(saved, "master/layer.weight", 4));
  damage(place_of(saved, "rank0/buffer/count", 0));
  const auto failed = say({"verify", folder});
  EXPECT_EQ(failed.code, kFailed);
  EXPECT_EQ(std::count(failed.out.begin(), failed.out.end(), '\n'), 2);
  EXPECT_THAT(failed.out, AllOf(HasSubstr("master/layer.weight"), HasSubstr("rank-00001-of-00002"),
                                HasSubstr("elements 3 to 5"), HasSubstr("rank0/buffer/count"),
                                Not(HasSubstr("HELD"))));
}

TEST_F(Checkpoint, VerifyFailsForWhatCannotBeOpened) {
  const auto folder = save("step7");
  damage({folder + "/manifest.json", 100});
  const auto damaged = say({"verify", folder_ + "/saved"});
  EXPECT_EQ(damaged.code, kFailed);
  EXPECT_THAT(damaged.out, AllOf(StartsWith("WRONG  "), HasSubstr("manifest.json")));
  std::filesystem::remove(folder + "/manifest.json");
  const auto unfinished = say({"verify", folder});
  EXPECT_EQ(unfinished.code, kFailed);
  EXPECT_THAT(unfinished.out, HasSubstr("did not come to its end"));
}

// Two tensor ranks of two data ranks, of the same whole.
TEST_F(Checkpoint, PartsOfATensorGroupAreReadAsTheWhole) {
  const auto whole = save("whole");
  tensors_[0].cut = checkpoint::Cut{.dimension = 0, .segments = {2}, .parts = 2};
  about_.world_size = 4;
  about_.id = "another";
  about_.engine["mesh"] = {{"data", 2}, {"sequence", 1}, {"tensor", 2}};
  const auto parts = save("parts");
  const auto equal = say({"diff", whole, parts});
  EXPECT_EQ(equal.code, kHeld) << equal.out;
  EXPECT_EQ(say({"verify", parts}).code, kHeld);
  const auto shown = say({"inspect", parts, "--json", folder_ + "/record"});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("[2,3] in 2 parts"), HasSubstr("tensor 2")));
  const auto record = json::parse(text_of(folder_ + "/record"));
  for (const auto& tensor : record["tensors"])
    EXPECT_EQ(tensor.contains("cut"), tensor["name"] == "master/layer.weight") << tensor;
  for (const auto& of : {whole, parts})
    EXPECT_EQ(
        say({"export", of, folder_ + "/out-" + std::filesystem::path(of).filename().string()}).code,
        kHeld);
  EXPECT_EQ(text_of(folder_ + "/out-whole/model.safetensors"),
            text_of(folder_ + "/out-parts/model.safetensors"));
  const auto saved = checkpoint::SavedCheckpoint::open(folder_ + "/saved", "parts");
  damage({saved.folder() / saved.manifest().files[3].name, saved.manifest().files[3].bytes - 1});
  EXPECT_EQ(say({"verify", parts}).code, kFailed);
}

TEST_F(Checkpoint, DiffIsByTensorInUlps) {
  const auto a = save("a");
  about_.world_size = 3;
  about_.id = "another";
  about_.engine["stage"] = 1;
  const auto b = save("b");
  const auto equal = say({"diff", a, b});
  EXPECT_EQ(equal.code, kHeld) << equal.out;
  EXPECT_THAT(equal.out, HasSubstr("EQUAL  every tensor and every setting\n"));
  tensors_[0] = saved_tensor<float>("master/layer.weight", ElementType::F32, {2, 3},
                                    {1, -2, 3, 4.0000005F, 5.5F, NAN});
  tensors_.pop_back();
  about_.engine["counters"]["global_steps"] = 8;
  const auto c = save("c");
  const auto different = say({"diff", a, c});
  EXPECT_EQ(different.code, kFailed);
  EXPECT_EQ(different.out,
            "A  " + a + "\nB  " + c +
                "\n/engine/counters/global_steps: 7 and 8\n"
                "master/layer.weight: 2 of 6 elements differ, the first at 3, at most by as much "
                "as can be (NaN and a number)\n"
                "rank0/buffer/count: only in A\nDIFFERENT  2 tensors, 1 setting\n");
  tensors_[0] = saved_tensor<float>("master/layer.weight", ElementType::F32, {2, 3},
                                    {1, -2, 3, 4.0000005F, 5.5F, 6});
  EXPECT_THAT(say({"diff", c, save("d")}).out, HasSubstr("1 of 6 elements differ"));
  EXPECT_THAT(say({"diff", a, folder_ + "/saved/d"}).out, HasSubstr("at most by 1 ulp\n"));
}

json header_of(const std::string& file) {
  const auto text = text_of(file);
  return json::parse(text.substr(
      8, static_cast<unsigned char>(text[0]) + 256u * static_cast<unsigned char>(text[1])));
}

TEST_F(Checkpoint, ExportWritesOneModelInTheTypeThatIsAsked) {
  save("step7");
  const std::vector<std::pair<std::vector<std::string>, std::array<std::string, 2>>> kinds = {
      {{}, {"F32", "F32"}},
      {{"--fp32"}, {"F32", "F32"}},
      {{"--16bit", "bf16"}, {"BF16", "BF16"}},
      {{"--16bit", "fp16"}, {"F16", "F16"}},
      {{"--as-computed"}, {"BF16", "BF16"}},
      {{"--consolidate"}, {"F32", "F32"}}};
  int count = 0;
  for (const auto& [options, types] : kinds) {
    const auto out = folder_ + "/out" + std::to_string(++count);
    std::vector<std::string> words = {"export", folder_ + "/saved", out};
    words.insert(words.end(), options.begin(), options.end());
    const auto result = say(words);
    EXPECT_EQ(result.code, kHeld) << result.err;
    EXPECT_THAT(result.out, StartsWith(out + "/model.safetensors  "));
    const auto header = header_of(out + "/model.safetensors");
    EXPECT_EQ(header["layer.weight"]["dtype"], types[0]);
    EXPECT_EQ(header["frozen"]["dtype"], types[1]);
    EXPECT_EQ(header["count"]["dtype"], "I64");
    EXPECT_EQ(header["__metadata__"]["head.weight"], "layer.weight");
  }
}

TEST_F(Checkpoint, ExportCutsFilesAndLeavesFrozenOnesOut) {
  save("step7");
  const auto out = folder_ + "/out";
  const auto cut =
      say({"export", folder_ + "/saved", out, "--file-size", "20B", "--exclude-frozen"});
  EXPECT_EQ(cut.code, kHeld) << cut.err;
  EXPECT_THAT(cut.out, AllOf(HasSubstr("/model-00001-of-00002.safetensors  "),
                             HasSubstr("/model.safetensors.index.json  ")));
  const auto index = json::parse(text_of(out + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 32);
  EXPECT_FALSE(index["weight_map"].contains("frozen"));
  const auto again = say({"export", folder_ + "/saved", out});
  EXPECT_EQ(again.code, kInfrastructure);
  EXPECT_THAT(again.err, HasSubstr("expected a folder without a model"));
}

TEST_F(Checkpoint, OptionsThatContradictEachOtherAreUsageErrors) {
  const auto saved = save("step7");
  for (const auto& options :
       std::vector<std::vector<std::string>>{{"--fp32", "--16bit", "bf16"},
                                             {"--16bit", "fp8"},
                                             {"--fp32", "--as-computed"},
                                             {"--16bit", "bf16", "--as-computed"},
                                             {"--file-size", "20B", "--consolidate"},
                                             {"--file-size", "much"}}) {
    std::vector<std::string> words = {"export", saved, folder_ + "/out"};
    words.insert(words.end(), options.begin(), options.end());
    EXPECT_EQ(say(words).code, kUsage) << options.back();
  }
  EXPECT_EQ(say({}).code, kUsage);
  EXPECT_EQ(say({"diff", saved}).code, kUsage);
}

// The script reads a checkpoint by itself, and writes what `export` does.
TEST_F(Checkpoint, TheScriptThatASaveLeavesWritesTheSameModel) {
  const auto saved = save("step7");
  checkpoint::replace_file(checkpoint::disk(), folder_ + "/saved/zero_to_fp32.py",
                           checkpoint::zero_to_fp32_script());
  const char* python = std::getenv("EQUIGRAD_PYTHON");
  ASSERT_NE(python, nullptr) << "run this test through ctest, which says where Python is";
  const auto command = std::string("cd '") + folder_ + "/saved' && '" + python +
                       "' -I -S zero_to_fp32.py . ../script --safe_serialization > ../said 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << text_of(folder_ + "/said");
  ASSERT_EQ(say({"export", saved, folder_ + "/export"}).code, kHeld);
  const std::string a = folder_ + "/script/model.safetensors",
                    b = folder_ + "/export/model.safetensors";
  EXPECT_EQ(header_of(a), header_of(b));
  const std::string by_script = text_of(a), by_command = text_of(b);
  EXPECT_EQ(by_script.substr(by_script.size() - 40), by_command.substr(by_command.size() - 40));
}

}  // namespace
}  // namespace equigrad::conformance::cli
