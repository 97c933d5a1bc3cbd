#include "conformance/diagnosis/hypotheses.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <utility>

#include "conformance/diagnosis/coefficients.hpp"
#include "conformance/diagnosis/search.hpp"

namespace equigrad::conformance::oracle {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();  // no prediction here

// x + factor * y
Values combined(Values x, const Values& y, double factor) {
  for (size_t j = 0; j < x.size(); ++j) x[j] += factor * y[j];
  return x;
}

// A factor proves nothing on fewer elements that differ from one another.
constexpr int kFactorElements = 3;

bool is_uniform(const Matrix& matrix) {
  const auto all_are_first = [&](const auto& row) {
    return std::all_of(row.begin(), row.end(), [&](double c) { return c == matrix[0][0]; });
  };
  return std::all_of(matrix.begin(), matrix.end(), all_are_first);
}

bool is_power_of_two(double factor) {
  int exponent = 0;
  return std::fabs(std::frexp(factor, &exponent)) == 0.5;
}

class GradientSearch {
 public:
  GradientSearch(const Evidence& evidence, const std::vector<int64_t>& wrong)
      : evidence_(evidence),
        search_(evidence.got, evidence.want, wrong,
                evidence.rounding.value_or(evidence.got.scalar_type()), evidence.roundings) {}

  std::vector<Hypothesis> run() {
    if (!evidence_.contributions.empty()) scale_contributions();
    for (const auto& prediction : evidence_.predictions) try_prediction(prediction);
    search_.try_roundings({.formula = "got = want up to a few roundings",
                           .cause = "rounding: another order of additions, or a fused operation",
                           .of_sum = rounding_ulp(evidence_),
                           .sizes = sizes_});
    if (evidence_.is_number) {
      try_factor(0, "it is zero", false);
      return search_.sorted();
    }
    try_factors();
    try_places();
    try_times();
    if (!parts_.empty()) try_contributions();
    return search_.sorted();
  }

 private:
  void try_prediction(const Prediction& prediction) {
    if (!prediction.values.defined()) return;
    search_.try_tensor(
        prediction.values,
        {.formula = "got = a prediction",
         .cause = prediction.cause,
         .of_sum = prediction.roundings,
         .sizes = prediction.sizes.defined() ? search_.pick(prediction.sizes.abs()) : Values{}});
  }

  using Factors = std::vector<std::pair<double, std::string>>;

  // What is wrong in every step from the first on, where steps before were right.
  std::string though_held() const {
    const int64_t steps = evidence_.held_steps;
    return steps == 0   ? ""
           : steps == 1 ? ", though the step before held"
                        : ", though the " + std::to_string(steps) + " steps before held";
  }

  // Those that change from step to step come first, where the steps before were right.
  Factors all_factors() const {
    if (!evidence_.is_gradient) return {{0, "lost: zeros"}, {-1, "the sign is flipped"}};
    Factors of_every_step =
        named_factors(evidence_.world, evidence_.accumulation_steps, though_held());
    Factors named;
    const auto add = [&](double factor, const std::string& cause) {
      if (factor == 1 || !std::isfinite(factor)) return;
      for (auto& [known, causes] : named)
        if (known == factor) return void(causes += " or " + cause);
      named.emplace_back(factor, cause);
    };
    if (evidence_.held_steps == 0) named.swap(of_every_step);
    const double scale = evidence_.loss_scale, clip = evidence_.clip_factor;
    add(scale, "the loss scale was not removed");
    add(1 / scale, "the loss scale was removed twice");
    add(scale / evidence_.next_loss_scale, "divided by the loss scale of the next step");
    add(scale / evidence_.previous_loss_scale, "divided by the loss scale of the step before");
    add(clip, "clipped twice");
    add(1 / clip, "not clipped");
    for (const auto& [factor, cause] : of_every_step) add(factor, cause);
    const auto is_half = [](const auto& one) { return one.first == 0.5; };
    if (std::none_of(named.begin(), named.end(), is_half)) add(0.5, "halved");
    return named;
  }

  void try_factors() {
    const double clip = evidence_.clip_factor;
    bool is_named = false;
    for (const auto& [factor, cause] : all_factors()) {
      const auto wrong = search_.wrong().size();
      const bool is_lost = factor == 0 && wrong * 2 <= static_cast<size_t>(evidence_.want.numel());
      const bool held = try_factor(factor,
                                   !is_lost     ? cause
                                   : wrong == 1 ? "one element lost"
                                                : std::to_string(wrong) + " elements lost",
                                   false);
      is_named = is_named || held;
    }
    const double fitted = fit_factor();
    if (is_named || !std::isfinite(fitted) || fitted == 0) return;
    try_factor(fitted,
               clip != 1 && evidence_.is_gradient
                   ? "clipped by the wrong norm, or another common factor"
                   : "one common factor (a scale or a clipping factor?)",
               true);
  }

  // The median of got / want: half of the elements may be anything.
  double fit_factor() const {
    Values ratios;
    for (size_t j = 0; j < search_.got().size(); ++j) {
      if (search_.want()[j] != 0) ratios.push_back(search_.got()[j] / search_.want()[j]);
    }
    if (ratios.empty()) return kNothing;
    const auto middle = ratios.begin() + static_cast<int64_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    return *middle;
  }

  // What was got and what is right are both rounded twice: their factors, and their products; the
  // additions may have been of terms that had the factor already. A power of two rounds nothing but
  // what is subnormal. A factor that is fitted brings the roundings of its own element along.
  bool try_factor(double factor, const std::string& cause, bool is_fitted) {
    Values predicted = search_.want();
    for (double& value : predicted) value *= factor;
    char formula[48];
    std::snprintf(formula, sizeof formula, is_fitted ? "got = %.6g x want" : "got = %.4f x want",
                  factor);
    const bool is_copy = factor == 0 || factor == -1, is_exact = is_power_of_two(factor);
    const auto terms = static_cast<double>(evidence_.world * evidence_.accumulation_steps);
    return search_.try_values(predicted,
                              {.formula = formula,
                               .cause = cause,
                               .handicap = is_fitted ? Handicap::kFitted : Handicap::kNamed,
                               .roundings = is_copy     ? 0.0
                                            : is_exact  ? 1.0
                                            : is_fitted ? 6.0
                                                        : 4.0,
                               .of_sum = is_copy || is_exact ? 0.0 : terms - 1,
                               .sizes = sizes_,
                               .fitted = is_fitted ? 1 : 0,
                               .least = factor == 0 ? 1 : kFactorElements});
  }

  // got[i] = the right value of element i + shift of the whole parameter.
  Values shifted(const at::Tensor& all, int64_t shift) const {
    const auto* data = all.const_data_ptr<double>();
    const int64_t begin = evidence_.whole.defined() ? evidence_.begin : 0;
    Values predicted;
    for (const int64_t i : search_.wrong()) {
      const int64_t from = begin + i + shift;
      predicted.push_back(from >= 0 && from < all.numel() ? data[from] : kNothing);
    }
    return predicted;
  }

  // A copy has no roundings of its own.
  void try_copy(const Values& predicted, const std::string& formula, const std::string& cause,
                double handicap) {
    search_.try_values(predicted, {.formula = formula, .cause = cause, .handicap = handicap});
  }

  void try_places() {
    const auto all = flat_double(evidence_.whole.defined() ? evidence_.whole : evidence_.want);
    int64_t whole = evidence_.shape.empty() ? evidence_.want.numel() : 1;
    for (const int64_t extent : evidence_.shape) whole *= extent;
    for (const int64_t shift : {1, -1, 2, -2, 3, -3, 4, -4}) {
      const std::string by = (shift > 0 ? "+" : "") + std::to_string(shift);
      try_copy(shifted(all, shift), "got[i] = want[i" + by + "]",
               std::abs(shift) == 1 ? "shifted by one element (" + by + ")"
                                    : "shifted by " + by + " elements",
               Handicap::kShift);
    }
    const int64_t shard_numel = (whole + evidence_.shards - 1) / evidence_.shards;
    for (int64_t by = 1; by < evidence_.shards && shard_numel > 4; ++by)
      for (const int64_t shift : {by * shard_numel, -by * shard_numel}) try_shards(all, shift);
    for (const auto& [name, other] : evidence_.others) {
      if (name == evidence_.name) continue;
      const auto flat = flat_double(other);
      try_copy(shifted(flat, 0), "got = that of " + name, "the " + evidence_.what + " of " + name,
               Handicap::kShift);
    }
    const auto rounded = [&](at::ScalarType dtype, const char* cause) {
      try_copy(search_.pick(evidence_.want.to(dtype)), "got = want rounded", cause,
               Handicap::kNamed);
    };
    rounded(at::kBFloat16, "rounded to bf16");
    rounded(at::kHalf, "rounded to fp16");
  }

  void try_shards(const at::Tensor& all, int64_t shift) {
    const int64_t whole = all.numel(), numel = (whole + evidence_.shards - 1) / evidence_.shards;
    const int64_t first = (evidence_.begin + search_.wrong().front()) / numel,
                  last = (evidence_.begin + search_.wrong().back()) / numel;
    const std::string cause =
        first == last
            ? "shard " + std::to_string(first) + " holds the values of shard " +
                  std::to_string(first + shift / numel)
            : "shards " + std::to_string(first) + " and " + std::to_string(last) + " are swapped";
    auto predicted = shifted(all, shift);
    if (first != last) {  // each has the other's
      const auto back = shifted(all, -shift);
      for (size_t j = 0; j < predicted.size(); ++j)
        if ((evidence_.begin + search_.wrong()[j]) / numel == last) predicted[j] = back[j];
    }
    try_copy(predicted,
             "got[i] = want[i" + std::string(shift > 0 ? "+" : "") + std::to_string(shift) + "]",
             cause, Handicap::kShift);
  }

  void try_times() {
    if (!evidence_.previous.defined()) return;
    const auto previous = search_.pick(evidence_.previous);
    const int64_t shards = evidence_.shards;
    std::string whose;
    if (shards > 1) {
      int64_t whole = 1;
      for (const int64_t extent : evidence_.shape) whole *= extent;
      const int64_t numel = std::max<int64_t>(1, (whole + shards - 1) / shards);
      const int64_t first = (evidence_.begin + search_.wrong().front()) / numel,
                    last = (evidence_.begin + search_.wrong().back()) / numel;
      if (first == last) whose = "shard " + std::to_string(first) + " holds ";
    }
    try_copy(previous, "got = the previous step's value",
             whose + "the previous step's values" +
                 (evidence_.what == "parameter" ? " (not published)" : ""),
             Handicap::kNamed);
    if (!evidence_.is_gradient) return;
    // Twice as many terms as of one step.
    search_.try_values(combined(search_.want(), previous, 1),
                       {.formula = "got = want + the previous step's",
                        .cause = "the sum of this step and the previous one (not zeroed)",
                        .handicap = Handicap::kContribution,
                        .of_sum = 2 * rounding_ulp(evidence_),
                        .sizes = sizes_});
  }

  // c scaled so that all contributions together give `want`, which takes averaging and clipping in
  // without knowing either. No partial sum is larger than that of their sizes.
  void scale_contributions() {
    const auto& given = evidence_.contributions;
    const size_t steps = given[0].size();
    Values sum(search_.want().size(), 0), sizes = sum;
    for (const auto& row : given) {
      if (row.size() != steps)
        throw std::runtime_error("[oracle.explain] expected as many micro-batches on every rank.");
      parts_.emplace_back();
      for (const at::Tensor& tensor : row) {
        parts_.back().push_back(tensor.defined() ? search_.pick(tensor)
                                                 : Values(search_.want().size(), 0));
        sum = combined(std::move(sum), parts_.back().back(), 1);
      }
    }
    double top = 0, bottom = 0;
    for (size_t j = 0; j < sum.size(); ++j) {
      top += search_.want()[j] * sum[j];
      bottom += sum[j] * sum[j];
    }
    if (bottom == 0 || !std::isfinite(top / bottom)) return parts_.clear();
    for (auto& row : parts_)
      for (Values& values : row)
        for (size_t j = 0; j < values.size(); ++j) {
          values[j] *= top / bottom;
          sizes[j] += std::fabs(values[j]);
        }
    sizes_ = std::move(sizes);
  }

  void try_contributions() {
    const size_t world = parts_.size(), steps = parts_[0].size();
    const Matrix right(world, Values(steps, 1));
    if (world * steps == 1) return;
    for (size_t r = 0; r < world; ++r)
      for (size_t m = 0; m < steps; ++m)
        try_pattern(right, [&](size_t a, size_t b) { return a == r && b == m; });
    for (size_t r = 0; r < world && world > 1; ++r)
      try_pattern(right, [&](size_t a, size_t) { return a == r; });
    for (size_t m = 0; m < steps && steps > 1; ++m)
      try_pattern(right, [&](size_t, size_t b) { return b == m; });
    const auto fitted = fit_coefficients(search_.got(), parts_);
    if (!fitted) return;
    const Matrix simple = nearest_simple(*fitted);
    const int terms = static_cast<int>(world * steps);
    if (!in_words(simple).empty())
      try_matrix(simple, in_words(simple) + (is_uniform(simple) ? though_held() : ""),
                 Handicap::kContribution, terms);
    try_matrix(*fitted, "coefficients of another kind", Handicap::kMatrix, terms);
  }

  // One row, one column or one place of the matrix: missing, twice, alone, alone in the average.
  template <class Is>
  void try_pattern(const Matrix& right, Is is) {
    const auto world = static_cast<double>(right.size()),
               steps = static_cast<double>(right[0].size());
    const std::vector<std::pair<double, double>> inside_outside = {
        {0, 1}, {2, 1}, {1, 0}, {world, 0}, {steps, 0}};
    for (const auto& [inside, outside] : inside_outside) {
      Matrix matrix = right;
      for (size_t r = 0; r < matrix.size(); ++r)
        for (size_t m = 0; m < matrix[r].size(); ++m) matrix[r][m] = is(r, m) ? inside : outside;
      const auto words = in_words(matrix);
      if (!words.empty()) try_matrix(matrix, words, Handicap::kContribution, 0);
    }
  }

  void try_matrix(const Matrix& matrix, const std::string& cause, double handicap, int fitted) {
    Values predicted(search_.want().size(), 0);
    double largest = 1;  // by which sums may be larger than those of the right gradient
    for (size_t r = 0; r < matrix.size(); ++r)
      for (size_t m = 0; m < matrix[r].size(); ++m) {
        largest = std::max(largest, std::fabs(matrix[r][m]));
        if (matrix[r][m] != 0)
          predicted = combined(std::move(predicted), parts_[r][m], matrix[r][m]);
      }
    Values sizes = sizes_;
    for (double& size : sizes) size *= largest;
    search_.try_values(predicted, {.formula = "got = the sum of C x contribution",
                                   .cause = cause,
                                   .handicap = handicap,
                                   .of_sum = rounding_ulp(evidence_),
                                   .sizes = std::move(sizes),
                                   .fitted = fitted,
                                   .least = kFactorElements,
                                   .coefficients = matrix});
  }

  const Evidence& evidence_;
  Search search_;
  std::vector<std::vector<Values>> parts_;
  Values sizes_;  // of the contributions together, where they are known
};

}  // namespace

// n - 1 additions, the factor of the average and its product; and the factor that scales
// contributions to what is right, which brings the roundings of that along.
double rounding_ulp(const Evidence& evidence) {
  return static_cast<double>(evidence.world * evidence.accumulation_steps) + 2;
}

std::vector<Hypothesis> find_hypotheses(const Evidence& evidence,
                                        const std::vector<int64_t>& wrong) {
  if (wrong.empty()) return {};
  return GradientSearch(evidence, wrong).run();
}

}  // namespace equigrad::conformance::oracle
