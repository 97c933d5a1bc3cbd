// Ledger: the bytes one rank's engine holds, by category, now and at the peak.
//
// Invariants: every tensor the engine keeps is charged when it is made and credited when it is let
// go, except the memory that a collective under way receives into (comm/workspace.hpp); the total's
// peak is the largest total ever seen, not the sum of the categories' peaks. Activations are the
// user's and are not here.
// Units: bytes.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace equigrad::memory {

enum class Category { Parameters, Gradients, MasterWeights, OptimizerState, Buckets, Gathered };
constexpr int kCategories = 6;
constexpr std::array<const char*, kCategories> kCategoryNames = {
    "parameters", "gradients", "master_weights", "optimizer_state", "buckets", "gathered"};

class Ledger {
 public:
  void charge(Category category, int64_t bytes);
  void credit(Category category, int64_t bytes) { charge(category, -bytes); }

  int64_t bytes(Category category) const { return now_bytes_[index(category)]; }
  int64_t peak_bytes(Category category) const { return peak_bytes_[index(category)]; }
  int64_t total_bytes() const { return total_bytes_; }
  int64_t total_peak_bytes() const { return total_peak_bytes_; }

 private:
  static std::size_t index(Category category) { return static_cast<std::size_t>(category); }
  std::array<int64_t, kCategories> now_bytes_{};
  std::array<int64_t, kCategories> peak_bytes_{};
  int64_t total_bytes_ = 0;
  int64_t total_peak_bytes_ = 0;
};

// Bytes that are held for as long as this lives.
class Charge {
 public:
  Charge(Ledger& ledger, Category category, int64_t bytes)
      : ledger_(ledger), category_(category), bytes_(bytes) {
    ledger_.charge(category_, bytes_);
  }
  ~Charge() { ledger_.credit(category_, bytes_); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Ledger& ledger_;
  Category category_;
  int64_t bytes_;
};

}  // namespace equigrad::memory
