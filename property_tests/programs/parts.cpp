#include "property_tests/programs/parts.hpp"

#include <ATen/ATen.h>

#include "conformance/cases/model_parts.hpp"
#include "conformance/cases/sequence_parts.hpp"
#include "conformance/cases/tensor_parts.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/sequence.hpp"

namespace equigrad::property_tests::programs {
namespace {

class PartsOfRank final : public Parts {
 public:
  explicit PartsOfRank(const comm::Mesh& mesh)
      : tensor_(mesh.tensor()), sequence_(mesh.sequence()) {}

  Pieces rows(const at::Tensor& whole) const override {
    return {parallel::sequence_part(whole, 0, sequence_)};
  }
  std::size_t own() const override { return 0; }
  int64_t sequence() const override { return parallel::size_of(sequence_); }
  at::Tensor used(const at::Tensor& parameter, std::size_t) const override { return parameter; }
  Pieces column(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                std::size_t) const override {
    return {parallel::column_linear(x, weight, bias, tensor_)};
  }
  at::Tensor row(const Pieces& x, const at::Tensor& weight, const at::Tensor& bias,
                 std::size_t) const override {
    return parallel::row_linear(x[0], weight, bias, tensor_);
  }
  std::vector<Pieces> sine(const std::vector<Pieces>& x) const override {
    const auto traded = parallel::all_to_all(x[0][0], 1, 0, sequence_);
    return {{parallel::all_to_all(at::sin(traded), 0, 1, sequence_)}};
  }
  at::Tensor add_up(const Pieces& sums) const override {
    return parallel::reduce_from(sums[0], sequence_);
  }
  at::Tensor whole_of(const at::Tensor& weight) const override {
    return parallel::gather_from(weight, 0, tensor_);
  }
  at::Tensor squares_of(const at::Tensor& weight) const override {
    return parallel::reduce_from(weight.to(at::kFloat).square().sum(), tensor_);
  }

 private:
  parallel::Group tensor_, sequence_;
};

class PartsOfAll final : public Parts {
 public:
  PartsOfAll(int64_t tensor, int64_t sequence, std::size_t own)
      : tensor_(tensor), sequence_(sequence), own_(own) {}

  Pieces rows(const at::Tensor& whole) const override {
    if (sequence_ == 1) return {whole};
    Pieces pieces;
    for (const auto& piece : whole.chunk(sequence_, 0)) pieces.push_back(piece.contiguous());
    return pieces;
  }
  std::size_t own() const override { return own_; }
  int64_t sequence() const override { return sequence_; }
  at::Tensor used(const at::Tensor& parameter, std::size_t part) const override {
    return part == own_ || !parameter.defined() ? parameter : parameter.detach();
  }
  Pieces column(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                std::size_t part) const override {
    const auto weights = cut(used(weight, part), 0), biases = cut(used(bias, part), 0);
    const auto copies = tensor_ == 1 ? Pieces{x} : conformance::copies_of(x, tensor_);
    Pieces outputs;
    for (std::size_t rank = 0; rank < copies.size(); ++rank)
      outputs.push_back(at::linear(copies[rank], weights[rank], biases[rank]));
    return outputs;
  }
  at::Tensor row(const Pieces& x, const at::Tensor& weight, const at::Tensor& bias,
                 std::size_t part) const override {
    const auto own_bias = used(bias, part);
    if (tensor_ == 1) return at::linear(x[0], used(weight, part), own_bias);
    const auto weights = cut(used(weight, part), 1);
    Pieces products;
    for (std::size_t rank = 0; rank < x.size(); ++rank)
      products.push_back(at::linear(x[rank], weights[rank]));
    const auto sum = conformance::sum_of_parts(products);
    return own_bias.defined() ? sum + own_bias.to(sum.scalar_type()) : sum;
  }
  std::vector<Pieces> sine(const std::vector<Pieces>& x) const override {
    auto sines = x;
    for (std::size_t rank = 0; rank < x[0].size(); ++rank) {
      Pieces by_part;
      for (const auto& ranks : x) by_part.push_back(ranks[rank]);
      Pieces traded;
      for (const auto& some : at::cat(by_part, 0).chunk(sequence_, 1))
        traded.push_back(at::sin(some.contiguous()));
      const auto back = at::cat(traded, 1).chunk(sequence_, 0);
      for (std::size_t part = 0; part < x.size(); ++part)
        sines[part][rank] = back[part].contiguous();
    }
    return sines;
  }
  at::Tensor add_up(const Pieces& sums) const override {
    return sums.size() == 1 ? sums[0] : conformance::sum_of_parts(sums);
  }
  at::Tensor whole_of(const at::Tensor& weight) const override { return weight; }
  at::Tensor squares_of(const at::Tensor& weight) const override {
    Pieces sums;
    for (const auto& part : cut(weight, 0)) sums.push_back(part.to(at::kFloat).square().sum());
    return add_up(sums);
  }

 private:
  Pieces cut(const at::Tensor& whole, int64_t dimension) const {
    if (!whole.defined()) return Pieces(static_cast<std::size_t>(tensor_));
    if (tensor_ == 1) return {whole};
    return conformance::cut_apart(whole, {dimension, {whole.size(dimension)}}, tensor_);
  }

  int64_t tensor_, sequence_;
  std::size_t own_;
};

}  // namespace

std::unique_ptr<Parts> parts_of_rank(const comm::Mesh& mesh) {
  return std::make_unique<PartsOfRank>(mesh);
}

std::unique_ptr<Parts> parts_of_all(int64_t tensor, int64_t sequence, std::size_t own) {
  return std::make_unique<PartsOfAll>(tensor, sequence, own);
}

}  // namespace equigrad::property_tests::programs
