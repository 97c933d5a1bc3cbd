#include "engine/kernels/update.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/kernels/convert.hpp"
#include "engine/kernels/parallel.hpp"

namespace equigrad::kernels {
namespace {

constexpr int64_t kBlockNumel = 1024;  // four blocks in fp32 are half of a first-level cache
constexpr int64_t kLanes = 64;         // of the widest vectors several

// The first line of the block behind this one: a processor that reads ahead by itself stops at the
// end of a page, and a block in fp32 is as long as one. More lines than that are slower, and so is
// this one where there is AVX-512 (perf/results/targets.md).
inline void read_ahead(const char* next, InstructionSet set) {
  if (set != InstructionSet::Avx512) __builtin_prefetch(next);
}

// One block of an array in fp32: the array's own memory where that will do, else a copy.
class Block {
 public:
  const float* read(StoredConst array, int64_t start, int64_t numel, InstructionSet set) {
    const auto* from = static_cast<const char*>(array.data) + start * element_bytes(array.type);
    read_ahead(from + numel * element_bytes(array.type), set);
    if (array.type == Element::Fp32 && numel % kLanes == 0) {
      return reinterpret_cast<const float*>(from);
    }
    widen(from, array.type, numel, room_.data(), set);
    std::fill(room_.begin() + numel, room_.begin() + padded(numel), 0.0F);
    return room_.data();
  }
  float* open(Stored array, int64_t start, int64_t numel, InstructionSet set) {
    array_ = array;
    start_ = start;
    return const_cast<float*>(read({array.data, array.type}, start, numel, set));
  }
  void close(const float* values, int64_t numel, InstructionSet set) const {
    if (values != room_.data()) return;
    auto* to = static_cast<char*>(array_.data) + start_ * element_bytes(array_.type);
    narrow(values, numel, to, array_.type, set);
  }
  static int64_t padded(int64_t numel) { return (numel + kLanes - 1) / kLanes * kLanes; }

 private:
  alignas(64) std::array<float, kBlockNumel> room_;
  Stored array_{};
  int64_t start_ = 0;
};

// Whole groups of kLanes: the compiler makes whole vectors of them and no tail.
template <bool kDecays>
[[gnu::always_inline]] inline void adam_loop(const AdamFactors factors, float* __restrict p,
                                             float* __restrict m, float* __restrict v,
                                             const float* __restrict gradient, int64_t numel) {
  for (int64_t group = 0; group < numel; group += kLanes) {
    for (int64_t i = group; i < group + kLanes; ++i) {
      float g = gradient[i];
      if (kDecays) g = g + p[i] * factors.decay;
      const float kept = p[i] * factors.keep;
      const float average = m[i] * factors.beta1 + g * factors.fresh1;
      const float square = v[i] * factors.beta2 + (g * g) * factors.fresh2;
      m[i] = average;
      v[i] = square;
      const float length = std::sqrt(square) * factors.root + factors.eps;
      p[i] = kept - (average / length) * factors.rate;
    }
  }
}

template <bool kMomentum>
[[gnu::always_inline]] inline void sgd_loop(const SgdFactors factors, float* __restrict p,
                                            float* __restrict buffer,
                                            const float* __restrict gradient, int64_t numel) {
  for (int64_t group = 0; group < numel; group += kLanes) {
    for (int64_t i = group; i < group + kLanes; ++i) {
      const float decayed = gradient[i] + p[i] * factors.decay;
      float d = factors.decays ? decayed : gradient[i];
      if (kMomentum) {
        const float mixed = buffer[i] * factors.momentum + d * factors.fresh;
        const float next = factors.first ? d : mixed;
        const float ahead = d + next * factors.momentum;
        buffer[i] = next;
        d = factors.nesterov ? ahead : next;
      }
      p[i] = p[i] - d * factors.rate;
    }
  }
}

}  // namespace

void adam(const AdamFactors& factors, Stored parameter, Stored average, Stored square,
          StoredConst gradient, int64_t numel, InstructionSet set) {
  parallel_for(numel, [&](int64_t begin, int64_t end) {
    Block parameters, averages, squares, gradients;
    for (int64_t start = begin; start < end; start += kBlockNumel) {
      const int64_t width = std::min(kBlockNumel, end - start);
      float* p = parameters.open(parameter, start, width, set);
      float* m = averages.open(average, start, width, set);
      float* v = squares.open(square, start, width, set);
      const float* g = gradients.read(gradient, start, width, set);
      const int64_t lanes = Block::padded(width);
      if (factors.decays) {
        run_on(
            set, [=]() __attribute__((always_inline)) {
              adam_loop<true>(factors, p, m, v, g, lanes);
            });
      } else {
        run_on(
            set, [=]() __attribute__((always_inline)) {
              adam_loop<false>(factors, p, m, v, g, lanes);
            });
      }
      parameters.close(p, width, set);
      averages.close(m, width, set);
      squares.close(v, width, set);
    }
  });
}

void sgd(const SgdFactors& factors, Stored parameter, const Stored* buffer, StoredConst gradient,
         int64_t numel, InstructionSet set) {
  parallel_for(numel, [&](int64_t begin, int64_t end) {
    Block parameters, buffers, gradients;
    for (int64_t start = begin; start < end; start += kBlockNumel) {
      const int64_t width = std::min(kBlockNumel, end - start);
      float* p = parameters.open(parameter, start, width, set);
      const float* g = gradients.read(gradient, start, width, set);
      const int64_t lanes = Block::padded(width);
      if (buffer != nullptr) {
        float* b = buffers.open(*buffer, start, width, set);
        run_on(
            set, [=]() __attribute__((always_inline)) { sgd_loop<true>(factors, p, b, g, lanes); });
        buffers.close(b, width, set);
      } else {
        run_on(
            set, [=]() __attribute__((always_inline)) {
              sgd_loop<false>(factors, p, nullptr, g, lanes);
            });
      }
      parameters.close(p, width, set);
    }
  });
}

}  // namespace equigrad::kernels
