#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "reports/bars.hpp"
#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

struct Bar {
  std::map<std::string, int64_t> bytes;  // category -> bytes
  const MemoryRow* total = nullptr;      // the ledger's own row
  int64_t total_bytes = 0;
  int64_t peak_bytes = 0;
};

// Place of the precision, ranks, model, stage.
using BarKey = std::tuple<size_t, int, std::string, int>;

// The names in one column of the ledger, each once, in order of first appearance.
std::vector<std::string> names_of(const Run& run, std::string MemoryRow::*column) {
  std::vector<std::string> found;
  for (const MemoryRow& row : run.memory) {
    const std::string& name = row.*column;
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  return found;
}

// The ledger's own "total" row wins over the sum: peaks of parts need not fall together.
std::map<BarKey, Bar> bars_of(const Run& run, const std::vector<std::string>& precisions) {
  std::map<BarKey, Bar> bars;
  for (const MemoryRow& row : run.memory) {
    const auto place = std::find(precisions.begin(), precisions.end(), row.precision);
    Bar& bar =
        bars[{static_cast<size_t>(place - precisions.begin()), row.ranks, row.model, row.stage}];
    if (row.category == "total") {
      bar.total = &row;
      continue;
    }
    bar.bytes[row.category] += row.bytes;
    bar.peak_bytes += row.peak_bytes;
  }
  for (auto& [key, bar] : bars) {
    for (const auto& [category, bytes] : bar.bytes) bar.total_bytes += bytes;
    if (bar.total != nullptr)
      bar.total_bytes = bar.total->bytes, bar.peak_bytes = bar.total->peak_bytes;
  }
  return bars;
}

std::string drawn(const Bar& bar, const std::vector<std::string>& categories, int64_t most_bytes) {
  std::vector<int64_t> pieces;
  for (const std::string& category : categories) {
    const auto found = bar.bytes.find(category);
    pieces.push_back(found == bar.bytes.end() ? 0 : found->second);
  }
  return bar_cell(pieces, most_bytes);
}

std::string memory_head(const std::vector<std::string>& categories) {
  std::string out =
      heads({"Stage", "Share of the largest"}) + number_heads({"Total", "Of stage 0", "Peak"});
  for (size_t i = 0; i < categories.size(); ++i)
    out += number_heads({swatch(i) + shown(categories[i], 60)});
  return out;
}

std::string memory_row(const BarKey& key, const Bar& bar, const std::map<BarKey, Bar>& bars,
                       const std::vector<std::string>& categories, int64_t most_bytes) {
  const auto& [precision, ranks, model, stage] = key;
  const auto whole_model = bars.find({precision, ranks, model, 0});
  std::string ratio = "–";
  if (whole_model != bars.end() && whole_model->second.total_bytes > 0) {
    ratio = grouped(std::llround(100 * static_cast<double>(bar.total_bytes) /
                                 static_cast<double>(whole_model->second.total_bytes))) +
            " %";
  }
  std::string out = drawn(bar, categories, most_bytes) +
                    number_cells({bytes_text(bar.total_bytes), ratio, bytes_text(bar.peak_bytes)});
  for (const std::string& category : categories) {
    const auto found = bar.bytes.find(category);
    out += number_cells({found == bar.bytes.end() ? "–" : bytes_text(found->second)});
  }
  return row(std::to_string(stage), out);
}

}  // namespace

std::string page_memory(const Run& run) {
  if (run.memory.empty())
    return empty_section("memory", "Memory", "No ledger was recorded in this run.");
  const std::vector<std::string> precisions = names_of(run, &MemoryRow::precision);
  const std::map<BarKey, Bar> bars = bars_of(run, precisions);
  std::vector<std::string> categories = names_of(run, &MemoryRow::category);
  std::erase(categories, "total");
  int64_t most_bytes = 0;
  for (const auto& [key, bar] : bars) most_bytes = std::max(most_bytes, bar.total_bytes);
  std::string rows, title;
  for (const auto& [key, bar] : bars) {
    const auto& [precision, ranks, model, stage] = key;
    const std::string next = escape_xml(precisions[precision]) + ", " + count_of(ranks, "rank") +
                             (model.empty() ? "" : ", " + shown(model, 60));
    if (next != title) rows += subtitle(5 + categories.size(), next, title.empty());
    title = next;
    rows += memory_row(key, bar, bars, categories, most_bytes);
  }
  return folded_section(
      "memory", "Memory", "bytes that the largest rank holds",
      table(
          "Bytes that the largest rank holds at the end of a step, from the engine&#39;s ledger, "
          "each row of one case, of the model that holds most; "
          "peak is the most it held at one moment of the step, or the sum of the parts&#39; peaks "
          "where only those were recorded",
          memory_head(categories), rows, "bars"));
}

}  // namespace equigrad::reports
