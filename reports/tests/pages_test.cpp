// Pages of every kind, in folders as commands leave them: none is too large for a browser, and each
// leads to its index. EQUIGRAD_PAGES names a folder that keeps them (make_pages.py).
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "conformance/testing/scratch_folder.hpp"
#include "reports/comparison.hpp"
#include "reports/folder_index.hpp"
#include "reports/kill_matrix.hpp"
#include "reports/losses.hpp"
#include "reports/memory.hpp"
#include "reports/race.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;

class Pages : public ::testing::Test {
 protected:
  Pages() {
    const char* kept = std::getenv("EQUIGRAD_PAGES");
    place_ = kept != nullptr ? kept : scratch_.path();
    ::mkdir(place_.c_str(), 0777);
  }

  std::string folder(const std::string& name) const {
    ::mkdir((place_ + "/" + name).c_str(), 0777);
    return place_ + "/" + name;
  }

  // As a command does.
  static void write(const std::string& folder, const std::string& name, const std::string& page) {
    EXPECT_LT(page.size(), reports::kPageBytes);
    std::ofstream(folder + "/" + name, std::ios::binary) << page;
    reports::link_pages(folder);
  }

  static std::string index_of(const std::string& folder) {
    std::ifstream file(folder + "/index.html", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  ScratchFolder scratch_;
  std::string place_;
};

reports::Picture picture() {
  reports::Picture one;
  one.tensor = "encode.weight";
  one.what = "gradient";
  one.numel = 4096;
  one.samples = {{0, 0.5, 1}, {1, -1, -2}, {2, 3, 3}, {3, 0.25, 0.5}};
  one.ulps = {1024, 0, 3, 12, 0, 0, 4, 0};
  one.slices = {{0, 0, 2048, {1, 0, 9, 1}}, {1, 2048, 4096, {0, 0, 0, 8}}};
  one.gradients = {{"encode.weight", {2, 2, 2}}, {"head.bias", {0, 1, 1}}, {"scalar", {0, 0, 0}}};
  return one;
}

reports::FaultRow fault(const std::string& name, reports::Fate fate) {
  reports::FaultRow row;
  row.name = name;
  row.what = "a bucket is divided by the number of ranks once more";
  row.seam = "communicator";
  row.bugs = {"DS-01", "FSDP-2"};
  row.fate = fate;
  row.acted_times = 1;
  row.cases = 1;
  row.has_data = true;
  row.elsewhere = {true, false, true, false};
  if (fate == reports::Fate::Caught)
    row.found = {{.in = "Required.grad.zero2.bf16.w2",
                  .checks = {"exact/gradient", "exact/exp_avg_sq", "bounded/gradient"},
                  .after_steps = 0,
                  .located = true,
                  .first = "step 1, all 8 gradients, the first head.bias [0, 3) on rank 0",
                  .replay = "equigrad run Required.grad.zero2.bf16.w2 --fault " + name,
                  .seconds = 0.25}};
  return row;
}

reports::KillMatrix kill_matrix() {
  reports::KillMatrix matrix;
  matrix.environment = example_environment();
  matrix.command = "equigrad faults";
  for (int i = 0; i < 8; ++i)
    matrix.faults.push_back(fault("growth_step_divides_by_the_scale_" + std::to_string(i),
                                  i == 7 ? reports::Fate::Survived : reports::Fate::Caught));
  matrix.faults.push_back(
      fault("Contract.4.a_growth_step_divides_by_the_scale_that_was_used", reports::Fate::Caught));
  matrix.clean.asked = matrix.clean.run = 5'000;
  matrix.faults_s = 60;
  matrix.wall_s = 120;
  return matrix;
}

reports::Losses losses() {
  reports::Losses of;
  of.environment = example_environment();
  of.command = "equigrad crash";
  of.parts = {{.name = "power",
               .what = "power is lost behind any operation, and what was not synced is lost",
               .points = 1'200,
               .by_engines = 40,
               .old_left = 1'000,
               .new_left = 199,
               .refused = 0,
               .wrong = 1,
               .seconds = 1.5}};
  of.failures = {{"zero0.w1.fp32.new.power.3.s1", "a mixture of two checkpoints was loaded",
                  "equigrad crash --replay zero0.w1.fp32.new.power.3.s1"}};
  of.careless = {{"latest_first", "latest comes first", true, "zero1.w2.fp32.new.power.1-0.s0",
                  "it is refused", 17}};
  return of;
}

reports::Comparison comparison() {
  reports::Comparison of;
  of.environment = example_environment();
  of.command = "equigrad compare --config a.json --config b.json";
  of.configurations = {{{"fp32_masters", "{\"bf16\": 1}"}, {"bf16_masters", "{\"bf16\": 2}"}}};
  of.data = "text: plays.txt";
  of.model = "gpt, 3 layers";
  of.parameters = 391'008;
  of.ranks = 2;
  of.steps = 40;
  of.final_steps = 2;
  of.margin = 0.05;
  of.seeds = {7};
  of.pairs = 1;
  for (int which = 0; which < 2; ++which) {
    reports::ComparedRun run;
    run.configuration = which;
    run.seed = 7;
    run.complete = true;
    run.final_loss = 2.375;
    run.mean_loss = 2.9375;
    run.step_s = 0.0125;
    of.runs.push_back(run);
  }
  of.quantities = {
      {"final loss", "nats", {{{2.5, 2.25, 2.75}, {2.625, 2.5, 2.75}}}, {0.125, -0.25, 0.5}, 1.05}};
  for (int64_t step = 1; step <= 40; ++step) {
    const double loss = 2 + 4.0 / static_cast<double>(step);
    of.curve.push_back({step,
                        {{{loss, loss - 3, loss + 3}, {loss, loss - 0.2, loss + 0.2}}},
                        {0.01, -0.02, 0.04}});
  }
  of.equivalence = {0.001, 0.0312, 0.25, -0.01, 0.04};
  of.outcome = reports::ComparisonOutcome::Equivalent;
  of.reason = "The final losses are equivalent within the margin of 0.0500 nats.";
  return of;
}

reports::RaceRow contestant(const std::string& name, double step_s, double ratio) {
  reports::RaceRow row;
  row.contestant = name;
  row.round_s = {step_s, step_s, step_s};
  row.step_s = row.cpu_s = {step_s, 0.9 * step_s, 1.1 * step_s};
  row.to_base = row.cpu_to_base = {ratio, 0.9 * ratio, 1.1 * ratio};
  row.best_step_s = 0.8 * step_s;
  row.tokens_per_s = 12'345;
  row.growth_bytes = row.held_peak_bytes = 285'000'000;
  row.wire_bytes = 21'200'000;
  row.collectives = {{"all_gather", 3}, {"reduce_scatter", 1}};
  row.gathered_numel = row.least_gathered_numel = 1'234'567;
  row.is_proven = true;
  return row;
}

reports::Race race() {
  reports::Race of;
  of.environment = example_environment();
  of.command = "equigrad bench race";
  of.bandwidth_bytes_per_s = 1e9;
  for (const int ranks : {1, 2, 4}) {
    reports::RaceGroupResult group;
    group.name = "ranks " + std::to_string(ranks);
    group.model = "gpt: 4 layers, dim 256";
    group.parameters = 5'289'472;
    group.ranks = ranks;
    group.base = "DDP";
    group.compute_limit_s = 0.1;
    group.rows = {contestant("DDP", 0.2, 1), contestant("Equigrad stage 3", 0.15 * ranks, 0.75),
                  contestant("DeepSpeed 0.18.2 stage 3", 0.4, 2)};
    of.groups.push_back(group);
  }
  return of;
}

reports::Memory memory() {
  reports::Memory of;
  of.command = "equigrad bench memory --report DIR";
  of.kinds = {"parameters", "gradients", "master_weights", "optimizer_state",
              "buckets",    "gathered",  "activations",    "other"};
  reports::MemoryGroup group;
  group.name = "GPT, dim 256, data 2 x sequence 1 x tensor 1";
  for (int stage = 0; stage <= 3; ++stage) {
    const int64_t share = 42'000'000 / (stage + 1);
    group.holders.push_back({"Equigrad stage " + std::to_string(stage),
                             {{"step", {share, share, share, share, 1'000, 0, 0, 5'000'000}}},
                             4 * share + 5'002'000});
  }
  of.groups = {group};
  return of;
}

// Failures with pictures, and earlier runs of the same.
TEST_F(Pages, OfAllCommandsLeadToTheIndexWhichLinksThem) {
  const auto family = folder("family");
  const std::vector<std::pair<std::string, std::string>> pages = {
      {"faults.html", reports::to_html(kill_matrix())},
      {"crash.html", reports::to_html(losses())},
      {"compare.html", reports::to_html(comparison())},
      {"race.html", reports::to_html(race())},
      {"memory.html", reports::to_html(memory())}};
  for (const auto& [name, page] : pages) {
    EXPECT_THAT(page, HasSubstr(reports::link_to_index())) << name;
    write(family, name, page);
    EXPECT_THAT(index_of(family), HasSubstr("<a href=\"" + name + "\">"));
  }
  auto run = large_run(32, 16);
  run.memory.resize(20);
  for (auto& one : run.cases)
    if (one.verdict == reports::Verdict::Failed) one.picture = picture();
  auto around = reports::surroundings_of(family);
  EXPECT_EQ(around.pages.size(), pages.size());
  around.earlier.assign(4, reports::past_run(run));
  write(family, "index.html", reports::to_html(run, around));
  for (const auto& [name, page] : pages)
    EXPECT_THAT(index_of(family), HasSubstr("<a href=\"" + name + "\">"));
}

TEST_F(Pages, OfAFolderWithoutARunIsOneOfLinks) {
  const auto links = folder("links");
  write(links, "crash.html", reports::to_html(losses()));
  EXPECT_THAT(index_of(links), HasSubstr("<a href=\"crash.html\">Crash <span>"));
}

TEST_F(Pages, OfAllCasesIsStillAPage) {
  auto run = large_run(9'000, 0);
  for (std::size_t i = 0; i < run.cases.size(); ++i) run.cases[i].id += std::to_string(i);
  write(folder("all"), "index.html", reports::to_html(run));
}

}  // namespace
}  // namespace equigrad::conformance
