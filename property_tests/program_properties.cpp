// Any sequence of calls: random programs of everything an engine offers, misuse and exceptions
// included, over random small models, stages, precisions and numbers of ranks. After every call the
// engine is the reference bit for bit.
//
//   EQUIGRAD_PROGRAMS=2000 program_properties    that many programs; 200 without it
//
// Only command seeds are drawn and shrunk: a program that fails shrinks to fewer calls, then
// simpler ones.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <iostream>
#include <ostream>
#include <random>
#include <set>

#include "conformance/faults/adversary.hpp"
#include "engine/comm/mesh.hpp"
#include "property_tests/programs/engine_player.hpp"
#include "property_tests/programs/listing.hpp"
#include "property_tests/programs/reference_player.hpp"
#include "property_tests/programs/script.hpp"
#include "property_tests/programs/settings.hpp"
#include "property_tests/ranks_of_cases.hpp"

namespace equigrad::property_tests::programs {

inline void showValue(const CommandSeed& drawn, std::ostream& out) {
  out << "{" << drawn.kind << ", " << drawn.a << ", " << drawn.b << ", " << drawn.c << ", "
      << drawn.d << "}";
}

namespace {

// RapidCheck reads its settings before main.
const bool kProgramsAreSet = [] {
  const char* wanted = std::getenv("EQUIGRAD_PROGRAMS");
  const char* given = std::getenv("RC_PARAMS");
  const std::string most = "max_success=" + std::string(wanted != nullptr ? wanted : "200");
  return setenv("RC_PARAMS", (most + " " + (given != nullptr ? given : "")).c_str(), 1) == 0;
}();

// One set of ranks plays on several meshes, whose groups of one name have other ranks; one of three
// communicators does everything as late as it may.
comm::Mesh mesh_of_ranks(const json& setting, RankContext& context) {
  const auto sizes = mesh_of(setting);
  const auto grid = std::to_string(sizes.data) + "x" + std::to_string(sizes.sequence) + "x" +
                    std::to_string(sizes.tensor) + "/";
  const bool has_groups = sizes.sequence * sizes.tensor > 1;
  return comm::make_mesh(context.rank(), sizes, [&](const std::string& name, int rank, int size) {
    const auto real = context.group(name == "world" ? name : grid + name, rank, size);
    return conformance::faults::adversarial(real, setting.value("adversary", uint64_t{0}),
                                            has_groups);
  });
}

// The reference is played to its end before there is an engine.
json play(const json& request, RankContext& context) {
  const auto& setting = request.at("setting");
  context.note("the reference");
  ReferencePlayer reference(setting, context.rank());
  std::vector<Seen> seen;
  for (const auto& call : request.at("calls")) seen.push_back(reference.play(call));
  context.note("initialize");
  EnginePlayer engine(setting, context.rank(), mesh_of_ranks(setting, context));
  std::string wrong;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const auto& call = request.at("calls")[i];
    const auto place = "call " + std::to_string(i) + ": " + text_of(call);
    context.note(place);
    std::string here;
    try {
      here = engine.play(call, seen[i]);
    } catch (const std::exception& error) {
      throw std::runtime_error(wrong + place + "\n  " + error.what());
    }
    if (wrong.empty() && !here.empty()) wrong = place + "\n  " + here + "\n";
  }
  return wrong;
}

class Ranks {
 public:
  std::string wrong(const json& request) {
    std::vector<int> ranks(request.at("setting").at("world").get<std::size_t>());
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    // Once a program has failed, others like it are tried by the dozen: they need not hang as long.
    pool_.start(ranks, request, failed_ ? std::chrono::seconds(5) : std::chrono::seconds(30));
    const auto outcomes = pool_.wait(std::chrono::minutes(1)).value().outcomes;
    auto text = conformance::ranks::failures(outcomes);
    for (std::size_t rank = 0; text.empty() && rank < outcomes.size(); ++rank) {
      const auto answer = outcomes[rank].answer.get<std::string>();
      if (!answer.empty()) text = "rank " + std::to_string(rank) + ": " + answer;
    }
    // What fails once and never again is not in the report of a shrunk program.
    if (!failed_ && !text.empty()) std::cout << "first failure: " << text << std::endl;
    failed_ = failed_ || !text.empty();
    return text;
  }

 private:
  bool failed_ = false;
  conformance::ranks::Pool pool_{4, play, {.grace = std::chrono::milliseconds(500)}};
};

// Of all values, however early in the run.
template <class T>
rc::Gen<T> full_size(rc::Gen<T> gen) {
  return rc::gen::resize(rc::kNominalSize, std::move(gen));
}
int below(int end) { return *full_size(rc::gen::inRange(0, end)); }

constexpr int kPrecisions = 3;  // fp32, bf16, fp16

struct Grid {
  int sequence = 1, tensor = 1;
};

// Of two programs one is of data ranks alone.
Grid any_grid() {
  const int drawn = below(6);
  if (drawn < 3) return {};
  return drawn == 3 ? Grid{2, 1} : drawn == 4 ? Grid{1, 2} : Grid{2, 2};
}

json any_setting() {
  const int precision = below(kPrecisions);
  const int rule = below(3);
  const auto [sequence, tensor] = any_grid();
  const int shared = sequence * tensor;  // features are split over all of them
  // No checkpoint within a pass holds several parts.
  const int extras = below(256) & ~(shared > 1 ? kNests : 0);
  return {{"world", shared * (1 + below(4 / shared))},
          {"sequence", sequence},
          {"tensor", tensor},
          {"adversary", below(3) == 0 ? 1 + below(1000) : 0},
          {"stage", below(tensor > 1 ? 3 : 4)},
          {"precision", precision},
          {"narrow_sums", precision != 0 && below(2) == 1},
          {"scale_window", 1 + below(3)},
          {"hysteresis", 1 + below(2)},
          {"pair", below(3)},
          {"accumulation", 1 + below(4)},
          {"bucket", *rc::gen::element(1000, 1, 7, 20)},
          {"rule", rule},
          {"momentum", rule == 2 && below(2) == 1 ? 0.9 : 0.0},
          {"clip", *rc::gen::element(0.0, 0.05, 1e6)},
          {"prescale", below(4) == 0},
          {"widths", json::array({1 + below(4), shared * (1 + below(shared > 1 ? 2 : 4)),
                                  shared * (1 + below(shared > 1 ? 2 : 3))})},
          {"extras", extras},
          {"persistent", *rc::gen::element(0, 4)},
          {"reuse", *rc::gen::element(1000, 0, 10)},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))}};
}

rc::Gen<CommandSeed> any_command_seed() {
  const auto argument = rc::gen::inRange(0, kArguments);
  return full_size(
      rc::gen::construct<CommandSeed>(rc::gen::inRange(0, static_cast<int>(kKinds.size())),
                                      argument, argument, argument, argument));
}

// Whatever is drawn, programs have every call and every misuse in them.
TEST(Programs, WishesBecomeEveryCall) {
  std::mt19937 random(1);
  const auto draw = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  std::set<std::string> found;
  for (int stage = 0; stage < 4; ++stage) {
    Script script({{"world", 2},
                   {"stage", stage},
                   {"accumulation", 2},
                   {"extras", 127},
                   {"precision", stage % 3},
                   {"pair", stage % 3},
                   {"rule", 0},
                   {"momentum", 0.0}});
    for (int i = 0; i < 3000; ++i)
      script.add({draw(static_cast<int>(kKinds.size())), draw(kArguments), draw(kArguments),
                  draw(kArguments), draw(kArguments)});
    for (const auto& call : script.finish())
      found.insert(call.value("call", "") +
                   (call["call"] == "refuse" ? call.value("what", "") : ""));
  }
  const std::set<std::string> all = {"backward",
                                     "batch_size",
                                     "boundary",
                                     "end",
                                     "end_no_sync",
                                     "forward",
                                     "gather",
                                     "get",
                                     "grad",
                                     "look",
                                     "no_sync",
                                     "set",
                                     "step",
                                     "throw",
                                     "twice",
                                     "zero_grad",
                                     "refuseanother call on rank 0",
                                     "refuseanother shape",
                                     "refusebackward of an output",
                                     "refusebatch size in a window",
                                     "refusebatch size that is no multiple",
                                     "refusefrozen name",
                                     "refusekeyword without a scheduler",
                                     "refuseloss scaled twice",
                                     "refusenested no_sync",
                                     "refuseno_sync at this stage",
                                     "refusescale without a graph",
                                     "refusestep in no_sync",
                                     "refusestep without backward",
                                     "refuseunknown name",
                                     "refuseunscaled loss",
                                     "refuseunknown state",
                                     "refusevalues that differ",
                                     "refusewrite of another rank"};
  EXPECT_EQ(found, all);
}

RC_GTEST_PROP(Programs, EveryCallLeavesWhatTheReferenceLeaves, ()) {
  static Ranks ranks;
  const json setting = any_setting();
  Script script(setting);
  for (const auto& drawn :
       *rc::gen::scale(0.3, rc::gen::container<std::vector<CommandSeed>>(any_command_seed())))
    script.add(drawn);
  const json calls = script.finish();
  const auto wrong = ranks.wrong({{"setting", setting}, {"calls", calls}});
  if (!wrong.empty()) RC_FAIL(wrong + "\n\n" + listing(setting, config_of(setting), calls));
}

}  // namespace
}  // namespace equigrad::property_tests::programs
