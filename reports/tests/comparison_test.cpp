// A comparison written: every format says the same, is well formed, and lets nothing in that is
// markup.
#include "reports/comparison.hpp"

#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reports/tests/xml.hpp"

namespace equigrad::conformance {
namespace {

using reports::Comparison;
using reports::ComparisonOutcome;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const std::string kForeign = "</pre><script>alert(1)</script>|`*\x01";

Comparison example() {
  Comparison of;
  of.environment.commit = "0123abc";
  of.environment.time = "2026-11-21T00:00:00Z";
  of.command = "equigrad compare --config a.json --config '" + kForeign + "'";
  of.configurations = {{{"fp32_masters", "{\"bf16\": 1}"}, {"bf16_masters", kForeign}}};
  of.data = "text: plays.txt";
  of.model = "gpt, 3 layers";
  of.parameters = 391'008;
  of.ranks = 2;
  of.steps = 4;
  of.final_steps = 2;
  of.margin = 0.05;
  of.seeds = {7, 8};
  of.pairs = 2;
  for (const uint64_t seed : of.seeds)
    for (int configuration = 0; configuration < 2; ++configuration) {
      reports::ComparedRun run;
      run.configuration = configuration;
      run.seed = seed;
      run.complete = true;
      run.losses = {4, 3, 2.5, 2.25};
      run.final_loss = 2.375;
      run.mean_loss = 2.9375;
      run.step_s = 0.0125;
      run.held = {{"buckets", 5}};
      run.held_peak_bytes = configuration == 0 ? 4096 : 2048;
      of.runs.push_back(run);
    }
  of.quantities = {
      {"final loss", "nats", {{{2.5, 2.25, 2.75}, {2.625, 2.5, 2.75}}}, {0.125, -0.25, 0.5}, 1.05},
      {"held, peak",
       "bytes",
       {{{4096, 4096, 4096}, {2048, 2048, 2048}}},
       {-2048, -2048, -2048},
       0.5}};
  for (int64_t step = 1; step <= 4; ++step) {
    const double loss = 4.5 - 0.5 * static_cast<double>(step);
    of.curve.push_back({step,
                        {{{loss, loss - 0.1, loss + 0.1}, {loss, loss - 0.2, loss + 0.2}}},
                        {0.01, -0.02, 0.04}});
  }
  of.equivalence = {0.001, 0.0312, 0.25, -0.01, 0.04};
  of.outcome = ComparisonOutcome::Equivalent;
  of.reason = "Because.";
  return of;
}

TEST(Comparison, OutcomesHaveTheExitCodesOfTheOtherCommands) {
  const std::vector<std::pair<ComparisonOutcome, int>> codes = {
      {ComparisonOutcome::Equivalent, 0},   {ComparisonOutcome::Different, 1},
      {ComparisonOutcome::Failed, 1},       {ComparisonOutcome::Broken, 3},
      {ComparisonOutcome::Inconclusive, 4}, {ComparisonOutcome::Interrupted, 130}};
  Comparison comparison;
  for (const auto& [outcome, code] : codes) {
    comparison.outcome = outcome;
    EXPECT_EQ(exit_code(comparison), code) << word(outcome);
  }
  comparison.signal = 15;
  comparison.outcome = ComparisonOutcome::Interrupted;
  EXPECT_EQ(exit_code(comparison), 143);
}

TEST(Comparison, ValuesAreWrittenWithTheirUnit) {
  EXPECT_EQ(reports::value_text(2.34567, "nats"), "2.3457");
  EXPECT_EQ(reports::value_text(0.01234, "s"), "12.3 ms");
  EXPECT_EQ(reports::value_text(-2048, "bytes", true), "-2.00 KiB");
  EXPECT_EQ(reports::value_text(0.5, "nats", true), "+0.5000");
  EXPECT_EQ(reports::value_text(kNan, "s"), "nan");
  EXPECT_EQ(reports::estimate_text({0.5, -1, 2}, "nats", true), "+0.5000 [-1.0000, +2.0000]");
  EXPECT_EQ(reports::estimate_text({4096, 4096, 4096}, "bytes"), "4.00 KiB");
}

TEST(Comparison, JsonKeepsEveryLossAndALineForEachRun) {
  auto of = example();
  of.runs[1].losses[2] = kNan;
  const std::string text = to_json(of);
  const auto read = nlohmann::json::parse(text);
  EXPECT_EQ(read.at("runs").size(), 4u);
  EXPECT_EQ(read.at("runs").at(0).at("losses"), nlohmann::json({4.0, 3.0, 2.5, 2.25}));
  EXPECT_EQ(read.at("runs").at(1).at("losses").at(2), "nan");
  EXPECT_EQ(read.at("runs").at(1).at("configuration"), "B");
  EXPECT_EQ(read.at("verdict").at("outcome"), "equivalent");
  EXPECT_EQ(read.at("verdict").at("p_high"), 0.0312);
  EXPECT_EQ(read.at("settings").at("margin"), 0.05);
  EXPECT_EQ(read.at("settings").at("configurations").at("A").at("text"), "{\"bf16\": 1}");
  EXPECT_EQ(read.at("quantities").at(1).at("B_over_A"), 0.5);
  EXPECT_EQ(read.at("curve").at(3).at("step"), 4);
  std::istringstream lines(text);
  int runs = 0;
  for (std::string line; std::getline(lines, line);)
    runs += line.starts_with(" {\"configuration\"") ? 1 : 0;
  EXPECT_EQ(runs, 4);
}

TEST(Comparison, TheTerminalAndMarkdownSayWhatWasFoundAndWhoseMarginItIs) {
  auto of = example();
  for (const auto& text : {to_terminal(of), to_markdown(of)}) {
    EXPECT_THAT(text, HasSubstr("+0.1250 [-0.2500, +0.5000]"));
    EXPECT_THAT(text, HasSubstr("-2.00 KiB"));
    EXPECT_THAT(text, HasSubstr("0.05 nats, as stated"));
    EXPECT_THAT(text, HasSubstr("p = 0.0010 of B - A being -margin or less, p = 0.0312 of its"));
    EXPECT_THAT(text, HasSubstr("Because."));
  }
  EXPECT_THAT(to_terminal(of), HasSubstr("EQUIVALENT  Because.\n"));
  EXPECT_THAT(to_markdown(of), HasSubstr("| 8 | B | 4 | 2.3750 | 2.9375 | 12.5 ms |"));
  of.margin_is_default = true;
  EXPECT_THAT(to_markdown(of), HasSubstr("the default: state your own with --margin"));
}

TEST(Comparison, AStepOfTextIsCountedInTokensAndOneOfImagesInImages) {
  auto of = example();
  of.tokens_per_step = 4'096;
  EXPECT_THAT(to_markdown(of), HasSubstr("4 steps of 4,096 tokens. "));
  EXPECT_THAT(page_compare(of), HasSubstr("4 steps of 4,096 tokens, "));
  of.data = "images: t10k-images-idx3-ubyte.gz";
  EXPECT_THAT(to_markdown(of), HasSubstr("4 steps of 4,096 images. "));
  EXPECT_THAT(page_compare(of), HasSubstr("4 steps of 4,096 images, "));
}

TEST(Comparison, TheTerminalEndsWithTheVerdictAndItsReplay) {
  auto of = example();
  of.command = "equigrad compare --config a.json --config b.json";
  EXPECT_TRUE(to_terminal(of).ends_with("\nEQUIVALENT  Because.\n# replay: " + of.command + "\n"))
      << to_terminal(of);
}

TEST(Comparison, APageIsWellFormedAndForeignTextIsText) {
  auto of = example();
  of.runs[3].complete = false;
  of.runs[3].trouble = of.reason = of.data = of.model = of.configurations[0].name = kForeign;
  of.quantities[0].name = kForeign;
  const auto section = read_xml(page_compare(of));
  EXPECT_THAT(all(section, "script"), IsEmpty());
  EXPECT_EQ(all(section, "svg").size(), 2u);
  EXPECT_EQ(all(section, "table").size(), 2u);
  EXPECT_THAT(to_html(of), Not(HasSubstr("<script>alert")));
  EXPECT_THAT(to_markdown(of), Not(HasSubstr("<script")));
}

// Where the points of `element` are, as numbers.
std::vector<double> numbers(const pugi::xml_node& element) {
  std::string text = element.attribute("points").value();
  for (char& c : text) c = c == ',' ? ' ' : c;
  std::istringstream in(text);
  std::vector<double> out;
  for (double value; in >> value;) out.push_back(value);
  return out;
}

TEST(Comparison, CurvesAreDrawnAsTheyFall) {
  const auto drawing = read_xml(loss_drawing(example()));
  const auto lines = all(drawing, "polyline"), areas = all(drawing, "polygon");
  ASSERT_EQ(lines.size(), 2u);
  ASSERT_EQ(areas.size(), 2u);
  const auto line = numbers(lines[0]);
  ASSERT_EQ(line.size(), 8u);
  for (std::size_t i = 2; i < line.size(); i += 2) {
    EXPECT_GT(line[i], line[i - 2]);      // to the right
    EXPECT_GT(line[i + 1], line[i - 1]);  // down: y grows downwards
    EXPECT_GT(line[i + 1], 0);
    EXPECT_LT(line[i + 1], 300);
  }
  EXPECT_EQ(numbers(areas[0]).size(), 16u);  // above and back below
  const auto a = numbers(areas[0]), b = numbers(areas[1]);
  EXPECT_GT(a[3], b[3]);          // B's interval is wider: higher above ...
  EXPECT_LT(a.back(), b.back());  // ... and lower below
}

// Few pairs have intervals that are wider than all means.
TEST(Comparison, AnIntervalIsDrawnInsideOfItsFrame) {
  auto wide = example();
  for (auto& point : wide.curve) point.each[0].low = -100, point.each[0].high = 100;
  const auto area = numbers(all(read_xml(loss_drawing(wide)), "polygon")[0]);
  ASSERT_EQ(area.size(), 16u);
  for (std::size_t i = 1; i < area.size(); i += 2) {
    EXPECT_GE(area[i], 14);
    EXPECT_LE(area[i], 260);
  }
}

TEST(Comparison, APageWithoutCurvesOrFiniteNumbersIsStillAPage) {
  Comparison none = example();
  none.curve.clear();
  none.quantities.clear();
  none.pairs = 0;
  EXPECT_THAT(all(read_xml(page_compare(none)), "svg"), IsEmpty());
  auto odd = example();
  for (auto& point : odd.curve)
    point.each[0] = point.each[1] = point.difference = {kNan, kNan, kNan};
  EXPECT_EQ(all(read_xml(page_compare(odd)), "svg").size(), 2u);
  EXPECT_THAT(loss_drawing(odd), Not(HasSubstr("nan")));
  odd.quantities[0].ratio = -kNan;
  EXPECT_THAT(to_terminal(odd), HasSubstr("B / A  nan\n"));
}

}  // namespace
}  // namespace equigrad::conformance
