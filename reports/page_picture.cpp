#include <algorithm>
#include <cmath>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr double kWide = 340, kHigh = 230;  // of a figure
constexpr double kPictureLeft = 12, kPictureRight = 12, kPictureTop = 10, kPictureBottom = 34;
constexpr const char* kThin = "stroke=\"currentColor\" stroke-opacity=\".35\"";

std::string box(double x, double y, double width, double height, const char* css_class,
                const char* fill, const std::string& more = {}) {
  return "<rect class=\"" + std::string(css_class) + "\" x=\"" + at(x) + "\" y=\"" + at(y) +
         "\" width=\"" + at(std::max(width, 0.0)) + "\" height=\"" + at(std::max(height, 0.0)) +
         "\" fill=\"" + fill + "\"" + more + "/>\n";
}

std::string small_figure(const std::string& title, const std::string& words, double height,
                         const std::string& svg) {
  return "<figure><figcaption>" + title + "</figcaption>\n<svg class=\"small\" viewBox=\"0 0 " +
         at(kWide) + " " + at(height) + "\" width=\"" + at(kWide) +
         "\" role=\"img\" font-size=\"11\">\n<title>" + escape_xml(words) + "</title>\n" + svg +
         "</svg></figure>\n";
}

// Its begin and its end.
std::string cut(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  return clean(text.substr(0, most / 2)) + "…" + clean(text.substr(text.size() - most / 2));
}

// Got over want: right elements lie on the dashed diagonal, a wrong factor is a line through 0.
std::string scatter(const Picture& picture) {
  double most = 0;
  int64_t not_finite = 0, wrong = 0;
  for (const Sample& one : picture.samples) {
    const bool is_finite = std::isfinite(one.got) && std::isfinite(one.want);
    not_finite += is_finite ? 0 : 1;
    wrong += one.got == one.want ? 0 : 1;
    if (is_finite) most = std::max({most, std::fabs(one.got), std::fabs(one.want)});
  }
  if (!(most > 0)) return {};
  const double side = kHigh - kPictureTop - kPictureBottom, left = (kWide - side) / 2;
  const auto x = [&](double value) { return left + side * (0.5 + value / most * 0.48); };
  const auto y = [&](double value) { return kPictureTop + side * (0.5 - value / most * 0.48); };
  std::string out = box(left, kPictureTop, side, side, "frame", "none", std::string(" ") + kThin);
  out += drawn_line(left, y(0), left + side, y(0), kThin);
  out += drawn_line(x(0), kPictureTop, x(0), kPictureTop + side, kThin);
  out += drawn_line(x(-most), y(-most), x(most), y(most),
                    "stroke=\"currentColor\" stroke-dasharray=\"4 3\"");
  for (const Sample& one : picture.samples) {
    if (!std::isfinite(one.got) || !std::isfinite(one.want)) continue;
    const bool is_wrong = one.got != one.want;
    out += std::string("<circle class=\"") + (is_wrong ? "wrong" : "right") + "\" cx=\"" +
           at(x(one.want)) + "\" cy=\"" + at(y(one.got)) + "\" r=\"2.6\" fill=\"" +
           (is_wrong ? "#b7331b" : "#1f6f9f") + "\"/>\n";
  }
  out +=
      drawn_text(left + side, kPictureTop + side + 14, "end", "want, up to " + short_number(most));
  out += drawn_text(left - 4, kPictureTop + 10, "end", "got");
  out += drawn_text(kWide / 2, kHigh - 4, "middle",
                    not_finite > 0 ? count_of(not_finite, "point") + " not finite, not drawn"
                                   : "on the dashed line: right");
  return small_figure("Got against want",
                      "Got against want for " + count_of(picture.samples.size(), "element") +
                          " of " + clean(picture.tensor) + ", " + grouped(wrong) +
                          " of them wrong, between -" + short_number(most) + " and " +
                          short_number(most),
                      kHigh, out);
}

// "2-3", "4-7": whole ulp up to 1024, then powers of two.
std::string bin_name(size_t bin, size_t bins) {
  if (bin == 0) return "0";
  if (bin + 1 == bins) return "NaN, inf";
  if (bin == 1) return "1";
  return "2^" + std::to_string(bin - 1);
}

std::string histogram(const Picture& picture) {
  const auto& bins = picture.ulps;
  size_t last = 0, place_of_most = 0;
  int64_t most = 0, all = 0, wrong = 0;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (bins[i] <= 0) continue;
    if (i + 1 < bins.size()) last = i;
    if (bins[i] > most) place_of_most = i;
    most = std::max(most, bins[i]);
    all += bins[i];
    wrong += i == 0 ? 0 : bins[i];
  }
  if (all == 0) return {};
  const bool has_end = bins.back() > 0;
  const auto columns = static_cast<double>(std::max<size_t>(last + 1, 4) + (has_end ? 1 : 0));
  const double width = (kWide - kPictureLeft - kPictureRight) / columns,
               base = kHigh - kPictureBottom;
  std::string out = drawn_line(kPictureLeft, base, kWide - kPictureRight, base, kThin);
  const size_t every = 1 + static_cast<size_t>(columns) / 6;
  for (size_t i = 0; i < bins.size(); ++i) {
    const bool is_end = i + 1 == bins.size();
    if (i > last && !(is_end && has_end)) continue;
    const double x =
        kPictureLeft + width * (is_end && i > last ? columns - 1 : static_cast<double>(i));
    const double height = (base - kPictureTop - 14) *
                          static_cast<double>(std::max<int64_t>(bins[i], 0)) /
                          static_cast<double>(most);
    if (bins[i] > 0) {
      out += box(x + 1, base - std::max(height, 1.5), width - 2, std::max(height, 1.5),
                 i == 0 ? "right" : "wrong", i == 0 ? "#1f6f9f" : "#b7331b");
      if (width > 40 || i == place_of_most)
        out += drawn_text(x + width / 2, base - height - 3,
                          x < kPictureLeft + 30 ? "start"
                          : x > kWide - 60      ? "end"
                                                : "middle",
                          grouped(bins[i]));
    }
    if (i % every == 0 || is_end)
      out +=
          drawn_text(x + width / 2, base + 13, is_end ? "end" : "middle", bin_name(i, bins.size()));
  }
  out += drawn_text(kWide / 2, kHigh - 4, "middle", "ulp off");
  return small_figure("Errors in ulp",
                      "Of " + count_of(all, "element") + " on rank " +
                          std::to_string(picture.rank) + ", " + grouped(wrong) +
                          " differ; the largest bin that is not empty is " +
                          bin_name(has_end ? bins.size() - 1 : last, bins.size()) + " ulp",
                      kHigh, out);
}

// A row a rank; along it the whole tensor; what the rank compared has a frame, and what was wrong
// in it is filled, the more the darker.
std::string strip(const Picture& picture) {
  constexpr size_t kRanks = 16;
  constexpr double kRow = 24, kName = 48;
  const size_t rows = std::min(picture.slices.size(), kRanks);
  if (rows == 0 || picture.numel <= 0) return {};
  const double scale = (kWide - kName - kPictureRight) / static_cast<double>(picture.numel);
  std::string out, words;
  double y = kPictureTop;
  for (size_t i = 0; i < rows; ++i, y += kRow) {
    const Slice& slice = picture.slices[i];
    const double begin = kName + scale * static_cast<double>(slice.begin);
    const double width = scale * static_cast<double>(slice.end - slice.begin);
    out += drawn_text(kName - 6, y + 14, "end", "rank " + std::to_string(slice.rank));
    const auto pieces = static_cast<double>(slice.wrong.size());
    int64_t wrong = 0;
    for (size_t piece = 0; piece < slice.wrong.size(); ++piece) {
      const auto count = static_cast<double>(slice.wrong[piece]);
      wrong += slice.wrong[piece];
      if (!(count > 0)) continue;
      const double share =
          std::min(1.0, count * pieces / static_cast<double>(slice.end - slice.begin));
      out += box(begin + width * static_cast<double>(piece) / pieces, y, width / pieces, kRow - 6,
                 "wrong", "#b7331b", " fill-opacity=\"" + at(0.3 + 0.7 * share) + "\"");
    }
    out += box(begin, y, width, kRow - 6, "frame", "none", std::string(" ") + kThin);
    words += (i == 0 ? "" : "; ") + ("rank " + std::to_string(slice.rank)) + " has elements " +
             grouped(slice.begin) + " to " + grouped(slice.end) + ", " + grouped(wrong) + " wrong";
  }
  out += drawn_text(kName, y + 12, "start", "0");
  out += drawn_text(kWide - kPictureRight, y + 12, "end", grouped(picture.numel));
  return small_figure("Where, on which rank", "Of " + clean(picture.tensor) + ": " + words, y + 18,
                      out);
}

// A row a parameter, a column a step: on how many ranks its gradient was wrong.
std::string map_of(const Picture& picture) {
  constexpr size_t kRows = 24, kSteps = 12;
  constexpr double kRow = 13, kName = 150, kCell = 26;
  if (picture.gradients.empty()) return {};
  std::vector<const GradientSteps*> rows;
  for (const GradientSteps& one : picture.gradients) rows.push_back(&one);
  const auto is_wrong = [](const GradientSteps* one) {
    return std::any_of(one->wrong_ranks.begin(), one->wrong_ranks.end(),
                       [](int64_t ranks) { return ranks > 0; });
  };
  const auto wrong = std::count_if(rows.begin(), rows.end(), is_wrong);
  if (rows.size() > kRows) std::stable_partition(rows.begin(), rows.end(), is_wrong);
  const size_t shown_rows = std::min(rows.size(), kRows);
  std::string out;
  double y = kPictureTop + 14;
  size_t steps = 0;
  for (size_t i = 0; i < shown_rows; ++i, y += kRow) {
    const auto& ranks = rows[i]->wrong_ranks;
    steps = std::max(steps, std::min(ranks.size(), kSteps));
    out += drawn_text(kName - 6, y + 10, "end", cut(rows[i]->name, 22));
    for (size_t step = 0; step < std::min(ranks.size(), kSteps); ++step) {
      const double x = kName + kCell * static_cast<double>(step);
      out += box(x + 1, y + 1, kCell - 2, kRow - 2, ranks[step] > 0 ? "wrong" : "right",
                 ranks[step] > 0 ? "#b7331b" : "#1f6f9f",
                 ranks[step] > 0 ? "" : " fill-opacity=\".3\"");
      if (ranks[step] > 0)
        out += "<text class=\"on\" x=\"" + at(x + kCell / 2) + "\" y=\"" + at(y + 10) +
               "\" text-anchor=\"middle\" fill=\"#fff\">" + std::to_string(ranks[step]) +
               "</text>\n";
    }
  }
  for (size_t step = 0; step < steps; ++step)
    out += drawn_text(kName + kCell * (static_cast<double>(step) + 0.5), kPictureTop + 8, "middle",
                      std::to_string(step + 1));
  out += drawn_text(kName - 6, kPictureTop + 8, "end", "step");
  if (rows.size() > shown_rows)
    out +=
        drawn_text(kName - 6, (y += kRow) - 3, "end", grouped(rows.size() - shown_rows) + " more");
  return small_figure("Gradients by step",
                      grouped(wrong) + " of " + count_of(rows.size(), "gradient") +
                          " were wrong in some step; a number is of ranks",
                      y + 6, out);
}

}  // namespace

std::string page_picture(const Picture& picture) {
  const std::string maps = strip(picture) + map_of(picture);
  const std::string charts = scatter(picture) + histogram(picture);
  if (maps.empty() && charts.empty()) return {};
  return "<p class=\"note\">Drawn: " + shown(picture.what, 100) + " of <code>" +
         shown(picture.tensor, 200) + "</code> in step " + grouped(picture.step) + ", of rank " +
         grouped(picture.rank) + "; the wrong is red.</p>\n<div class=\"pictures\">\n" +
         (maps.empty() ? "" : "<div>\n" + maps + "</div>\n") + charts + "</div>\n";
}

}  // namespace equigrad::reports
