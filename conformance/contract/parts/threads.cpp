// 16. Its parts: loops on threads give the bits of one thread.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/kernels/exact_sum.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/parallel.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::conformance::contract {
namespace {

using kernels::kGrainNumel;

using Part = std::pair<int64_t, int64_t>;

std::vector<Part> parts_of(int64_t numel) {
  std::mutex adding;
  std::vector<Part> parts;
  kernels::parallel_for(numel, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(adding);
    parts.emplace_back(begin, end);
  });
  std::sort(parts.begin(), parts.end());
  return parts;
}

// Parts follow each other, none begins within a block, and there are as many as there may be.
void check_parts(Play& play, int threads) {
  const Threads guard(threads);
  for (const int64_t numel : {int64_t{0}, int64_t{1}, 2 * kGrainNumel - 1, 2 * kGrainNumel,
                              2 * kGrainNumel + 1, 3 * kGrainNumel, 5 * kGrainNumel + 37}) {
    const auto before = kernels::parts_on_other_threads();
    const auto parts = parts_of(numel);
    const auto elsewhere = kernels::parts_on_other_threads() - before;
    int64_t next = 0;
    bool is_cut = false;
    for (const auto& [begin, end] : parts) {
      if (begin != next || begin % 2048 != 0) is_cut = true;
      next = end;
    }
    const auto most = std::max<int64_t>(1, std::min<int64_t>(threads, numel / kGrainNumel));
    const auto got = static_cast<int64_t>(parts.size());
    play.check(std::to_string(numel) + " elements on " + std::to_string(threads) +
                   " threads are whole, in " + std::to_string(most) + " parts, got " +
                   std::to_string(got),
               next == numel && !is_cut && got == (play.fault() ? most + 1 : most));
    play.check("all parts but the caller's are on other threads", elsewhere == most - 1);
  }
}

void check_nested(Play& play) {
  const Threads guard(2);
  constexpr int64_t kNumel = 4 * kGrainNumel;
  std::atomic<int64_t> inner{0};
  kernels::parallel_for(kNumel, [&](int64_t, int64_t) {
    kernels::parallel_for(kNumel, [&](int64_t begin, int64_t end) {
      if (begin == 0 && end == kNumel) ++inner;
    });
  });
  play.check("a loop within a loop is one part", inner == 2);
  for (const int64_t thrower : {int64_t{0}, int64_t{1}})
    play.refuse("part " + std::to_string(thrower), [&] {
      kernels::parallel_for(kNumel, [&](int64_t begin, int64_t) {
        if ((begin == 0) == (thrower == 0))
          throw std::runtime_error("part " + std::to_string(thrower));
      });
    });
  play.check("a loop after one that threw is whole", parts_of(kNumel).size() == 2);
}

// `kernel` gives numbers, by a loop over all `kNumel` elements.
template <class Kernel>
void check_on_threads(Play& play, const std::string& what, const Kernel& kernel) {
  const Floats want = kernel();
  const Threads guard(2);
  const auto before = kernels::parts_on_other_threads();
  const Floats got = kernel();
  play.check(what + " runs on threads", kernels::parts_on_other_threads() == before + 1);
  check_same(play, what + " is the same on threads", got, want);
}

void check_kernels(Play& play, Draws& draws) {
  constexpr int64_t kNumel = 2 * kGrainNumel + 37;
  const Rows rows = drawn_rows(draws, formats()[1], 2, kNumel, 40);
  const auto type = Element::Bf16;
  const void* values = rows.terms.at(0);
  std::vector<double> sums(2 * place(kNumel)), others(sums.size());
  kernels::exact_add(values, type, 2, kNumel, true, others.data());
  check_on_threads(play, "a sum of rows", [&] {
    Floats to(place(kNumel));
    kernels::exact_row_sum(values, type, 2, kNumel, to.data());
    return to;
  });
  const auto of_sums = [&] {
    return Floats(sums.begin(), sums.end());  // a part that is missing is not that small
  };
  check_on_threads(play, "a running sum", [&] {
    std::fill(sums.begin(), sums.end(), 0.0);
    kernels::exact_add(values, type, 2, kNumel, true, sums.data());
    return of_sums();
  });
  check_on_threads(play, "a merge", [&] {
    std::fill(sums.begin(), sums.end(), 0.0);
    kernels::exact_merge(others.data(), kNumel, sums.data());
    return of_sums();
  });
  check_on_threads(play, "a rounding", [&] {
    Floats to(place(kNumel));
    kernels::exact_round(others.data(), kNumel, to.data());
    return to;
  });
  check_on_threads(play, "a sum of squares", [&] {
    kernels::SquareSum sum;
    sum.add(values, type, 65);  // which stay
    sum.add(values, type, kNumel);
    int exponent = 0;
    const double fraction = std::frexp(sum.value(), &exponent);
    const auto first = static_cast<float>(fraction);
    return Floats{first, static_cast<float>(fraction - first), static_cast<float>(exponent),
                  static_cast<float>(sum.non_finite_numel())};
  });
  check_on_threads(play, "the largest", [&] {
    kernels::Largest most;
    most.add(values, type, 65);
    most.add(values, type, kNumel);
    return Floats{static_cast<float>(most.value()), static_cast<float>(most.non_finite_numel())};
  });
  const std::array<const void*, 2> inputs = {rows.terms.at(0), rows.terms.at(kNumel)};
  check_on_threads(play, "a tree", [&] {
    Floats to(place(kNumel));
    kernels::tree_sum(inputs.data(), type, 2, kNumel, to.data(), Element::Fp32);
    return to;
  });
}

void on_threads(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    for (const int threads : {1, 2, 3}) check_parts(play, threads);
    check_nested(play);
    check_kernels(play, draws);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> threads() {
  return {of_part("loops_on_threads", "a loop on threads is whole, and gives the same bits",
                  "a part more is expected", on_threads)};
}

}  // namespace equigrad::conformance::contract
