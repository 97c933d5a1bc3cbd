// Record: everything one run of the conformance matrix found, as plain values.
//
// The matrix fills in one Run; every writer (terminal, JSON, JUnit, HTML, Markdown, annotations)
// takes it and does no more than count, so all of them tell the same story.
//
// Invariants: a verdict is given by whoever compared, never by a writer. A run is held only if its
//   planted faults were caught and every passing case compared at least one value.
// Units: compared and differing count elements; margin is worst error divided by bound (0 when all
//   bits agree, above 1 when the bound is broken, inf when the bound is 0); seconds are wall clock.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equigrad::reports {

enum class Verdict {
  Equal,     // 0 differing bits
  Within,    // differs, inside its computed bound
  Failed,    // differs, beyond what is allowed
  Skipped,   // not applicable here; the message says why
  Crashed,   // a rank died
  TimedOut,  // a rank did not answer in time
  NotRun,    // asked for, never started (interrupted, or a rank pool that gave up)
};

// The worst first: what happened to several cases is the first of these that happened to one.
inline constexpr std::array kVerdicts = {Verdict::Failed, Verdict::Crashed, Verdict::TimedOut,
                                         Verdict::Within, Verdict::Equal,   Verdict::Skipped,
                                         Verdict::NotRun};

// The element with the largest error of a lane.
struct Worst {
  std::string tensor;
  int64_t index = 0;  // flat index in the whole tensor
  double got = 0;
  double want = 0;
  double bound = 0;  // largest |got - want| allowed here; 0 in the exact and cross lanes
  double ulp = 0;    // |got - want| in units in the last place of the compared dtype
};

// One question asked of a case: "exact" (against the twin), "cross" (styles and stages against
// each other) or "bounded" (against the fp32 reference).
struct Lane {
  std::string name;
  Verdict verdict = Verdict::NotRun;
  int64_t compared = 0, differing = 0;
  double margin = 0;
  std::optional<Worst> worst;
};

// One element of a tensor that was wrong.
struct Sample {
  int64_t index = 0;  // flat, in the whole tensor
  double got = 0, want = 0;
};

// What one rank compared of a tensor, and how many elements of each of equal pieces were wrong;
// without pieces: none.
struct Slice {
  int64_t rank = 0, begin = 0, end = 0;
  std::vector<int64_t> wrong;
};

// On how many ranks a gradient was wrong, step by step.
struct GradientSteps {
  std::string name;
  std::vector<int64_t> wrong_ranks;
};

// What is drawn of a failure: the tensor that was wrong first.
struct Picture {
  std::string tensor, what;     // head.weight; gradient
  int64_t step = 1, rank = 0;   // step from 1; whose samples and errors these are
  int64_t numel = 0;            // of the whole tensor
  std::vector<Sample> samples;  // some, right ones too
  std::vector<int64_t> ulps;    // elements off by 0; by [2^(i - 1), 2^i) ulp; last: not finite
  std::vector<Slice> slices;    // of all ranks
  std::vector<GradientSteps> gradients;
};

// Dimensions: stage, precision, style, ranks, accumulate; clip, optimizer, model or section, case.
struct Case {
  std::string id;  // Required.grad.zero3.bf16.w4.accumulation3.clip-above.adamw.gpt.tensor_backward
  std::map<std::string, std::string> dimensions;
  Verdict verdict = Verdict::NotRun;
  std::vector<Lane> lanes;
  std::string message;  // what went wrong, or why it was skipped
  std::string replay;   // one line that repeats this case
  double seconds = 0;
  std::vector<std::string> files;  // kept tensors, relative to the report's folder
  std::optional<Picture> picture = {};
  std::optional<bool> acted = {};  // whether Run::planted did; nothing: none was, or it cannot say
};

// A planted fault which a run must catch before its green means anything.
struct SelfCheck {
  std::string fault;  // "micro_batch_dropped"
  std::string what;   // what was done to the data, in words
  bool caught = false;
  std::string by;  // lane and case that caught it
};

struct Environment {
  std::string version, commit, torch, compiler;
  std::string device;
  std::string cpu;
  int cores = 0;
  int threads_per_rank = 0;
  std::string os;
  std::string time;  // ISO 8601, UTC
};

// A line of the contract, or (with a name) one of its cases, in words.
struct Statement {
  std::string section, name, sentence;
  std::vector<std::string> answers;  // known mistakes that it answers
};

// Cases of a run that had all ended before those of the next part began.
struct Part {
  std::string name;  // covering, rest, generated
  int64_t cases = 0;
  double wall_s = 0;
};

// Bytes that one rank (the largest) holds in one category of the engine's ledger.
// Of one case, the one that holds most of its stage, precision, number of ranks and model: rows of
// kinds add up to the row "total".
struct MemoryRow {
  int stage = 0;
  std::string precision;
  int ranks = 0;
  std::string category;  // parameters, gradients, master, optimizer, buckets, ...
  int64_t bytes = 0;     // of the rank that holds most, at the end of a step
  int64_t peak_bytes = 0;
  std::string model;  // empty in older records
};

// What the loss scale of a precision loses of a model's gradients in fp16: elements of the first
// step that is applied, over the cases that were run.
struct UnderflowRow {
  std::string precision, model;
  double scale = 1;
  int64_t numel = 0, zero = 0, subnormal = 0, overflow = 0;
  double lossless = 0;  // the smallest power of two that would lose none; 0: there is none
};

// How often the values of a property of generated cases occurred, and which that are known did not.
struct GeneratedAxis {
  std::string name;
  std::map<std::string, int64_t> cases;
  std::vector<std::string> never;
};

// Cases that were drawn at random; those that failed are among the cases of the run.
struct GeneratedCases {
  uint64_t seed = 0;
  int64_t cases = 0, failed = 0;  // that were run; of these
  int64_t workloads = 0;          // each with a twin
  int64_t replaced = 0;           // had nothing to compare: every step overflowed
  int64_t compared = 0;           // elements, of cases that held
  int64_t pairs = 0;              // of values of two axes that occurred in one case
  double wall_s = 0;
  std::vector<GeneratedAxis> axes;
};

struct Run {
  int schema_version = 1;
  Environment environment;
  uint64_t seed = 0;
  std::string command;
  std::vector<std::string> merged_commands;  // of a merged record: the commands of its parts
  std::string shard;  // "2/5": the second of five parts of what was selected; empty: all of it
  std::vector<SelfCheck> self_checks;
  // What who started the run had planted into every case, "averaged_twice"; empty: nothing.
  std::string planted;
  std::vector<Case> cases;
  std::vector<Part> parts;  // of the cases, one after the other; empty: the run has none
  std::vector<Statement> statements;
  std::map<std::string, int64_t> not_run;  // reason -> cases that are not even listed
  std::string failure;  // what ended the run before its cases began; empty: nothing did
  // The first difference of a case into which a fault was to be planted, before any was: the engine
  // failed, and no fault was planted there; empty: nothing differed.
  std::string engine_failure;
  bool interrupted = false;
  int signal = 0;  // that interrupted it: 2 or 15; 0 where it is not known
  double wall_s = 0;
  std::vector<MemoryRow> memory;
  std::vector<UnderflowRow> underflow;
  std::optional<GeneratedCases> generated;
};

struct Counts {
  int64_t equal = 0, within = 0, failed = 0, skipped = 0, crashed = 0, timed_out = 0;
  int64_t not_run = 0;    // cases with Verdict::NotRun and those that Run::not_run counts
  int64_t vacuous = 0;    // of the passing cases: those with a passing lane that compared nothing
  int64_t compared = 0;   // elements, over all lanes
  int64_t differing = 0;  // elements whose bits differ in a bitwise lane

  int64_t of(Verdict verdict) const;
  int64_t held() const { return equal + within; }
  int64_t went_wrong() const { return failed + crashed + timed_out; }
  int64_t executed() const { return held() + went_wrong(); }
  int64_t total() const { return executed() + skipped + not_run; }
  void add(const Case& one);
};

enum class Outcome { Held, Failed, Void, Broken, Inconclusive, Interrupted };

inline constexpr int64_t kRequiredSelfChecks = 3;  // fewer caught faults make a run void

bool passed(Verdict verdict);      // Equal or Within
bool went_wrong(Verdict verdict);  // Failed, Crashed or TimedOut
bool bitwise(const Lane& lane);    // every lane but "bounded": any differing bit is a failure
bool vacuous(const Case& one);     // passed without comparing anything, in some lane or in all
std::string_view word(Verdict verdict);  // "equal", "timed_out": the spelling of run.json
std::string_view word(Outcome outcome);
Counts counts(const Run& run);
bool self_checked(const Run& run);  // enough faults were planted and each one was caught

// Interrupted before a failure (Broken) before an engine that failed where no fault was planted
// (Failed) before Void before Failed before Broken (only crashes and time-outs) before Inconclusive
// (nothing compared somewhere) before Held.
Outcome outcome(const Run& run);
// 0 held, 1 failed or void, 3 broken, 4 inconclusive, 128 + signal
int exit_code(Outcome outcome, int signal);
int exit_code(const Run& run);

}  // namespace equigrad::reports
