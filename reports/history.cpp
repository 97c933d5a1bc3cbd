#include "reports/history.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "reports/document.hpp"
#include "reports/json_text.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {

template <>
inline constexpr auto kFields<PastRun> = std::tuple(Field{"time", &PastRun::time},
                                                    Field{"commit", &PastRun::commit},
                                                    Field{"command", &PastRun::command},
                                                    Field{"outcome", &PastRun::outcome},
                                                    Field{"executed", &PastRun::executed},
                                                    Field{"failed", &PastRun::failed},
                                                    Field{"wall_s", &PastRun::wall_s});

namespace {

constexpr std::size_t kDrawnRuns = 60, kListedRuns = 20;

const char* class_of(const std::string& outcome) {
  if (outcome == "held") return "right";
  return outcome == "failed" || outcome == "void" ? "wrong" : "other";
}

// A bar a run, as high as it took long; the last is this one.
std::string trend_drawing(const std::vector<PastRun>& runs) {
  constexpr double kTrendHeight = 120, kTrendBase = 100;
  const std::size_t begin = runs.size() - std::min(runs.size(), kDrawnRuns);
  double most_s = 0;
  for (std::size_t i = begin; i < runs.size(); ++i) most_s = std::max(most_s, runs[i].wall_s);
  if (!(most_s > 0)) return {};
  const double width = std::min(24.0, kDrawingWidth / static_cast<double>(runs.size() - begin));
  std::string out;
  int64_t held = 0;
  for (std::size_t i = begin; i < runs.size(); ++i) {
    const double height = std::max(2.0, (kTrendBase - 16) * runs[i].wall_s / most_s);
    const bool is_held = runs[i].outcome == "held";
    held += is_held ? 1 : 0;
    out += std::string("<rect class=\"") + class_of(runs[i].outcome) + "\" x=\"" +
           at(width * static_cast<double>(i - begin)) + "\" y=\"" + at(kTrendBase - height) +
           "\" width=\"" + at(width - 2) + "\" height=\"" + at(height) + "\" fill=\"" +
           (is_held ? "#1f6f9f" : "#b7331b") + "\"/>\n";
  }
  out += drawn_text(0, 12, "start", seconds_text(most_s));
  out += drawn_text(0, kTrendHeight - 4, "start", "oldest");
  out += drawn_text(width * static_cast<double>(runs.size() - begin), kTrendHeight - 4, "end",
                    runs.size() - begin > 4 ? "this run" : "");
  return drawing("Time of the last " + count_of(runs.size() - begin, "run") + ", " + grouped(held) +
                     " of which held",
                 kTrendHeight, out);
}

std::string history_table(const std::vector<PastRun>& runs) {
  std::string rows;
  for (std::size_t i = runs.size(); i-- > runs.size() - std::min(runs.size(), kListedRuns);) {
    const PastRun& one = runs[i];
    rows += row(
        shown(one.time, 60),
        cell(one.outcome, 40) +
            number_cells({grouped(one.executed), grouped(one.failed), seconds_text(one.wall_s)}) +
            cell(one.commit, 60) + "<td><code>" + shown(one.command, 300) + "</code></td>");
  }
  return table("The latest first",
               heads({"Time", "Outcome"}) + number_heads({"Cases", "Went wrong", "Took"}) +
                   heads({"Commit", "Command"}),
               rows);
}

std::string others_text(std::size_t others) {
  return others == 0 ? "" : count_of(others, "run") + " of other selections in history.jsonl.";
}

}  // namespace

PastRun past_run(const Run& run) {
  const Counts sum = counts(run);
  return {.time = run.environment.time,
          .commit = run.environment.commit,
          .command = run.command,
          .outcome = std::string(word(outcome(run))),
          .executed = sum.executed(),
          .failed = sum.went_wrong(),
          .wall_s = run.wall_s};
}

std::vector<PastRun> read_history(const std::string& lines) {
  std::vector<PastRun> runs;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    try {
      runs.push_back(json.get<PastRun>());
    } catch (const std::exception&) {
      continue;
    }
  }
  if (runs.size() > kMostPastRuns)
    runs.erase(runs.begin(), runs.end() - static_cast<std::ptrdiff_t>(kMostPastRuns));
  return runs;
}

std::string history_lines(const std::vector<PastRun>& runs) {
  std::string out;
  for (const PastRun& one : runs)
    out += Json(one).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return out;
}

std::string selecting_words(const std::string& command) {
  constexpr std::array<std::string_view, 5> kPlaces = {"--report", "--json", "--junit", "--color",
                                                       "--baseline"};
  constexpr std::array<std::string_view, 4> kManners = {"-q", "--quiet", "-v", "--verbose"};
  const auto is_one_of = [](const auto& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  std::istringstream in(command);
  std::string out, word;
  in >> word;  // the program
  while (in >> word) {
    if (is_one_of(kPlaces, word)) {
      in >> word;
    } else if (!is_one_of(kManners, word) && !is_one_of(kPlaces, word.substr(0, word.find('=')))) {
      out += (out.empty() ? "" : " ") + word;
    }
  }
  return out;
}

std::string page_history(const Run& run, const std::vector<PastRun>& earlier) {
  const std::string words = selecting_words(run.command);
  std::vector<PastRun> runs;
  for (const PastRun& one : earlier)
    if (selecting_words(one.command) == words) runs.push_back(one);
  const std::string others = others_text(earlier.size() - runs.size());
  if (runs.empty())
    return others.empty()
               ? ""
               : empty_section("history", "Earlier runs", "None of the same selection. " + others);
  runs.push_back(past_run(run));
  const auto held = std::count_if(runs.begin(), runs.end(),
                                  [](const PastRun& one) { return one.outcome == "held"; });
  return folded_section(
      "history", "Earlier runs",
      grouped(held) + " of " + grouped(runs.size()) +
          " runs of the same selection held, this one counted",
      trend_drawing(runs) + history_table(runs) + (others.empty() ? "" : paragraph(others)));
}

}  // namespace equigrad::reports
