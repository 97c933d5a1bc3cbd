// 15. What an engine says of itself: floating-point operations and times.
#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/profile/flops_profiler.hpp"

namespace equigrad::conformance::contract {
namespace {

using profile::FlopsReport;

constexpr int64_t kNsPerS = 1'000'000'000;

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

template <class Pass>
FlopsReport profile_of(const torch::nn::Module& model, Pass pass) {
  profile::FlopsProfiler profiler(model);
  profiler.start();
  pass();
  profiler.stop();
  return profiler.report();
}

// One call, and what it costs by hand.
struct Counted {
  std::string name;
  int64_t flops, macs;
  std::function<void()> call;
};

at::Tensor ones(at::IntArrayRef sizes) { return at::ones(sizes); }
at::Tensor indices(at::IntArrayRef sizes) { return at::zeros(sizes, at::kLong); }

std::vector<Counted> products() {
  const auto a = ones({4, 5}), b = ones({5, 3}), many = ones({7, 4, 5}), more = ones({7, 5, 3});
  return {
      {"mm", 120, 60, [=] { at::mm(a, b); }},
      {"addmm", 120 + 12, 60, [=] { at::addmm(ones({3}), a, b); }},
      {"addmm_", 120 + 12, 60,
       [=] {
         ones({4, 3}).addmm_(a, b);
       }},
      {"mv", 40, 20, [=] { at::mv(a, ones({5})); }},
      {"addmv", 40 + 4, 20, [=] { at::addmv(ones({4}), a, ones({5})); }},
      {"dot", 10, 5, [=] { at::dot(ones({5}), ones({5})); }},
      {"bmm", 840, 420, [=] { at::bmm(many, more); }},
      {"baddbmm", 840 + 84, 420,
       [=] {
         at::baddbmm(ones({7, 4, 3}), many, more);
       }},
      {"addbmm", 840 + 12, 420,
       [=] {
         at::addbmm(ones({4, 3}), many, more);
       }},
      {"matmul", 120, 60, [=] { at::matmul(a, b); }},
      {"a layer without a bias", 120, 60, [=] { at::linear(a, b.t()); }},
  };
}

// 9 + 2 - 3, by 2, + 1 = 5: [2, 6, 5, 5] outputs. Transposed: (5 - 1) 2 - 2 + 2 + 1 + 1 = 10.
std::vector<Counted> convolutions() {
  const auto image = ones({2, 4, 9, 9}), weight = ones({6, 4, 3, 3}), small = ones({2, 4, 5, 5}),
             output = ones({2, 6, 5, 5});
  const std::vector<int64_t> two{2, 2}, one{1, 1}, none{0, 0};
  const auto backward = [=](bool input, bool kernel, bool bias) {
    at::convolution_backward(output, image, weight, at::IntArrayRef({6}), two, one, one, false,
                             none, 1, {input, kernel, bias});
  };
  return {
      {"a convolution", 2 * 10800 + 300, 10800,
       [=] { at::convolution(image, weight, ones({6}), two, one, one, false, none, 1); }},
      {"one of two groups", 2 * 5400, 5400,
       [=] {
         at::convolution(image, ones({6, 2, 3, 3}), {}, two, one, one, false, none, 2);
       }},
      {"a dilated one", 2 * 1944 + 54, 1944,  // [1, 6, 3, 3]: 9 - 2 * 2, by 2, + 1
       [=] {
         at::convolution(ones({1, 4, 9, 9}), weight, ones({6}), two, none, two, false, none, 1);
       }},
      {"a transposed one", 2 * 10800 + 1200, 10800,
       [=] {
         at::convolution(small, ones({4, 6, 3, 3}), ones({6}), two, one, one, true, one, 1);
       }},
      {"its backward to all", 4 * 10800 + 300, 2 * 10800, [=] { backward(true, true, true); }},
      {"its backward to the weight", 2 * 10800, 10800, [=] { backward(false, true, false); }},
  };
}

// 2 * 3 heads, 4 queries, 5 keys of depth 8: 120 scores, each times 8 and 8.
std::vector<Counted> attentions() {
  const auto query = ones({2, 3, 4, 8}), key = ones({2, 3, 5, 8});
  return {{"attention", 2 * 1920 + 120, 1920,
           [=] { at::_scaled_dot_product_flash_attention_for_cpu(query, key, key); }}};
}

std::vector<Counted> by_element() {
  const auto x = ones({2, 3, 4}).mul_(0.5), row = ones({3, 1}), whole = at::ones({5}, at::kLong);
  std::vector<Counted> all = {
      {"add of two shapes", 24, 0, [=] { at::add(x, row); }},
      {"mul of two shapes", 12, 0,
       [=] {
         at::mul(row, ones({1, 4}));
       }},
      {"div by a number", 24, 0, [=] { at::div(x, 2.0); }},
      {"sub in place", 24, 0, [=] { x.clone().sub_(row); }},
      {"addcmul", 48, 0, [=] { at::addcmul(x, x, row); }},
      {"lerp", 48, 0, [=] { at::lerp(x, x, 0.5); }},
      {"of whole numbers", 0, 0, [=] { at::add(whole, whole); }},
      {"of whole numbers and others", 5, 0, [=] { at::mul(whole, ones({5})); }},
      {"gelu_backward", 24, 0, [=] { at::gelu_backward(x, x); }},
      {"tanh_backward", 24, 0, [=] { at::tanh_backward(x, x); }},
      {"clamp", 24, 0, [=] { at::clamp(x, 0.0, 1.0); }},
      {"pow", 24, 0, [=] { at::pow(x, 2); }},
      {"gelu", 24, 0, [=] { at::gelu(x); }},
      {"maximum", 24, 0, [=] { at::maximum(x, row); }},
  };
  using Unary = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<std::string, Unary>> unary = {
      {"neg", at::neg},     {"abs", at::abs},   {"sqrt", at::sqrt},
      {"rsqrt", at::rsqrt}, {"exp", at::exp},   {"log", at::log},
      {"log1p", at::log1p}, {"sin", at::sin},   {"cos", at::cos},
      {"erf", at::erf},     {"tanh", at::tanh}, {"sigmoid", at::sigmoid},
      {"relu", at::relu},   {"silu", at::silu}, {"reciprocal", at::reciprocal}};
  for (const auto& one : unary)
    all.push_back({one.first, 24, 0, [x, call = one.second] { call(x); }});
  return all;
}

std::vector<Counted> by_input() {
  const auto x = ones({2, 3, 4}), weight = ones({4}), rows = ones({6, 9}),
             image = ones({1, 2, 4, 4});
  const auto targets = indices({6}), channels = ones({2});
  const std::vector<int64_t> last{4}, two{2, 2};
  return {
      {"softmax", 24, 0, [=] { at::softmax(x, -1); }},
      {"log_softmax", 24, 0, [=] { at::log_softmax(x, -1); }},
      {"sum", 24, 0, [=] { at::sum(x); }},
      {"mean", 24, 0, [=] { at::mean(x); }},
      {"cumsum", 24, 0, [=] { at::cumsum(x, 0); }},
      {"amax", 24, 0, [=] { at::amax(x); }},
      {"argmax", 24, 0, [=] { at::argmax(x); }},
      {"var", 96, 0, [=] { at::var(x); }},
      {"mse_loss", 72, 0, [=] { at::mse_loss(x, x); }},
      {"binary_cross_entropy", 120, 0, [=] { at::binary_cross_entropy(x, x); }},
      {"nll_loss", 6, 0, [=] { at::nll_loss(rows, targets); }},
      {"layer_norm", 120, 0, [=] { at::native_layer_norm(x, last, weight, weight, 1e-5); }},
      {"layer_norm without weights", 96, 0, [=] { at::native_layer_norm(x, last, {}, {}, 1e-5); }},
      {"batch_norm", 160, 0,
       [=] { at::native_batch_norm(image, channels, channels, {}, {}, true, 0.1, 1e-5); }},
      {"group_norm", 160, 0,
       [=] { at::native_group_norm(image, channels, channels, 1, 2, 16, 1, 1e-5); }},
      {"avg_pool2d", 32, 0, [=] { at::avg_pool2d(image, two); }},
      {"max_pool2d", 32, 0, [=] { at::max_pool2d_with_indices(image, two); }},
      {"embedding", 0, 0, [=] { at::embedding(rows, targets); }},
      {"embedding's backward", 54, 0,
       [=] { at::embedding_dense_backward(rows, targets, 6, -1, false); }},
      {"index_add", 54, 0, [=] { at::index_add(rows, 0, targets, rows); }},
      {"what moves data", 0, 0,
       [=] {
         at::cat({x, x}).transpose(0, 1).contiguous().view({-1});
       }},
      {"fill", 0, 0, [=] { at::zeros({5}).fill_(1); }},
  };
}

void check_formulas(Play& play) {
  const torch::NoGradGuard no_grad;
  const torch::nn::Module model("Formulas");
  for (const auto& all : {products(), convolutions(), attentions(), by_element(), by_input()})
    for (const auto& one : all) {
      const auto report = profile_of(model, one.call);
      const auto& got = report.modules.front().forward;
      play.check(one.name + " is " + std::to_string(one.flops) + " flops and " +
                     std::to_string(one.macs) + " MACs, counted are " + std::to_string(got.flops) +
                     " and " + std::to_string(got.macs),
                 got.flops == one.flops && got.macs == one.macs && report.unknown.empty());
    }
  const auto report = profile_of(model, [] { at::erfinv(at::erfinv(ones({4}))); });
  play.check("an operator without a formula is listed as often as it ran",
             report.unknown.size() == 1 && report.unknown[0].name == "aten::erfinv" &&
                 report.unknown[0].count == 2);
}

// words [2, 7] -> [2, 7, 4], along -> [2, 6, 5], wide -> [2, 5, 8], tanh, narrow -> [2, 5, 2].
struct Known : torch::nn::Module {
  Known() : torch::nn::Module("Known") {}
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(5, 4));
  torch::nn::Conv1d along =
      register_module("along", torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3)));
  torch::nn::Linear wide = register_module("wide", torch::nn::Linear(6, 8));
  torch::nn::Linear narrow = register_module("narrow", torch::nn::Linear(8, 2));

  // With a hook, whose 80 operations run before tanh's own in backward.
  at::Tensor loss(bool has_hook = false) {
    const auto hidden = along(words(indices({2, 7})).transpose(1, 2)).transpose(1, 2);
    const auto bent = at::tanh(wide(hidden));
    if (has_hook) bent.register_hook([](const at::Tensor& gradient) { return gradient * 1; });
    return narrow(bent).sum();
  }
};

// Of the layers themselves: along 60 outputs of 12, wide 80 of 6, narrow 20 of 8. The model's own
// are tanh of 80, the sum of 20.
struct Own {
  std::string name;
  int64_t params_numel;  // submodules' included
  int64_t forward_flops, macs, backward_flops, backward_macs;
};
const std::vector<Own>& owns() {
  static const std::vector<Own> kOwns = {{"", 172, 80 + 20, 0, 80, 0},
                                         {"words", 20, 0, 0, 2 * 7 * 4, 0},
                                         {"along", 78, 2 * 720 + 60, 720, 4 * 720 + 60, 2 * 720},
                                         {"wide", 56, 2 * 480 + 80, 480, 4 * 480 + 80, 2 * 480},
                                         {"narrow", 18, 2 * 160 + 20, 160, 4 * 160 + 20, 2 * 160}};
  return kOwns;
}

void check_layers(Play& play, const FlopsReport& report) {
  profile::Tally forward, backward;
  for (const auto& own : owns())
    for (const auto& module : report.modules) {
      if (module.name != own.name) continue;
      const auto &there = module.own_forward, &back = module.own_backward;
      play.check("the layer \"" + own.name + "\" is as counted by hand, got " +
                     std::to_string(there.flops) + " flops, " + std::to_string(there.macs) +
                     " MACs, backward " + std::to_string(back.flops) + " and " +
                     std::to_string(back.macs),
                 there.flops == own.forward_flops && there.macs == own.macs &&
                     back.flops == own.backward_flops && back.macs == own.backward_macs &&
                     module.params_numel == own.params_numel);
      forward += there;
      backward += back;
    }
  const auto& total = report.modules.front();
  play.check("the layers' own add up to the model's",
             report.modules.size() == owns().size() && total.forward.flops == forward.flops &&
                 total.forward.time_ns == forward.time_ns &&
                 total.backward.flops == backward.flops &&
                 total.backward.time_ns == backward.time_ns);
}

// Of a thread whose first node has the number 0: an operator that runs in no node of its own is not
// that node's, but of the modules around it.
void check_hook(Play& play) {
  Known model;
  FlopsReport report;
  std::thread([&] {
    report = profile_of(model, [&] { model.loss(/*has_hook=*/true).backward(); });
  }).join();
  for (const auto& own : owns())
    for (const auto& module : report.modules)
      if (module.name == own.name)
        play.check("a hook's operations are the model's, not those of \"" + own.name + "\"",
                   module.own_backward.flops == own.backward_flops + (own.name.empty() ? 80 : 0));
}

// Times are some, no longer than what was measured around them, and those of the parts add up.
void check_times(Play& play, const FlopsReport& report, int64_t around_ns) {
  const auto& total = report.modules.front();
  play.check("the latencies are more than none and no more than what passed",
             report.forward_ns > 0 && report.backward_ns > 0 &&
                 report.forward_ns + report.backward_ns <= around_ns);
  play.check("no operator is longer than its pass", total.forward.time_ns > 0 &&
                                                        total.backward.time_ns > 0 &&
                                                        total.forward.time_ns <= report.forward_ns);
}

// With an iteration of 2 s, whatever the passes took.
void check_table(Play& play, const FlopsReport& report) {
  const profile::ProfiledRun run{.step = 3,
                                 .world_size = 5,
                                 .micro_batch_size = 4,
                                 .step_ns = 2 * kNsPerS - report.forward_ns - report.backward_ns};
  FlopsProfilerConfig config;
  config.top_modules = 3;
  config.recompute_fwd_factor = 1;
  const auto text = profile::table(report, run, config);
  const auto has = [&](const std::string& part) {
    play.check("the table has " + part, text.find(part) != std::string::npos);
  };
  const auto row = [&](std::string name, const std::string& value) {
    name += ":";
    name.resize(72, ' ');
    has(name + value);
  };
  has("Profile Summary at step 3:");
  row("world size", "5");
  row("batch size per GPU", "4");
  row("params per GPU", "172");
  row("fwd MACs per GPU", play.fault() ? "1.37 KMACs" : "1.36 KMACs");
  row("fwd flops per GPU", "2.98 K");
  row("bwd MACs per GPU, counted", "2.72 KMACs");
  row("bwd flops per GPU, counted", "5.74 K");
  row("iter latency", "2 s");
  row("FLOPS per GPU = 4 * fwd flops per GPU / iter latency", "5.96 KFLOPS");
  row("samples/second", "10");
  has("depth 1:\n    params      - {'torch::nn::Conv1dImpl': '78', 'torch::nn::LinearImpl': '74', "
      "'torch::nn::EmbeddingImpl': '20'}\n    MACs        - {'torch::nn::Conv1dImpl': '720 MACs', "
      "'torch::nn::LinearImpl': '640 MACs', 'torch::nn::EmbeddingImpl': '0 MACs'}\n");
  has("(along): torch::nn::Conv1dImpl: 78 = 45.35% Params, 720 MACs = 52.94% MACs");
}

void counted_by_hand(Play& play) {
  if (play.group()) {
    check_formulas(play);
    Known model;
    const int64_t begin_ns = now_ns();
    const auto report = profile_of(model, [&] { model.loss().backward(); });
    const int64_t around_ns = now_ns() - begin_ns;
    check_layers(play, report);
    check_hook(play);
    check_times(play, report, around_ns);
    check_table(play, report);
  }
  train_along(play);
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first number of that name in a JSON text; -1: none.
int64_t number_of(const std::string& text, const std::string& name) {
  const auto at = text.find("\"" + name + "\": ");
  return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 4));
}

// Of the second step alone, on the first rank, one micro-batch of it.
void profiled_step(Play& play) {
  const auto& context = play.context();
  if (const auto group = play.group()) {
    const std::string path = file_beside(play, "profile.json");
    Known model;
    const auto engine = initialize(
        model,
        config_beside(play, {.accumulation = 2,
                             .keys = R"(, "flops_profiler": {"enabled": true, "output_file": ")" +
                                     path + "\"}"}),
        group);
    int64_t update_ns = 0;
    for (int pass = 0; pass < 6; ++pass) {
      play.check("the profile is written after the step that is named, on rank 0",
                 contents(path).empty() == (pass < 4 || context.rank != 0));
      engine->backward(model.loss());
      const int64_t begin_ns = now_ns();
      engine->step();
      if (pass == 3) update_ns = now_ns() - begin_ns;
    }
    if (context.rank == 0) {
      const auto text = contents(path);
      std::remove(path.c_str());
      const int64_t flops = play.fault() ? 2981 : 2980;
      play.check("the report of the step has its number and the flops of one pass",
                 number_of(text, "step") == 1 && number_of(text, "world_size") == context.world &&
                     text.find("\"flops\": " + std::to_string(flops) + ",") != std::string::npos);
      const int64_t step_ns = number_of(text, "step_ns");
      play.check("the update's latency is more than none and no more than the step's",
                 step_ns > 0 && step_ns <= update_ns);
    }
  }
  train_along(play);
}

}  // namespace

std::vector<Case> costs() {
  return {
      case_beside({.section = "15",
                   .name = "flops_counted_by_hand",
                   .sentence = "every formula, a known model's layers, and the parts of its report",
                   .fault = "another number is expected",
                   .program = counted_by_hand}),
      case_beside(
          {.section = "15",
           .name = "flops_of_the_step_that_is_named",
           .sentence = "the configured profile is of that step, and its update's time is its own",
           .fault = "another number is expected",
           .program = profiled_step})};
}

}  // namespace equigrad::conformance::contract
