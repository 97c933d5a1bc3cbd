// The first line of a failure is right: phase, step, micro-batch and parameter are those at which
// the planted bug says that it acted, for at least 95 of 100 bugs that are caught.
#include <gmock/gmock.h>

#include <iostream>
#include <numeric>

#include "conformance/faults/fault.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/verdict/fault_judge.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;

// Nearly every bug can act in one of them.
const char* const kGrounds[] = {
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.engine_backward",
    "Required.grad.zero3.fp32.w2.accumulation3.clip-above.adamw.irregular.loss_backward",
    "Required.grad.zero1.fp16.w2.accumulation4.clip-above.adamw.irregular.scale_backward",
    "Required.grad.zero0.fp16.w2.accumulation1.clip-off.sgd.irregular.engine_backward",
    "Required.grad.zero1.fp32.w4.accumulation3.clip-off.adamw.irregular.engine_backward",
    "Required.grad.zero3.bf16.w3.accumulation4.clip-off.sgd.gpt.tensor_backward",
    ("Required.grad.zero2.fp32-prescale.w3.accumulation1.clip-above-inf.sgd.irregular."
     "tensor_backward"),
    "Required.grad.zero2.offload.w2.accumulation3.clip-below.adamw.irregular.loss_backward",
    "Required.grad.zero3.autocast-bf16.w2.accumulation3.clip-off.adamw.gpt.engine_backward",
    "Required.grad.zero1.bf16-masters.w2.accumulation4.clip-below.adamw.irregular.loss_backward",
    "Required.grad.zero1.fp32.w4.accumulation3.clip-above.sgd.gated2.engine_backward",
    "Required.grad.zero2.fp32.w4.accumulation3.clip-above.sgd.ulysses2.engine_backward",
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
      const auto wrong = misplaced(fault.phase, judged, outcomes);
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
