// What a case judges beside its numbers: each disturbance is planted at a seam, or in the engine's
// configuration alone, and the first finding names it.
#include "conformance/on_rank/run.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <gmock/gmock.h>

#include <cfenv>
#include <functional>

#include "conformance/faults/seams.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "conformance/testing/rank_test.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::RankContext;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace through = faults::through;

CaseSpec spec_of(int stage) {
  return {.stage = stage,
          .precision = Precision::Fp32,
          .style = Style::ScaleBackward,
          .world = 2,
          .accumulation = 3,
          .clip = Clip::Above,
          .optimizer = Rule::AdamW,
          .model = "irregular"};
}

using ChangeTwin = std::function<void(oracle::TensorFile&)>;

// The answer of this rank. `request` is added to the case's.
json answer_of(RankContext& context, const CaseSpec& spec, json request = json::object(),
               const ChangeTwin& change = {}) {
  static const auto data = to_json(find_data("", false));
  const std::string twin = context.directory() + "/twin.safetensors";
  const json all = {{"id", spec.id()}, {"seed", 1}, {"data", data}};
  if (context.rank() == 0) {
    json make = all;
    make.update({{"do", "twin"}, {"path", twin}});
    serve(make, context);
    auto file = oracle::read_tensors(twin);
    if (change) change(file);
    oracle::write_tensors(twin, file.tensors, file.metadata);
  }
  auto made = at::zeros({1});
  context.group()->all_reduce_sum(made)->wait();
  request.update(all);
  request.update({{"do", "case"}, {"twin", twin}, {"adversary", 0}});
  return serve(request, context);
}

std::string first_finding(const json& answer) { return answer.at("exact").at("first"); }

void on_two_ranks(const std::function<void(RankContext&)>& run) {
  EXPECT_EQ(ranks::on_ranks(2, run, {.timeout = std::chrono::minutes(3)}), "");
}

TEST(Run, WithoutAFaultAllOfItHoldsAndIsJudged) {
  on_two_ranks([](RankContext& context) {
    for (const int stage : {0, 1, 2, 3}) {
      const auto answer = answer_of(context, spec_of(stage));
      EXPECT_EQ(first_finding(answer), "") << "stage " << stage;
      // 3 steps of 3 micro-batches: a forward and its guard, scale(), backward, getters, step();
      // initialize(), the engine's end, the case, and what each step's comparison asks for.
      EXPECT_EQ(answer.at("compared").at("caller"), 9 * 9 + 3 + 3);
      EXPECT_EQ(answer.at("compared").at("ledger"), 7 + 3 * (7 + 2 * 4));
      EXPECT_GT(answer.at("compared").at("getter"), 9 * 2 * 15);
    }
  });
}

// Each rank has its own part of the parameters, and what it holds of the gradients' norm is told
// apart from what the other has too.
TEST(Run, ASplitModelHoldsOnEveryTensorRank) {
  on_two_ranks([](RankContext& context) {
    for (const int stage : {0, 1, 2}) {
      auto spec = spec_of(stage);
      spec.model = "gated2";
      const auto answer = answer_of(context, spec);
      EXPECT_EQ(first_finding(answer), "") << "stage " << stage;
      EXPECT_EQ(answer.at("tensor_rank"), context.rank());
      // 3,776 elements are split: token, qkv, and the weights of projection, gate_up and down.
      int64_t held = 0;
      for (const auto& row : answer.at("cover")) held += row.at(3).get<int64_t>();
      EXPECT_EQ(held, 4016 - 3776 / 2);
      EXPECT_EQ(answer.at("bounded").at("differing"), 0);
    }
  });
}

// Each rank passes on its part of the sequence, and ZeRO shards over all of them.
TEST(Run, APartOfASequenceHoldsOnEveryRankOfIt) {
  on_two_ranks([](RankContext& context) {
    for (const int stage : {0, 1, 2, 3}) {
      auto spec = spec_of(stage);
      spec.model = "ulysses2";
      const auto answer = answer_of(context, spec);
      EXPECT_EQ(first_finding(answer), "") << "stage " << stage;
      int64_t held = 0;
      for (const auto& row : answer.at("cover"))
        held += row.at(2).get<int64_t>() - row.at(1).get<int64_t>();
      EXPECT_EQ(held, stage == 0 ? 4200 : 4200 / 2);
      EXPECT_EQ(answer.at("bounded").at("differing"), 0);
    }
  });
}

// Of what ranks share, gradients are beside those of the unsplit model too, in every precision: an
// engine and a twin that make one mistake together, such as a division by the tensor ranks, have
// equal bits.
TEST(Run, WhatRanksShareIsBesideTheUnsplitModel) {
  on_two_ranks([](RankContext& context) {
    for (const auto precision : {Precision::Fp32, Precision::Bf16}) {
      for (const std::string model : {"gated2", "ulysses2"}) {
        auto spec = spec_of(1);
        spec.model = model;
        spec.precision = precision;
        const auto right = answer_of(context, spec);
        EXPECT_EQ(right.at("bounded").at("differing"), 0) << right.at("bounded").at("first");
        const auto answer = answer_of(context, spec, json::object(), [](oracle::TensorFile& file) {
          for (auto& [name, tensor] : file.tensors)
            if (name.starts_with("unsplit") && name.ends_with("qkv.weight")) tensor.neg_();
        });
        EXPECT_EQ(first_finding(answer), "");
        EXPECT_GT(answer.at("bounded").at("differing"), 0);
        EXPECT_THAT(answer.at("bounded").at("first").get<std::string>(),
                    ::testing::ContainsRegex(
                        "^step 1 gradient .*qkv.weight \\(against the unsplit model\\): "));
        EXPECT_EQ(answer.at("compared").at("bound"), right.at("compared").at("bound"));
      }
    }
  });
}

struct Disturbance {
  const char* first;  // how the first finding begins
  std::function<void(faults::Seams&)> plant;
  std::function<void()> undo = [] {};
  int stage = 2;
};

void after_every_update(faults::Seams& seams, const std::function<void()>& disturb) {
  seams.update_all = [disturb](optimizer::ShardedState& self, const at::Tensor& gradient,
                               const std::vector<bool>& used) {
    through::update_all(self, gradient, used);
    disturb();
  };
}

std::vector<Disturbance> of_the_caller() {
  return {
      {.first = "step 1 caller after step() of micro-batch 3: the rounding mode was to nearest, is "
                "upward",
       .plant = [](auto& seams) { after_every_update(seams, [] { std::fesetround(FE_UPWARD); }); },
       .undo = [] { std::fesetround(FE_TONEAREST); }},
      {.first = "step 1 caller after step() of micro-batch 3: torch's CPU generator",
       .plant = [](auto& seams) { after_every_update(seams, [] { at::rand({1}); }); }},
      {.first = "step 1 caller after step() of micro-batch 3: the number of threads was 1, is 2",
       .plant = [](auto& seams) { after_every_update(seams, [] { at::set_num_threads(2); }); },
       .undo = [] { at::set_num_threads(1); }},
      {.first =
           "step 1 caller after scale() of micro-batch 1: the forward gradient mode was on, is "
           "off",
       .plant =
           [](auto& seams) {
             seams.loss_scale = [](const at::Tensor& tensor, const auto& scaler) {
               auto scaled = through::loss_scale(tensor, scaler);
               c10::AutogradState::get_tls_state().set_fw_grad_mode(false);
               return scaled;
             };
           },
       .undo = [] { c10::AutogradState::get_tls_state().set_fw_grad_mode(true); }},
      {.first = "step 1 caller after a backward pass of micro-batch 1: torch's CPU generator",
       .plant =
           [](auto& seams) {
             seams.window_end = [](gradient::Window& self) {
               through::window_end(self);
               at::rand({1});
             };
           }},
      {.first = "step 3 caller after the case: the number of callbacks of operators was ",
       .plant =
           [](auto& seams) {
             seams.make_keeper = [](const parameter::Context& of, bool sharded) {
               at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                 return std::unique_ptr<at::ObserverContext>();
               }));
               return through::make_keeper(of, sharded);
             };
           },
       .undo = [] { at::clearCallbacks(); }},
  };
}

std::vector<Disturbance> of_the_engine() {
  return {
      {.first = "step 1 ledger after step() of micro-batch 1: gathered holds ",
       .plant =
           [](auto& seams) {
             seams.page_drop = [](parameter::Page& self, memory::Ledger& ledger) {
               through::page_drop(self, ledger);
               ledger.charge(memory::Category::Gathered, 8);
             };
           },
       .stage = 3},
      {.first = "step 3 getter full_gradient ",
       .plant =
           [](auto& seams) {
             seams.window_slice = [](gradient::Window& self, std::size_t parameter, double factor) {
               return through::window_slice(self, parameter, factor * 2);
             };
           }},
  };
}

void expect_first_findings(const std::vector<Disturbance>& disturbances) {
  for (const auto& one : disturbances)
    on_two_ranks([&one](RankContext& context) {
      one.plant(faults::seams());
      const auto answer = answer_of(context, spec_of(one.stage));
      faults::seams() = {};
      one.undo();
      EXPECT_THAT(first_finding(answer), StartsWith(one.first));
    });
}

TEST(Run, WhatItsCallerFindsChangedIsTheFirstFinding) { expect_first_findings(of_the_caller()); }

TEST(Run, APageThatStaysAndAGetterThatErrsAreTheFirstFinding) {
  expect_first_findings(of_the_engine());
}

TEST(Run, AnErrorTellsWhatWasFoundBeforeIt) {
  on_two_ranks([](RankContext& context) {
    faults::seams().loss_scale = [](const at::Tensor& tensor, const auto& scaler) {
      auto scaled = through::loss_scale(tensor, scaler);
      at::GradMode::set_enabled(false);
      return scaled;
    };
    std::string said;
    try {
      answer_of(context, spec_of(1));
    } catch (const std::exception& error) {
      said = error.what();
    }
    faults::seams() = {};
    at::GradMode::set_enabled(true);
    EXPECT_THAT(said, StartsWith("[engine.scale] expected a tensor with a graph"));
    EXPECT_THAT(said, HasSubstr("\n  before it: step 1 caller after scale() of micro-batch 1: the "
                                "gradient mode was on, is off"));
  });
}

// Keys that reach the engine alone; its first group holds what is frozen.
TEST(Run, WhatAGetterSaysIsWhatTheRecipeHas) {
  const std::vector<std::pair<json, const char*>> wrong = {
      {{{"optimizer", {{"params", {{"lr", 0.5}}}}}},
       "step 1 getter get_lr of group 2 before step() of micro-batch 1: got 0.5, expected "},
      {{{"optimizer", {{"params", {{"weight_decay", 0.5}}}}}},
       "step 1 getter hyper_parameters.weight_decay of group 2 before step()"},
      {{{"optimizer", {{"params", {{"eps", 0.5}}}}}},
       "step 1 getter hyper_parameters.eps of group 2 before step()"},
      {{{"train_batch_size", nullptr}, {"gradient_accumulation_steps", 2}},
       "step 1 getter is_gradient_accumulation_boundary before step() of micro-batch 2"},
  };
  for (const auto& one : wrong)
    on_two_ranks([&one](RankContext& context) {
      const auto answer = answer_of(context, spec_of(1), {{"knobs", one.first}});
      EXPECT_THAT(first_finding(answer), StartsWith(one.second));
    });
}

TEST(Run, LayerDropFallsAsItsKeysSay) {
  on_two_ranks([](RankContext& context) {
    const json knobs = {
        {"progressive_layer_drop", {{"enabled", true}, {"theta", 0.25}, {"gamma", 0.5}}}};
    EXPECT_EQ(first_finding(answer_of(context, spec_of(2), {{"knobs", knobs}})), "");
  });
}

}  // namespace
}  // namespace equigrad::conformance
