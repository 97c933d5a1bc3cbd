// 18. Two engines: one that goes on, and one that was saved and loaded; after the same passes they
// hold the same bits. For what the reference has not: buffers, draws, settings, other ranks.
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <fstream>
#include <functional>
#include <memory>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "conformance/contract/programs/two_groups.hpp"
#include "engine/api/access.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

namespace nn = torch::nn;

struct Tied : nn::Module {
  explicit Tied(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor weight;
};

// A frozen weight, a tied one, running means, and draws.
struct Noisy : nn::Module {
  Noisy()
      : first(register_module("first", nn::Linear(7, 7))),
        norm(register_module("norm", nn::BatchNorm1d(7))),
        dropout(register_module("dropout", nn::Dropout(0.4))),
        tied(register_module("tied", std::make_shared<Tied>(first->weight))),
        frozen(register_parameter("frozen", at::rand({7}) + 0.5, /*requires_grad=*/false)) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::matmul(dropout(at::tanh(norm(first(x))) * frozen), tied->weight);
  }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Dropout dropout;
  std::shared_ptr<Tied> tied;
  at::Tensor frozen;
};

const char* const kAdam = "AdamW";

struct NoisyRun {
  NoisyRun(Play& play, uint64_t seed) {
    torch::manual_seed(seed);
    model = std::make_shared<Noisy>();
    engine = initialize(*model, config_beside(play, {.optimizer = kAdam}), play.group());
  }
  void train(Play& play, int64_t first, int64_t windows) {
    for (int64_t window = first; window < first + windows; ++window) {
      engine->backward(uneven(model->forward(play.batch(window).input)));
      engine->step();
    }
  }
  std::shared_ptr<Noisy> model;
  std::unique_ptr<Engine> engine;
};

Seen held_by(NoisyRun& run) {
  Seen held;
  add_shards(held, *run.engine);
  for (const auto& item : run.model->named_parameters())
    held.emplace_back(item.key(), run.engine->full_parameter(item.key()));
  for (const auto& item : run.model->named_buffers())
    held.emplace_back(item.key(), item.value().clone());
  held.emplace_back("a draw", at::rand({5}));
  return held;
}

void buffers_and_draws(Play& play) {
  const int rank = play.context().rank;
  NoisyRun run(play, 1);
  torch::manual_seed(static_cast<uint64_t>(100 + rank));  // each rank draws its own
  run.train(play, 0, 2);
  run.engine->save_checkpoint(play.folder(), "noisy");
  run.train(play, 2, 2);
  const auto want = held_by(run);
  NoisyRun other(play, 2);
  other.train(play, 9, 1);
  other.engine->load_checkpoint(play.folder(), "noisy");
  if (play.fault()) torch::manual_seed(3);
  other.train(play, 2, 2);
  check_same(play, "with draws and running means", held_by(other), want);
}

void settings_go_on(Play& play) {
  TwoGroups run(play, 1);
  auto settings = run.engine->hyper_parameters();
  settings[0].beta1 = 0.5;
  settings[1].weight_decay = 0.0625;
  run.engine->set_hyper_parameters(settings);
  run.train(1);
  run.engine->set_lr(std::vector<double>{0.5, 0.0078125});
  run.train(1);
  run.engine->save_checkpoint(play.folder(), "settings");
  TwoGroups other(play, 7);
  other.engine->load_checkpoint(play.folder(), "settings");
  if (play.fault()) other.engine->set_lr(0.5);
  play.check("rates and the rest of every group are loaded",
             other.engine->get_lr() == run.engine->get_lr() &&
                 other.engine->hyper_parameters() == run.engine->hyper_parameters());
  run.train(3);
  other.train(3);
  check_same(play, "with settings of its own", other.held(), run.held());
}

// Saved without what is not trained, which the loading engine keeps then.
void without_frozen(Play& play) {
  NoisyRun run(play, 1);
  run.train(play, 0, 2);
  run.engine->save_checkpoint(play.folder(), "trained", {.exclude_frozen_parameters = true});
  NoisyRun other(play, 2);
  const auto own = other.engine->full_parameter("frozen");
  play.refuse(play.fault() ? "no such message" : "saved without its frozen parameters",
              [&] { other.engine->load_checkpoint(play.folder(), "trained"); });
  other.engine->load_checkpoint(play.folder(), "trained", {.module_strict = false});
  auto want = held_by(run), got = held_by(other);
  play.check("what is frozen stays", other.engine->full_parameter("frozen").equal(own));
  for (auto* held : {&want, &got})
    std::erase_if(*held,
                  [](const auto& one) { return one.first == "frozen" || one.first == "a draw"; });
  check_same(play, "what is trained", got, want);
}

// 12 batches a window, whatever ranks there are.
struct Spread {
  static constexpr int64_t kBatches = 12;
  Spread(Play& play, int on_ranks, int at_stage, double fill) : ranks(on_ranks) {
    const auto leaf = [&](at::IntArrayRef sizes) { return at::full(sizes, fill).requires_grad_(); };
    group = {{{"weight", leaf({5, 7})}, {"bias", leaf({5})}, {"scalar", leaf({})}}, {}, {}};
    const auto text =
        R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
        std::to_string(kBatches / ranks) +
        R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "reduction": "exact",
            "gradient_clipping": 0.5, "zero_optimization": {"stage": )" +
        std::to_string(at_stage) + "}}";
    engine = initialize({group}, parse_config(text, ranks), play.group(ranks));
  }
  void train(Play& play, int64_t first, int64_t windows) {
    for (int64_t window = first; window < first + windows; ++window)
      for (int64_t number = play.context().rank; number < kBatches; number += ranks) {
        const auto x = inputs(window, number);
        const auto y = at::matmul(x, group.parameters[0].tensor.t()) + group.parameters[1].tensor;
        engine->backward((at::tanh(y) * group.parameters[2].tensor).square().sum());
        engine->step();
      }
  }
  // Of every rank alike.
  static at::Tensor inputs(int64_t window, int64_t number) {
    return at::sin(at::arange(21, at::kFloat) * static_cast<double>(1 + window * 31 + number))
        .view({3, 7});
  }
  Seen held() const {
    Seen all;
    for (const auto& one : group.parameters)
      for (const char* what : {"master", "exp_avg", "exp_avg_sq"}) {
        auto& access = engine->access();
        all.emplace_back(std::string(what) + " " + one.name,
                         what == std::string("master")
                             ? access.full_master(one.name)
                             : access.full_optimizer_state(one.name, what));
      }
    return all;
  }
  int ranks;
  ParameterGroup group;
  std::unique_ptr<Engine> engine;
};

// On fewer ranks, on one, on all again, each at another stage; the others wait.
void other_ranks(Play& play) {
  const auto& context = play.context();
  Spread run(play, context.world, context.stage, 0.5);
  run.train(play, 0, 8);
  const auto want = run.held();
  const int fewer = std::max(1, context.world - 1);
  const std::vector<int> ranks = {context.world, fewer, 1, context.world};
  for (std::size_t part = 0; part < ranks.size(); ++part) {
    wait_for_all(play);
    if (context.rank >= ranks[part]) continue;
    const int stage = (context.stage + static_cast<int>(part)) % 4;
    Spread next(play, ranks[part], stage, part == 0 ? 0.5 : 3);
    const bool has_states = !(play.fault() && part == 2);
    const auto loaded =
        next.engine->load_checkpoint(play.folder(), "", {.optimizer_states = has_states});
    play.check("all but the first part begin with what was saved",
               loaded.has_value() == (part > 0));
    next.train(play, static_cast<int64_t>(part) * 2, 2);
    next.engine->save_checkpoint(play.folder());
    if (part + 1 == ranks.size()) check_same(play, "on other ranks", next.held(), want);
  }
}

// A model that has a parameter more than what was saved, or one less.
void another_set_of_parameters(Play& play, int64_t extra) {
  TwoGroups run(play, 1);
  run.train(2);
  run.engine->save_checkpoint(play.folder(), "three");
  run.train(2);
  auto groups = TwoGroups::usual_groups(7);
  auto& last = groups[1].parameters;
  if (extra > 0) last.push_back({"extra", at::full({extra}, 7.0).requires_grad_()});
  if (extra < 0) last.pop_back();
  TwoGroups other(play, groups);
  const auto before = other.held();
  play.refuse(play.fault() ? "no such message"
              : extra > 0  ? "got none called \"extra\""
                           : "got \"c\", which the model has not",
              [&] { other.engine->load_checkpoint(play.folder(), "three"); });
  check_same(play, "a load that is refused", other.held(), before);
  play.check("nothing else of it is loaded", other.engine->counters().global_steps == 0);
  other.engine->load_checkpoint(play.folder(), "three", {.module_strict = false});
  play.check("what only the engine has stays",
             extra < 0 || other.engine->full_parameter("extra").equal(at::full({extra}, 7.0)));
  other.train(2);
  auto all = other.held(), want = run.held();
  const auto is_not_common = [](const auto& one) {
    return one.first.ends_with(" extra") || one.first.ends_with(" c");
  };
  std::erase_if(all, is_not_common);
  std::erase_if(want, is_not_common);
  check_same(play, "what both have", all, want);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Words of the user's, `latest`, and tags that are written again.
void tags_and_words(Play& play) {
  const auto folder = play.folder();
  TwoGroups run(play, 1);
  play.check("without a checkpoint nothing is loaded", !run.engine->load_checkpoint(folder));
  run.train(1);
  const std::string words = R"({"epoch":3,"name":"\u00e9","rate":0.1})";
  run.engine->save_checkpoint(folder, "first", {.client_state = words});
  const auto first = run.held();
  run.train(1);
  run.engine->save_checkpoint(folder);  // global_step2
  run.train(1);
  run.engine->save_checkpoint(folder, "third", {.save_latest = false});
  const auto third = run.held();
  TwoGroups other(play, 7);
  const auto newest = other.engine->load_checkpoint(folder);
  play.check("latest is the last that was to be",
             newest && newest->path == folder + "/global_step2" && newest->client_state == "null");
  const auto loaded = other.engine->load_checkpoint(folder, "first");
  play.check("the user's words come back",
             loaded && loaded->path == folder + "/first" &&
                 loaded->client_state.find(R"("epoch":3)") != std::string::npos &&
                 loaded->client_state.find(R"("rate":0.1)") != std::string::npos);
  check_same(play, "the first tag", other.held(), play.fault() ? third : first);
  run.engine->save_checkpoint(folder, "first");
  other.engine->load_checkpoint(folder, "first");
  check_same(play, "a tag that was written again", other.held(), third);
  wait_for_all(play);
  if (play.context().rank == 0) std::ofstream(folder + "/latest") << "third";
  wait_for_all(play);
  const auto by_hand = other.engine->load_checkpoint(folder);
  play.check("latest may be written by hand", by_hand && by_hand->path == folder + "/third");
  wait_for_all(play);
  play.check("latest is a line that people read", text_of(folder + "/latest").starts_with("third"));
}

void beside_the_tower(Play& play, const std::function<void(Play&)>& what) {
  if (play.engine() != nullptr) what(play);
  train_along(play);
}

Case pair_case(const std::string& name, const std::string& sentence, const std::string& fault,
               const std::function<void(Play&)>& what) {
  return case_beside({.section = "18",
                      .name = name,
                      .sentence = sentence,
                      .fault = fault,
                      .program = [what](Play& play) { beside_the_tower(play, what); }});
}

}  // namespace

std::vector<Case> checkpoint_pairs() {
  return {
      pair_case("buffers_and_draws", "running means and each rank's draws go on",
                "the generator is set anew", buffers_and_draws),
      pair_case("settings_of_groups", "rates and settings that were set by group go on",
                "a rate is set", settings_go_on),
      pair_case("other_ranks", "in the exact order a run goes on with other ranks, at other stages",
                "states are not loaded", other_ranks),
      pair_case("a_parameter_more", "a parameter more is refused, and stays where it is asked for",
                "another message is expected",
                [](Play& play) { another_set_of_parameters(play, 6); }),
      pair_case(
          "a_parameter_less", "a parameter less is refused, and left out where it is asked for",
          "another message is expected", [](Play& play) { another_set_of_parameters(play, -1); }),
      pair_case("without_frozen_parameters", "what is not trained may be left out of a save",
                "another message is expected", without_frozen),
      pair_case("tags_and_words", "tags stay, `latest` names one, and the user's words come back",
                "another tag's values are expected", tags_and_words),
  };
}

}  // namespace equigrad::conformance::contract
