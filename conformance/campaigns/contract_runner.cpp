#include "conformance/campaigns/contract_runner.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "conformance/campaigns/progress.hpp"
#include "conformance/campaigns/slots.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/contract_judge.hpp"

namespace equigrad::conformance::contract {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTimeoutMs = 60'000;
constexpr int kWidest = 4;

struct Slot {
  int job = -1;
  std::size_t spec = 0;
  Clock::time_point start;
};

std::size_t slot_count(const ContractOptions& options) {
  const auto wanted = options.slots > 0 ? static_cast<std::size_t>(options.slots)
                                        : slots_for(std::thread::hardware_concurrency(),
                                                    available_memory_bytes(), kWidest);
  return std::min(wanted, options.specs.size());
}

reports::Case empty_record(const ContractOptions& options, const Spec& spec,
                           const std::string& reason) {
  reports::Case record;
  record.id = spec.id();
  record.dimensions = spec.dimensions();
  record.message = reason;
  record.replay = options.replay_prefix + " " + record.id + " --seed " +
                  std::to_string(options.seed) + options.replay_suffix;
  return record;
}

std::string in_words(const std::string& id) {
  const auto& mistake = known_mistake(id);
  return mistake.name + ": " + mistake.words;
}

bool is_selected(const Selection& selection, const Spec& spec) {
  auto names = aliases(spec);
  names.push_back(spec.id());
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return selects(selection, spec.stage, word(spec.precision), spec.world, name);
  });
}

}  // namespace

std::vector<Spec> selected_specs(const Selection& selection, bool full) {
  std::vector<Spec> selected;
  for (const auto& spec : full ? full_specs() : default_specs())
    if (is_selected(selection, spec)) selected.push_back(spec);
  return selected;
}

std::vector<reports::Statement> statements() {
  std::vector<reports::Statement> all;
  for (const auto& section : sections()) {
    all.push_back({section.number, "", section.sentence, {}});
    for (const auto& one : cases())
      if (one.section == section.number) {
        auto& added = all.emplace_back(reports::Statement{one.section, one.name, one.sentence, {}});
        for (const auto& id : one.answers) added.answers.push_back(in_words(id));
      }
  }
  return all;
}

std::vector<reports::Case> not_run(const ContractOptions& options, const std::string& reason) {
  std::vector<reports::Case> records;
  for (const auto& spec : options.specs) records.push_back(empty_record(options, spec, reason));
  return records;
}

std::vector<reports::Case> run_contract(const ContractOptions& options) {
  auto records = not_run(options, "interrupted before this case");
  if (records.empty() || ranks::interrupted() != 0) return records;
  std::vector<Slot> slots(slot_count(options));
  const std::chrono::milliseconds timeout(
      static_cast<long long>(kTimeoutMs * options.timeout_scale));
  ranks::Pool pool(static_cast<int>(slots.size()) * kWidest, serve,
                   {timeout, std::chrono::milliseconds(2'000), false});
  Progress progress(static_cast<int64_t>(records.size()), options.quiet);
  std::size_t next = 0;
  int64_t done = 0, failed = 0;
  while (ranks::interrupted() == 0) {
    for (std::size_t i = 0; i < slots.size() && next < records.size(); ++i) {
      if (slots[i].job >= 0) continue;
      std::vector<int> set;
      for (int rank = 0; rank < options.specs[next].world; ++rank)
        set.push_back(static_cast<int>(i) * kWidest + rank);
      nlohmann::json request = {{"do", "contract"},
                                {"id", records[next].id},
                                {"seed", options.seed},
                                {"data", to_json(options.data)},
                                {"fault", options.fault}};
      if (!options.plant.empty()) request["plant"] = options.plant;
      slots[i] = {pool.start(set, request), next, Clock::now()};
      ++next;
    }
    if (pool.jobs() == 0) break;
    const auto finished = pool.wait(std::chrono::milliseconds(1'000));
    if (!finished) continue;
    for (auto& slot : slots) {
      if (slot.job != finished->job) continue;
      slot.job = -1;
      auto& record = records[slot.spec];
      judge_contract(record, finished->outcomes);
      record.seconds = std::chrono::duration<double>(Clock::now() - slot.start).count();
      if (!reports::passed(record.verdict)) ++failed;
      progress.update(++done, failed, options.specs[slot.spec].of->name);
    }
  }
  progress.finish();
  return records;
}

}  // namespace equigrad::conformance::contract
