// The first line of a failure is right: phase, step, micro-batch and parameter are those at which
// the planted bug says that it acted, for at least 95 of 100 bugs that are caught.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <tuple>

#include "conformance/faults/fault.hpp"
#include "conformance/judge.hpp"
#include "conformance/program.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;

// Nearly every bug can act in one of them.
const char* const kGrounds[] = {
    "Required.grad.zero2.fp32.w2.gas3.clip-off.sgd.nasty.engine_backward",
    "Required.grad.zero3.fp32.w2.gas3.clip-above.adamw.nasty.loss_backward",
    "Required.grad.zero1.fp16.w2.gas4.clip-above.adamw.nasty.scale_backward",
    "Required.grad.zero0.fp16.w2.gas1.clip-off.sgd.nasty.engine_backward",
    "Required.grad.zero1.fp32.w4.gas3.clip-off.adamw.nasty.engine_backward",
    "Required.grad.zero3.bf16.w3.gas4.clip-off.sgd.gpt.tensor_backward",
    "Required.grad.zero2.fp32-prescale.w3.gas1.clip-above-inf.sgd.nasty.tensor_backward",
    "Required.grad.zero2.offload.w2.gas3.clip-below.adamw.nasty.loss_backward",
    "Required.grad.zero3.autocast-bf16.w2.gas3.clip-off.adamw.gpt.engine_backward",
    "Required.grad.zero1.bf16-masters.w2.gas4.clip-below.adamw.nasty.loss_backward",
};

struct Ground {
  CaseSpec spec;
  std::string twin;
};

json request(const char* what, const CaseSpec& spec) {
  return {{"do", what}, {"id", spec.id()}, {"seed", 1}, {"data", to_json(find_data("", false))}};
}

std::vector<int> first_ranks(int world) {
  std::vector<int> ranks(static_cast<std::size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// When it acted first over all ranks, and on what.
struct Acted {
  int step = -1, micro_batch = -1;
  std::set<std::string> parameters;
};

Acted acted_of(const std::vector<Outcome>& outcomes) {
  Acted first;
  for (const auto& outcome : outcomes) {
    const auto& acted = outcome.answer.at("acted");
    const int step = acted.at("step"), micro_batch = acted.at("micro_batch");
    if (acted.at("times").get<int64_t>() == 0) continue;
    const bool is_first =
        first.step < 0 || std::tuple(step, micro_batch) < std::tuple(first.step, first.micro_batch);
    if (is_first) first = {step, micro_batch, {}};
    if (step == first.step && micro_batch == first.micro_batch)
      for (const auto& name : acted.at("parameters")) first.parameters.insert(name);
  }
  return first;
}

// The step in which the planted bug acted, by the last notes of ranks that did not answer.
int acted_by_notes(const std::vector<Outcome>& outcomes) {
  const std::string words = "acted in step ";
  int first = -1;
  for (const auto& outcome : outcomes) {
    const auto at = outcome.doing.find(words);
    if (at == std::string::npos) continue;
    const int step = std::atoi(outcome.doing.c_str() + at + words.size()) - 1;
    first = first < 0 ? step : std::min(first, step);
  }
  return first;
}

// What the line has wrong; empty: nothing.
std::string wrong_in(const std::string& phase, const Judged& judged,
                     const std::vector<Outcome>& outcomes) {
  if (!judged.first) return "no first place";
  const auto first = to_json(*judged.first);
  const int step = first.at("step"), micro_batch = first.at("micro_batch");
  if (!judged.answered) {
    const int acted = acted_by_notes(outcomes);
    return acted >= 0 && acted != step ? "step" : "";
  }
  const auto acted = acted_of(outcomes);
  if (first.at("phase") != phase) return "phase";
  // What is published is read, and seen, by the next forward at the latest.
  if (step != acted.step && !(phase == "forward" && step == acted.step + 1)) return "step";
  if (phase == "gradient" && micro_batch >= 0 && acted.micro_batch >= 0 &&
      micro_batch != acted.micro_batch)
    return "micro-batch";
  const std::string parameter = first.at("parameter");
  if (!parameter.empty() && !acted.parameters.empty() && !acted.parameters.contains(parameter))
    return "parameter";
  return "";
}

TEST(Localisation, TheFirstLineIsRightForNineteenOfTwentyBugs) {
  ranks::Pool pool(4, serve, {std::chrono::milliseconds(6'000), std::chrono::milliseconds(500)});
  std::vector<Ground> grounds;
  for (const char* id : kGrounds) {
    const auto spec = parse_id(id);
    grounds.push_back({spec, pool.directory() + "/twin." + spec.id()});
    auto twin = request("twin", spec);
    twin["path"] = grounds.back().twin;
    ASSERT_TRUE(ranks::all_ok(pool.run({0}, twin)));
  }
  int caught = 0, right = 0;
  for (const auto& fault : faults::catalogue()) {
    if (fault.bugs.empty()) continue;
    for (const auto& ground : grounds) {
      auto one = request("case", ground.spec);
      one["twin"] = ground.twin;
      one["fault"] = fault.name;
      const auto outcomes = pool.run(first_ranks(ground.spec.world), one);
      const auto judged = judge(ground.spec, "", outcomes);
      if (reports::passed(judged.record.verdict)) continue;
      ++caught;
      const auto wrong = wrong_in(fault.phase, judged, outcomes);
      if (wrong.empty()) {
        ++right;
      } else {
        std::cout << fault.name << " (" << fault.phase << "), wrong " << wrong << ":\n"
                  << judged.record.message.substr(0, judged.record.message.find('\n')) << "\n";
        if (judged.answered)
          for (const auto& outcome : outcomes) std::cout << outcome.answer.at("acted") << "\n";
      }
      break;
    }
  }
  std::cout << right << " of " << caught << " bugs that are caught are placed right\n";
  EXPECT_GE(caught, 60);
  EXPECT_GE(20 * right, 19 * caught);
}

}  // namespace
}  // namespace equigrad::conformance
