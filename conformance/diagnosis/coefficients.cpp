#include "conformance/diagnosis/coefficients.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <stdexcept>

namespace equigrad::conformance::oracle {
namespace {

using Pairs = std::set<std::pair<size_t, size_t>>;  // (rank, micro-batch)

// Numbers as a fit or a reduction rounds them: equal when they are closer to each other than any
// two that a fault makes.
bool near(double a, double b) { return std::fabs(a - b) <= std::fabs(b) / 1024; }

std::string printed(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

// "1/6", "0", "2/3"; a decimal where no small denominator fits.
std::string fraction(double value, int64_t divisor) {
  if (std::fabs(value) < 1.0 / 1048576) return "0";
  for (int64_t below = 1; below <= 4 * divisor * divisor; ++below) {
    const double above = std::round(value * static_cast<double>(below));
    if (above == 0 || !near(value * static_cast<double>(below), above)) continue;
    return printed(above) + (below == 1 ? "" : "/" + std::to_string(below));
  }
  return printed(value);
}

// "2", "1 and 3", "0, 1 and 4"
std::string listed(const std::vector<size_t>& numbers, size_t from) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i)
    text += (i == 0                    ? ""
             : i + 1 == numbers.size() ? " and "
                                       : ", ") +
            std::to_string(numbers[i] + from);
  return text;
}

std::string named(const char* what, const std::vector<size_t>& numbers, size_t from) {
  return what +
         std::string(numbers.size() == 1 ? " "
                     : what[0] == 'm'    ? "es "
                                         : "s ") +
         listed(numbers, from);
}

// A set of contributions: whole ranks, whole micro-batches, or one by one.
struct Chosen {
  size_t world, steps;
  Pairs pairs;

  std::vector<size_t> whole_ranks() const {
    std::vector<size_t> whole;
    for (size_t r = 0; r < world; ++r) {
      bool all = true;
      for (size_t m = 0; m < steps; ++m) all = all && pairs.count({r, m}) != 0;
      if (all) whole.push_back(r);
    }
    return whole;
  }
  std::vector<size_t> whole_steps() const {
    std::vector<size_t> whole;
    for (size_t m = 0; m < steps; ++m) {
      bool all = true;
      for (size_t r = 0; r < world; ++r) all = all && pairs.count({r, m}) != 0;
      if (all) whole.push_back(m);
    }
    return whole;
  }
  std::string text() const {
    const auto ranks = whole_ranks(), columns = whole_steps();
    if (ranks.size() * steps == pairs.size() && (world > 1 || steps == 1))
      return named("rank", ranks, 0);
    if (columns.size() * world == pairs.size()) return named("micro-batch", columns, 1);
    std::string words;
    for (size_t r = 0; r < world; ++r) {
      std::vector<size_t> of_rank;
      for (size_t m = 0; m < steps; ++m)
        if (pairs.count({r, m}) != 0) of_rank.push_back(m);
      if (of_rank.empty()) continue;
      words += (words.empty() ? "" : ", ") + named("micro-batch", of_rank, 1) + " of rank " +
               std::to_string(r);
    }
    return words;
  }
  // "is" where the text names one thing.
  std::string be() const {
    const auto ranks = whole_ranks(), columns = whole_steps();
    const bool by_rank = ranks.size() * steps == pairs.size() && (world > 1 || steps == 1);
    const bool by_step = columns.size() * world == pairs.size();
    const bool one = by_rank   ? ranks.size() == 1
                     : by_step ? columns.size() == 1
                               : pairs.size() == 1;
    return one ? " is " : " are ";
  }
  Chosen others() const {
    Chosen rest{world, steps, {}};
    for (size_t r = 0; r < world; ++r)
      for (size_t m = 0; m < steps; ++m)
        if (pairs.count({r, m}) == 0) rest.pairs.insert({r, m});
    return rest;
  }
};

// Where coefficients are `kept` or 0.
std::string words_of_missing(const Chosen& missing, double kept) {
  const Chosen left = missing.others();
  const auto ranks = left.whole_ranks(), columns = left.whole_steps();
  const auto world = static_cast<double>(left.world), steps = static_cast<double>(left.steps);
  const bool whole_rank = ranks.size() == 1 && left.pairs.size() == left.steps;
  const bool whole_step = columns.size() == 1 && left.pairs.size() == left.world;
  const std::string times = near(kept, 1) ? "" : ", counted " + printed(kept) + " times";
  if (whole_rank && left.world > 1 && near(kept, world))
    return "rank " + std::to_string(ranks[0]) + " alone, not reduced";
  if (whole_step && left.steps > 1) {
    const std::string which = columns[0] == 0                ? "the first micro-batch"
                              : columns[0] + 1 == left.steps ? "the last micro-batch"
                                                             : left.text();
    return "only " + which +
           (near(kept, steps) ? " counts, not divided by " + printed(steps) + " micro-batches"
                              : times);
  }
  if (left.pairs.size() < missing.pairs.size()) return "only " + left.text() + times;
  return missing.text() + missing.be() + "missing" +
         (times.empty() ? "" : ", and the rest" + times);
}

}  // namespace

std::optional<Matrix> fit_coefficients(const Values& got,
                                       const std::vector<std::vector<Values>>& parts) {
  std::vector<const Values*> columns;
  for (const auto& row : parts)
    for (const Values& values : row) columns.push_back(&values);
  const auto n = static_cast<int64_t>(columns.size()), rows = static_cast<int64_t>(got.size());
  if (rows < 2 * n) return std::nullopt;
  at::Tensor matrix = at::empty({n, rows}, at::kDouble);
  for (int64_t k = 0; k < n; ++k)
    std::copy_n(columns[static_cast<size_t>(k)]->data(), rows,
                matrix.data_ptr<double>() + k * rows);
  const at::Tensor target = at::tensor(got, at::kDouble).unsqueeze(1);
  const auto solved = at::linalg_lstsq(matrix.t(), target, std::nullopt, "gelsd");
  if (std::get<2>(solved).item<int64_t>() < n) return std::nullopt;
  const at::Tensor flat = std::get<0>(solved).flatten();
  Matrix fitted;
  for (size_t r = 0; r < parts.size(); ++r) {
    fitted.emplace_back();
    for (size_t m = 0; m < parts[r].size(); ++m)
      fitted[r].push_back(flat[static_cast<int64_t>(r * parts[r].size() + m)].item<double>());
  }
  return fitted;
}

Matrix nearest_simple(const Matrix& fitted) {
  const auto world = static_cast<double>(fitted.size()),
             steps = static_cast<double>(fitted.at(0).size());
  const Values simple = {0,     1,         2,     3,         0.5,           -1,
                         world, 1 / world, steps, 1 / steps, world * steps, 1 / (world * steps)};
  Matrix result = fitted;
  for (auto& row : result)
    for (double& value : row)
      value = *std::min_element(simple.begin(), simple.end(), [&](double a, double b) {
        return std::fabs(a - value) < std::fabs(b - value);
      });
  return result;
}

std::vector<std::pair<double, std::string>> named_factors(int64_t world, int64_t accumulation_steps,
                                                          const std::string& of_averages) {
  const auto w = static_cast<double>(world), steps = static_cast<double>(accumulation_steps);
  const std::string ranks = std::to_string(world) + " ranks",
                    micro_batches = std::to_string(accumulation_steps) + " micro-batches";
  std::vector<std::pair<double, std::string>> all;
  const auto add = [&](double factor, const std::string& cause) {
    if (factor == 1) return;
    for (auto& [known, causes] : all)
      if (known == factor) return void(causes += " or " + cause);
    all.emplace_back(factor, cause);
  };
  add(1 / w, "averaged twice over " + ranks + of_averages);
  add(w, "not averaged over " + ranks + of_averages);
  add(1 / steps, "averaged twice over " + micro_batches + of_averages);
  add(steps, "summed, not averaged over " + micro_batches + of_averages);
  if (world > 1 && accumulation_steps > 1) {
    add(1 / (w * steps), "averaged twice over " + ranks + " and " + micro_batches + of_averages);
    add(w * steps, "a sum, not averaged at all" + of_averages);
  }
  add(0, "lost: no contribution arrived");
  add(-1, "the sign is flipped");
  add(2, "added twice");
  return all;
}

std::string in_words(const Matrix& matrix) {
  Chosen zeros{matrix.size(), matrix.at(0).size(), {}}, ones = zeros, others = zeros;
  const auto total = zeros.world * zeros.steps;
  double other = 0;
  bool one_other = true;
  for (size_t r = 0; r < matrix.size(); ++r)
    for (size_t m = 0; m < matrix[r].size(); ++m) {
      const double value = matrix[r][m];
      if (value == 0) {
        zeros.pairs.insert({r, m});
      } else if (near(value, 1)) {
        ones.pairs.insert({r, m});
      } else {
        one_other = one_other && (others.pairs.empty() || near(value, other));
        other = value;
        others.pairs.insert({r, m});
      }
    }
  if (!one_other || ones.pairs.size() == total) return "";
  const auto uniform = others.pairs.size() == total ? other : 0.0;
  if (others.pairs.size() == total || zeros.pairs.size() == total) {
    for (const auto& [factor, cause] :
         named_factors(static_cast<int64_t>(zeros.world), static_cast<int64_t>(zeros.steps)))
      if (factor == uniform || near(uniform, factor)) return cause;
    return "";
  }
  if (others.pairs.empty()) return words_of_missing(zeros, 1);
  if (ones.pairs.empty()) return words_of_missing(zeros, other);
  const std::string wrong = others.text() + others.be() +
                            (other == 2 ? "counted twice" : "counted " + printed(other) + " times");
  return zeros.pairs.empty() ? wrong : wrong + ", " + words_of_missing(zeros, 1);
}

std::string matrix_text(const Matrix& matrix, int64_t divisor) {
  std::string text;
  for (size_t r = 0; r < matrix.size(); ++r) {
    text += (r == 0 ? "rank " : ", rank ") + std::to_string(r) + ":";
    for (const double value : matrix[r])
      text += " " + fraction(value / static_cast<double>(divisor), divisor);
  }
  return text;
}

Culprit culprit_of(const Matrix& matrix) {
  Culprit culprit;
  const size_t world = matrix.size(), steps = matrix.at(0).size();
  std::vector<size_t> columns, rows;
  for (size_t m = 0; m < steps; ++m)
    for (size_t r = 0; r < world; ++r)
      if (!near(matrix[r][m], 1)) {
        if (columns.empty() || columns.back() != m) columns.push_back(m);
        if (std::find(rows.begin(), rows.end(), r) == rows.end()) rows.push_back(r);
      }
  // All but the last one may be lost in their own passes or by any later one.
  const bool only_last = columns.size() + 1 == steps && columns.back() + 1 < steps &&
                         (world == 1 || rows.size() == world);
  if (!columns.empty() && columns.size() < steps && !only_last)
    culprit.micro_batch = static_cast<int>(columns.front());
  if (steps == 1 && rows.size() == 1 && world > 1) culprit.micro_batch = 0;
  if (rows.size() == 1 && world > 1) culprit.rank = static_cast<int>(rows.front());
  return culprit;
}

at::Tensor probe(int64_t world, int64_t accumulation_steps, int64_t rank, int64_t micro_batch) {
  const int64_t pairs = world * accumulation_steps, pair = micro_batch * world + rank;
  at::Tensor values = at::zeros({world, pairs});
  values.select(1, pair).fill_(std::ldexp(1.0, static_cast<int>(pair - pairs / 2)));
  return values.flatten();
}

double as_read(double coefficient) {
  int exponent = 0;
  const double mantissa = std::frexp(coefficient, &exponent);
  return std::ldexp(std::round(std::ldexp(mantissa, 20)), exponent - 20);
}

Matrix decode_probe(const at::Tensor& got, int64_t begin, int64_t world,
                    int64_t accumulation_steps) {
  const int64_t pairs = world * accumulation_steps;
  const at::Tensor flat = got.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
  if (flat.numel() < pairs)
    throw std::runtime_error("[oracle.coefficients] expected at least " + std::to_string(pairs) +
                             " elements of a probe, got " + std::to_string(flat.numel()) + ".");
  const auto* values = flat.const_data_ptr<double>();
  Matrix matrix(static_cast<size_t>(world), Values(static_cast<size_t>(accumulation_steps)));
  for (int64_t i = flat.numel(); i-- > 0;) {
    const int64_t pair = (begin + i) % pairs;
    matrix[static_cast<size_t>(pair % world)][static_cast<size_t>(pair / world)] = as_read(
        std::ldexp(values[i], static_cast<int>(pairs / 2 - pair)) * static_cast<double>(pairs));
  }
  return matrix;
}

}  // namespace equigrad::conformance::oracle
