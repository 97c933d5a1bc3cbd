#include "conformance/cli/train_report.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "conformance/cli/terminal_text.hpp"
#include "conformance/diagnosis/explain.hpp"

namespace equigrad::conformance::cli {
namespace {

using nlohmann::json;
using oracle::with_thousands;

constexpr std::size_t kCurveColumns = 60, kCurveLines = 8;

__attribute__((format(printf, 1, 2))) std::string text_of(const char* format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

const char* unit_of(const TrainReport& report) {
  return report.data == "text" ? "tokens/s" : "images/s";
}

double engine_seconds(const TrainReport& report) {
  double sum = 0;
  for (const auto& step : report.steps) sum += step.seconds;
  return sum;
}

double average_rate(const TrainReport& report) {
  return report.tokens * static_cast<double>(report.steps.size()) / engine_seconds(report);
}

std::string commented(const std::string& lines) {
  std::string text;
  for (std::size_t begin = 0; begin < lines.size();) {
    const auto end = lines.find('\n', begin) + 1;
    text += "# " + lines.substr(begin, end - begin);
    begin = end;
  }
  return text;
}

std::string course_of(const TrainReport& report) {
  if (report.steps.empty()) return "";
  std::vector<double> losses;
  for (const auto& step : report.steps) losses.push_back(step.loss);
  return text_of("# loss %.6f in the first step, %.6f in the last\n", losses.front(),
                 losses.back()) +
         commented(drawn(losses, kCurveColumns, kCurveLines)) +
         text_of("# %s %s on average, the engine alone; %.1f s in all, with the twin\n",
                 with_thousands(static_cast<int64_t>(average_rate(report))).c_str(),
                 unit_of(report), report.all_seconds);
}

}  // namespace

int64_t TrainReport::compared() const {
  int64_t sum = 0;
  for (const auto& step : steps) sum += step.compared;
  return sum;
}

int64_t TrainReport::most_differing() const {
  int64_t most = 0;
  for (const auto& step : steps) most = std::max(most, step.differing);
  return most;
}

std::string head_of(const TrainReport& report) {
  return "# " + report.data + ", " + std::to_string(report.parameters) + " parameters, stage " +
         std::to_string(report.stage) + ", " + report.precision + ", " +
         std::to_string(report.world) + (report.world == 1 ? " rank" : " ranks") + ", seed " +
         std::to_string(report.seed) + "\n# twin built from " + report.twin + "\n#\n" +
         text_of("#%5s  %10s  %10s  %12s  %11s  %8s  %8s\n", "step", "loss", "twin's", "compared",
                 "differing", "worst", unit_of(report)) +
         text_of("#%5s  %10s  %10s  %12s  %11s  %8s\n", "", "", "", "(elements)", "(elements)",
                 "(ulp)");
}

std::string row_of(const TrainReport& report, std::size_t step) {
  const auto& one = report.steps.at(step);
  return text_of("%6zu  %10.6f  %10.6f  %12lld  %11lld  %8.3g  %8.0f\n", step + 1, one.loss,
                 one.twin_loss, static_cast<long long>(one.compared),
                 static_cast<long long>(one.differing), one.worst_ulp, report.tokens / one.seconds);
}

std::string end_of(const TrainReport& report) {
  const int done = static_cast<int>(report.steps.size());
  std::string text = course_of(report);
  if (!report.first_difference.empty())
    text += "# first difference: " + report.first_difference + "\n";
  text += report.verdict + "  " + std::to_string(done) + " steps";
  if (done < report.wanted_steps) text += " of " + std::to_string(report.wanted_steps);
  return text + ", " + std::to_string(report.compared()) +
         " elements compared with the twin, at most " + std::to_string(report.most_differing()) +
         " of a step differing\n";
}

json record_of(const TrainReport& report) {
  json record{{"data", report.data},
              {"parameters", report.parameters},
              {"stage", report.stage},
              {"precision", report.precision},
              {"ranks", report.world},
              {"seed", report.seed},
              {"twin", report.twin},
              {"verdict", report.verdict},
              {"wanted_steps", report.wanted_steps},
              {"tokens_of_a_step", report.tokens},
              {"first_difference", report.first_difference},
              {"seconds", report.all_seconds},
              {"steps", json::array()}};
  record["tokens_per_second"] = report.steps.empty() ? json() : json(average_rate(report));
  for (const auto& step : report.steps)
    record["steps"].push_back({{"loss", step.loss},
                               {"twin_loss", step.twin_loss},
                               {"compared", step.compared},
                               {"differing", step.differing},
                               {"worst_ulp", step.worst_ulp},
                               {"engine_seconds", step.seconds}});
  return record;
}

}  // namespace equigrad::conformance::cli
