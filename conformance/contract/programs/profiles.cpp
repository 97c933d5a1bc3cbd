// 15. What an engine says of itself: what every operator costs.
#include <ATen/ATen.h>

#include <functional>
#include <random>
#include <sstream>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/profile/flop_formulas.hpp"

namespace equigrad::conformance::contract {
namespace profile_parts {
namespace {

using profile::Cost;
using Values = std::vector<c10::IValue>;
using Sizes = std::vector<int64_t>;

constexpr int kDraws = 4;

// Numbers of a place, from its seed.
class Draw {
 public:
  explicit Draw(const Play& play) : engine_(play.context().seed) {}
  int64_t operator()(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(engine_);
  }
  bool yes() { return (*this)(0, 1) == 1; }
  Sizes sizes(int64_t least_dims, int64_t most_dims, int64_t least, int64_t most) {
    Sizes all(static_cast<std::size_t>((*this)(least_dims, most_dims)));
    for (auto& size : all) size = (*this)(least, most);
    return all;
  }

 private:
  std::mt19937_64 engine_;
};

int64_t times(const Sizes& sizes) {
  int64_t all = 1;
  for (const auto size : sizes) all *= size;
  return all;
}

at::Tensor of(const Sizes& sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, type);
}

struct Called {
  Values inputs;
  Cost want;
};

// Operators that cost alike, and a call of one of them.
struct Alike {
  std::string names;
  std::function<Called(Draw&)> call;
};

Called product(Draw& draw, bool batched, bool added) {
  const int64_t b = batched ? draw(1, 4) : 1, m = draw(1, 6), n = draw(1, 6), k = draw(1, 7);
  const int64_t macs = b * m * n * k;
  const auto both = [&](Sizes left, Sizes right) {
    if (batched) left.insert(left.begin(), b), right.insert(right.begin(), b);
    return Values{of(left), of(right)};
  };
  auto inputs = both({m, k}, {k, n});
  if (added) inputs.insert(inputs.begin(), draw.yes() ? of({n}) : of({m, n}));
  return {inputs, {2 * macs + (added ? b * m * n : 0), macs}};
}

std::vector<Alike> products() {
  return {{"mm", [](Draw& draw) { return product(draw, false, false); }},
          {"bmm", [](Draw& draw) { return product(draw, true, false); }},
          {"addmm _addmm_activation", [](Draw& draw) { return product(draw, false, true); }},
          {"baddbmm", [](Draw& draw) { return product(draw, true, true); }},
          {"mv",
           [](Draw& draw) {
             const int64_t m = draw(0, 6), k = draw(1, 6);
             return Called{{of({m, k}), of({k})}, {2 * m * k, m * k}};
           }},
          {"addmv",
           [](Draw& draw) {
             const int64_t m = draw(0, 6), k = draw(1, 6);
             return Called{{of({m}), of({m, k}), of({k})}, {2 * m * k + m, m * k}};
           }},
          {"dot vdot",
           [](Draw& draw) {
             const int64_t k = draw(0, 9);
             return Called{{of({k}), of({k})}, {2 * k, k}};
           }},
          {"addbmm", [](Draw& draw) {
             const int64_t b = draw(1, 4), m = draw(1, 6), k = draw(1, 6), n = draw(1, 6);
             return Called{{of({m, n}), of({b, m, k}), of({b, k, n})},
                           {2 * b * m * k * n + m * n, b * m * k * n}};
           }}};
}

// One convolution, drawn: its ends, and what one way of it multiplies.
struct Convolution {
  Sizes input, weight, output, stride, padding, dilation, more;
  int64_t groups = 1, macs = 1;
  bool transposed = false;
};

// How many places a kernel that reaches so far has.
int64_t places(int64_t size, int64_t reach, int64_t stride) {
  int64_t count = 0;
  for (int64_t at = 0; at + reach < size; at += stride) ++count;
  return count;
}

Convolution draw_convolution(Draw& draw) {
  Convolution of;
  const int64_t dims = draw(1, 3), batch = draw(1, 3), in = draw(1, 3), out = draw(1, 3);
  const bool batched = draw.yes(), one_for_all = draw.yes();
  of.groups = draw(1, 3);
  of.transposed = draw.yes();
  const Sizes ends{of.groups * in, of.groups * out};
  of.weight = of.transposed ? Sizes{ends[0], out} : Sizes{ends[1], in};
  of.input = batched ? Sizes{batch, ends[0]} : Sizes{ends[0]};
  of.output = batched ? Sizes{batch, ends[1]} : Sizes{ends[1]};
  of.macs = (batched ? batch : 1) * of.groups * in * out;
  for (int64_t dim = 0; dim < dims; ++dim) {
    const bool again = one_for_all && dim > 0;
    const auto value = [&](Sizes& all, int64_t least, int64_t most) {
      if (!again) all.push_back(draw(least, most));
      return all.back();
    };
    const int64_t kernel = draw(1, 3), size = draw(5, 8), stride = value(of.stride, 1, 3),
                  padding = value(of.padding, 0, 1), dilation = value(of.dilation, 1, 2),
                  more = value(of.more, 0, of.transposed ? 1 : 0);
    const int64_t reach = dilation * (kernel - 1);
    of.weight.push_back(kernel);
    of.input.push_back(size);
    of.output.push_back(of.transposed ? stride * (size - 1) + reach + 1 + more - 2 * padding
                                      : places(size + 2 * padding, reach, stride));
    of.macs *= kernel * (of.transposed ? size : of.output.back());
  }
  return of;
}

Called convolution(Draw& draw) {
  const auto one = draw_convolution(draw);
  const bool biased = draw.yes();
  const c10::IValue bias = biased ? c10::IValue(of({one.weight[0]})) : c10::IValue();
  return {{of(one.input), of(one.weight), bias, one.stride, one.padding, one.dilation,
           one.transposed, one.more, one.groups},
          {2 * one.macs + (biased ? times(one.output) : 0), one.macs}};
}

// Any of its three gradients alone, and together.
Called convolution_backward(Draw& draw) {
  const auto one = draw_convolution(draw);
  const std::vector<bool> wanted{draw.yes(), draw.yes(), draw.yes()};
  const int64_t macs = one.macs * (int64_t{wanted[0]} + int64_t{wanted[1]});
  return {{of(one.output), of(one.input), of(one.weight), c10::IValue(), one.stride, one.padding,
           one.dilation, one.transposed, one.more, one.groups,
           c10::List<bool>({wanted[0], wanted[1], wanted[2]})},
          {2 * macs + (wanted[2] ? times(one.output) : 0), macs}};
}

// A score is a product of depth E, and what it weighs one of V. In backward the scores come again,
// then the gradients of query and key (E each), of value and of the weights (V each).
Called attention(Draw& draw, bool backward) {
  const int64_t e = draw(1, 6), v = draw(1, 6), l = draw(0, 5), s = draw(1, 5), heads = draw(1, 3);
  const Sizes front{draw(1, 2), heads};
  const auto in_front = [&](int64_t rows, int64_t depth) {
    return of({front[0], front[1], rows, depth});
  };
  Values inputs{in_front(l, e), in_front(s, e), in_front(s, v)};
  if (backward) inputs.insert(inputs.begin(), in_front(l, v));
  const int64_t scores = times(front) * l * s;
  const int64_t macs = scores * (backward ? 3 * e + 2 * v : e + v);
  return {inputs, {2 * macs + scores * (backward ? 2 : 1), macs}};
}

std::vector<Alike> large() {
  const std::string kinds[] = {"flash_attention", "flash_attention_for_cpu", "efficient_attention",
                               "cudnn_attention", "fused_attention_overrideable"};
  std::string there, back;
  for (const auto& kind : kinds) {
    there += "_scaled_dot_product_" + kind + " ";
    back += "_scaled_dot_product_" + kind + "_backward ";
  }
  return {{there, [](Draw& draw) { return attention(draw, false); }},
          {back, [](Draw& draw) { return attention(draw, true); }},
          {"convolution _convolution convolution_overrideable", convolution},
          {"convolution_backward convolution_backward_overrideable", convolution_backward}};
}

// Tensors that broadcast to one result, with what is none between them.
Called by_element(Draw& draw, int64_t flops) {
  const auto whole = draw.sizes(0, 4, 0, 4);
  Sizes result(whole.size(), 1);
  Values inputs;
  bool counts = false;
  for (int64_t left = draw(1, 3); left > 0; --left) {
    const auto skip = static_cast<std::size_t>(draw(0, static_cast<int64_t>(whole.size())));
    Sizes mine;
    for (std::size_t dim = skip; dim < whole.size(); ++dim) {
      mine.push_back(draw.yes() ? whole[dim] : 1);
      if (mine.back() != 1) result[dim] = mine.back();
    }
    const at::ScalarType types[] = {at::kFloat, at::kLong, at::kComplexFloat, at::kHalf, at::kBool};
    const auto type = types[draw(0, 4)];
    counts = counts || (type != at::kLong && type != at::kBool);
    inputs.emplace_back(of(mine, type));
    if (draw.yes()) inputs.insert(inputs.begin(), draw.yes() ? c10::IValue() : c10::IValue(2.0));
    if (draw.yes()) inputs.emplace_back(at::Tensor());
  }
  return {inputs, {counts ? flops * times(result) : 0, 0}};
}

// Of the elements of one input; the others are of any size.
Called by_input(Draw& draw, int which, int64_t flops) {
  Values inputs;
  for (int i = 0; i < which + 2; ++i) inputs.emplace_back(of(draw.sizes(0, 3, 0, 4)));
  const at::ScalarType types[] = {at::kFloat, at::kLong, at::kComplexFloat};
  const auto type = types[draw(0, 2)];
  const auto sizes = draw.sizes(0, 3, 0, 5);
  inputs[static_cast<std::size_t>(which)] = of(sizes, type);
  return {inputs, {type == at::kLong ? 0 : flops * times(sizes), 0}};
}

Called by_target(Draw& draw, int which) {
  auto called = by_input(draw, which, 1);
  const auto sizes = draw.sizes(1, 3, 0, 5);
  called.inputs[static_cast<std::size_t>(which)] = of(sizes, at::kLong);
  return {called.inputs, {times(sizes), 0}};
}

// With its weight or without, which is input `weight`.
Called normalization(Draw& draw, int weight, int64_t ways) {
  const auto sizes = draw.sizes(1, 4, 0, 5);
  Values inputs{of(sizes)};
  while (inputs.size() < 9) inputs.emplace_back(of({draw(1, 5)}));
  const bool has = draw.yes();
  if (!has)
    inputs[static_cast<std::size_t>(weight)] =
        draw.yes() ? c10::IValue() : c10::IValue(at::Tensor());
  return {inputs, {ways * (has ? 5 : 4) * times(sizes), 0}};
}

template <class Kind, class... Arguments>
std::function<Called(Draw&)> drawn(Kind kind, Arguments... arguments) {
  return [=](Draw& draw) { return kind(draw, arguments...); };
}

std::vector<Alike> estimates() {
  return {
      {"add sub rsub mul div neg abs sign sgn reciprocal pow sqrt rsqrt exp exp2 expm1 log log2 "
       "log10 log1p sin cos tan atan atan2 erf erfc tanh sigmoid log_sigmoid_forward relu clamp "
       "clamp_min clamp_max hardtanh hardswish hardsigmoid leaky_relu elu softplus gelu silu mish "
       "threshold maximum minimum fmod remainder floor ceil round trunc eq ne lt le gt ge",
       drawn(by_element, 1)},
      {"gelu_backward silu_backward mish_backward tanh_backward sigmoid_backward "
       "threshold_backward log_sigmoid_backward hardtanh_backward hardswish_backward "
       "hardsigmoid_backward leaky_relu_backward elu_backward softplus_backward",
       drawn(by_element, 1)},
      {"addcmul addcdiv lerp", drawn(by_element, 2)},
      {"_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data sum mean prod "
       "cumsum cumprod amax amin max min argmax argmin logsumexp norm linalg_vector_norm "
       "_prelu_kernel avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
       "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d "
       "embedding_dense_backward",
       drawn(by_input, 0, 1)},
      {"_prelu_kernel_backward avg_pool2d_backward avg_pool3d_backward "
       "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
       "max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
       "adaptive_max_pool2d_backward",
       drawn(by_input, 1, 1)},
      {"var std var_mean std_mean", drawn(by_input, 0, 4)},
      {"mse_loss smooth_l1_loss huber_loss", drawn(by_input, 0, 3)},
      {"mse_loss_backward smooth_l1_loss_backward huber_loss_backward", drawn(by_input, 1, 3)},
      {"binary_cross_entropy binary_cross_entropy_with_logits", drawn(by_input, 0, 5)},
      {"scatter_add index_add", drawn(by_input, 3, 1)},
      {"nll_loss_forward nll_loss2d_forward", drawn(by_target, 1)},
      {"nll_loss_backward nll_loss2d_backward", drawn(by_target, 2)},
      {"native_layer_norm _fused_rms_norm", drawn(normalization, 2, 1)},
      {"native_batch_norm _native_batch_norm_legit cudnn_batch_norm native_group_norm",
       drawn(normalization, 1, 1)},
      {"native_layer_norm_backward", drawn(normalization, 5, 2)},
      {"native_batch_norm_backward cudnn_batch_norm_backward", drawn(normalization, 2, 2)},
      {"native_group_norm_backward", drawn(normalization, 4, 2)},
      {"_local_scalar_dense _to_copy _unsafe_view alias as_strided bernoulli bitwise_and cat clone "
       "contiguous copy detach embedding empty equal expand fill gather index index_put "
       "index_select isnan item logical_not masked_fill narrow native_dropout nonzero normal ones "
       "permute rand repeat scatter select select_backward slice slice_backward "
       "sort split squeeze stack t to topk transpose tril unbind unsqueeze view where zeros",
       drawn(by_element, 0)}};
}

std::string words_of(const std::optional<Cost>& cost) {
  if (!cost) return "none";
  return std::to_string(cost->flops) + " flops and " + std::to_string(cost->macs) + " MACs";
}

void check_formula(Play& play, Draw& draw, const std::string& name, const Alike& alike) {
  for (int i = 0; i < kDraws; ++i) {
    auto [inputs, want] = alike.call(draw);
    for (const char* end : {"", "_"}) {
      const auto got = profile::cost_of("aten::" + name + end, inputs);
      if (got == want && i + 1 < kDraws) continue;
      play.check(name + end + " costs " + words_of(want) + ", counted are " + words_of(got),
                 got == want);
    }
  }
}

// What has no formula, and what is there too little of.
void check_without(Play& play) {
  const Values inputs{of({2, 3}), of({3, 2})};
  for (const char* name : {"aten::erfinv", "aten::", "aten::_", "aten::mm__", "aten::m", "mm",
                           "prims::mm", "aten:mm", "aten::_mm", ""})
    play.check(std::string("\"") + name + "\" has no formula", !profile::cost_of(name, inputs));
  const auto costs = [&](const char* name, const Values& given, Cost want) {
    const auto got = profile::cost_of(name, given);
    play.check(std::string(name) + " of too little costs " + words_of(want) + ", counted are " +
                   words_of(got),
               got == want);
  };
  const Values few{of({2, 3})};
  costs("aten::mm", {}, {0, 0});
  costs("aten::add", {}, {0, 0});
  costs("aten::relu", few, {6, 0});
  costs("aten::mse_loss_backward", few, {0, 0});
  costs("aten::nll_loss_backward", few, {0, 0});
  costs("aten::convolution", {of({1, 1, 2}), of({1, 1, 1})}, {0, 0});
  costs("aten::convolution_backward", {of({1, 1, 2}), of({1, 1, 2}), of({1, 1, 1})}, {0, 0});
  costs("aten::_scaled_dot_product_flash_attention", {of({2, 0}), of({3, 0}), of({3, 4})}, {0, 0});
}

void every_formula(Play& play) {
  if (play.group()) {
    Draw draw(play);
    for (auto all : {products(), large(), estimates()})
      for (const auto& alike : all) {
        std::istringstream names(alike.names);
        for (std::string name; names >> name;) check_formula(play, draw, name, alike);
      }
    check_without(play);
    const auto got = profile::cost_of("aten::mm", Values{of({2, 3}), of({3, 4})});
    play.check("2 x 3 by 3 x 4 are 24 multiplications", got == Cost{play.fault() ? 49 : 48, 24});
  }
  train_along(play);
}

}  // namespace
}  // namespace profile_parts

std::vector<Case> profiles() {
  return {
      case_beside({.section = "15",
                   .name = "every_formula",
                   .sentence = "what every operator with a formula costs, at sizes that are drawn",
                   .fault = "one operation more is expected",
                   .program = profile_parts::every_formula},
                  Plays::Once)};
}

}  // namespace equigrad::conformance::contract
