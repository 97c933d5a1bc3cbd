// Bandwidth of the CUDA kernels, as a share of a copy on the same device, in one process.
//
//   gpu_bandwidth [ELEMENTS]     2^26 elements by default
//
// Each kernel and the copy take turns; a line has the median of their times by CUDA's clock, the
// bytes that are read and written a second, and its ratio to the copy's. JSON on stdout.
// Exit codes: 0 measured, 3 no device.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/kernels/device_stream.hpp"
#include "engine/kernels/element.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"
#include "engine/optimizer/update_rule.hpp"

namespace equigrad::perf {
namespace {

using kernels::Element;
using nlohmann::json;

constexpr int kRounds = 21;

struct Contestant {
  std::string name;
  double bytes;  // read and written in a round
  std::function<void()> run;
};

double milliseconds_of(const std::function<void()>& run) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const auto stream = cuda.getStream(c10::Device(c10::kCUDA, 0));
  c10::Event begin(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  run();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

at::Tensor random(int64_t numel, at::ScalarType dtype) {
  return at::randn({numel}, at::device(at::kCUDA)).to(dtype);
}

class Contest {
 public:
  explicit Contest(int64_t numel) : numel_(numel) {
    const auto from = random(numel, at::kFloat), to = at::empty_like(from);
    add("copy", 8, [from, to] { at::Tensor(to).copy_(from); });
    for (const int rows : {2, 4, 8}) add_tree_sum(rows);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) add_measures(dtype);
    add_conversion();
    add_update();
  }

  json run() {
    for (const auto& one : contestants_) one.run();  // warm
    std::vector<std::vector<double>> times(contestants_.size());
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t i = 0; i < contestants_.size(); ++i)
        times[i].push_back(milliseconds_of(contestants_[i].run));
    json rows = json::array();
    double of_copy = 0;
    for (std::size_t i = 0; i < contestants_.size(); ++i) {
      const double ms = median(times[i]), rate = contestants_[i].bytes / ms * 1e-6;
      if (i == 0) of_copy = rate;
      rows.push_back({{"kernel", contestants_[i].name},
                      {"elements", numel_},
                      {"milliseconds", ms},
                      {"gigabytes_per_second", rate},
                      {"of_the_copy", rate / of_copy}});
    }
    return rows;
  }

 private:
  void add(const std::string& name, double bytes_of_element, std::function<void()> run) {
    contestants_.push_back({name, bytes_of_element * static_cast<double>(numel_), std::move(run)});
  }

  static void* stream() { return kernels::current_stream(c10::Device(c10::kCUDA, 0)); }

  void add_tree_sum(int rows) {
    const auto terms = random(numel_ / rows * rows, at::kFloat);
    const auto sum = at::empty({numel_ / rows}, terms.options());
    add("tree_sum of " + std::to_string(rows) + " rows, fp32", 4.0 * (rows + 1) / rows,
        [terms, sum, rows] {
          kernels::tree_sum_cuda(terms.const_data_ptr(), Element::Fp32, rows, sum.numel(),
                                 sum.mutable_data_ptr(), Element::Fp32, stream());
        });
  }

  void add_measures(at::ScalarType dtype) {
    const bool is_wide = dtype == at::kFloat;
    const auto values = random(numel_, dtype);
    const auto type = is_wide ? Element::Fp32 : Element::Bf16;
    const auto words = at::zeros({kernels::kWords}, values.options().dtype(at::kLong));
    const std::string of = is_wide ? ", fp32" : ", bf16";
    add("square_sum" + of, is_wide ? 4 : 2, [=] {
      kernels::square_sum_cuda(values.const_data_ptr(), type, values.numel(),
                               words.mutable_data_ptr<int64_t>(), stream());
    });
    add("largest" + of, is_wide ? 4 : 2, [=] {
      kernels::largest_cuda(values.const_data_ptr(), type, values.numel(),
                            words.mutable_data_ptr<int64_t>(), stream());
    });
  }

  void add_conversion() {
    const auto wide = random(numel_, at::kFloat), narrow = wide.to(at::kBFloat16);
    add("fp32 to bf16", 6, [wide, narrow] { at::Tensor(narrow).copy_(wide); });
  }

  // Reads parameter, gradient and two states, and writes three of them.
  void add_update() {
    const auto parameter = random(numel_, at::kFloat), gradient = random(numel_, at::kFloat);
    const std::vector<at::Tensor> states = {at::zeros_like(parameter), at::zeros_like(parameter)};
    add("AdamW, fp32", 28, [=] {
      OptimizerConfig config;
      config.kind = OptimizerConfig::Kind::AdamW;
      config.weight_decay = 0.01;
      optimizer::update_(config, 1, parameter, gradient, states);
    });
  }

  int64_t numel_;
  std::vector<Contestant> contestants_;
};

}  // namespace
}  // namespace equigrad::perf

int main(int argc, char** argv) {
  if (at::getNumGPUs() == 0) {
    std::fprintf(stderr, "gpu_bandwidth: expected a CUDA device, got none that torch sees.\n");
    return 3;
  }
  const int64_t numel = argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 26;
  if (numel < 8) {
    std::fprintf(stderr, "gpu_bandwidth: expected a number of elements from 8 on, got %s.\n",
                 argv[1]);
    return 2;
  }
  const at::NoGradGuard no_grad;
  std::printf("%s\n", equigrad::perf::Contest(numel).run().dump(1).c_str());
  return 0;
}
