// 14. Scopes of gather(): one in another, broken off, of pages that stay. Leaf modules by marks.
#include <torch/types.h>

#include <cstring>
#include <functional>
#include <stdexcept>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/leaf_modules.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::conformance::contract {
namespace {

// A matrix; a vector and a scalar, which stay whole where small pages do.
const std::vector<std::string> kMatrix = {"encode.weight"}, kSmall = {"twice.bias", "scalar"},
                               kAll = {"encode.weight", "twice.bias", "scalar"};

at::Tensor whole(Play& play, const std::string& name) {
  return play.model().named_parameters()[name].detach();
}

void see_whole(Play& play, const std::string& when) {
  for (const auto& name : kAll)
    play.gather({name}, std::nullopt, [&] { play.see(name + " " + when, whole(play, name)); });
}

std::string open(int count) {
  return "expected no scope of gather(), got " + std::to_string(count) + " that are open";
}

// A scope within a scope, each with a writer of its own.
void nested(Play& play) {
  const int rank = play.context().rank, outer = play.context().world - 1, inner = 0;
  play.gather(kMatrix, outer, [&] {
    play.gather(kSmall, inner, [&] {
      play.refuse(open(2), [&] { play.step(); });
      play.refuse("expected a parameter that no scope holds, got \"encode.weight\"",
                  [&] { play.gather(kAll, std::nullopt, [] {}); });
      if (rank == inner) whole(play, "twice.bias").narrow(0, 3, 5).mul_(play.fault() ? 1.75 : 1.5);
    });
    play.refuse(open(1), [&] { play.step(); });
    play.refuse("expected a parameter that gather() has not pinned", [&] {
      play.set_full("master", "encode.weight", at::ones({13, 7}));
    });
    if (rank == outer) whole(play, "encode.weight").narrow(0, 2, 4).fill_(0.25);
  });
  see_whole(play, "after both scopes");
}

// Of what one rank alone, or all of them, broke off nothing is kept, whoever may write.
void broken(Play& play, bool on_all) {
  const auto& context = play.context();
  const int bad = context.world - 1;
  const bool breaks = on_all || context.rank == bad;
  const std::string told = "got an exception on rank " + std::to_string(bad);
  play.refuse(breaks ? "planted in the scope" : told, [&] {
    play.gather(kAll, bad, [&] {
      if (context.rank == bad)
        for (const auto& name : kAll) whole(play, name).add_(1);
      if (breaks) throw std::runtime_error("planted in the scope");
    });
  });
  see_whole(play, on_all ? "after all ranks threw" : "after one rank threw");
}

// A write that nobody may make is taken back too.
void written_in_vain(Play& play) {
  play.refuse("expected no writes without a modifier rank, got a write to \"", [&] {
    play.gather(kSmall, std::nullopt, [&] {
      if (play.context().rank != 0) return;
      whole(play, "twice.bias").add_(1);
      std::memset(whole(play, "scalar").mutable_data_ptr(), 0x3f, 2);
    });
  });
  see_whole(play, "after a write that nobody may make");
}

int64_t gathered_bytes(Engine& engine) { return engine.ledger().bytes(memory::Category::Gathered); }

void scopes(Play& play) {
  auto* engine = play.engine();
  const int64_t before = engine == nullptr ? 0 : gathered_bytes(*engine);
  nested(play);
  broken(play, /*on_all=*/false);
  broken(play, /*on_all=*/true);
  written_in_vain(play);
  if (engine != nullptr) {
    {
      const auto ended_by_its_destructor =
          engine->gather({play.model().named_parameters()["scalar"]});
      play.refuse(open(1), [&] { play.step(); });
    }
    play.check("what the scopes held is let go", gathered_bytes(*engine) == before);
  }
  train_along(play);
}

// Marks by class, by its name, by name and by suffix; and none.
struct Marking {
  std::string name;
  std::function<LeafModules(Experts&)> mark;
};
const std::vector<Marking>& markings() {
  static const std::vector<Marking> kMarkings = {
      {"by class", [](Experts& model) { return set_z3_leaf_modules<Experts::Group>(model); }},
      {"by the class's name", [](Experts& model) { return set_z3_leaf_modules(model, {"Group"}); }},
      {"by name", [](Experts& model) { return set_z3_leaf_modules_by_name(model, {"experts"}); }},
      {"by suffix", [](Experts& model) { return set_z3_leaf_modules_by_suffix(model, {"perts"}); }},
      {"not at all", [](Experts& model) {
         set_z3_leaf_modules_by_name(model, {"experts"});
         unset_z3_leaf_modules_by_suffix(model, {"perts"});
         return LeafModules{};
       }}};
  return kMarkings;
}

bool is_here(const at::Tensor& parameter) { return parameter.storage().data() != nullptr; }

// One expert's operator brings the others' parameters if they are one leaf.
void check_marking(Play& play, const Marking& one) {
  const auto owner = make_contract_model("experts", play.context().seed);
  auto& model = dynamic_cast<Experts&>(*owner);
  const auto marked = one.mark(model);
  const bool is_leaf = one.name != "not at all";
  const LeafModules want = is_leaf ? LeafModules{model.experts.get()} : LeafModules{};
  play.check("what is marked " + one.name + " is given", marked == want);
  play.check("and found",
             get_z3_leaf_modules(model) == want && z3_leaf_module(*model.experts) == is_leaf);
  play.refuse("got \"exprets\"", [&] { set_z3_leaf_modules_by_name(model, {"exprets"}); });
  play.refuse("expected a module of that class in the model, got none",
              [&] { set_z3_leaf_modules<Tower>(model); });
  const auto engine =
      initialize(*owner, config_beside(play, {.zero = R"(, "stage3_param_persistence_threshold": 0,
                                       "stage3_prefetch_bucket_size": 0)"}),
                 play.group());
  const auto& others = model.experts->all[2]->down->weight;
  const bool pages = play.context().stage == 3;
  const auto hidden = model.experts->all[0]->up(play.batch().input);
  play.check("an operator of one expert brings another's weight where they are a leaf " + one.name,
             is_here(others) == (!pages || is_leaf) && !play.fault());
  engine->backward(uneven(hidden));
  play.check("after the pass it is gone where pages go", is_here(others) == !pages);
  engine->step();
}

void marked_leaves(Play& play) {
  if (play.group())
    for (const auto& one : markings()) check_marking(play, one);
  train_along(play);
}

}  // namespace

std::vector<Case> scopes_of_gather() {
  return {{.section = "14",
           .name = "scopes_in_scopes_and_broken_off",
           .sentence = "scopes are counted, end in any way, and leave what they may not change",
           .fault = "the inner one writes something else",
           .program = scopes,
           .places = {.precisions = {Precision::Fp32}}},
          {.section = "14",
           .name = "scopes_of_pages_that_stay",
           .sentence = "so they do where parameters are whole before and after them",
           .fault = "the inner one writes something else",
           .program = scopes,
           .features = {Feature::SmallPagesStay}},
          case_beside(
              {.section = "14",
               .name = "leaf_modules_that_are_marked",
               .sentence =
                   "a mark by class, name or suffix makes a leaf, whose parameters come at once",
               .fault = "an expert is expected to come alone",
               .program = marked_leaves})};
}

}  // namespace equigrad::conformance::contract
