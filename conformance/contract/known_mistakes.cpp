#include "conformance/contract/known_mistakes.hpp"

#include <algorithm>

#include "conformance/contract/contract_case.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::contract {

const std::vector<KnownMistake>& known_mistakes() {
  static const std::vector<KnownMistake> kMistakes = {
      {"misbehaviour 1", "misbehaviour-1-of-two-losses-on-one-forward-both-count",
       "of two losses on one forward, stages 1 and 2 keep the last"},
      {"misbehaviour 2", "misbehaviour-2-two-losses-on-one-forward-are-no-error-at-stage-3",
       "two losses on one forward are an error at stage 3"},
      {"misbehaviour 3", "misbehaviour-3-the-first-of-two-losses-counts-once",
       "bf16 summed in fp32 counts the first of two losses twice"},
      {"misbehaviour 4", "misbehaviour-4-of-two-losses-in-plain-calls-both-count",
       "of two losses in plain torch calls, the first is kept"},
      {"misbehaviour 5", "misbehaviour-5-forward-backward-forward-backward-adds",
       "of forward, backward, forward, backward the last is kept"},
      {"misbehaviour 6", "misbehaviour-6-forward-forward-backward-backward-adds",
       "of two forwards, then two backwards, one is kept"},
      {"misbehaviour 7", "misbehaviour-7-forward-forward-backward-backward-adds-at-stage-3",
       "at stage 3 the second of those overwrites the first"},
      {"trap 1", "trap-01-a-second-backward-of-a-forward-accumulates",
       "detection is armed once a forward, not once a backward"},
      {"trap 2", "trap-02-forwards-do-not-decide-what-is-added",
       "a counter of forwards decides between adding and overwriting"},
      {"trap 3", "trap-03-a-missing-gradient-is-not-a-stale-one",
       "the last window's slice stands in for a gradient that is missing"},
      {"trap 4", "trap-04-a-gradient-goes-to-its-own-parameter",
       "gradients of different parameters are added, by order of arrival"},
      {"trap 5", "trap-05-accumulation-divides-once",
       "1/accumulation hangs on the outputs: twice in a chain, not at all beside them"},
      {"trap 6", "trap-06-an-exception-leaves-no-flag",
       "flags of a call that threw, or of an earlier call, stay"},
      {"trap 7", "trap-07-missing-scale-is-checked-before-reducing",
       "a missing loss scale is noticed after the gradients were reduced"},
      {"trap 8", "trap-08-unscaled-with-the-scale-that-was-used",
       "gradients are unscaled with the scale of the next step"},
      {"trap 9", "trap-09-stage-0-scales-and-takes-loss-backward",
       "stage 0 refuses loss.backward(), and does not scale"},
      {"trap 10", "trap-10-an-overflow-is-known-to-every-rank",
       "an overflow is known to one rank only"},
      {"trap 11", "trap-11-a-norm-that-is-not-finite-keeps-clipping-on",
       "a norm that is not finite switches clipping off, a zero one is an error"},
      {"trap 12", "trap-12-the-accumulate-dtype-reaches-the-shard",
       "the accumulate dtype does not reach the slice"},
      {"trap 13", "trap-13-a-getter-gives-the-average-on-every-rank",
       "a getter gives a local or stale value, or throws on some ranks"},
      {"trap 14", "trap-14-a-setter-handles-padded-tails", "a setter fails on padded tails"},
      {"trap 15", "trap-15-zero-grad-cancels-the-window", "zero_grad() cancels nothing"},
      {"trap 16", "trap-16-a-boundary-set-by-hand-can-be-given-back",
       "the boundary, set by hand, cannot be given back to the count"},
      {"trap 17", "trap-17-an-unknown-lr-argument-is-refused",
       "an unknown argument of the scheduler moves it"},
      {"trap 18", "trap-18-engines-share-no-state",
       "one engine's state leaks to others in the process"},
      {"trap 19", "trap-19-clipping-is-off-and-adam-is-adamw", "defaults clip, and Adam is AdamW"},
      {"trap 20", "trap-20-a-forward-before-the-step-is-harmless",
       "an extra forward between backward and step must stay harmless"},
  };
  return kMistakes;
}

const KnownMistake& known_mistake(const std::string& id) {
  for (const auto& mistake : known_mistakes())
    if (mistake.id == id) return mistake;
  throw Error("contract", "expected a known mistake such as " + known_mistakes().front().id +
                              ", got \"" + id + "\". See known_mistakes.cpp.");
}

std::vector<std::string> aliases(const Spec& spec) {
  std::vector<std::string> names;
  for (const auto& answer : spec.of->answers)
    names.push_back("Contract." + known_mistake(answer).name + "." + spec.of->name + spec.place());
  return names;
}

std::string known_mistakes_table() {
  std::string table = "| name | what is seen | cases |\n|---|---|---|\n";
  for (const auto& mistake : known_mistakes()) {
    table += "| `" + mistake.name + "` | " + mistake.words + " |";
    std::string before = " ";
    for (const auto& one : cases()) {
      if (std::count(one.answers.begin(), one.answers.end(), mistake.id) == 0) continue;
      table += before + "`" + one.section + "." + one.name + "`";
      before = ", ";
    }
    table += " |\n";
  }
  return table;
}

}  // namespace equigrad::conformance::contract
