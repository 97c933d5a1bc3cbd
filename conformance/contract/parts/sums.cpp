// 16. Its parts: sums, each against arithmetic of integers that knows nothing of it.
#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/kernels/exact_sum.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/parallel.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::conformance::contract {
namespace {

using kernels::InstructionSet;
using kernels::kExactSum;
using kernels::kGrainNumel;
using Integer = __int128;  // of sums, in units of a power of two

// n 2^exponent. To `bits` bits, the last one odd if it is not exact: rounded to two bits fewer it
// is what n itself would be.
double number_of(Integer n, int exponent, int bits) {
  const bool is_negative = n < 0;
  auto rest = static_cast<unsigned __int128>(is_negative ? -n : n);
  for (; (rest >> bits) != 0; ++exponent) rest = (rest >> 1) | (rest & 1);
  const double number = std::ldexp(static_cast<double>(static_cast<uint64_t>(rest)), exponent);
  return is_negative ? -number : number;
}

// ---- Exact sums ----

// As the page defines it, in integers of u.
float exact_sum_of(const Floats& terms) {
  float most = 0, not_finite = 0;
  for (const float term : terms) {
    if (std::isfinite(term))
      most = std::max(most, std::fabs(term));
    else
      not_finite += term;  // NaN of two signs
  }
  if (not_finite != 0) return not_finite;
  if (most == 0) return 0;
  const int bin = static_cast<int>(std::floor((std::ilogb(most) - 1) / 32.0));
  const int unit = 32 * (bin - 1) + 1;
  Integer sum = 0;
  for (const float term : terms)
    if (std::fabs(term) >= std::ldexp(1.0, unit))
      sum += static_cast<Integer>(std::nearbyint(std::ldexp(double{term}, -unit)));
  return static_cast<float>(number_of(sum, unit, 53));
}

Floats exact_sums_of(const Rows& rows) {
  Floats sums;
  for (int64_t i = 0; i < rows.n; ++i) {
    Floats column;
    for (int row = 0; row < rows.count; ++row)
      column.push_back(rows.terms.wide[place(row * rows.n + i)]);
    sums.push_back(exact_sum_of(column));
  }
  return sums;
}

// The same sums in one call, in two, row by row from the last, and by merging two halves.
void check_every_way(Play& play, const Rows& rows, const std::string& what, InstructionSet set) {
  const auto want = exact_sums_of(rows);
  const auto type = rows.terms.element;
  const int64_t n = rows.n;
  Floats got(want.size());
  kernels::exact_row_sum(rows.terms.at(0), type, rows.count, n, got.data(), set);
  check_same(play, what + ", rows at once", got, want);

  std::vector<double> all(2 * want.size(), 5.0), one(2 * want.size()), half(2 * want.size());
  const auto rounded = [&](const std::vector<double>& sums) {
    Floats to(want.size());
    kernels::exact_round(sums.data(), n, to.data(), set);
    return to;
  };
  kernels::exact_add(rows.terms.at(0), type, rows.count, n, /*is_first=*/true, all.data(), set);
  check_same(play, what + ", running", rounded(all), want);
  for (int row = rows.count; row-- > 0;)
    kernels::exact_add(rows.terms.at(row * n), type, 1, n, /*is_first=*/false, one.data(), set);
  check_same(play, what + ", one by one", rounded(one), want);
  const int first = rows.count / 2;
  std::vector<double> rest(2 * want.size());
  if (first > 0)
    kernels::exact_add(rows.terms.at(0), type, first, n, /*is_first=*/true, half.data(), set);
  kernels::exact_add(rows.terms.at(first * n), type, rows.count - first, n, /*is_first=*/false,
                     rest.data(), set);
  kernels::exact_merge(rest.data(), n, half.data(), set);
  check_same(play, what + ", merged", rounded(half), want);
  kernels::exact_merge(std::vector<double>(2 * want.size()).data(), n, half.data(), set);
  check_same(play, what + ", merged with sums of nothing", rounded(half), want);
}

// Columns of three, by hand.
Rows limits() {
  const float tiny = 0x1p-60F, tie = 0x1p-24F;
  const std::vector<Floats> columns = {{kInfinite, 1, 2},
                                       {-kInfinite, -kInfinite, 3},
                                       {kInfinite, -kInfinite, 0},
                                       {kNotANumber, 1, 1},
                                       {1, -kInfinite, kNotANumber},
                                       {-0.0F, -0.0F, -0.0F},
                                       {kLargest, kLargest, -1},
                                       {kLargest, 0x1p103F, 0},
                                       {kLargest, 0x1p102F, 0},
                                       {kLargest, 0x1p102F, 1},
                                       {kSmallest, kSmallest, -kSmallest},
                                       {kSmallest, -kSmallest, 0},
                                       {-kLargest, -kLargest, 1},
                                       {1, tie, 0},
                                       {1, tie, tiny},
                                       {1, tie, -tiny},
                                       {-1, -tie, -tiny},
                                       {1, 3 * tie, 0},
                                       {1, -1, tiny},
                                       {kLargest, -kLargest, 1},
                                       {kLargest, -kLargest, kLargest},
                                       {0x1p127F, -0x1p127F, 1},
                                       {0x1p33F, 1, 0x1p-31F},
                                       {0x1p32F, 1, 0x1p-31F},
                                       {0x1p33F, 1, 0x1.8p-31F},
                                       {0x1p32F, 1, 0x1p-32F},
                                       {3, 0x1p-62F, 0x1p-63F},
                                       {0x1p32F, -0x1p32F, 0x1p-31F},
                                       {0x1p32F, -0x1p32F, 0x1p-32F},
                                       {0x1p33F, -0x1p33F, 2},
                                       {0x1p33F, -0x1p33F, 1},
                                       {0x1p33F, -0x1p33F, 3},
                                       {0x1p33F, -0x1p33F, 5},
                                       {-0x1p64F, 0x1p64F, -3},
                                       {0x1p65F, -0x1p65F, 0x1.8p34F},
                                       {0x1p-126F, kSmallest, -1e-40F}};
  Floats terms;
  for (int row = 0; row < 3; ++row)
    for (const auto& column : columns) terms.push_back(column[place(row)]);
  return {Kept(terms, Element::Fp32), 3, static_cast<int64_t>(columns.size())};
}

// One sum of the most terms that fit: each just below what opens the next bin.
void check_most_terms(Play& play) {
  const Floats terms(place(kernels::kMostExactTerms), -0x1.FFFFFEp32F);
  const Rows rows{Kept(terms, Element::Fp32), static_cast<int>(kernels::kMostExactTerms), 1};
  std::vector<double> sum(2);
  kernels::exact_add(rows.terms.at(0), Element::Fp32, rows.count, 1, /*is_first=*/true, sum.data());
  Floats got(1);
  kernels::exact_round(sum.data(), 1, got.data());
  check_same(play, "so many terms fit", got, {exact_sum_of(terms)});
  play.check("2^19 - 1 terms are promised", rows.count == 524287);
}

at::Tensor tensor_of(const Floats& values) { return at::tensor(values, at::kFloat); }

void check_tensors(Play& play, Draws& draws) {
  const auto a = tensor_of(drawn_all(draws, 12, -5, 5)).view({3, 4});
  const auto b = tensor_of(drawn_all(draws, 12, -5, 5)).view({3, 4});
  const auto sums = kernels::exact_of(a.t());  // not contiguous
  play.check("a tensor's sums have its shape",
             sums.sizes() == at::IntArrayRef({4, 3}) && sums.scalar_type() == at::kComplexDouble);
  play.check("a sum of one term is the term", at::equal(kernels::exact_rounded(sums), a.t() + 0));
  play.check("as sent, a sum is two doubles of its memory",
             kernels::as_sent(sums).sizes() == at::IntArrayRef({4, 6}) &&
                 kernels::as_sent(sums).data_ptr() == sums.data_ptr() &&
                 kernels::as_sent(sums).scalar_type() == at::kDouble &&
                 kernels::as_sent(a).is_same(a));
  const auto total = (a.to(at::kDouble) + b).to(at::kFloat);  // 53 bits hold it
  const auto running = kernels::exact_of(a), other = kernels::exact_of(b);
  kernels::exact_add_(running, b);
  play.check("terms are added", at::equal(kernels::exact_rounded(running), total));
  kernels::exact_add_(other, kernels::exact_of(a));
  play.check("sums are added", at::equal(kernels::exact_rounded(other), total));
  kernels::exact_add_(other, kernels::exact_of(b), /*is_first=*/true);
  play.check("the first sum is taken", at::equal(kernels::exact_rounded(other), b + 0));
  kernels::exact_add_(other, a, /*is_first=*/true);
  play.check("the first terms are taken", at::equal(kernels::exact_rounded(other), a + 0));
  play.check("sums that lie apart are rounded",
             at::equal(kernels::exact_rounded(running.t()), total.t()));

  const auto rows = a.to(at::kBFloat16);
  const auto want = rows.to(at::kDouble).sum(0).to(at::kFloat);
  for (const auto& given : {rows, kernels::exact_of(rows)})
    for (const auto dtype : {at::kFloat, at::kHalf, kExactSum}) {
      const auto got = kernels::exact_row_sum(given, dtype);
      const auto numbers = dtype == kExactSum ? kernels::exact_rounded(got) : got;
      play.check("a sum of rows has the type that is asked for",
                 got.scalar_type() == dtype && got.sizes() == at::IntArrayRef({4}) &&
                     at::equal(numbers, want.to(numbers.scalar_type()) + 0));
    }
  const auto there = at::empty({2, 2}, at::TensorOptions(at::kMeta));
  const std::string expected =
      "[kernels.exact_sum] expected tensors on the CPU, got one on meta. Use \"reduction\": "
      "\"pinned\" there.";
  play.refuse(expected, [&] { kernels::exact_row_sum(there, at::kFloat); });
  play.refuse(expected, [&] { kernels::exact_rounded(there); });
  play.refuse(expected, [&] { kernels::exact_of(there); });
  play.refuse("expected dtype Float, BFloat16 or Half, got Double",
              [&] { kernels::exact_of(at::ones({2}, at::kDouble)); });
  play.refuse("[kernels.exact_sum] expected dtype Float, BFloat16 or Half, got Long", [&] {
    kernels::exact_row_sum(at::ones({2, 2}, at::kLong), at::kFloat);
  });
}

void exact_sums(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    for (const auto set : instruction_sets()) {
      check_every_way(play, limits(), "at limits", set);
      for (const auto& format : formats())
        for (const int count : {1, 2, 3, 4, 5, 9}) {
          const std::array<int64_t, 5> sizes = {0, 1, 15, 512, 515};
          const int64_t n = sizes[draws() % sizes.size()];
          const int spread = std::array{4, 40, 90}[draws() % 3];
          check_every_way(play, drawn_rows(draws, format, count, n, spread),
                          format.name + ", " + std::to_string(count) + " rows", set);
        }
    }
    check_every_way(play, drawn_rows(draws, formats()[1], 3, 1030, 70), "of blocks",
                    kernels::instruction_set());
    check_every_way(play, drawn_rows(draws, formats()[0], 7, 1030, 70), "of more blocks",
                    kernels::instruction_set());
    check_most_terms(play);
    check_tensors(play, draws);
    if (play.fault()) check_same(play, "one and one", {exact_sum_of({1, 1})}, {3});
  }
  train_along(play);
}

// ---- Squares, and the largest ----

// Numbers with exponents of `low` to 30 more.
struct Near {
  Floats numbers;
  int low;
};

double square_sum_of(const Near& near) {
  const int unit = std::max(near.low - 23, -149);
  Integer sum = 0;
  for (const float number : near.numbers) {
    if (!std::isfinite(number)) continue;
    const auto whole = static_cast<Integer>(std::ldexp(double{number}, -unit));
    sum += whole * whole;
  }
  return number_of(sum, 2 * unit, 64);
}

float largest_of(const Floats& numbers) {
  float most = 0;
  for (const float number : numbers)
    if (std::isfinite(number)) most = std::max(most, std::fabs(number));
  return most;
}

// In one call, and in two whose words are put together.
void check_near(Play& play, const Near& near, const Kept& kept, const std::string& what) {
  const auto numel = kept.size(), cut = numel / 3;
  kernels::SquareSum at_once, first, rest;
  at_once.add(kept.at(0), kept.element, numel);
  first.add(kept.at(0), kept.element, cut);
  rest.add(kept.at(cut), kept.element, numel - cut);
  bool is_low = true;
  for (int i = 0; i < kernels::kWords; ++i) {
    const bool is_low_word = i % 2 == 0 && i + 1 < kernels::kWords;
    is_low = is_low && (!is_low_word || (at_once.words()[i] >> 40) == 0);
    first.words()[i] += rest.words()[i];
  }
  const double want = square_sum_of({kept.wide, near.low});
  play.check(what + ": the sum of squares is " + std::to_string(want) + ", got " +
                 std::to_string(at_once.value()),
             at_once.value() == want && first.value() == want);
  play.check(what + ": low words are below 2^40", is_low);
  kernels::Largest largest, left, right;
  largest.add(kept.at(0), kept.element, numel);
  left.add(kept.at(0), kept.element, cut);
  right.add(kept.at(cut), kept.element, numel - cut);
  left.words()[0] = std::max(left.words()[0], right.words()[0]);
  left.words()[1] += right.words()[1];
  const double most = largest_of(kept.wide);
  play.check(what + ": the largest is " + std::to_string(most) + ", got " +
                 std::to_string(largest.value()),
             largest.value() == most && left.value() == most);
  const auto infinite = std::count_if(kept.wide.begin(), kept.wide.end(),
                                      [](float number) { return !std::isfinite(number); });
  for (const int64_t found : {at_once.non_finite_numel(), first.non_finite_numel(),
                              largest.non_finite_numel(), left.non_finite_numel()})
    play.check(
        what + ": not finite are " + std::to_string(infinite) + ", got " + std::to_string(found),
        found == infinite);
}

// Exponents of up to `spread` less than `top`.
Near drawn_near(Draws& draws, int64_t numel, int top, int spread) {
  Near near{drawn_all(draws, numel, std::max(-149, top - spread), top), top - 30};
  if (draws() % 2 == 0) return near;
  for (const float one : {kInfinite, kNotANumber, -kInfinite}) {
    if (numel == 0 || draws() % 3 == 0) continue;
    near.numbers[draws() % near.numbers.size()] = one;
  }
  return near;
}

void check_squares_of_formats(Play& play, Draws& draws) {
  for (const auto& format : formats()) {
    const bool is_fp16 = format.element == Element::Fp16;
    std::vector<int> tops = {-109, -108, -107, 84, 85, 86, 127, -120, -148, 3};
    if (is_fp16) tops = {14, 3, -13, -14, -20};
    for (const int top : tops)
      for (const int64_t numel : {0, 1, 16, 511, 512, 513, 1100}) {
        const int spread = std::array{0, 4, 19, 30}[draws() % 4];
        const auto near = drawn_near(draws, numel, top, spread);
        check_near(play, near, Kept(near.numbers, format.element),
                   format.name + " of 2^" + std::to_string(top));
      }
    const auto many = drawn_near(draws, 2 * kGrainNumel - 1, is_fp16 ? 14 : 127, 30);
    check_near(play, many, Kept(many.numbers, format.element), format.name + ", many");
    const Near full{Floats(place(kGrainNumel) + 5, is_fp16 ? 0x1.FFCp14F : 0x1.FEp127F),
                    is_fp16 ? -16 : 97};
    check_near(play, full, Kept(full.numbers, format.element), format.name + ", full");
  }
}

// Sums of squares by hand: rounded once, to even, whatever lies far below.
void check_squares_by_hand(Play& play) {
  const auto square_sum = [](const Floats& numbers) {
    kernels::SquareSum sum;
    for (const float number : numbers) sum.add(&number, Element::Fp32, 1);
    return sum.value();
  };
  const float half = 0x1p-27F, whole = 0x1p-26F;
  const std::vector<std::pair<Floats, double>> table = {
      {{}, 0},
      {{0.0F, -0.0F}, 0},
      {{kSmallest}, 0x1p-298},
      {{1, half}, 1},
      {{1, half, half}, 1},
      {{1, half, half, kSmallest}, 1 + 0x1p-52},
      {{1, half, half, 0x1p-44F}, 1 + 0x1p-52},
      {{1, whole}, 1 + 0x1p-52},
      {{1, whole, half, half}, 1 + 0x1p-51},
      {{0x1p127F, kSmallest}, 0x1p254},
      {{0x1p127F, 0x1p100F, 0x1p100F, kSmallest}, 0x1p254 * (1 + 0x1p-52)},
      {{3, 4, -12}, 169}};
  for (const auto& row : table)
    play.check("squares by hand add up to " + std::to_string(row.second),
               square_sum(row.first) == row.second);
  play.check("three and four are five", square_sum({3, 4}) == (play.fault() ? 24 : 25));
}

// ---- Trees of rows ----

// Neighbours first: the left half is a whole tree.
float tree_of(const Floats& column) {
  if (column.size() == 1) return column[0];
  std::size_t half = 1;
  while (2 * half < column.size()) half *= 2;
  const auto middle = column.begin() + static_cast<std::ptrdiff_t>(half);
  return tree_of({column.begin(), middle}) + tree_of({middle, column.end()});
}

void check_tree(Play& play, const Rows& rows, Element out, bool in_place) {
  Floats want;
  for (int64_t i = 0; i < rows.n; ++i) {
    Floats column;
    for (int row = 0; row < rows.count; ++row)
      column.push_back(rows.terms.wide[place(row * rows.n + i)]);
    want.push_back(tree_of(column));
  }
  Kept terms = rows.terms;
  std::vector<const void*> inputs;
  for (int row = 0; row < rows.count; ++row) inputs.push_back(terms.at(row * rows.n));
  Kept to(Floats(place(rows.n)), out);
  void* output = in_place ? terms.to((rows.count - 1) * rows.n) : to.to(0);
  kernels::tree_sum(inputs.data(), terms.element, rows.count, rows.n, output, out);
  const Floats all = terms.read();
  const Floats got = in_place ? Floats(all.end() - rows.n, all.end()) : to.read();
  check_same(play, "the tree of " + std::to_string(rows.count) + " rows", got,
             Kept(want, out).wide);
}

void check_trees(Play& play, Draws& draws) {
  for (const auto& format : formats())
    for (const int count : {1, 2, 3, 4, 5, 7, 8, 13})
      for (const int64_t n : {0, 1, 2049}) {
        const auto rows = drawn_rows(draws, format, count, n, 20);
        for (const auto& out : formats()) {
          if (n > 1 && count > 5 && out.element != format.element) continue;
          check_tree(play, rows, out.element, /*in_place=*/false);
        }
        if (count <= 3) check_tree(play, rows, format.element, /*in_place=*/true);
      }
}

void squares_and_trees(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    check_squares_of_formats(play, draws);
    check_squares_by_hand(play);
    check_trees(play, draws);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> sums() {
  return {
      of_part("exact_sums_by_integers", "an exact sum is its page's, in any order, of any numbers",
              "another sum is expected", exact_sums),
      of_part("squares_and_trees_by_integers",
              "squares add up exactly, the largest is one of them, rows add up as a tree",
              "another sum is expected", squares_and_trees)};
}

}  // namespace equigrad::conformance::contract
