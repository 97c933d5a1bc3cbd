#include "conformance/contract/known_mistakes.hpp"

namespace equigrad::conformance::contract {

const std::vector<KnownMistake>& known_mistakes() {
  static const std::vector<KnownMistake> kMistakes = {
      {"misbehaviour 1", "of two losses on one forward, stages 1 and 2 keep the last"},
      {"misbehaviour 2", "two losses on one forward are an error at stage 3"},
      {"misbehaviour 3", "bf16 summed in fp32 counts the first of two losses twice"},
      {"misbehaviour 4", "of two losses in plain torch calls, the first is kept"},
      {"misbehaviour 5", "of forward, backward, forward, backward the last is kept"},
      {"misbehaviour 6", "of two forwards, then two backwards, one is kept"},
      {"misbehaviour 7", "at stage 3 the second of those overwrites the first"},
      {"trap 1", "detection is armed once a forward, not once a backward"},
      {"trap 2", "a counter of forwards decides between adding and overwriting"},
      {"trap 3", "the last window's slice stands in for a gradient that is missing"},
      {"trap 4", "gradients of different parameters are added, by order of arrival"},
      {"trap 5", "1/gas hangs on the outputs: twice in a chain, not at all beside them"},
      {"trap 6", "flags of a call that threw, or of an earlier call, stay"},
      {"trap 7", "a missing loss scale is noticed after the gradients were reduced", true},
      {"trap 8", "gradients are unscaled with the scale of the next step", true},
      {"trap 9", "stage 0 refuses loss.backward()"},
      {"trap 10", "an overflow is known to one rank only"},
      {"trap 11", "a norm that is not finite switches clipping off, a zero one is an error"},
      {"trap 12", "the accumulate dtype does not reach the slice"},
      {"trap 13", "a getter gives a local or stale value, or throws on some ranks"},
      {"trap 14", "a setter fails on padded tails"},
      {"trap 15", "zero_grad() cancels nothing"},
      {"trap 16", "the boundary, set by hand, cannot be given back to the count"},
      {"trap 17", "an unknown argument of the scheduler moves it"},
      {"trap 18", "one engine's state leaks to others in the process"},
      {"trap 19", "defaults clip, and Adam is AdamW"},
      {"trap 20", "an extra forward between backward and step must stay harmless"},
  };
  return kMistakes;
}

}  // namespace equigrad::conformance::contract
