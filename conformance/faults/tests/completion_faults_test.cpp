// Every fault of completion acts at the stages where its bug lived, is caught where it acts, and
// nowhere else.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "conformance/faults/fault_groups.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/judge.hpp"

namespace equigrad::conformance::faults {
namespace {

CaseSpec case_at(int stage) {
  return {.stage = stage,
          .precision = Precision::Fp32,
          .style = Style::EngineBackward,
          .world = 2,
          .accumulation = 3,
          .clip = Clip::Off,
          .optimizer = Rule::Sgd,
          .model = "gpt"};
}

class Cases {
 public:
  Cases() : pool_(2, serve) {}

  struct Found {
    bool failed, acted;
  };
  Found found(int stage, const std::string& fault, uint64_t adversary = 0) {
    auto one = request("case", stage);
    one["twin"] = twin(stage);
    one["adversary"] = adversary;
    if (!fault.empty()) one["fault"] = fault;
    const auto outcomes = pool_.run({0, 1}, one);
    const auto judged = judge(case_at(stage), "", outcomes);
    EXPECT_TRUE(judged.answered) << fault << ": " << judged.record.message;
    bool acted = false;
    for (const auto& outcome : outcomes)
      acted = acted || (outcome.answer.contains("acted") && outcome.answer["acted"]["times"] > 0);
    return {!reports::passed(judged.record.verdict), acted};
  }

 private:
  nlohmann::json request(const char* what, int stage) const {
    return {{"do", what},
            {"id", case_at(stage).id()},
            {"seed", 1},
            {"data", to_json(find_data("", false))}};
  }
  // Stages 0 and 1 share one, and so do 2 and 3.
  std::string twin(int stage) {
    auto& path = twins_[stage / 2];
    if (!path.empty()) return path;
    path = pool_.directory() + "/twin" + std::to_string(stage / 2);
    auto one = request("twin", stage);
    one["path"] = path;
    EXPECT_EQ(ranks::failures(pool_.run({0}, one)), "");
    return path;
  }

  ranks::Pool pool_;
  std::map<int, std::string> twins_;
};

TEST(CompletionFaults, AreCaughtWhereTheyAct) {
  Cases cases;
  const std::set<int> all = {0, 1, 2, 3};
  const std::map<std::string, std::set<int>> stages = {
      {"completion.always_buffer_zero", {2, 3}},
      {"completion.gather_before_copy", {1, 2, 3}},  // two ranks of stage 0 gather nothing
      {"completion.gather_read_before_wait", {1, 2, 3}},
      {"completion.gather_taken_for_another", {3}},
      {"completion.forward_before_copy_back", {0, 1, 2}}};
  for (const int stage : all) {
    EXPECT_FALSE(cases.found(stage, "").failed) << stage;
    for (uint64_t adversary = 1; adversary <= 3; ++adversary)
      EXPECT_FALSE(cases.found(stage, "", adversary).failed) << stage << " under " << adversary;
  }
  for (const auto& fault : completion_faults()) {
    const auto known = stages.find(fault.name);
    for (const int stage : all) {
      const bool acts = (known == stages.end() ? all : known->second).contains(stage);
      const auto found = cases.found(stage, fault.name);
      EXPECT_EQ(found.acted, acts) << fault.name << " at stage " << stage;
      EXPECT_EQ(found.failed, acts) << fault.name << " at stage " << stage;
    }
  }
}

}  // namespace
}  // namespace equigrad::conformance::faults
