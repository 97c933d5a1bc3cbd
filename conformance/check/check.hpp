// Check: whether an engine computes the gradients of any model right, on any number of ranks.
//
//   TEST(MyModel, GradientsAreEqual) {
//     EXPECT_GRADIENTS_EQUAL(equigrad::check(
//         [] { return std::make_shared<MyModel>(); },
//         [](MyModel& model, const equigrad::Which& which) { return loss_of(model, which); },
//         {.ranks = {2, 3}, .stages = {0, 1, 2, 3}, .precisions = {"fp32", "bf16"}}));
//   }
//
// Every case trains for some steps on ranks that are forked here, and is compared at each of them
// with a twin: plain autograd of every rank and micro-batch in one process, added and averaged in
// the engine's order by the reference. Exact lane: losses, averaged gradients, norm, clipping, loss
// scale, skipped steps, masters, states, parameters and buffers, 0 bits. Bounded lane: the first
// gradient against more bits. Cross lane: stages and call styles against each other. Before the
// cases faults are planted into the model's own engine, which must be seen.
//
// Invariants: the calling process runs neither torch nor the model: both are made in the ranks,
// which are forked; it must have one thread. The factory is called after torch's CPU generator was
// set to `seed`, and must give the same model every time.
// Shapes: losses are scalars, unless the loss function gives (output, gradient).
// Units: steps count optimizer steps; seconds of wall clock.
// Errors: CheckRefused, "[check] expected X, got Y. Remedy.", for a model or options that cannot be
// checked; equigrad::Error where that could not be found out. A difference is no error:
// CheckReport::held is false.
// Depends on: user_model.hpp, engine/error.hpp, reports/record.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "conformance/check/user_model.hpp"
#include "engine/error.hpp"
#include "reports/record.hpp"

namespace equigrad {

class CheckRefused : public Error {
 public:
  using Error::Error;
};

struct CheckOptions {
  std::vector<int> ranks = {2};
  std::vector<int> stages = {};              // empty: 0 to 3, or that of `config`
  std::vector<std::string> precisions = {};  // cases/precision_modes.hpp; empty: fp32, or that of
                                             // `config`
  std::vector<std::string> styles = {};      // engine_backward, scale_backward, loss_backward,
                                             // tensor_backward; empty: all that the passes have
  std::vector<int> accumulation = {2};       // micro-batches; not read with `config`
  std::vector<std::string> clips = {"clip-above"};  // clip-off, clip-below, clip-above,
                                                    // clip-above-inf; not read with `config`
  std::vector<std::string> optimizers = {"adamw"};  // sgd; not read with `config`
  std::string config = {};  // a DeepSpeed configuration: a path or JSON; its twin is what the
                            // engine's parser read
  int steps = 3;
  uint64_t seed = 1;
  std::vector<std::string> filters = {};  // parts of cases' names, or globs; a case needs one of
                                          // them
  std::string report = {};                // folder for index.html, run.json, junit.xml, failures;
                                          // history.jsonl there keeps a line of each check
  bool keep_tensors = true;               // of cases that fail, there
  std::string name = "model";             // in the names of cases: letters, digits, - and _
  std::string command = {};  // that the check was started with; empty: that of this process
  std::string replay = {};   // what repeats a case where its name and its seed follow; empty: the
                             // command, with EQUIGRAD_CHECK_ONLY
  double timeout_scale = 1;
  int slots = 0;               // cases at the same time; 0: as cores and memory allow
  std::string device = "cpu";  // or cuda: where models, engines and the twin's passes are
  std::string fault = {};      // planted into every case; for trying the check itself
  bool progress = false;       // on stderr
};

struct CheckReport {
  bool held = false;
  int64_t compared = 0;            // elements, over all cases and lanes
  std::vector<std::string> notes;  // what was not compared, and what is worth to know
  reports::Run run;                // for the writers of reports
  std::string text() const;        // as `equigrad run` says it
  std::string summary() const;     // a line, and the notes
};

namespace conformance {

class Subject;  // subject.hpp
using MakeSubject = std::function<std::unique_ptr<Subject>()>;
namespace ranks {
struct RankDevice;
using TakeDevice = RankDevice (*)(int slot, int ranks);  // rank_context.hpp
}  // namespace ranks
// As check(), less index.html, run.json, junit.xml and check.txt. `device`, if any, is taken in
// place of that of the options.
CheckReport run_check(const MakeSubject& make, const CheckOptions& options,
                      ranks::TakeDevice device = nullptr);
// The names of the cases.
std::vector<std::string> check_ids(const MakeSubject& make, const CheckOptions& options);

}  // namespace conformance

// What a model's passes are made of. The binding of another language begins here.
CheckReport check(const conformance::MakeSubject& make, const CheckOptions& options);
CheckReport check(const conformance::UserModel& model, const CheckOptions& options);

// `factory` gives a std::shared_ptr (or holder) of a torch::nn::Module; `loss` takes (Module&,
// const Which&) and gives a loss, or std::pair(output, gradient) for output.backward(gradient).
template <class Factory, class Loss>
requires std::is_invocable_v<Factory> CheckReport check(Factory factory, Loss loss,
                                                        const CheckOptions& options = {}) {
  return check(conformance::user_model(std::move(factory), std::move(loss)), options);
}

}  // namespace equigrad

// Of GoogleTest: fails with the whole text of a report that did not hold; says the summary of one
// that did.
#define EXPECT_GRADIENTS_EQUAL(...)                                                 \
  do {                                                                              \
    const ::equigrad::CheckReport equigrad_report = __VA_ARGS__;                    \
    EXPECT_TRUE(equigrad_report.held) << equigrad_report.text();                    \
    if (equigrad_report.held) std::cout << equigrad_report.summary() << std::flush; \
  } while (false)
