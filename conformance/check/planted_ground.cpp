#include "conformance/check/planted_ground.hpp"

#include <set>

#include "conformance/verdict/judge.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {

PlantedGround::PlantedGround(const MakeSubject& make, std::vector<CaseSpec> specs)
    : specs_(std::move(specs)),
      slots_({.slots = 1,
              .widest = 2,
              .serve = [make](const nlohmann::json& request, ranks::RankContext& context) {
                const CheckCase one{.spec = parse_id(request.at("id"))};
                if (request.at("do") != "twin") return check_on_rank(make, one, request, context);
                twin_of(make, one, request.at("path"));
                return nlohmann::json();
              }}) {
  std::set<std::string> tuples;
  for (const auto& spec : specs_) {
    if (!tuples.insert(spec.tuple()).second) continue;
    const auto made =
        ask(1, {{"do", "twin"}, {"id", spec.id()}, {"path", path_of(spec)}}, kTwinTimeout_s);
    if (!ranks::all_ok(made))
      throw Error("check", "expected a twin of " + spec.id() + ", got: " + ranks::failures(made) +
                               ". Check the model without faults first.");
  }
}

PlantedGround::Seen PlantedGround::plant(const std::string& fault) {
  Seen seen;
  for (const auto& spec : specs_) {
    nlohmann::json request = {{"do", "case"}, {"id", spec.id()}, {"twin", path_of(spec)}};
    if (!fault.empty()) request["fault"] = fault;
    const auto outcomes = ask(spec.world, request, kCaseTimeout_s);
    const auto judged = judge(spec, "", outcomes);
    for (const auto& outcome : outcomes)
      if (outcome.answer.contains("acted"))
        seen.acted = seen.acted || outcome.answer.at("acted").at("times") > 0;
    seen.ended = seen.ended || !judged.answered;
    if (reports::passed(judged.record.verdict)) continue;
    seen.message += judged.record.message;
    if (!judged.answered) continue;
    seen.caught = true;
    break;
  }
  return seen;
}

std::string PlantedGround::path_of(const CaseSpec& spec) const {
  return slots_.directory() + "/" + spec.tuple();
}

Outcomes PlantedGround::ask(int world, const nlohmann::json& request, double timeout_s) {
  auto outcomes = slots_.ask(world, request, timeout_s);
  if (!outcomes) throw Error("check", "expected an answer, got an interrupt. Run it again.");
  return *std::move(outcomes);
}

std::vector<CaseSpec> every_stage(const std::vector<Precision>& precisions) {
  std::vector<CaseSpec> specs;
  for (const auto precision : precisions)
    for (const int stage : {2, 1, 3, 0})
      specs.push_back({.stage = stage,
                       .precision = precision,
                       .style = Style::EngineBackward,
                       .world = 2,
                       .accumulation = 3,
                       .clip = Clip::Above,
                       .optimizer = Rule::AdamW,
                       .model = "model"});
  return specs;
}

}  // namespace equigrad::conformance
