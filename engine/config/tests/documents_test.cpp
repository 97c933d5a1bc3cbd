// The page and the JSON Schema are the table: the page is the committed one, and the schema takes
// what the parser takes.
#include "engine/config/documents.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "engine/config/config.hpp"
#include "engine/config/schema.hpp"

namespace equigrad {
namespace {

using testing::HasSubstr;

TEST(Page, IsTheCommittedOne) {
  std::ifstream file(EQUIGRAD_SOURCE_DIR "/docs/configuration.md");
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(markdown_page(), page)
      << "The table has changed. Write: equigrad config keys > docs/configuration.md";
}

TEST(Page, HasALineForEveryKey) {
  const std::string page = markdown_page();
  for (const Row& row : schema().rows()) {
    const bool is_section = row.treatment == KeyTreatment::Section;
    const std::string path = row.path;
    EXPECT_THAT(
        page, HasSubstr(is_section ? "\n## `" + path + "`\n" : "\n| `" + last_part(path) + "` | "));
  }
}

// The numbers of the configurations that the schema takes.
std::set<std::size_t> taken_by_schema(const Json& schema, const std::vector<Json>& all) {
  const std::string file = testing::TempDir() + "equigrad_schema_agreement.json";
  const std::string answer = file + ".taken";
  std::ofstream(file) << Json{{"schema", schema}, {"configurations", all}};
  const char* python = std::getenv("EQUIGRAD_PYTHON");
  const std::string line = std::string(python == nullptr ? "python3" : python) +
                           " " EQUIGRAD_SOURCE_DIR "/engine/config/tests/schema_agreement.py " +
                           file + " > " + answer;
  EXPECT_EQ(std::system(line.c_str()), 0) << line;
  std::ifstream numbers(answer);
  const std::set<std::size_t> taken{std::istream_iterator<std::size_t>(numbers), {}};
  std::remove(file.c_str());
  std::remove(answer.c_str());
  return taken;
}

// Files with nothing wrong, which between them have every optimizer and scheduler and every section
// on and off.
std::vector<Json> good_files() {
  std::vector<Json> files;
  for (const char* optimizer : {"SGD", "AdamW"})
    for (const char* rest :
         {R"("zero_optimization": {"stage": 3})",
          R"("fp16": {"enabled": true}, "scheduler": {"type": "WarmupLR"})",
          R"("bf16": {"enabled": true}, "scheduler": {"type": "WarmupDecayLR",
             "params": {"total_num_steps": 2000}})",
          R"("bfloat16": {"enabled": true}, "scheduler": {"type": "WarmupCosineLR",
             "params": {"total_num_steps": 2000}})",
          R"("amp": {"enabled": true}, "scheduler": {"type": "OneCycle",
             "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}})",
          R"("torch_autocast": {"enabled": true}, "scheduler": {"type": "LRRangeTest"})",
          R"("zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}})"})
      files.push_back(Json::parse(R"({"train_batch_size": 2, "optimizer": {"type": ")" +
                                  std::string(optimizer) + "\"}, " + rest + "}"));
  return files;
}

// `file` with `value` at `path`.
Json with(Json file, const std::string& path, const Json& value) {
  Json* at = &file;
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) at = &(*at)[part];
  *at = value;
  return file;
}

// A file in which the key means something.
Json home_of(const Row& row) {
  for (const Json& file : good_files())
    if (row.field.of == nullptr || row.field.of(parse_config(file.dump(), 2))) return file;
  ADD_FAILURE() << "no file has " << row.path;
  return {};
}

std::vector<Json> values_for(const Row& row) {
  auto values =
      Json::parse(R"([null, true, false, 0, -1, 2, 3, 1.5, 1e300, 18446744073709551615, "auto",
      "x", "Half", [], [0.5, 0.75], [-1], ["Linear"], [""], {}, {"enabled": false}, {"a": 1}])")
          .get<std::vector<Json>>();
  if (row.treatment == KeyTreatment::Read) values.push_back(default_of_row(row));
  if (row.treatment == KeyTreatment::Unsupported)
    for (const Json& accepted : Json::parse(row.accepted)) values.push_back(accepted);
  if (row.values.choice != nullptr)
    for (const char* name : row.values.choice->names) values.push_back(name);
  return values;
}

// What no row says, because it is between keys: the parser may refuse these though the schema does
// not.
const std::set<std::string> kBetweenKeys{"data_parallel_size",
                                         "data_types.grad_accum_dtype",
                                         "data_types.param_dtype",
                                         "gradient_predivide_factor",
                                         "optimizer.params.adam_w_mode",
                                         "optimizer.params.nesterov",
                                         "scheduler.params.cycle_max_lr",
                                         "scheduler.params.cycle_min_lr",
                                         "scheduler.params.cycle_momentum",
                                         "scheduler.params.total_num_steps",
                                         "scheduler.type",
                                         "sequence_parallel_size",
                                         "tensor_parallel.autotp_size",
                                         "tensor_parallel.dtype",
                                         "tensor_parallel.partition_config.tp_size",
                                         "tensor_parallel.tp.tp_size",
                                         "train_batch_size"};

TEST(JsonSchema, TakesWhatTheParserTakes) {
  std::vector<Json> all = good_files();
  for (const Json& file : good_files()) {
    all.push_back(with(file, "zero_optimization.sage", 1));
    all.push_back(with(file, "unknown", 1));
  }
  for (const Row& row : schema().rows())
    for (const Json& value : values_for(row)) all.push_back(with(home_of(row), row.path, value));
  const std::set<std::size_t> taken = taken_by_schema(Json::parse(json_schema()), all);
  std::size_t refused = 0;
  std::set<std::string> between_keys;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string> problems;
    try {
      parse_config(all[i].dump(), 2);
    } catch (const ConfigError& error) {
      problems = error.problems();
    }
    if (!taken.contains(i)) {
      ++refused;
      EXPECT_FALSE(problems.empty()) << "only the schema refuses " << all[i];
    } else {
      for (const std::string& problem : problems)
        between_keys.insert(problem.substr(0, problem.find(": ")));
    }
  }
  EXPECT_GT(taken.size(), all.size() / 4);
  EXPECT_GT(refused, all.size() / 4);
  EXPECT_EQ(between_keys, kBetweenKeys);
}

// The schema of a key of an object, in whichever of the object's alternatives it stands.
const Json* schema_of(const Json& object, const std::string& key) {
  if (object.contains("properties") && object.at("properties").contains(key))
    return &object.at("properties").at(key);
  for (const auto& [word, part] : object.items()) {
    if (word == "properties" || !part.is_structured()) continue;
    if (const Json* found = schema_of(part, key)) return found;
  }
  return nullptr;
}

const Json* schema_at(const Json& schema, const std::string& path) {
  const Json* at = &schema;
  std::istringstream keys(path);
  for (std::string key; at != nullptr && std::getline(keys, key, '.');) at = schema_of(*at, key);
  return at;
}

TEST(JsonSchema, HasTheDefaultsOfTheParserAndNoneForWhatItDerives) {
  const Json schema = Json::parse(json_schema());
  std::size_t compared = 0;
  for (const Json& file : good_files())
    for (const Setting& setting : explain_config(file.dump(), 2).settings) {
      if (setting.origin != Setting::Origin::Default) continue;
      const Json* found = schema_at(schema, setting.key);
      ASSERT_NE(found, nullptr) << setting.key;
      if (!found->contains("default")) continue;
      EXPECT_EQ(found->at("default"), Json::parse(setting.value)) << setting.key;
      ++compared;
    }
  EXPECT_GT(compared, 200U);
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps", "data_types.grad_accum_dtype"})
    EXPECT_FALSE(schema_at(schema, key)->contains("default")) << key;
}

}  // namespace
}  // namespace equigrad
