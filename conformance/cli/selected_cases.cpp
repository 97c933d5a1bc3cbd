#include "conformance/cli/selected_cases.hpp"

#include <algorithm>
#include <iostream>
#include <set>
#include <sstream>

#include "conformance/campaigns/contract_runner.hpp"
#include "conformance/campaigns/covering_selection.hpp"
#include "conformance/cases/filter.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/shard.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "conformance/generator/draw.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::cli {
namespace {

SelectedCases catalogue_cases(const RunCommand& command, bool full) {
  if (command.covering && !full) {
    SelectedCases covering{.matrix = select(covering_selection().cases, command.selection)};
    for (const auto& spec : contract::selected_specs(command.selection, false))
      if (covering_selection().has(spec)) covering.contract.push_back(spec);
    return covering;
  }
  return {.matrix = select(full ? full_matrix() : default_matrix(), command.selection),
          .contract = contract::selected_specs(command.selection, full)};
}

std::vector<std::string> default_ids() {
  std::vector<std::string> ids;
  for (const auto& spec : default_matrix()) ids.push_back(spec.id());
  for (const auto& spec : contract::default_specs()) {
    ids.push_back(spec.id());
    for (const auto& alias : contract::aliases(spec)) ids.push_back(alias);
  }
  return ids;
}

// Whether every word of a filter has a case, whatever else narrows the
// selection; it says what is near the first that has none.
bool has_cases_for_every_word(const RunCommand& command, const std::string& filter) {
  const auto words = Filter(filter).words();
  for (const auto& word : words) {
    if (words.size() == 1) break;  // the filter is this word
    RunCommand alone;
    alone.selection.filters = {word};
    if (catalogue_cases(alone, command.full).size() > 0 || catalogue_cases(alone, true).size() > 0)
      continue;
    say_what_is_near("cases", word, default_ids(), "equigrad list has all ids.");
    return false;
  }
  return true;
}

void say_no_case_of(const std::string& filter) {
  if (Filter(filter).words().size() == 1)
    return say_what_is_near("cases", filter, default_ids(), "equigrad list has all ids.");
  std::cerr << "equigrad: 0 cases selected by \"" << filter
            << "\": each of its words has cases, all of it has none. equigrad "
               "list has all ids.\n";
}

// Cases by the filters: of the default selection, and of all for a filter that
// has none there, so that the id of any case can be pasted; with --covering, of
// that selection alone. None if a filter has none at all; it says what is near.
SelectedCases cases_by_filters(const RunCommand& command) {
  auto cases = catalogue_cases(command, command.full);
  std::set<std::string> added;
  for (const auto& filter : command.selection.filters) {
    if (!has_cases_for_every_word(command, filter)) return {};
    auto alone = command;
    alone.selection.filters = {filter};
    if (catalogue_cases(alone, command.full).size() > 0) continue;
    const auto of_all = catalogue_cases(alone, true);
    if (of_all.size() == 0) {
      say_no_case_of(filter);
      return {};
    }
    if (command.covering) {
      std::cerr << "equigrad: expected a filter that has cases of the covering "
                   "selection, got \""
                << filter << "\". Leave out --covering to run its cases.\n";
      return {};
    }
    for (const auto& spec : of_all.matrix)
      if (added.insert(spec.id()).second) cases.matrix.push_back(spec);
    for (const auto& spec : of_all.contract)
      if (added.insert(spec.id()).second) cases.contract.push_back(spec);
  }
  if (cases.size() == 0) std::cerr << "equigrad: 0 cases selected. equigrad list has all ids.\n";
  return cases;
}

// Why the words are no case's id; empty: they are one.
std::string id_problem(const std::string& words) {
  try {
    if (is_generated_id(words))
      static_cast<void>(case_of_id(words));
    else if (words.starts_with("Contract."))
      static_cast<void>(contract::parse_contract_id(words));
    else
      static_cast<void>(parse_id(words));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

// Adds a case by its id, if the options select it.
void add_named(SelectedCases& cases, const std::string& id, const Selection& selection) {
  const auto add = [&](auto& list, auto one, int stage, const std::string& dtype, int world) {
    if (selects(selection, stage, dtype, world, id)) list.push_back(std::move(one));
  };
  if (is_generated_id(id)) {
    auto one = case_of_id(id);
    const int stage = one.execution.stage, world = one.workload.world;
    add(cases.generated, std::move(one), stage, "", world);
  } else if (id.starts_with("Contract.")) {
    const auto spec = contract::parse_contract_id(id);
    add(cases.contract, spec, spec.stage, word(spec.precision), spec.world);
  } else {
    const auto spec = parse_id(id);
    add(cases.matrix, spec, spec.stage, word(spec.precision), spec.world);
  }
}

SelectedCases named_cases(const RunCommand& command) {
  SelectedCases cases;
  for (const auto& id : command.only) {
    try {
      add_named(cases, id, command.selection);
    } catch (const Error& error) {
      std::cerr << "equigrad: " << id << " is no case any more: " << error.what() << "\n";
    }
  }
  if (cases.size() == 0)
    std::cerr << "equigrad: 0 of " << command.only.size()
              << " cases of the record are selected by the filters and options "
                 "beside --failed.\n";
  return cases;
}

void keep_shard(SelectedCases& cases, const Shard& shard) {
  std::vector<ShardCase> all;
  for (const auto& spec : cases.matrix)
    all.push_back({spec.id(), spec.tuple(), spec.world * (spec.model == "gpt" ? 4 : 1)});
  for (const auto& spec : cases.contract) all.push_back({spec.id(), spec.id(), spec.world});
  const auto ids = ids_of_shard(std::move(all), shard);
  const auto before = cases.listed();
  std::erase_if(cases.matrix, [&](const CaseSpec& spec) { return !ids.contains(spec.id()); });
  std::erase_if(cases.contract,
                [&](const contract::Spec& spec) { return !ids.contains(spec.id()); });
  cases.in_other_shards = static_cast<int64_t>(before - cases.listed());
}

}  // namespace

SelectedCases selected_cases(const RunCommand& command) {
  auto cases = command.only.empty() ? cases_by_filters(command) : named_cases(command);
  if (cases.size() > 0 && !command.shard.empty()) keep_shard(cases, shard_of(command.shard));
  return cases;
}

// The cases whose ids the filters are, in their order; none where one is no id.
SelectedCases cases_in_order(const RunCommand& command) {
  SelectedCases cases;
  const auto& ids = command.selection.filters;
  if (ids.empty())
    std::cerr << "equigrad: expected the ids of cases with --one-process, got "
                 "none. A replay names "
                 "them.\n";
  try {
    for (const auto& id : ids) {
      if (std::count(ids.begin(), ids.end(), id) > 1)
        throw Error("run", "expected every case once, got " + id + " several times.");
      if (id.starts_with("Contract."))
        cases.contract.push_back(contract::parse_contract_id(id));
      else
        cases.matrix.push_back(parse_id(id));
    }
  } catch (const Error& error) {
    std::cerr << "equigrad: expected the ids of cases with --one-process: " << error.what() << "\n";
    return {};
  }
  return cases;
}

bool is_narrowed(const RunCommand& command) {
  const auto& selection = command.selection;
  return !command.only.empty() || !selection.filters.empty() || !selection.stages.empty() ||
         !selection.dtypes.empty() || !selection.worlds.empty();
}

OneCase one_case(const std::string& words) {
  OneCase one;
  if (one.problem = id_problem(words); one.problem.empty()) return {words, "", {}};
  const auto wrong = filter_problem(words);
  auto cases = SelectedCases{};
  RunCommand command;
  command.selection.filters = {words};
  if (wrong.empty()) cases = catalogue_cases(command, /*full=*/false);
  if (wrong.empty() && cases.size() == 0) cases = catalogue_cases(command, /*full=*/true);
  if (cases.size() == 1)
    return {cases.matrix.empty() ? cases.contract[0].id() : cases.matrix[0].id(), "", {}};
  if (cases.size() > 1) {
    one.problem = "expected the id of a case, or words that one case alone has, got \"" + words +
                  "\", which " + std::to_string(cases.size()) +
                  " cases have. equigrad list prints them.";
    return one;
  }
  if (!wrong.empty()) one.problem = wrong;
  std::vector<std::string> ids;
  for (const auto& spec : full_matrix()) ids.push_back(spec.id());
  for (const auto& spec : contract::full_specs()) ids.push_back(spec.id());
  one.near = near_matches(ids, words, 3);
  return one;
}

std::vector<std::string> filter_words() {
  std::set<std::string> words = {"Contract", "Generated", "Generated.meshes"};
  for (const auto& spec : default_matrix()) {
    std::istringstream parts(spec.id());
    for (std::string part; std::getline(parts, part, '.');) words.insert(part);
  }
  return {words.begin(), words.end()};
}

}  // namespace equigrad::conformance::cli
