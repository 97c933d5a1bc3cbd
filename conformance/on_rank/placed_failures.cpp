#include "conformance/on_rank/placed_failures.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "conformance/diagnosis/other_numbers.hpp"
#include "conformance/diagnosis/picture.hpp"
#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/bound.hpp"
#include "engine/layout/bucket_plan.hpp"

namespace equigrad::conformance {
namespace {

// The flat range that holds all elements that differ.
std::pair<int64_t, int64_t> range_of(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes()) return {0, want.numel()};
  const auto both_nan = got.isnan().logical_and(want.isnan());
  const auto wrong = got.ne(want).logical_and(both_nan.logical_not()).flatten().nonzero();
  if (wrong.numel() == 0) return {0, want.numel()};  // NaNs of other bits
  return {wrong[0].item<int64_t>(), wrong[wrong.size(0) - 1].item<int64_t>() + 1};
}

// What the gradient was before it was clipped.
at::Tensor unclipped(const at::Tensor& gradient, double norm, double threshold) {
  return gradient.to(at::kDouble) / clip_factor(norm, threshold);
}

// Equal up to the roundings of two clipping factors and two products.
at::Tensor is_near(const at::Tensor& got, const at::Tensor& want, at::ScalarType dtype) {
  const double u = oracle::unit_roundoff(dtype);
  return at::le(at::abs(got - want),
                at::abs(want) * oracle::gamma(4, u) + oracle::half_smallest(dtype) * 4);
}

bool near(const at::Tensor& got, const at::Tensor& want, at::ScalarType dtype) {
  return at::all(is_near(got, want, dtype)).item<bool>();
}

// What a right gradient clipped by the norm that was got would be. Factors that are the same in
// fp32 leave no room for roundings.
bool all_near(const std::vector<Failure>& seen, double got_norm, double want_norm,
              double threshold) {
  const auto factor = [&](double norm) { return static_cast<float>(clip_factor(norm, threshold)); };
  const bool is_same = factor(got_norm) == factor(want_norm);
  return std::all_of(seen.begin(), seen.end(), [&](const Failure& one) {
    if (is_same) return oracle::compare(one.got, one.want).equal();
    return one.got.sizes() == one.want.sizes() &&
           near(unclipped(one.got, got_norm, threshold), unclipped(one.want, want_norm, threshold),
                one.want.scalar_type());
  });
}

// An exact sum over squares does not see where they are.
bool only_moved(const std::vector<Failure>& seen) {
  return std::all_of(seen.begin(), seen.end(), [](const Failure& one) {
    const auto sizes = [](const at::Tensor& values) {
      return std::get<0>(values.to(at::kDouble).abs().flatten().sort());
    };
    return one.got.numel() == one.want.numel() && sizes(one.got).equal(sizes(one.want));
  });
}

}  // namespace

std::vector<layout::Registration> registrations_of(const CaseFacts& facts,
                                                   const std::vector<NamedTensors>& groups) {
  std::vector<layout::Registration> registrations;
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const auto& [name, tensor] : groups[group])
      registrations.push_back({.name = name,
                               .identity = tensor.unsafeGetTensorImpl(),
                               .shape = facts.shapes.at(name),
                               .trainable = tensor.requires_grad(),
                               .group = group,
                               .lower_precision = facts.communication_dtypes.contains(name),
                               .element_bytes = tensor.is_floating_point()
                                                    ? 0
                                                    : static_cast<int64_t>(tensor.element_size())});
  return registrations;
}

std::map<std::string, Position> positions_of(const CaseFacts& facts,
                                             const std::vector<NamedTensors>& groups,
                                             int64_t reduce_bucket_size) {
  std::map<std::string, Position> positions;
  const auto registrations = registrations_of(facts, groups);
  for (std::size_t i = 0; i < registrations.size(); ++i)
    positions[registrations[i].name] = {static_cast<int64_t>(i), -1};
  const int shards = facts.stage == 0 ? 1 : static_cast<int>(facts.recipe.world);
  const layout::BucketPlan plan(layout::ParameterTable(registrations), shards, reduce_bucket_size);
  for (auto& [name, position] : positions)
    if (const auto slot = plan.slot_of(static_cast<std::size_t>(position.number)))
      position.bucket = static_cast<int>(slot->bucket);
  return positions;
}

void PlacedFailures::note(const Site& site, const at::Tensor& got, const at::Tensor& want) {
  Divergence divergence{.phase = site.phase,
                        .step = site.step,
                        .micro_batch = site.micro_batch,
                        .what = site.what,
                        .parameter = site.parameter};
  const auto known = positions_.find(site.parameter);
  if (known != positions_.end()) {
    const bool is_gradient = site.phase == Phase::Gradient;
    divergence.position = is_gradient ? -known->second.number : known->second.number;
    if (is_gradient) divergence.bucket = known->second.bucket;
  }
  if (want.defined() && !site.parameter.empty()) {
    const auto [begin, end] = range_of(got, want);
    divergence.begin = site.begin + begin;
    divergence.end = site.begin + end;
  }
  divergences_.add(divergence);
  const auto& first = divergences_.all().front();
  const auto is_here = [&](const Site& one) {
    return one.phase == first.phase && one.step == first.step;
  };
  std::erase_if(failures_, [&](const Failure& failure) { return !is_here(failure.site); });
  if (!is_here(site)) return;
  failed_norm_ = norm_;
  if (want.defined()) failures_.push_back({site, got.clone(), want.clone()});
  const char* of = site.phase == Phase::Parameter ? "parameter"
                   : site.phase == Phase::Update  ? "master"
                                                  : "gradient";
  int64_t compared = 0;
  for (const auto& [name, shape] : facts_.shapes)
    if (facts_.twin.tensor(site.step, of, name).defined()) ++compared;
  divergences_.set_compared(compared);
}

// A gradient is seen after clipping, so that a wrong norm makes all of it wrong, and a wrong factor
// on all of it may be gone. The order of the run tells what was first: the gradient, its norm, or
// what was clipped.
void PlacedFailures::note_gradients(int step, const std::vector<Failure>& seen, bool norm_held) {
  std::vector<Failure> wrong;
  for (const auto& one : seen)
    if (!oracle::compare(one.got, one.want).equal()) wrong.push_back(one);
  if (wrong.empty() && norm_held) return;
  const double norm = norm_, right = facts_.twin.grad_norm(step),
               threshold = facts_.twin.threshold();
  const Site of_norm{.phase = Phase::Norm, .step = step, .what = "norm of the gradient"};
  if (!norm_held && std::isfinite(norm) && all_near(seen, norm, right, threshold))
    return note(of_norm, at::full({1}, norm, at::kDouble), at::full({1}, right, at::kDouble));
  const bool is_clip = norm_held && threshold > 0 && !only_moved(wrong);
  if (!norm_held && wrong.empty()) wrong = seen;  // a factor that clipping has taken away
  for (auto& one : wrong) {
    if (is_clip) {
      one.site.phase = Phase::Clip;
      one.site.what = "clipped gradient";
    }
    note(one.site, one.got, one.want);
  }
}

bool PlacedFailures::wants_update(int step) const {
  const auto& first = divergences_.all().front();
  return first.phase == Phase::Update && first.step == step;
}

void PlacedFailures::note_update(const std::string& parameter, UpdateSeen seen) {
  update_seen_[parameter] = std::move(seen);
}

// A wrong norm makes all of a clipped gradient wrong: clipping is undone, and what its roundings
// explain is right.
std::vector<Failure> PlacedFailures::drawn() const {
  const auto& first = divergences_.all().front();
  const double threshold = facts_.twin.threshold();
  if (first.phase != Phase::Gradient || threshold <= 0 || !std::isfinite(failed_norm_))
    return failures_;
  const double right = facts_.twin.grad_norm(first.step);
  if (clip_factor(failed_norm_, threshold) == clip_factor(right, threshold)) return failures_;
  std::vector<Failure> undone = failures_;
  for (Failure& one : undone) {
    if (one.got.sizes() != one.want.sizes()) continue;
    const auto dtype = one.want.scalar_type();
    const auto got = unclipped(one.got, failed_norm_, threshold),
               want = unclipped(one.want, right, threshold);
    one.want = want.to(dtype);
    one.got = at::where(is_near(got, want, dtype), one.want, got.to(dtype));
  }
  return undone;
}

void PlacedFailures::explain(std::map<std::string, oracle::UpdateSpec> rules,
                             nlohmann::json& answer) {
  if (has_tensors()) {
    const DiagnosisInput input{.stage = facts_.stage,
                               .recipe = facts_.recipe,
                               .make_model = facts_.make_model,
                               .twin = facts_.twin,
                               .tensor_rank = facts_.tensor_rank,
                               .shapes = facts_.shapes,
                               .whole_shapes = facts_.whole_shapes,
                               .keep = facts_.keep,
                               .rank = facts_.zero_rank(),
                               .norm = failed_norm_,
                               .communication_dtypes = facts_.communication_dtypes,
                               .rules = std::move(rules),
                               .updates = update_seen_};
    const auto diagnosis = diagnose(input, failures_, divergences_);
    answer["text"] = diagnosis.text;
    answer["files"] = diagnosis.files;
    answer["picture"] = picture_of(drawn(), divergences_.first().parameter);
  }
  answer["divergences"] = divergences_.to_json();
}

}  // namespace equigrad::conformance
