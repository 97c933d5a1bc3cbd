#include "conformance/diagnosis/picture.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "conformance/oracle/bits.hpp"
#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {
namespace {

// Bins of errors: none; [2^(i - 1), 2^i) ulp; the last of what is not finite.
constexpr std::size_t kErrorBins = 66;

struct DrawnValues {
  std::vector<double> got, want;
  std::vector<int64_t> wrong;  // indices of elements that differ
};

std::vector<double> doubles_of(const at::Tensor& tensor) {
  const auto values = tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

DrawnValues drawn_values(const Failure& failure) {
  DrawnValues values{doubles_of(failure.got), doubles_of(failure.want), {}};
  for (std::size_t i = 0; i < values.want.size(); ++i) {
    const double got = values.got[i], want = values.want[i];
    if (got != want && !(std::isnan(got) && std::isnan(want)))
      values.wrong.push_back(static_cast<int64_t>(i));
  }
  return values;
}

std::size_t bin_of(double got, double want, at::ScalarType dtype) {
  if (!std::isfinite(got) || !std::isfinite(want)) return kErrorBins - 1;
  const double ulp = oracle::ulp_distance(got, want, dtype);
  if (!(ulp > 0)) return 0;
  return std::min<std::size_t>(1 + static_cast<std::size_t>(std::max(0, std::ilogb(ulp))),
                               kErrorBins - 2);
}

std::vector<int64_t> bins_of(const DrawnValues& values, at::ScalarType dtype) {
  std::vector<int64_t> bins(kErrorBins, 0);
  bins[0] = static_cast<int64_t>(values.want.size() - values.wrong.size());
  for (const int64_t i : values.wrong) {
    const auto at = static_cast<std::size_t>(i);
    ++bins[bin_of(values.got[at], values.want[at], dtype)];
  }
  return bins;
}

// Half of them evenly from all elements, half evenly from the wrong ones.
nlohmann::json samples_of(const DrawnValues& values, int64_t begin) {
  std::set<int64_t> chosen;
  const auto add_evenly = [&](int64_t count, const auto& index) {
    for (int64_t i = 0; i < std::min(count, kPictureSamples / 2); ++i)
      chosen.insert(index(i * count / std::min(count, kPictureSamples / 2)));
  };
  add_evenly(static_cast<int64_t>(values.want.size()), [](int64_t i) { return i; });
  add_evenly(static_cast<int64_t>(values.wrong.size()),
             [&](int64_t i) { return values.wrong[static_cast<std::size_t>(i)]; });
  auto samples = nlohmann::json::array();
  for (const int64_t i : chosen) {
    const auto at = static_cast<std::size_t>(i);
    samples.push_back({begin + i, exact_text(values.got[at]), exact_text(values.want[at])});
  }
  return samples;
}

// How many are wrong in each of equal pieces.
std::vector<int64_t> pieces_of(const DrawnValues& values) {
  const auto numel = static_cast<int64_t>(values.want.size());
  std::vector<int64_t> pieces(static_cast<std::size_t>(std::min(numel, kPicturePieces)), 0);
  const auto count = static_cast<int64_t>(pieces.size());
  for (const int64_t i : values.wrong) ++pieces[static_cast<std::size_t>(i * count / numel)];
  return pieces;
}

bool is_drawn(const Failure& failure) {
  return !failure.site.parameter.empty() && failure.want.defined() &&
         failure.want.is_floating_point() && failure.want.numel() > 1 &&
         failure.got.numel() == failure.want.numel();
}

}  // namespace

nlohmann::json picture_of(const std::vector<Failure>& failures, const std::string& first) {
  const Failure* sampled = nullptr;
  auto slices = nlohmann::json::array();
  for (const Failure& failure : failures) {
    if (!is_drawn(failure)) continue;
    if (sampled == nullptr || (failure.site.parameter == first && sampled->site.parameter != first))
      sampled = &failure;
    if (slices.size() >= kPictureSlices && failure.site.parameter != first) continue;
    const auto begin = failure.site.begin;
    slices.push_back({failure.site.parameter, begin, begin + failure.want.numel(),
                      pieces_of(drawn_values(failure))});
  }
  if (sampled == nullptr) return nullptr;
  const DrawnValues values = drawn_values(*sampled);
  return {{"tensor", sampled->site.parameter},
          {"what", sampled->site.what},
          {"step", sampled->site.step + 1},
          {"samples", samples_of(values, sampled->site.begin)},
          {"ulps", bins_of(values, sampled->got.scalar_type())},
          {"slices", slices}};
}

}  // namespace equigrad::conformance
