#include "engine/profile/flop_formulas.hpp"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <vector>

namespace equigrad::profile {
namespace {

using Inputs = c10::ArrayRef<c10::IValue>;
using Formula = Cost (*)(Inputs);

const at::Tensor* tensor_at(Inputs inputs, std::size_t i) {
  if (i >= inputs.size() || !inputs[i].isTensor()) return nullptr;
  const auto& tensor = inputs[i].toTensor();
  return tensor.defined() ? &tensor : nullptr;
}

int64_t numel_at(Inputs inputs, std::size_t i) {
  const auto* tensor = tensor_at(inputs, i);
  return tensor == nullptr ? 0 : tensor->numel();
}

// By position from the front, or from the back where it is negative.
int64_t size_at(Inputs inputs, std::size_t i, int64_t dim) {
  const auto* tensor = tensor_at(inputs, i);
  if (tensor == nullptr || tensor->dim() == 0) return 1;
  if (dim < 0) dim += tensor->dim();
  return dim < 0 || dim >= tensor->dim() ? 1 : tensor->size(dim);
}

// Elements of the result that all tensors are broadcast to; none if all are integers.
int64_t broadcast_numel(Inputs inputs) {
  std::vector<int64_t> sizes;  // from the back
  bool floating = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto* tensor = tensor_at(inputs, i);
    if (tensor == nullptr) continue;
    floating = floating || tensor->is_floating_point() || tensor->is_complex();
    const auto dims = static_cast<std::size_t>(tensor->dim());
    sizes.resize(std::max(sizes.size(), dims), 1);
    for (std::size_t dim = 0; dim < dims; ++dim) {
      const auto size = tensor->size(-1 - static_cast<int64_t>(dim));
      if (sizes[dim] == 1) sizes[dim] = size;
    }
  }
  return floating ? c10::multiply_integers(sizes) : 0;
}

template <int kFlops>
Cost element_wise(Inputs inputs) {
  return {kFlops * broadcast_numel(inputs), 0};
}

// Of every element of input `kInput`.
template <int kFlops, std::size_t kInput>
Cost per_input(Inputs inputs) {
  const auto* tensor = tensor_at(inputs, kInput);
  const bool counts = tensor != nullptr && (tensor->is_floating_point() || tensor->is_complex());
  return {counts ? kFlops * tensor->numel() : 0, 0};
}

Cost nothing(Inputs /*inputs*/) { return {}; }

// One for every target.
template <std::size_t kTarget>
Cost per_target(Inputs inputs) {
  return {numel_at(inputs, kTarget), 0};
}

// The weight is input `kWeight`.
template <int kTimes, std::size_t kWeight>
Cost normalization(Inputs inputs) {
  const int flops = tensor_at(inputs, kWeight) != nullptr ? 5 : 4;
  return {kTimes * flops * numel_at(inputs, 0), 0};
}

// [.., m, k] * [.., k, n], of which the left one is input `kLeft`; with `kLeft` 1 input 0 is added.
template <std::size_t kLeft>
Cost product(Inputs inputs) {
  const auto *left = tensor_at(inputs, kLeft), *right = tensor_at(inputs, kLeft + 1);
  if (left == nullptr || left->dim() == 0) return {};
  const int64_t columns = right != nullptr && right->dim() >= 2 ? right->size(-1) : 1;
  const int64_t outputs =
      c10::multiply_integers(left->sizes().slice(0, left->sizes().size() - 1)) * columns;
  const int64_t macs = outputs * left->size(-1);
  return {2 * macs + (kLeft == 0 ? 0 : outputs), macs};
}

// addbmm: input 0 [m, n] is added to the sum of the products.
Cost summed_product(Inputs inputs) {
  const int64_t macs = numel_at(inputs, 1) * size_at(inputs, 2, -1);
  return {2 * macs + size_at(inputs, 1, 1) * size_at(inputs, 2, -1), macs};
}

// One side's multiply-accumulates; `output` and `input` are the numel of both ends.
int64_t convolution_macs(const at::Tensor& weight, bool transposed, int64_t output, int64_t input) {
  if (weight.dim() == 0 || weight.size(0) == 0) return 0;
  return (transposed ? input : output) * (weight.numel() / weight.size(0));
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
Cost convolution(Inputs inputs) {
  const auto* input = tensor_at(inputs, 0);
  const auto* weight = tensor_at(inputs, 1);
  if (input == nullptr || weight == nullptr || inputs.size() < 9) return {};
  const auto stride = inputs[3].toIntVector(), padding = inputs[4].toIntVector();
  const auto dilation = inputs[5].toIntVector(), more = inputs[7].toIntVector();
  const bool transposed = inputs[6].toBool();
  const auto along = [](const std::vector<int64_t>& values, int64_t dim) {
    return values.size() == 1 ? values[0] : values[static_cast<std::size_t>(dim)];
  };
  const int64_t spatial = weight->dim() - 2, first = input->dim() - spatial;
  const int64_t batch = first == 2 ? input->size(0) : 1;
  const int64_t channels = transposed ? weight->size(1) * inputs[8].toInt() : weight->size(0);
  int64_t output = batch * channels;
  for (int64_t dim = 0; dim < spatial; ++dim) {
    const int64_t reach = along(dilation, dim) * (weight->size(dim + 2) - 1);
    const int64_t size = input->size(first + dim);
    output *= transposed ? (size - 1) * along(stride, dim) - 2 * along(padding, dim) + reach +
                               along(more, dim) + 1
                         : (size + 2 * along(padding, dim) - reach - 1) / along(stride, dim) + 1;
  }
  const int64_t macs = convolution_macs(*weight, transposed, output, input->numel());
  return {2 * macs + (tensor_at(inputs, 2) != nullptr ? output : 0), macs};
}

// grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask
Cost convolution_backward(Inputs inputs) {
  const auto* weight = tensor_at(inputs, 2);
  if (weight == nullptr || inputs.size() < 11) return {};
  const auto wanted = inputs[10].toBoolList();
  const int64_t one =
      convolution_macs(*weight, inputs[7].toBool(), numel_at(inputs, 0), numel_at(inputs, 1));
  const int64_t macs = one * (int64_t{wanted.get(0)} + int64_t{wanted.get(1)});
  return {2 * macs + (wanted.get(2) ? numel_at(inputs, 0) : 0), macs};
}

// query [.., heads, L, E], key [.., S, E], value [.., S, V] from input `kQuery` on; kKeyTimes
// products of depth E, kValueTimes of V, kSoftmax operations for every score.
template <std::size_t kQuery, int kKeyTimes, int kValueTimes, int kSoftmax>
Cost attention(Inputs inputs) {
  const int64_t depth = size_at(inputs, kQuery, -1);
  if (depth == 0) return {};
  const int64_t scores = numel_at(inputs, kQuery) / depth * size_at(inputs, kQuery + 1, -2);
  const int64_t macs = scores * (kKeyTimes * depth + kValueTimes * size_at(inputs, kQuery + 2, -1));
  return {2 * macs + kSoftmax * scores, macs};
}

using Table = std::unordered_map<std::string, Formula>;

// Names with a blank between them.
void add(Table& table, Formula formula, const std::string& names) {
  std::istringstream stream(names);
  for (std::string name; stream >> name;) table[name] = formula;
}

void add_products(Table& table) {
  add(table, product<0>, "mm bmm mv dot vdot");
  add(table, product<1>, "addmm baddbmm addmv _addmm_activation");
  add(table, summed_product, "addbmm");
  add(table, convolution, "convolution _convolution convolution_overrideable");
  add(table, convolution_backward, "convolution_backward convolution_backward_overrideable");
  // In backward: scores again, then the gradients of value, weights, query and key.
  add(table, attention<0, 1, 1, 1>,
      "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
      "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
      "_scaled_dot_product_fused_attention_overrideable");
  add(table, attention<1, 3, 2, 2>,
      "_scaled_dot_product_flash_attention_backward "
      "_scaled_dot_product_flash_attention_for_cpu_backward "
      "_scaled_dot_product_efficient_attention_backward "
      "_scaled_dot_product_cudnn_attention_backward "
      "_scaled_dot_product_fused_attention_overrideable_backward");
}

void add_by_element(Table& table) {
  add(table, element_wise<1>,
      "add sub rsub mul div neg abs sign sgn reciprocal pow sqrt rsqrt exp exp2 expm1 log "
      "log2 log10 log1p sin cos tan atan atan2 erf erfc tanh sigmoid log_sigmoid_forward relu "
      "clamp clamp_min clamp_max hardtanh hardswish hardsigmoid leaky_relu elu softplus gelu "
      "silu mish threshold maximum minimum fmod remainder floor ceil round trunc eq ne lt le "
      "gt ge gelu_backward silu_backward mish_backward tanh_backward sigmoid_backward "
      "threshold_backward log_sigmoid_backward hardtanh_backward hardswish_backward "
      "hardsigmoid_backward leaky_relu_backward elu_backward softplus_backward");
  add(table, element_wise<2>, "addcmul addcdiv lerp");
  add(table, per_input<1, 0>,
      "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data sum mean prod "
      "cumsum cumprod amax amin max min argmax argmin logsumexp norm linalg_vector_norm "
      "_prelu_kernel avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
      "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d "
      "embedding_dense_backward");
  add(table, per_input<1, 1>,
      "_prelu_kernel_backward avg_pool2d_backward avg_pool3d_backward "
      "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
      "max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
      "adaptive_max_pool2d_backward");
  add(table, per_input<4, 0>, "var std var_mean std_mean");
  add(table, per_input<3, 0>, "mse_loss smooth_l1_loss huber_loss");
  add(table, per_input<3, 1>, "mse_loss_backward smooth_l1_loss_backward huber_loss_backward");
  add(table, per_input<5, 0>, "binary_cross_entropy binary_cross_entropy_with_logits");
  add(table, per_target<1>, "nll_loss_forward nll_loss2d_forward");
  add(table, per_target<2>, "nll_loss_backward nll_loss2d_backward");
  add(table, normalization<1, 2>, "native_layer_norm _fused_rms_norm");
  add(table, normalization<1, 1>,
      "native_batch_norm _native_batch_norm_legit cudnn_batch_norm native_group_norm");
  add(table, normalization<2, 5>, "native_layer_norm_backward");
  add(table, normalization<2, 2>, "native_batch_norm_backward cudnn_batch_norm_backward");
  add(table, normalization<2, 4>, "native_group_norm_backward");
}

void add_free(Table& table) {
  add(table, nothing,
      "_local_scalar_dense _reshape_alias _to_copy _unsafe_view alias arange as_strided "
      "bernoulli bitwise_and bitwise_not bitwise_or bitwise_xor cat chunk clone complex "
      "constant_pad_nd contiguous copy detach diagonal embedding empty empty_like "
      "empty_strided equal expand eye fill flip full full_like gather index index_put "
      "index_select is_nonzero isfinite isnan item lift_fresh linspace logical_and "
      "logical_not logical_or masked_fill masked_select native_dropout narrow new_empty "
      "new_empty_strided new_full new_ones new_zeros nonzero normal ones ones_like permute "
      "rand rand_like randint randn randn_like random repeat resize resolve_conj resolve_neg "
      "roll scalar_tensor scatter select select_backward select_scatter set slice "
      "slice_backward slice_scatter sort split split_with_sizes squeeze stack t to topk "
      "transpose tril triu unbind unfold uniform unsqueeze view view_as where zero zeros "
      "zeros_like");
  // A scatter that adds: one for every element of its source.
  add(table, per_input<1, 3>, "scatter_add index_add");
}

}  // namespace

std::optional<Cost> cost_of(const std::string& name, Inputs inputs) {
  static const Table table = [] {
    Table made;
    add_products(made);
    add_by_element(made);
    add_free(made);
    return made;
  }();
  static const std::string prefix = "aten::";
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  std::string stem = name.substr(prefix.size());
  if (stem.size() > 1 && stem.back() == '_' && stem[stem.size() - 2] != '_') stem.pop_back();
  const auto found = table.find(stem);
  if (found == table.end()) return std::nullopt;
  return found->second(inputs);
}

}  // namespace equigrad::profile
