// PlantedGround: cases of one model, into which any fault of the catalogue can be planted.
//
// Invariants: every case has its twin before the first fault is planted.
// Units: none.   Errors: a twin that could not be made fails the test.
// Depends on: check/check_case.hpp, campaigns/process_slots.hpp, verdict/judge.hpp, GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "conformance/check/check_case.hpp"
#include "conformance/check/tests/other_models.hpp"
#include "conformance/verdict/judge.hpp"

namespace equigrad::conformance {

template <class Model>
MakeSubject subject_with(at::Tensor (*loss)(Model&, const Which&)) {
  return [loss]() -> std::unique_ptr<Subject> {
    return subject_of(std::make_shared<Model>(),
                      [loss](torch::nn::Module& any, const Which& which) {
                        return Forward{loss(static_cast<Model&>(any), which)};
                      });
  };
}

// Cases of one model, each with its twin.
class PlantedGround {
 public:
  PlantedGround(MakeSubject make, std::vector<CaseSpec> specs)
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
          slots_.ask(1, {{"do", "twin"}, {"id", spec.id()}, {"path", path_of(spec)}}, 180);
      EXPECT_EQ(ranks::failures(*made), "");
    }
  }

  struct Seen {
    bool acted = false, caught = false, ended = false;  // ended: without an answer
    std::string message;                                // of the first case that caught it
  };
  // Until a case catches it. Empty: no fault.
  Seen plant(const std::string& fault) {
    Seen seen;
    for (const auto& spec : specs_) {
      nlohmann::json request = {{"do", "case"}, {"id", spec.id()}, {"twin", path_of(spec)}};
      if (!fault.empty()) request["fault"] = fault;
      const auto outcomes = slots_.ask(spec.world, request, 20);
      const auto judged = judge(spec, "", *outcomes);
      for (const auto& outcome : *outcomes)
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

 private:
  std::string path_of(const CaseSpec& spec) const {
    return slots_.directory() + "/" + spec.tuple();
  }

  std::vector<CaseSpec> specs_;
  ProcessSlots slots_;
};

inline std::vector<CaseSpec> every_stage(const std::vector<Precision>& precisions) {
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
