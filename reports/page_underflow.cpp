#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

struct ModelSum {
  std::string model;
  int64_t numel = 0, zero = 0, subnormal = 0, overflow = 0;
  double least_scale = INFINITY, most_scale = 0;
  double lossless = 0;
  bool is_lossless = true;  // in every precision there is a scale that loses none
};

std::vector<ModelSum> by_model(const Run& run) {
  std::vector<ModelSum> sums;
  for (const UnderflowRow& row : run.underflow) {
    auto found = std::find_if(sums.begin(), sums.end(),
                              [&row](const ModelSum& sum) { return sum.model == row.model; });
    if (found == sums.end()) found = sums.insert(found, ModelSum{.model = row.model});
    found->numel += row.numel;
    found->zero += row.zero;
    found->subnormal += row.subnormal;
    found->overflow += row.overflow;
    found->least_scale = std::min(found->least_scale, row.scale);
    found->most_scale = std::max(found->most_scale, row.scale);
    found->lossless = std::max(found->lossless, row.lossless);
    found->is_lossless = found->is_lossless && row.lossless > 0;
  }
  return sums;
}

std::string lossless_text(bool is_lossless, double scale) {
  return is_lossless ? scale_text(scale) + " would lose none" : "every scale loses some";
}

}  // namespace

std::string underflow_lines(const Run& run) {
  std::ostringstream out;
  for (const ModelSum& sum : by_model(run)) {
    out << "# gradients of " << clean(sum.model) << " in fp16, scaled by "
        << scale_text(sum.least_scale);
    if (sum.most_scale > sum.least_scale) out << " to " << scale_text(sum.most_scale);
    out << ": " << grouped(sum.numel) << " elements, " << grouped(sum.zero) << " become zero, "
        << grouped(sum.subnormal) << " subnormal, " << grouped(sum.overflow) << " overflow; "
        << lossless_text(sum.is_lossless, sum.lossless) << "\n";
  }
  return out.str();
}

std::string page_underflow(const Run& run) {
  std::string rows;
  for (const UnderflowRow& one : run.underflow)
    rows +=
        row(shown(one.precision, 60),
            cell(one.model, 60) + number_cells({scale_text(one.scale), grouped(one.numel),
                                                grouped(one.zero), grouped(one.subnormal),
                                                grouped(one.overflow), scale_text(one.lossless)}));
  if (rows.empty())
    return empty_section("underflow", "Underflow", "No case of this run scaled its loss.");
  return folded_section(
      "underflow", "Underflow", "what loss scales lose in fp16",
      table("What is lost of the gradients of the first step that is applied when they are "
            "multiplied by its loss scale and rounded to fp16, over the cases that were run",
            heads({"Precision", "Model"}) +
                number_heads({"Scale", "Elements", "Become zero", "Subnormal", "Overflow",
                              "Smallest scale that loses none"}),
            rows));
}

}  // namespace equigrad::reports
