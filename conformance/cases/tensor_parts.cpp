#include "conformance/cases/tensor_parts.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "conformance/cases/model_parts.hpp"

namespace equigrad::conformance {
namespace {

using reference::widen;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using Pieces = torch::autograd::variable_list;

Pieces all_parts(const at::Tensor& whole, const Cut& cut, int64_t parts) {
  Pieces all;
  for (int64_t part = 0; part < parts; ++part) all.push_back(cut_out(whole, cut, part, parts));
  return all;
}

// The whole tensor of its parts.
at::Tensor whole_of_parts(const Pieces& parts, const Cut& cut) {
  Pieces pieces;
  const auto count = static_cast<int64_t>(parts.size());
  int64_t begin = 0;
  for (const int64_t segment : cut.segments) {
    for (const at::Tensor& part : parts)
      pieces.push_back(part.narrow(cut.dimension, begin / count, segment / count));
    begin += segment;
  }
  return at::cat(pieces, cut.dimension);
}

void save(AutogradContext* context, const Cut& cut) {
  context->saved_data["dimension"] = cut.dimension;
  context->saved_data["segments"] = cut.segments;
}

Cut saved_cut(AutogradContext* context) {
  return {.dimension = context->saved_data["dimension"].toInt(),
          .segments = context->saved_data["segments"].toIntVector()};
}

struct CutApart : Function<CutApart> {
  static Pieces forward(AutogradContext* context, const at::Tensor& whole, const Cut& cut,
                        int64_t parts) {
    save(context, cut);
    return all_parts(whole, cut, parts);
  }
  static Pieces backward(AutogradContext* context, const Pieces& gradients) {
    return {whole_of_parts(gradients, saved_cut(context)), {}, {}};
  }
};

// Of parts that are stacked.
struct PutTogether : Function<PutTogether> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parts, const Cut& cut) {
    save(context, cut);
    context->saved_data["parts"] = parts.size(0);
    return whole_of_parts(parts.unbind(0), cut);
  }
  static Pieces backward(AutogradContext* context, const Pieces& gradients) {
    const int64_t parts = context->saved_data["parts"].toInt();
    return {at::stack(all_parts(gradients[0], saved_cut(context), parts)), {}};
  }
};

struct Copies : Function<Copies> {
  static Pieces forward(AutogradContext*, const at::Tensor& whole, int64_t parts) {
    Pieces copies;
    for (int64_t part = 0; part < parts; ++part) copies.push_back(whole.clone());
    return copies;
  }
  static Pieces backward(AutogradContext*, const Pieces& gradients) {
    return {tree_sum(gradients), {}};
  }
};

struct LossesOfParts : Function<LossesOfParts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, int64_t parts) {
    const Cut cut{.dimension = 1, .segments = {logits.size(1)}};
    const at::Tensor counts = targets.ne(kUncounted);
    const at::Tensor column = targets.clamp_min(0).unsqueeze(1);
    const at::Tensor largest = widen(logits).amax(1);
    Pieces exponentials, sums;
    for (const at::Tensor& part : all_parts(logits, cut, parts)) {
      exponentials.push_back(at::exp(widen(part) - largest.unsqueeze(1)));
      sums.push_back(exponentials.back().sum(1));
    }
    const at::Tensor sum = tree_sum(sums);
    const at::Tensor picked = widen(logits).gather(1, column).squeeze(1);
    const at::Tensor softmax = whole_of_parts(exponentials, cut) / sum.unsqueeze(1);
    context->save_for_backward({softmax, column, counts});
    context->saved_data["type"] = logits.scalar_type();
    return at::where(counts, sum.log() - (picked - largest), at::zeros_like(sum));
  }
  static Pieces backward(AutogradContext* context, const Pieces& gradients) {
    const Pieces saved = context->get_saved_variables();
    const at::Tensor one = at::zeros_like(saved[0]).scatter_(1, saved[1], 1.0);
    const at::Tensor each = (gradients[0] * saved[2]).unsqueeze(1);
    return {((saved[0] - one) * each).to(context->saved_data["type"].toScalarType()), {}, {}};
  }
};

}  // namespace

at::Tensor cut_out(const at::Tensor& whole, const Cut& cut, int64_t part, int64_t parts) {
  Pieces pieces;
  int64_t begin = 0;
  for (const int64_t segment : cut.segments) {
    TORCH_CHECK(segment % parts == 0, "[tensor_parts] expected a segment that ", parts,
                " divides, got ", segment, ".");
    pieces.push_back(
        whole.narrow(cut.dimension, begin + part * (segment / parts), segment / parts));
    begin += segment;
  }
  return at::cat(pieces, cut.dimension).contiguous();
}

std::vector<at::Tensor> cut_apart(const at::Tensor& whole, const Cut& cut, int64_t parts) {
  return CutApart::apply(whole, cut, parts);
}

at::Tensor put_together(const std::vector<at::Tensor>& parts, const Cut& cut) {
  return PutTogether::apply(stack_of_parts(parts), cut);
}

std::vector<at::Tensor> copies_of(const at::Tensor& whole, int64_t parts) {
  return Copies::apply(whole, parts);
}

at::Tensor losses_of_parts(const at::Tensor& logits, const at::Tensor& targets, int64_t parts) {
  return LossesOfParts::apply(logits, targets, parts);
}

}  // namespace equigrad::conformance
