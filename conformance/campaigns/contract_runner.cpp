#include "conformance/campaigns/contract_runner.hpp"

#include <algorithm>

#include "conformance/campaigns/progress.hpp"
#include "conformance/cases/filter.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/verdict/contract_judge.hpp"
#include "reports/causes.hpp"

namespace equigrad::conformance::contract {
namespace {

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

bool passes(const Outcomes& outcomes) {
  reports::Case record;
  judge_contract(record, outcomes);
  return reports::passed(record.verdict);
}

}  // namespace

std::vector<Spec> selected_specs(const Selection& selection, bool full) {
  const Filters filters(selection.filters);
  auto places = selection;
  places.filters.clear();
  std::vector<Spec> selected;
  for (const auto& spec : full ? full_specs() : default_specs()) {
    auto names = aliases(spec);
    names.push_back(spec.id());
    if (selects(places, spec.stage, word(spec.precision), spec.world, spec.id()) &&
        filters.match(names))
      selected.push_back(spec);
  }
  return selected;
}

std::vector<reports::Statement> statements() {
  std::vector<reports::Statement> all;
  for (const auto& section : sections()) {
    all.push_back(
        {.section = section.number, .name = "", .sentence = section.sentence, .answers = {}});
    for (const auto& one : cases())
      if (one.section == section.number) {
        auto& added = all.emplace_back(reports::Statement{
            .section = one.section, .name = one.name, .sentence = one.sentence, .answers = {}});
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

std::vector<reports::Case> run_contract(const ContractOptions& options, ProcessSlots& slots,
                                        Alone* alone) {
  auto records = not_run(options, "interrupted before this case");
  std::size_t next = 0;
  int64_t done = 0, failed = 0;
  std::string now;
  const auto all = static_cast<int64_t>(records.size());
  const auto progress =
      options.progress ? options.progress : std::make_shared<Progress>(all, options.quiet);
  const auto next_task = [&](std::size_t) -> std::optional<Task> {
    if (next == records.size() || (options.fail_fast && failed > 0)) return std::nullopt;
    auto& record = records[next];
    const auto& spec = options.specs[next++];
    nlohmann::json request = {{"do", "contract"},
                              {"id", record.id},
                              {"seed", options.seed},
                              {"data", to_json(options.data)},
                              {"fault", options.fault}};
    if (!options.plant.empty()) request["plant"] = options.plant;
    now = spec.of->name;
    const auto finish = [&, request](const Outcomes& outcomes, double seconds) {
      judge_contract(record, outcomes);
      record.seconds = seconds;
      ++done;
      if (!reports::passed(record.verdict)) ++failed;
      if (reports::went_wrong(record.verdict)) progress->name_wrong(reports::headline(record));
      if (alone != nullptr && reports::went_wrong(record.verdict))
        alone->add({.id = record.id,
                    .world = spec.world,
                    .request = request,
                    .before = slots.before(),
                    .passes = passes});
    };
    return Task{spec.world, request, kCaseTimeout_s, finish};
  };
  slots.run(next_task, [&] { progress->update(done, failed, now); });
  progress->end_part(done, failed);
  progress->finish();
  if (options.fail_fast && failed > 0 && ranks::interrupted() == 0)
    for (std::size_t i = next; i < records.size(); ++i) records[i].message = kNotAfterAFailure;
  return records;
}

std::vector<reports::Case> run_contract(const ContractOptions& options) {
  ProcessSlots slots({.slots = options.slots,
                      .most = options.specs.size(),
                      .timeout_scale = options.timeout_scale,
                      .serve = serve});
  return run_contract(options, slots);
}

}  // namespace equigrad::conformance::contract
