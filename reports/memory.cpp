#include "reports/memory.hpp"

#include <algorithm>
#include <numeric>

#include "reports/bars.hpp"
#include "reports/document.hpp"
#include "reports/json_text.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string megabytes(int64_t bytes) { return formatted("%.2f", static_cast<double>(bytes) / 1e6); }

std::string holder_row(const MemoryHolder& holder, int64_t most_bytes) {
  const MemoryMoment& moment = highest(holder);
  std::vector<std::string> numbers = {
      megabytes(moment.live_bytes()),
      holder.forecast_bytes > 0 ? megabytes(holder.forecast_bytes) : "–",
      holder.forecast_bytes > 0 ? forecast_text(holder) : "–"};
  for (const int64_t bytes : moment.bytes) numbers.push_back(bytes > 0 ? megabytes(bytes) : "–");
  return row(shown(holder.contestant, 200),
             bar_cell(moment.bytes, most_bytes) + cell(moment.phase, 60) + number_cells(numbers));
}

std::string holders_table(const MemoryGroup& group, const std::vector<std::string>& kinds) {
  int64_t most_bytes = 0;
  for (const MemoryHolder& holder : group.holders)
    most_bytes = std::max(most_bytes, highest(holder).live_bytes());
  std::string heading = heads({"Contestant", "Share of the largest", "Highest in"}) +
                        number_heads({"Held, MB", "Forecast, MB at most", "Off by"});
  for (std::size_t i = 0; i < kinds.size(); ++i)
    heading += number_heads({swatch(i) + shown(kinds[i], 60)});
  std::string rows;
  for (const MemoryHolder& holder : group.holders) rows += holder_row(holder, most_bytes);
  return table("What a rank holds at the highest moment of a step, by kind, MB", heading, rows,
               "bars");
}

std::string group_html(const MemoryGroup& group, const std::vector<std::string>& kinds) {
  return "<h3>" + shown(group.name, 200) + "</h3>\n" +
         paragraph("Activations that forward leaves: " + grouped(group.left_bytes) +
                   " bytes; by formula " + grouped(group.formula_bytes) + ".") +
         holders_table(group, kinds);
}

// The one of ours that holds least, beside the first.
std::string group_sentence(const MemoryGroup& group) {
  if (group.holders.size() < 2) return {};
  const auto held = [](const MemoryHolder& one) { return highest(one).live_bytes(); };
  const auto least =
      std::min_element(group.holders.begin() + 1, group.holders.end(),
                       [&](const auto& a, const auto& b) { return held(a) < held(b); });
  const MemoryHolder& base = group.holders.front();
  return paragraph(escape_xml(clean(group.name) + ": " + clean(least->contestant) + " holds " +
                              megabytes(held(*least)) + " MB at its highest moment, " +
                              clean(base.contestant) + " " + megabytes(held(base)) + "."));
}

}  // namespace

int64_t MemoryMoment::live_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

const MemoryMoment& highest(const MemoryHolder& holder) {
  return *std::max_element(
      holder.moments.begin(), holder.moments.end(),
      [](const auto& a, const auto& b) { return a.live_bytes() < b.live_bytes(); });
}

std::string forecast_text(const MemoryHolder& holder) {
  const int64_t live_bytes = highest(holder).live_bytes();
  if (holder.forecast_bytes == 0 || live_bytes == 0) return {};
  return formatted("%+.2f %%", 100.0 * static_cast<double>(holder.forecast_bytes - live_bytes) /
                                   static_cast<double>(live_bytes));
}

void to_json(Json& json, const MemoryMoment& moment) {
  json = {{"phase", moment.phase}, {"live_bytes", moment.live_bytes()}, {"bytes", moment.bytes}};
}

void to_json(Json& json, const MemoryHolder& holder) {
  json = {{"contestant", clean(holder.contestant)},
          {"forecast_bytes", holder.forecast_bytes},
          {"moments", holder.moments}};
}

void to_json(Json& json, const MemoryGroup& group) {
  json = {{"name", clean(group.name)},
          {"left_bytes", group.left_bytes},
          {"formula_bytes", group.formula_bytes},
          {"holders", group.holders}};
}

std::string to_json(const Memory& memory) {
  return document_lines({{"schema_version", memory.schema_version},
                         {"environment", memory.environment},
                         {"command", clean(memory.command)},
                         {"wall_s", memory.wall_s},
                         {"kinds", memory.kinds},
                         {"groups", memory.groups}});
}

std::string to_html(const Memory& memory) {
  std::string out =
      "<p class=\"lead\">Bytes of rank 0 in a step of accumulation 1, in fp32: the engine&#39;s by "
      "its own books, activations and the rest by the allocator&#39;s. A forecast is made before "
      "the engine runs. All phases are in memory.json.</p>\n";
  std::string sentences;
  for (const MemoryGroup& group : memory.groups) {
    out += group_html(group, memory.kinds);
    sentences += group_sentence(group);
  }
  return to_html(Document{.origin = {memory.environment, memory.command, 0, memory.wall_s},
                          .brand = "Equigrad memory",
                          .outcome = {},
                          .heading = "What a rank holds",
                          .title = "Equigrad memory",
                          .banner_html = sentences,
                          .html = section("memory", "Memory", out),
                          .data_file = "memory.json"});
}

}  // namespace equigrad::reports
