// A new key is one row and one use: a row that nobody reads, a use without a row, and a key that is
// read twice are errors; and each row has a field of its own.
#include "engine/config/reading.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "conformance/testing/config_text.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Row kNewRows[] = {
    key("new_key", at_least(1), field<&EngineConfig::train_batch_size>, "A key of this test.")};

// What is wrong with a table of these sections, or nothing.
std::string fault_of(const std::vector<Section>& sections) {
  const Schema table(sections);
  const Json root = Json::parse(R"({"train_batch_size": 2, "optimizer": {"type": "SGD"}})");
  ConfigReader reader(root);
  Reading reading(table, reader, 2);
  try {
    for (const Section& section : sections) section.read(reading);
    reading.finish();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

std::vector<Section> with(const Section& section) {
  std::vector<Section> sections = schema().sections();
  sections.push_back(section);
  return sections;
}

TEST(Rows, AndTheirUsesAreOneToOne) {
  EXPECT_EQ(fault_of(schema().sections()), "");
  EXPECT_EQ(fault_of(with({kNewRows, [](Reading& reading) { reading.store("new_key"); }})), "");
}

TEST(Rows, ThatNobodyReadsAreErrors) {
  EXPECT_THAT(fault_of(with({kNewRows, [](Reading&) {}})),
              HasSubstr("new_key has a row that nobody reads"));
}

TEST(Rows, AreThereForEveryUse) {
  EXPECT_THAT(fault_of(with({{}, [](Reading& reading) { reading.take("new_key"); }})),
              HasSubstr("new_key is read and has no row"));
  EXPECT_THAT(fault_of(with({{}, [](Reading& reading) { reading.take("steps_per_print"); }})),
              HasSubstr("steps_per_print is read and has no row"));
}

TEST(Rows, AreReadOnce) {
  EXPECT_THAT(fault_of(with({{}, [](Reading& reading) { reading.store("gradient_clipping"); }})),
              HasSubstr("gradient_clipping is read twice"));
}

// A value other than the default.
Json another(const Row& row) {
  const Json usual = default_of_row(row);
  switch (row.values.type) {
    case ValueType::Whole:
      return usual == 3 ? 2 : 3;
    case ValueType::Number:
      return usual == 0.25 ? 0.5 : 0.25;
    case ValueType::Boolean:
      return usual == false;
    case ValueType::Choice:
      return row.values.choice->names[usual == row.values.choice->names[0]];
    case ValueType::Names:
      return {"a"};
    case ValueType::PerGroup:
      return 0.125;
    case ValueType::Pair:
      return {0.25, 0.5};
    case ValueType::Norm:
      return "inf";
    default:
      return "a";
  }
}

TEST(Rows, HaveAFieldOfTheirOwn) {
  std::vector<Row> rows;
  for (const Row& row : schema().rows())
    if (row.field.set != nullptr) rows.push_back(row);
  EXPECT_GT(rows.size(), 50u);
  for (const Row& changed : rows) {
    EngineConfig config;
    config.scheduler.emplace();
    const Json value = another(changed);
    changed.field.set(config, value);
    for (const Row& row : rows)
      EXPECT_EQ(row.field.get(config), &row == &changed ? value : default_of_row(row))
          << row.path << " after " << changed.path;
  }
}

TEST(Reading, RefusesAValueThatItsFieldCannotHold) {
  for (const char* stage : {"4294967297", "-4294967296"})
    EXPECT_THAT(conformance::problems(conformance::with(R"("zero_optimization": {"stage": )" +
                                                        std::string(stage) + "}")),
                ElementsAre("zero_optimization.stage: expected 0, 1, 2 or 3, got " +
                            std::string(stage) + ". Use 0 for plain data parallelism."));
}

TEST(Checks, LeaveAloneWhatIsWrongAlready) {
  EXPECT_THAT(conformance::problems(conformance::with(
                  R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0,
                     "cycle_max_lr": 1, "cycle_momentum": 3}})",
                  "SGD")),
              ElementsAre(HasSubstr("cycle_momentum: expected true or false, got 3")));
}

}  // namespace
}  // namespace equigrad
