// Relation 39: a run that is saved, ends, and goes on in another engine is the run that went on.
//
//   never   step 1  step 2                           step 3  step 4  step 5
//   first   step 1  step 2  save, a micro-batch more
//   second                  step 2, load             step 3  step 4  step 5
//
// The second engine is made on a network of other weights, and has taken a step with them. On the
// same ranks a loss draws from the rank's generator and depends on running means, both of which are
// the rank's own; and in every mode on theta. There are two groups of parameters, rates that warm
// up, and in fp16 overflows before the save, and behind it where the seed is even.
//
// Invariants: on other ranks and at another stage sums are exact, and micro-batches the same.
// Units: steps count from 0; records name them from 1.
#include <ATen/ATen.h>

#include <algorithm>

#include "conformance/ranks/private_directory.hpp"
#include "conformance/testing/error_of.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

constexpr int kSaved = 2, kSteps = 5;

// The run that is not interrupted, and as what it begins and goes on where it is.
struct Interruption {
  json one, before, after;
  bool same_ranks = false;  // each goes on with what is its own
};

// In `before` and `after` the first so many ranks.
int ranks_of(const json& leg, const json& one) {
  return world_of(one) * accumulation_of(one) / accumulation_of(leg);
}

// What is there beside the network: one rank's.
struct Own {
  at::Tensor mean = at::zeros({3});
  bool used = false;
};

bool overflows(const json& one, const Source& from) {
  const bool is_behind = one.at("seed").get<int>() % 2 == 0 && from.step >= kSaved;
  return is_fp16(one) && from.rank == 0 && from.micro == 0 && from.step < kSteps - 1 &&
         (from.step == 0 || is_behind);
}

// Micro-batches are dealt out as `one` has them, whatever ranks there are.
Way way_of(const json& one, int world, const std::shared_ptr<Own>& own) {
  Way way;
  way.world = world;
  way.steps = kSteps;
  const int accumulation = accumulation_of(one), each = world_of(one) * accumulation / world;
  way.source = [=](const Source& at) {
    const int number = at.rank * each + at.micro;
    return Source{at.step, number / accumulation, number % accumulation};
  };
  way.pass = [one, own](Session& s, const Source& from) {
    const auto output = s.output(from);
    auto loss = s.network.loss(output, s.network.target(from)) + s.network.beside_loss();
    if (own->used) {
      own->mean.mul_(0.9).add_(output.detach().to(at::kFloat).mean(0), 0.1);
      loss = loss * (at::rand({}) + own->mean.abs().sum());
    }
    loss = loss * s.engine->layer_drop().pld_theta;
    s.engine->backward(loss * (overflows(one, from) ? 0x1p100 : 1.0));
  };
  return way;
}

std::map<std::string, at::Tensor> other_weights(const json& one) {
  std::map<std::string, at::Tensor> values;
  const ProbeNetwork other(changed(one, "seed", one.at("seed").get<int>() + 1));
  for (const auto& parameter : other.parameters) values[parameter.name] = parameter.tensor.detach();
  return values;
}

void seed_generator(const json& one, const RankContext& context) {
  at::manual_seed(one.at("seed").get<uint64_t>() * 10 + static_cast<uint64_t>(context.rank()));
}

// What an engine says of itself.
std::string facts_of(const Session& session) {
  const auto& engine = *session.engine;
  const auto& counters = engine.counters();
  return json{{"rates", engine.get_lr()},
              {"theta", engine.layer_drop().pld_theta},
              {"global_steps", counters.global_steps},
              {"skipped_steps", counters.skipped_steps},
              {"was_step_applied", engine.was_step_applied()},
              {"norm", engine.get_global_grad_norm().value_or(-1)},
              {"loss_scale", engine.loss_scale()}}
      .dump();
}

// A folder of all ranks: empty at first, gone when all have read it.
class SharedFolder {
 public:
  explicit SharedFolder(RankContext& context)
      : context_(context), path_(context.directory() + "/relation-39") {
    if (context_.rank() == 0) conformance::ranks::remove_private_directory(path_);
    meet();
  }
  void meet() const { comm::exchange(*context_.group(), at::zeros({1}, at::kLong)); }
  void remove() const {
    meet();
    if (context_.rank() == 0) conformance::ranks::remove_private_directory(path_);
  }
  const std::string& path() const { return path_; }

 private:
  RankContext& context_;
  std::string path_;
};

struct Saved {
  std::string wrong;
  std::string facts;        // of who saved; "": this rank took no part
  int64_t micro_steps = 0;  // likewise
};

struct Ended {
  std::string wrong;
  std::string facts;  // "": this rank took no part
  Record record;
};

std::string client_state_of(const json& one) { return json{{"seed", one.at("seed")}}.dump(); }

// Trains and saves. What comes behind the save is in no checkpoint, and in the middle of a window
// none is made.
Saved save(const Interruption& how, Runs& runs, const std::string& folder) {
  const int world = ranks_of(how.before, how.one);
  if (runs.context.rank() >= world) return {};
  const auto own = std::make_shared<Own>();
  own->used = how.same_ranks;
  seed_generator(how.one, runs.context);
  Session first(how.before, runs.context, way_of(how.one, world, own));
  for (int step = 0; step < kSaved; ++step) first.step(step);
  Saved saved{
      .wrong = "", .facts = facts_of(first), .micro_steps = first.engine->counters().micro_steps};
  first.engine->save_checkpoint(folder, "",
                                {.client_state = client_state_of(how.one),
                                 .buffers = {{"mean", own->mean}},
                                 .asynchronous = how.one.at("seed").get<int>() % 3 == 0});
  first.micro_batch({kSaved, runs.context.rank(), 0});
  if (accumulation_of(how.before) > 1) {
    const auto refusal =
        conformance::error_of([&] { first.engine->save_checkpoint(folder, "never"); });
    if (refusal.find("between two accumulation windows") == std::string::npos)
      saved.wrong = "a save in the middle of a window is not refused: " + refusal;
  }
  first.engine->finish_checkpoint();
  return saved;
}

// Loads into an engine that has another past, and goes on.
Ended go_on(const Interruption& how, Runs& runs, const std::string& folder, const Saved& saved) {
  const int world = ranks_of(how.after, how.one);
  if (runs.context.rank() >= world) return {};
  const auto own = std::make_shared<Own>();
  own->used = how.same_ranks;
  at::manual_seed(77);
  auto way = way_of(how.one, world, own);
  way.start = other_weights(how.one);
  Session second(how.after, runs.context, way);
  second.step(kSaved - 1);
  const auto loaded =
      second.engine->load_checkpoint(folder, "", {.buffers = {{"mean", own->mean}}});
  if (!loaded) return {.wrong = "there is nothing to load", .facts = "", .record = {}};
  Ended ended;
  if (json::parse(loaded->client_state) != json::parse(client_state_of(how.one)))
    ended.wrong = "the client's state is " + loaded->client_state;
  if (!saved.facts.empty() && facts_of(second) != saved.facts)
    ended.wrong = "saved as " + saved.facts + ", loaded as " + facts_of(second);
  if (!saved.facts.empty() && second.engine->counters().micro_steps != saved.micro_steps)
    ended.wrong = "micro-steps are counted anew";
  for (int step = kSaved; step < kSteps; ++step) second.step(step);
  ended.record = second.finish();
  ended.facts = facts_of(second);
  return ended;
}

bool is_behind_the_save(const std::string& key) {
  return !key.starts_with("1 ") && !key.starts_with("2 ");
}

std::string interrupted(const Interruption& how, Runs& runs) {
  const SharedFolder folder(runs.context);
  Ended whole;
  {
    const auto own = std::make_shared<Own>();
    own->used = how.same_ranks;
    seed_generator(how.one, runs.context);
    Session never(how.one, runs.context, way_of(how.one, world_of(how.one), own));
    never.train();
    whole = {.wrong = "", .facts = facts_of(never), .record = never.record};
  }
  const auto saved = save(how, runs, folder.path());
  folder.meet();
  const auto resumed = go_on(how, runs, folder.path(), saved);
  folder.remove();
  if (!saved.wrong.empty()) return saved.wrong;
  if (!resumed.wrong.empty()) return resumed.wrong;
  const auto wrong = parted(resumed.record, whole.record, is_behind_the_save);
  if (!wrong.empty() || resumed.facts.empty() || resumed.facts == whole.facts) return wrong;
  return "it ends as " + resumed.facts + ", the other as " + whole.facts;
}

// With all that an engine remembers.
json remembering(json one) {
  one.update({{"hysteresis", 3}, {"warmup", 4}, {"layer_drop", true}, {"groups", 2}});
  return one;
}

// Another number of ranks that can have the same micro-batches; the same where there is none.
int other_ranks(const json& one) {
  const int world = world_of(one), seed = one.at("seed");
  std::vector<int> fitting;
  for (int ranks = 1; ranks < world; ++ranks)
    if (world * accumulation_of(one) % ranks == 0) fitting.push_back(ranks);
  if (fitting.empty()) return world;
  return fitting[static_cast<std::size_t>(seed) % fitting.size()];
}

std::string resumed(const json& drawn, Runs& runs) {
  const auto one = remembering(drawn);
  const auto here =
      interrupted({.one = one, .before = one, .after = one, .same_ranks = true}, runs);
  const auto exact = changed(changed(one, "exact", true), "wide_sums", true);
  const int seed = one.at("seed");
  auto other = changed(exact, "stage", (stage_of(one) + 1 + seed % 3) % 4);
  other["accumulation"] = world_of(one) * accumulation_of(one) / other_ranks(one);
  Interruption how{.one = exact, .before = exact, .after = other};
  if (seed % 2 == 1) std::swap(how.before, how.after);
  const auto elsewhere = interrupted(how, runs);
  return here.empty() && !elsewhere.empty() ? "on other ranks: " + elsewhere : here;
}

}  // namespace

std::vector<Relation> checkpoint_relations() {
  std::vector<std::string> faults;
  for (const auto* name :
       {"shards_in_order_of_text", "padding_shifts", "padding_as_data",
        "states_of_another_parameter", "second_state_is_the_first", "masters_rounded",
        "frozen_left_out", "buffers_of_rank_0", "draws_of_rank_0", "states_skipped_in_bf16",
        "masters_not_refreshed", "step_counts_dropped", "first_group_for_all", "loss_scale_dropped",
        "growth_begins_anew", "hysteresis_refilled", "counters_dropped", "schedule_dropped",
        "layer_drop_dropped"})
    faults.push_back("checkpoint." + std::string(name));
  return {{39, "a run that is saved and goes on in another engine is the run that went on",
           Class::Exact, always, resumed, faults}};
}

}  // namespace equigrad::property_tests::relations
