#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// Okabe and Ito's palette, told apart with every common colour blindness, on light and on dark.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                 "#56b4e9", "#d55e00", "#999999"};

struct Bar {
  std::map<std::string, int64_t> bytes;  // category -> bytes
  int64_t total_bytes = 0;
  int64_t peak_bytes = 0;
};

using BarKey = std::tuple<size_t, int, int>;  // place of the precision, ranks, stage

// The names in one column of the ledger, each once, in order of first appearance.
std::vector<std::string> names_of(const Run& run, std::string MemoryRow::*column) {
  std::vector<std::string> found;
  for (const MemoryRow& row : run.memory) {
    const std::string& name = row.*column;
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  return found;
}

BarKey key_of(const std::vector<std::string>& precisions, const MemoryRow& row) {
  const auto place = std::find(precisions.begin(), precisions.end(), row.precision);
  return {static_cast<size_t>(place - precisions.begin()), row.ranks, row.stage};
}

// The ledger's own "total" row wins over the sum: peaks of parts need not fall together.
std::map<BarKey, Bar> bars_of(const Run& run) {
  const std::vector<std::string> precisions = names_of(run, &MemoryRow::precision);
  std::map<BarKey, Bar> bars;
  for (const MemoryRow& row : run.memory) {
    Bar& bar = bars[key_of(precisions, row)];
    if (row.category == "total") continue;
    int64_t& bytes = bar.bytes[row.category];
    bytes = std::max(bytes, row.bytes);
    bar.peak_bytes += row.peak_bytes;
  }
  for (auto& [key, bar] : bars) {
    for (const auto& [category, bytes] : bar.bytes) bar.total_bytes += bytes;
  }
  for (const MemoryRow& row : run.memory) {
    if (row.category != "total") continue;
    Bar& bar = bars[key_of(precisions, row)];
    bar.total_bytes = row.bytes;
    bar.peak_bytes = row.peak_bytes;
  }
  return bars;
}

const char* colour(size_t category) { return kColours[std::min(category, kColours.size() - 1)]; }

std::string drawn(const Bar& bar, const std::vector<std::string>& categories, int64_t most_bytes) {
  std::string out =
      "<td class=\"bar-cell\"><svg viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\">";
  double at = 0;
  for (size_t i = 0; i < categories.size(); ++i) {
    const auto found = bar.bytes.find(categories[i]);
    if (found == bar.bytes.end() || most_bytes == 0) continue;
    const double width =
        std::round(1e5 * static_cast<double>(found->second) / static_cast<double>(most_bytes)) /
        1e3;
    out += "<rect x=\"" + shortest(std::round(at * 1e3) / 1e3) + "\" width=\"" + shortest(width) +
           "\" height=\"1\" fill=\"" + colour(i) + "\"/>";
    at += width;
  }
  return out + "</svg></td>";
}

std::string memory_head(const std::vector<std::string>& categories) {
  std::string out =
      "<thead><tr><th scope=\"col\">Stage</th><th scope=\"col\">Share of the largest</th>"
      "<th scope=\"col\" class=\"n\">Total</th><th scope=\"col\" class=\"n\">Of stage 0</th>"
      "<th scope=\"col\" class=\"n\">Peak</th>";
  for (size_t i = 0; i < categories.size(); ++i) {
    out += std::string(
               "<th scope=\"col\" class=\"n\"><svg class=\"swatch\" viewBox=\"0 0 1 1\" "
               "width=\"11\" height=\"11\" aria-hidden=\"true\"><rect width=\"1\" "
               "height=\"1\" fill=\"") +
           colour(i) + "\"/></svg>" + escape_xml(clipped(categories[i], 60)) + "</th>";
  }
  return out + "</tr></thead>\n";
}

std::string memory_row(const BarKey& key, const Bar& bar, const std::map<BarKey, Bar>& bars,
                       const std::vector<std::string>& categories, int64_t most_bytes) {
  const auto& [precision, ranks, stage] = key;
  const auto whole_model = bars.find({precision, ranks, 0});
  std::string ratio = "–";
  if (whole_model != bars.end() && whole_model->second.total_bytes > 0) {
    ratio = grouped(std::llround(100 * static_cast<double>(bar.total_bytes) /
                                 static_cast<double>(whole_model->second.total_bytes))) +
            " %";
  }
  std::string out = "<tr><th scope=\"row\">" + std::to_string(stage) + "</th>" +
                    drawn(bar, categories, most_bytes) + number_cell(bytes_text(bar.total_bytes)) +
                    number_cell(ratio) + number_cell(bytes_text(bar.peak_bytes));
  for (const std::string& category : categories) {
    const auto found = bar.bytes.find(category);
    out += number_cell(found == bar.bytes.end() ? "–" : bytes_text(found->second));
  }
  return out + "</tr>\n";
}

std::string term(const std::string& name, const std::string& text) {
  return "<dt>" + name + "</dt><dd>" + text + "</dd>\n";
}

}  // namespace

std::string page_memory(const Run& run) {
  std::string out = section_open("memory", "Memory");
  if (run.memory.empty()) return out + "<p>No ledger was recorded in this run.</p>\n</section>\n";
  const std::map<BarKey, Bar> bars = bars_of(run);
  const std::vector<std::string> precisions = names_of(run, &MemoryRow::precision);
  std::vector<std::string> categories = names_of(run, &MemoryRow::category);
  categories.erase(std::remove(categories.begin(), categories.end(), "total"), categories.end());
  int64_t most_bytes = 0;
  for (const auto& [key, bar] : bars) most_bytes = std::max(most_bytes, bar.total_bytes);
  out +=
      "<div class=\"wide\"><table class=\"bars\">\n<caption>Bytes that the largest rank holds at "
      "the end of a step, from the engine&#39;s ledger; peak is the most it held at one "
      "moment of the step, or the sum of the parts&#39; peaks where only those were "
      "recorded</caption>\n" +
      memory_head(categories);
  std::string title;
  for (const auto& [key, bar] : bars) {
    const auto& [precision, ranks, stage] = key;
    const std::string next = escape_xml(precisions[precision]) + ", " + count_of(ranks, "rank");
    if (next != title) {
      out += (title.empty() ? "<tbody>" : "</tbody>\n<tbody>") +
             ("\n<tr><th class=\"sub\" scope=\"rowgroup\" colspan=\"" +
              std::to_string(5 + categories.size()) + "\">" + next + "</th></tr>\n");
      title = next;
    }
    out += memory_row(key, bar, bars, categories, most_bytes);
  }
  return out + "</tbody></table></div>\n</section>\n";
}

std::string page_environment(const Run& run) {
  const Environment& env = run.environment;
  return section_open("environment", "Environment") + "<dl class=\"words\">\n" +
         term("Command", "<code>" + escape_xml(clipped(run.command, 4000)) + "</code>") +
         term("Seed", std::to_string(run.seed)) +
         term("Equigrad",
              escape_xml(env.version) + ", commit <code>" + escape_xml(env.commit) + "</code>") +
         term("LibTorch", escape_xml(env.torch)) + term("Compiler", escape_xml(env.compiler)) +
         term("Device", escape_xml(env.device)) +
         term("Processor", escape_xml(env.cpu) + ", " + count_of(env.cores, "core") + ", " +
                               count_of(env.threads_per_rank, "thread") + " a rank") +
         term("System", escape_xml(env.os)) + term("Started", escape_xml(env.time)) +
         term("Took", seconds_text(run.wall_s)) + "</dl>\n</section>\n";
}

std::string page_definitions() {
  return section_open("definitions", "Definitions") + "<dl class=\"words\">\n" +
         term("Exact lane",
              "The engine against the twin: the reference&#39;s plain loops in the engine&#39;s "
              "precision and order of additions. No bit may differ.") +
         term("Cross lane",
              "The engine against itself: the ways into a backward pass, and the stages that "
              "promise it, must give the same bits.") +
         term(
             "Bounded lane",
             "The engine against higher precision, beside a plain run of its own precision: it may "
             "be further off by what the roundings of its sums explain, element by element, and an "
             "update by those of its formula. The bounds are computed, never chosen.") +
         term("Share of bound",
              "The largest |got - want| / bound of the elements compared, also called margin: 0 "
              "when all bits agree, above 1 when a bound is broken, inf when no difference is "
              "allowed and there is one.") +
         term("ulp", "Unit in the last place of the type that was compared.") +
         term("Equal", "Every bit agrees in the exact and cross lanes.") +
         term("Within", "Something differs, inside its bound, in a lane that allows it.") +
         term("Crashed, timed out",
              "A rank died or did not answer: nothing is known about the gradients.") +
         term("Void", "A planted fault was not caught, so nothing that this run found counts.") +
         term("Inconclusive", "A comparison had nothing in it.") + "</dl>\n</section>\n";
}

}  // namespace equigrad::reports
