#include "engine/bucket/bucket.hpp"

#include <ATen/ops/empty.h>

#include "engine/kernels/copy_rows.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::bucket {
namespace {

void put(const at::Tensor& to, const at::Tensor& from, bool add) {
  if (to.scalar_type() == kernels::kExactSum) {
    const auto terms = from.contiguous().flatten();
    int64_t begin = 0;
    for (int64_t row = 0; begin < terms.numel(); ++row) {  // the rows of a view are contiguous
      const auto sums = to.dim() == 1 ? to : to.select(0, row);
      kernels::exact_add_(sums, terms.narrow(0, begin, sums.numel()), !add);
      begin += sums.numel();
    }
  } else if (add) {
    to.add_(from);
  } else {
    to.copy_(from);
  }
}

}  // namespace

Bucket::Bucket(const layout::Bucket& place, int shards, int multiple_numel,
               at::TensorOptions options)
    : place_(place),
      shards_(shards),
      numel_((shards * place.shard_numel + multiple_numel - 1) / multiple_numel * multiple_numel),
      options_(options),
      filled_(place.slots.size(), false),
      written_(place.slots.size(), false) {
  if (place.slots.size() > 1 || place.slots.front().numel != numel_) allocate();
}

void Bucket::allocate() {
  if (buffer_.defined()) return;
  const int64_t numel = shards_ * place_.shard_numel;
  buffer_ = at::empty({numel_}, options_);
  buffer_.narrow(0, numel, numel_ - numel).zero_();
  view();
}

// A gradient that nobody else can write to becomes the buffer. While its hook runs, autograd has
// the tensor whose storage it took.
bool Bucket::keep(at::Tensor& gradient) {
  if (buffer_.defined() || gradient.dtype() != options_.dtype() ||
      gradient.device() != options_.device() || gradient.requires_grad() ||
      !gradient.is_contiguous() || gradient.use_count() > 1 || gradient.storage().use_count() > 2 ||
      gradient.storage().nbytes() != gradient.nbytes())
    return false;
  buffer_ = gradient.view({-1});
  view();
  return true;
}

void Bucket::view() {
  matrix_ = buffer_.narrow(0, 0, shards_ * place_.shard_numel).view({shards_, place_.shard_numel});
}

bool Bucket::holds_exact_sums() const {
  return c10::typeMetaToScalarType(options_.dtype()) == kernels::kExactSum;
}

int64_t Bucket::bytes() const { return numel_ * static_cast<int64_t>(options_.dtype().itemsize()); }

void Bucket::to_exact_sums() {
  buffer_ = kernels::exact_of(buffer());
  options_ = options_.dtype(kernels::kExactSum);
  view();
}

bool Bucket::copy_few(std::size_t slot, const at::Tensor& gradient) {
  if (filled_[slot] || gradient.numel() > kernels::kFewNumel || !gradient.is_contiguous() ||
      !gradient.is_cpu() || !buffer_.is_cpu() || gradient.scalar_type() != buffer_.scalar_type())
    return false;
  const auto& where = place_.slots[slot];
  const auto size = static_cast<int64_t>(buffer_.itemsize());
  kernels::copy_rows(static_cast<char*>(buffer_.mutable_data_ptr()) + where.offset * size,
                     place_.shard_numel * size, gradient.const_data_ptr(), where.shard_numel * size,
                     where.shard_numel * size, where.numel * size);
  return true;
}

void Bucket::copy_in(std::size_t slot, at::Tensor gradient, double weight) {
  const auto& where = place_.slots[slot];
  const bool kept = weight == 1.0 && keep(gradient);
  allocate();
  if (kept || (weight == 1.0 && copy_few(slot, gradient))) {
    if (!written_[slot]) clear_padding(slot);
    filled_[slot] = written_[slot] = true;
    ++filled_numel_;
    return;
  }
  auto flat = gradient.reshape({-1});
  if (weight != 1.0) flat = flat.to(at::kFloat).mul(weight);
  const auto columns = this->columns(slot);
  const int64_t rows = where.numel / where.shard_numel;
  const int64_t rest = where.numel - rows * where.shard_numel;
  const bool add = filled_[slot];
  if (!written_[slot]) clear_padding(slot);
  written_[slot] = true;
  if (rows != 0) {
    put(columns.narrow(0, 0, rows),
        flat.narrow(0, 0, rows * where.shard_numel).view({rows, where.shard_numel}), add);
  }
  if (rest != 0) {
    put(columns.select(0, rows).narrow(0, 0, rest), flat.narrow(0, where.numel - rest, rest), add);
  }
  if (!add) ++filled_numel_;
  filled_[slot] = true;
}

at::Tensor Bucket::columns(std::size_t slot) const {
  const auto& where = place_.slots[slot];
  return matrix_.narrow(1, where.offset, where.shard_numel);
}

void Bucket::clear_padding(std::size_t slot) {
  const auto& where = place_.slots[slot];
  const int64_t rows = where.numel / where.shard_numel;
  const int64_t rest = where.numel - rows * where.shard_numel;
  if (rows == shards_) return;
  const auto last = columns(slot).narrow(0, rows, shards_ - rows);
  last[0].narrow(0, rest, where.shard_numel - rest).zero_();
  last.narrow(0, 1, shards_ - rows - 1).zero_();
}

void Bucket::clear(std::size_t slot) {
  if (!written_[slot]) columns(slot).zero_();
  written_[slot] = true;
}

at::Tensor Bucket::columns_of(std::size_t slot) {
  allocate();
  clear(slot);
  return columns(slot);
}

const at::Tensor& Bucket::buffer() {
  allocate();
  for (std::size_t slot = 0; slot < written_.size(); ++slot) clear(slot);
  return buffer_;
}

}  // namespace equigrad::bucket
