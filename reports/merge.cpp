#include "reports/merge.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "reports/parts.hpp"
#include "reports/run_changes.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

[[noreturn]] void refuse_merge(const std::string& text) {
  throw std::runtime_error("[report merge] " + text);
}

struct ShardName {
  int index = 0, count = 0;  // 0: a run of its own
};

ShardName named_shard(const NamedRun& record) {
  const auto& text = record.run.shard;
  if (text.empty()) return {};
  const auto slash = text.find('/');
  const auto number = [&](const std::string& digits) {
    const bool is_number = !digits.empty() && digits.size() < 7 &&
                           digits.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? std::stoi(digits) : 0;
  };
  const ShardName shard = {number(text.substr(0, slash)),
                           slash == std::string::npos ? 0 : number(text.substr(slash + 1))};
  if (shard.index < 1 || shard.index > shard.count)
    refuse_merge("expected a shard such as 2/5, got \"" + clean(text) + "\" in " + record.name +
                 ". Write it again with equigrad run --shard.");
  return shard;
}

void require_same(const NamedRun& a, const NamedRun& b) {
  const auto same = [&](const std::string& what, const std::string& in_a, const std::string& in_b) {
    if (in_a != in_b)
      refuse_merge("expected records of one " + what + ", got " + clean(in_a) + " in " + a.name +
                   " and " + clean(in_b) + " in " + b.name +
                   ". equigrad diff says what differs between two.");
  };
  same("commit", a.run.environment.commit, b.run.environment.commit);
  same("version", a.run.environment.version, b.run.environment.version);
  same("torch", a.run.environment.torch, b.run.environment.torch);
  same("seed", std::to_string(a.run.seed), std::to_string(b.run.seed));
}

bool agree(const Case& a, const Case& b) {
  return a.verdict == b.verdict && has_same_numbers({&a, &b});
}

// Cases of a record, by the name of their part.
class MergedCases {
 public:
  void add(const NamedRun& record) {
    for (const auto& range : part_ranges(record.run)) {
      if (!wall_s_.contains(range.name)) names_.push_back(range.name);
      wall_s_[range.name] += 0;
      for (std::size_t i = range.begin; i < range.end; ++i)
        add(record, range.name, record.run.cases[i]);
    }
    for (const auto& part : record.run.parts) wall_s_[part.name] += part.wall_s;
    has_parts_ = has_parts_ && !record.run.parts.empty();
  }
  void give(Run& run) {
    // What was drawn follows all others.
    std::stable_partition(names_.begin(), names_.end(),
                          [](const std::string& name) { return name != kGeneratedPart; });
    for (const auto& name : names_) {
      auto& cases = cases_[name];
      if (has_parts_)
        run.parts.push_back({name, static_cast<int64_t>(cases.size()), wall_s_[name]});
      for (const auto* one : cases) run.cases.push_back(*one);
    }
  }

 private:
  struct Found {
    const NamedRun* record;
    std::string part;
    std::size_t place;
  };
  void add(const NamedRun& record, const std::string& part, const Case& one) {
    auto& cases = cases_[part];
    const auto [at, is_new] = found_.try_emplace(one.id, Found{&record, part, cases.size()});
    if (is_new) return cases.push_back(&one);
    auto& found = at->second;
    if (!record.run.shard.empty() && !found.record->run.shard.empty())
      refuse_merge("expected every case in one shard, got " + clean(one.id) + " in two shards: " +
                   found.record->name + " and " + record.name + ". Give shards of one run.");
    const Case*& known = cases_[found.part][found.place];
    if (one.verdict == Verdict::NotRun || agree(*known, one)) return;
    if (known->verdict != Verdict::NotRun)
      refuse_merge("expected one verdict of " + clean(one.id) + ", got " +
                   std::string(word(known->verdict)) + " in " + found.record->name + " and " +
                   std::string(word(one.verdict)) + " in " + record.name +
                   (known->verdict == one.verdict ? " with other numbers" : "") +
                   ". equigrad diff shows both.");
    known = &one;
    found.record = &record;
  }

  std::vector<std::string> names_;  // of parts, in order of first appearance
  std::map<std::string, double> wall_s_;
  std::map<std::string, std::vector<const Case*>> cases_;
  std::map<std::string, Found> found_;
  bool has_parts_ = true;
};

int64_t count_of_reason(const Run& run, const std::string& reason) {
  const auto found = run.not_run.find(reason);
  return found == run.not_run.end() ? 0 : found->second;
}

// The cases of the catalogue that were this record's to run, also those that it could not run.
int64_t own_cases(const Run& run) {
  auto own = static_cast<int64_t>(run.cases.size()) - (run.generated ? run.generated->failed : 0);
  for (const auto& [reason, count] : run.not_run)
    if (!is_left_to_others(reason)) own += count;
  return own;
}

int64_t catalogue(const Run& run) {
  auto all = own_cases(run);
  for (const auto& [reason, count] : run.not_run)
    if (is_left_to_others(reason)) all += count;
  return all;
}

// Shards of one selection have, with what is in the others, the same number of cases. What is
// missing; empty: nothing.
std::string missing_shards(const std::vector<NamedRun>& records) {
  std::map<int, const NamedRun*> shards;
  int count = 0;
  for (const auto& record : records) {
    const auto shard = named_shard(record);
    if (shard.count == 0) continue;
    if (count != 0 && shard.count != count)
      refuse_merge("expected shards of one number, got " + record.run.shard + " in " + record.name +
                   " and " + shards.begin()->second->run.shard + " in " +
                   shards.begin()->second->name + ". Give 1/n to n/n of one n.");
    count = shard.count;
    const auto [at, is_new] = shards.try_emplace(shard.index, &record);
    if (!is_new)
      refuse_merge("expected every shard once, got " + record.run.shard + " in " +
                   at->second->name + " and in " + record.name + ". Take one away.");
  }
  if (shards.empty()) return {};
  int64_t together = 0;
  const auto selected = [](const NamedRun& one) {
    return own_cases(one.run) + count_of_reason(one.run, kInOtherShards);
  };
  const auto& first = *shards.begin()->second;
  for (const auto& [index, record] : shards) {
    if (selected(*record) != selected(first))
      refuse_merge("expected shards of one selection, got " + grouped(selected(first)) +
                   " cases in " + first.name + " and " + grouped(selected(*record)) + " in " +
                   record->name + ". Give every shard the same filters and options.");
    together += own_cases(record->run);
  }
  std::vector<std::string> missing;
  for (int index = 1; index <= count; ++index)
    if (!shards.contains(index))
      missing.push_back(std::to_string(index) + "/" + std::to_string(count));
  if (missing.empty() && together != selected(first))
    refuse_merge("expected " + grouped(selected(first)) + " cases of " + std::to_string(count) +
                 " shards together, got " + grouped(together) +
                 ". Give every shard the same filters and options.");
  return missing.empty() ? ""
                         : "expected every shard of " + std::to_string(count) + ", got none for " +
                               joined(missing, ", ") + ". Run it, and merge again.";
}

// A fault counts as caught where every record that planted it caught it; a record without enough
// of them makes the whole void.
void add_self_checks(Run& to, const NamedRun& from) {
  for (const auto& check : from.run.self_checks) {
    const auto known = std::find_if(to.self_checks.begin(), to.self_checks.end(),
                                    [&](const SelfCheck& one) { return one.fault == check.fault; });
    if (known == to.self_checks.end())
      to.self_checks.push_back(check);
    else if (known->caught)
      *known = check.caught ? *known : check;
  }
  if (self_checked(from.run) || !from.run.failure.empty() || from.run.interrupted) return;
  to.self_checks.push_back(
      {.fault = "planted_faults_of_" + anchor(from.name),
       .what = "the planted faults of " + from.name + " are too few, or one was not caught",
       .caught = false,
       .by = ""});
}

using MemoryKey = std::tuple<int, std::string, int, std::string>;

MemoryKey case_of(const MemoryRow& row) { return {row.stage, row.precision, row.ranks, row.model}; }

std::map<MemoryKey, int64_t> memory_totals(const Run& run) {
  std::map<MemoryKey, int64_t> sums, totals;
  for (const auto& row : run.memory)
    (row.category == "total" ? totals : sums)[case_of(row)] += row.bytes;
  totals.merge(sums);
  return totals;
}

// Of each stage, precision, number of ranks and model the rows of the one case that holds most.
void add_memory(Run& to, const Run& from) {
  const auto known = memory_totals(to), added = memory_totals(from);
  const auto wins = [&](const MemoryRow& row) {
    const auto theirs = known.find(case_of(row));
    return theirs == known.end() || added.at(case_of(row)) > theirs->second;
  };
  std::erase_if(to.memory, [&](const MemoryRow& row) {
    const auto other = added.find(case_of(row));
    return other != added.end() && other->second > known.at(case_of(row));
  });
  std::copy_if(from.memory.begin(), from.memory.end(), std::back_inserter(to.memory), wins);
}

void add_rows(Run& to, const Run& from) {
  add_memory(to, from);
  for (const auto& row : from.underflow) {
    const auto key = [](const UnderflowRow& one) {
      return std::tuple(one.precision, one.model, one.scale);
    };
    const auto known = std::find_if(to.underflow.begin(), to.underflow.end(),
                                    [&](const UnderflowRow& one) { return key(one) == key(row); });
    if (known == to.underflow.end()) {
      to.underflow.push_back(row);
      continue;
    }
    known->numel += row.numel;
    known->zero += row.zero;
    known->subnormal += row.subnormal;
    known->overflow += row.overflow;
    const bool is_lossless = known->lossless > 0 && row.lossless > 0;
    known->lossless = is_lossless ? std::max(known->lossless, row.lossless) : 0;
  }
  for (const auto& row : from.statements)
    if (std::none_of(to.statements.begin(), to.statements.end(), [&](const Statement& one) {
          return one.section == row.section && one.name == row.name;
        }))
      to.statements.push_back(row);
}

void add_word(std::string& to, const std::string& word, const std::string& between) {
  if (word.empty() || (between + to + between).find(between + word + between) != std::string::npos)
    return;
  to += (to.empty() ? "" : between) + word;
}

void add_environment(Environment& to, const Environment& from) {
  add_word(to.compiler, from.compiler, "; ");
  add_word(to.device, from.device, "; ");
  add_word(to.cpu, from.cpu, "; ");
  add_word(to.os, from.os, "; ");
  to.cores = std::max(to.cores, from.cores);
  to.threads_per_rank = std::max(to.threads_per_rank, from.threads_per_rank);
  to.time = std::min(to.time, from.time);
}

void add_end(Run& to, const NamedRun& from) {
  const auto named = [&](const std::string& text) {
    return text.empty() ? "" : from.name + ": " + text;
  };
  add_word(to.planted, from.run.planted, ", ");
  add_word(to.failure, named(from.run.failure), "\n");
  add_word(to.engine_failure, named(from.run.engine_failure), "\n");
  to.interrupted = to.interrupted || from.run.interrupted;
  to.signal = std::max(to.signal, from.run.signal);
  to.wall_s += from.run.wall_s;
}

void add_generated(Run& to, const NamedRun& from, std::string& owner) {
  if (!from.run.generated) return;
  if (!owner.empty())
    refuse_merge("expected generated cases in one record, got some in " + owner + " and in " +
                 from.name + ". Run one of them with --generate 0.");
  owner = from.name;
  to.generated = from.run.generated;
}

// What is in no record: of the largest catalogue, what none has run and none could not run.
void add_not_run(Run& to, const std::vector<NamedRun>& records) {
  int64_t all = 0;
  std::set<std::string> reasons;
  for (const auto& [name, run] : records) {
    all = std::max(all, catalogue(run));
    for (const auto& [reason, count] : run.not_run) {
      if (is_left_to_others(reason))
        reasons.insert(reason);
      else
        to.not_run[reason] += count;
    }
  }
  reasons.erase(kInOtherShards);
  const auto rest = all - own_cases(to);
  if (rest > 0) to.not_run[reasons.size() == 1 ? *reasons.begin() : kNotSelected] = rest;
}

}  // namespace

bool is_left_to_others(const std::string& reason) {
  return reason == kNotSelected || reason == kOnlyWithFull || reason == kNotInCovering ||
         reason == kInOtherShards;
}

Counts counts_of_selected(const Run& run) {
  Counts sum = counts(run);
  for (const auto& [reason, count] : run.not_run)
    if (is_left_to_others(reason)) sum.not_run -= count;
  return sum;
}

Run merged(const std::vector<NamedRun>& records) {
  if (records.empty()) refuse_merge("expected a record or more, got none. Name files or folders.");
  const auto missing = missing_shards(records);
  Run run;
  run.environment = records.front().run.environment;
  run.seed = records.front().run.seed;
  MergedCases cases;
  std::string owner;
  for (const auto& record : records) {
    require_same(records.front(), record);
    cases.add(record);
    add_self_checks(run, record);
    add_rows(run, record.run);
    add_environment(run.environment, record.run.environment);
    add_end(run, record);
    add_generated(run, record, owner);
    const auto& of_parts = record.run.merged_commands;
    if (of_parts.empty()) run.merged_commands.push_back(record.run.command);
    run.merged_commands.insert(run.merged_commands.end(), of_parts.begin(), of_parts.end());
  }
  cases.give(run);
  add_word(run.failure, missing, "\n");
  add_not_run(run, records);
  return run;
}

}  // namespace equigrad::reports
