#include "engine/memory/ledger.hpp"

#include <algorithm>

namespace equigrad::memory {

void Ledger::charge(Category category, int64_t bytes) {
  int64_t& now = now_bytes_[index(category)];
  int64_t& peak = peak_bytes_[index(category)];
  now += bytes;
  total_bytes_ += bytes;
  peak = std::max(peak, now);
  total_peak_bytes_ = std::max(total_peak_bytes_, total_bytes_);
}

}  // namespace equigrad::memory
