#include <gmock/gmock.h>

#include "reports/json.hpp"
#include "reports/page.hpp"
#include "reports/tests/example_run.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;

reports::Run scaled_run() {
  auto run = example_run();
  run.underflow = {{"fp16", "gpt", 128, 20000, 12, 345, 0, 2048},
                   {"amp-o2", "gpt", 65536, 10000, 1, 2, 3, 4096},
                   {"fp16", "irregular", 128, 700, 5, 6, 0, 0}};
  return run;
}

TEST(Underflow, ScalesAreWrittenAsPowers) {
  EXPECT_EQ(reports::scale_text(65536), "2^16");
  EXPECT_EQ(reports::scale_text(1), "2^0");
  EXPECT_EQ(reports::scale_text(0.5), "2^-1");
  EXPECT_EQ(reports::scale_text(3), "3");
  EXPECT_EQ(reports::scale_text(0), "none");
}

TEST(Underflow, AModelIsOneLine) {
  EXPECT_EQ(reports::underflow_lines(scaled_run()),
            "# gradients of gpt in fp16, scaled by 2^7 to 2^16: 30,000 elements, 13 become zero, "
            "347 subnormal, 3 overflow; 2^12 would lose none\n"
            "# gradients of irregular in fp16, scaled by 2^7: 700 elements, 5 become zero, 6 "
            "subnormal, 0 overflow; every scale loses some\n");
  EXPECT_EQ(reports::underflow_lines(example_run()), "");
  EXPECT_THAT(reports::to_terminal(scaled_run(), {}),
              HasSubstr(reports::underflow_lines(scaled_run())));
}

TEST(Underflow, ThePageHasARowForEveryPrecisionAndModel) {
  const auto page = reports::to_html(scaled_run());
  EXPECT_THAT(page, HasSubstr("<section id=\"underflow\""));
  EXPECT_THAT(page, HasSubstr("amp-o2</th><td>gpt</td>"));
  EXPECT_THAT(page, HasSubstr("2^16"));
  EXPECT_THAT(reports::to_html(example_run()), HasSubstr("No case of this run scaled its loss."));
}

TEST(Underflow, TheRecordReadsBack) {
  const auto text = reports::to_json(scaled_run());
  EXPECT_THAT(text, HasSubstr("\"lossless\": 2048.0"));
  const auto back = reports::from_json(text);
  ASSERT_EQ(back.underflow.size(), 3u);
  EXPECT_EQ(back.underflow[1].precision, "amp-o2");
  EXPECT_EQ(back.underflow[1].overflow, 3);
  EXPECT_EQ(reports::to_json(back), text);
}

TEST(Underflow, ForeignNamesAreHarmless) {
  auto run = scaled_run();
  run.underflow[0].model = run.underflow[0].precision = "<script>\x1b[31m";
  EXPECT_EQ(reports::to_html(run).find("<script>\x1b"), std::string::npos);
  EXPECT_EQ(reports::underflow_lines(run).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace equigrad::conformance
