// How gradients are summed, divided by the number of ranks, measured and clipped.
#include <cmath>

#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Kind = AveragingConfig::Kind;

constexpr Choice kOrders{.names = kReductionOrders};
constexpr const char* kMeanOrSum[] = {"mean", "sum"};
constexpr Choice kOperations{.names = kMeanOrSum, .any_case = true};

constexpr Field kNorm{[](const EngineConfig& config) {
                        return config.gradient_norm == NormType::Two ? Json(2) : Json("inf");
                      },
                      [](EngineConfig& config, const Json& norm) {
                        config.gradient_norm = norm == "inf" ? NormType::Infinity : NormType::Two;
                      }};

constexpr Row kRows[] = {
    key("gradient_clipping", not_negative(), field<&EngineConfig::gradient_clipping>,
        "The norm that gradients are scaled down to.", "0 is off.")
        .noting("off; DeepSpeed 0.19.3 and later: 1.0"),
    key("gradient_norm_type", of_type(ValueType::Norm), kNorm,
        "Our own: the norm that is reported, and that clipping goes by."),
    key("prescale_gradients", boolean(), "false",
        "Gradients are divided by the number of ranks before they are summed."),
    key("gradient_predivide_factor", number(),
        default_of<&EngineConfig::averaging, &AveragingConfig::predivide_factor>,
        "Gradients are divided by it before they are summed, and by the rest after.",
        "Above 0. No effect beside prescale_gradients."),
    key("gradient_allreduce_op", one_of(kOperations), "\"mean\"",
        "Whether sums over ranks are divided at all."),
    unsupported("sparse_gradients", "Gradients of embeddings are sent sparse.", "[false]",
                "A sparse gradient is refused: build embeddings with sparse(false), in Python with "
                "sparse=False."),
    key("reduction", one_of(kOrders), field<&EngineConfig::reduction>,
        "Our own: the documented tree of sums, the backend's own, or sums that no order changes."),
};

void read_kind(Reading& reading) {
  AveragingConfig& averaging = reading.config.averaging;
  ConfigReader& reader = reading.reader;
  const bool before = reading.take("prescale_gradients");
  const double factor = reading.take("gradient_predivide_factor");
  if (before) {
    averaging.kind = Kind::BeforeSum;
    reading.note("gradient_predivide_factor").without_effect =
        "prescale_gradients divides by all ranks before the sum, as in DeepSpeed";
  } else if (factor != 1.0) {
    averaging = {Kind::Around, factor};
  }
  if (reading.take("gradient_allreduce_op") == "mean") return;
  averaging = {Kind::Never, 1.0};
  const std::string remedy = ". A sum is not divided; drop one of the two keys.";
  if (before)
    reader.problem("prescale_gradients",
                   "expected false with gradient_allreduce_op = \"sum\", got true" + remedy);
  if (factor != 1.0)
    reader.problem(
        "gradient_predivide_factor",
        "expected 1 with gradient_allreduce_op = \"sum\", got " + text_of(factor) + remedy);
}

void read(Reading& reading) {
  read_kind(reading);
  reading.store("gradient_clipping");
  reading.store("gradient_norm_type");
  reading.store("reduction");
}

void check(const EngineConfig& config, Checks& checks) {
  const AveragingConfig& averaging = config.averaging;
  const std::string path = "gradient_predivide_factor";
  const float factor = static_cast<float>(averaging.predivide_factor);
  const std::string got = text_of(averaging.predivide_factor);
  if (!(factor > 0.0F) || !std::isfinite(factor) || !std::isfinite(1.0F / factor))
    checks.problem(path, "expected a number above 0 that fp32 can hold and divide by, got " + got +
                             ". Write 1.");
  else if (averaging.kind != Kind::Around && averaging.predivide_factor != 1.0)
    checks.problem(
        path, "expected 1 unless gradients are divided around the sum, got " + got + ". Write 1.");
}

}  // namespace

Section averaging_section() { return {kRows, read, check}; }

}  // namespace equigrad
