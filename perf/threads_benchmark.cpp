// What a second thread does for each loop of the engine: its time on two threads beside its time on
// one, from the fewest elements that are shared out on. One rank.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "engine/comm/reduction.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/parallel.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/optimizer/update_rule.hpp"
#include "perf/perf_ranks.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::RankContext;
using nlohmann::json;

class Loop final : public Variant {
 public:
  Loop(const json& settings, int threads)
      : threads_(threads),
        name_(settings.at("loop")),
        rows_(at::full({settings.at("rows"), settings.at("numel")}, 0.37,
                       settings.at("bf16").get<bool>() ? at::kBFloat16 : at::kFloat)) {
    if (name_ == "exact_add") sums_ = kernels::exact_of(rows_[0]);
    if (name_ == "sgd") config_.kind = OptimizerConfig::Kind::Sgd;
    config_.momentum = 0.9;
    config_.lr = 1e-9;
  }
  void prepare() override { at::set_num_threads(threads_); }
  void run() override {
    if (name_ == "tree_sum") comm::tree_sum(rows_, rows_.scalar_type());
    if (name_ == "exact_row_sum") kernels::exact_row_sum(rows_, at::kFloat);
    if (name_ == "exact_add") kernels::exact_add_(sums_, rows_[0]);
    if (name_ == "square_sum") measured<kernels::SquareSum>();
    if (name_ == "largest") measured<kernels::Largest>();
    if (name_ == "adamw") optimizer::update_(config_, 2, rows_[0], rows_[1], {rows_[2], rows_[3]});
    if (name_ == "sgd") optimizer::update_(config_, 2, rows_[0], rows_[1], {rows_[2]});
  }

 private:
  template <class Norm>
  void measured() {
    Norm norm;
    norm.add(rows_.const_data_ptr(), kernels::element_of(rows_.scalar_type(), "perf"),
             rows_.numel());
    if (norm.non_finite_numel() != 0) throw std::runtime_error("[perf] expected finite numbers.");
  }

  int threads_;
  std::string name_;
  at::Tensor rows_, sums_;
  OptimizerConfig config_;
};

std::unique_ptr<Variant> make(const std::string& variant, const json& settings, RankContext&) {
  return std::make_unique<Loop>(settings, variant == "2_threads" ? 2 : 1);
}

[[maybe_unused]] const bool registered = [] {
  struct Case {
    const char* loop;
    bool bf16;
    int rows;
  };
  for (const auto& [loop, bf16, rows] :
       {Case{"adamw", false, 4}, Case{"adamw", true, 4}, Case{"sgd", false, 3},
        Case{"tree_sum", false, 2}, Case{"tree_sum", false, 4}, Case{"tree_sum", true, 2},
        Case{"exact_row_sum", false, 2}, Case{"exact_add", false, 1}, Case{"square_sum", false, 1},
        Case{"square_sum", true, 1}, Case{"largest", false, 1}})
    for (const int64_t thousands : {64, 1024, 16 * 1024}) {
      Group group;
      group.name = std::string(loop) + (bf16 ? "/bf16/" : "/fp32/") +
                   "rows:" + std::to_string(rows) + "/" + std::to_string(thousands) + "K";
      group.variants = {"1_thread", "2_threads"};
      group.bases = {"1_thread"};
      group.rounds = thousands > 1024 ? 21 : 101;
      group.settings = {{"loop", loop}, {"bf16", bf16}, {"rows", rows}, {"numel", thousands << 10}};
      register_group(group, make);
    }
  return true;
}();

}  // namespace
}  // namespace equigrad::perf
