// The spans of a step in a profile: one for every phase, in their order, at every stage.
#include <ATen/record_function.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "conformance/testing/small_run.hpp"
#include "engine/engine.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::SmallRun;
using conformance::ranks::RankContext;
using testing::ElementsAreArray;
using testing::UnorderedElementsAreArray;
using Names = std::vector<std::string>;

thread_local Names* seen = nullptr;

// As a profiler does, on this thread: every span that begins while it lives. Gloo has spans of its
// own, which begin on its threads too.
class Spans {
 public:
  explicit Spans(const std::unordered_set<at::RecordScope, std::hash<at::RecordScope>>& scopes)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& span)
                                           -> std::unique_ptr<at::ObserverContext> {
              const std::string name = span.name();
              if (seen != nullptr && !name.starts_with("gloo:")) seen->push_back(name);
              return nullptr;
            }).scopes(scopes))) {
    seen = &names;
  }
  ~Spans() {
    at::removeCallback(handle_);
    seen = nullptr;
  }
  Spans(const Spans&) = delete;
  Spans& operator=(const Spans&) = delete;

  Names names;

 private:
  at::CallbackHandle handle_;
};

// Where ranks wait for each other: as often as it takes.
bool is_waiting(const std::string& name) {
  return name.starts_with("comm.") || name.starts_with("agreement.") ||
         name == "parameter.gather" || name == "parameter.arrive";
}

TEST(Phase, EveryPhaseOfAStepIsASpanInItsOrder) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .accumulation = 2, .clipping = 1e-3});
    run.train(0);
    const Spans spans({at::RecordScope::USER_SCOPE});
    run.train(1);
    Names phases;
    std::set<std::string> waits;
    for (const auto& name : spans.names) {
      if (is_waiting(name))
        waits.insert(name);
      else
        phases.push_back(name);
    }
    EXPECT_THAT(phases,
                ElementsAreArray({"engine.backward", "gradient.ready", "gradient.ready",
                                  "gradient.ready", "gradient.ready", "gradient.end_pass",
                                  "engine.step", "gradient.agree", "gradient.reduce", "shard.norm",
                                  "shard.clip", "optimizer.update", "parameter.publish"}));
    Names expected{"comm.reduce", "comm.finish", "agreement.meet"};
    if (stage == 3)
      for (const char* name : {"agreement.want", "parameter.gather", "parameter.arrive"})
        expected.emplace_back(name);
    EXPECT_THAT(waits, UnorderedElementsAreArray(expected));
  });
}

// Operators' observers, the engine's own among them, are asked for scopes that spans are not of.
TEST(Phase, NoObserverOfOperatorsSeesASpan) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage});
    const Spans operators({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    run.train(0);
    EXPECT_FALSE(operators.names.empty());
    for (const auto& name : operators.names) {
      EXPECT_FALSE(is_waiting(name)) << name;
      for (const char* room : {"engine.", "gradient.", "shard.", "optimizer.", "parameter."})
        EXPECT_FALSE(name.starts_with(room)) << name;
    }
  });
}

}  // namespace
}  // namespace equigrad
