#include "conformance/generated/program.hpp"

#include "conformance/generated/case.hpp"
#include "conformance/on_rank/program.hpp"

namespace equigrad::conformance {

nlohmann::json serve_with_generated(const nlohmann::json& request, ranks::RankContext& context) {
  const auto what = request.value("do", "");
  if (what == "generated_twin") return serve_generated_twin(request, context);
  if (what == "generated") return serve_generated(request, context);
  return serve(request, context);
}

}  // namespace equigrad::conformance
