#include "engine/comm/launch.hpp"

#include <array>
#include <charconv>
#include <optional>
#include <system_error>

#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

constexpr const char* kWhere = "launch";

enum class LocalRank { Required, MayBeUnknown, IsTheRank };  // where it is not named

struct VariableSet {
  const char* source;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  LocalRank if_unnamed;
};

constexpr std::array<VariableSet, 4> kVariableSets{{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", LocalRank::MayBeUnknown},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     LocalRank::Required},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", LocalRank::Required},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", LocalRank::IsTheRank},
}};

std::optional<std::string> lookup(const GetEnvironment& get, const char* name) {
  const char* value = get(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

int to_int(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc() || stop != end || text.empty() || value < least || value > most)
    throw Error(kWhere, std::string("expected ") + name + " to be a whole number from " +
                            std::to_string(least) + " to " + std::to_string(most) + ", got \"" +
                            text + "\". Correct it, or unset it to run as one rank.");
  return value;
}

[[noreturn]] void throw_partial(const char* present, const char* missing) {
  throw Error(kWhere, std::string("expected ") + present + " and " + missing +
                          " together, got only " + present + ". Set both, or unset both.");
}

bool is_slurm(const VariableSet& set) { return std::string(set.source) == "slurm"; }

// Nothing if none of the set's variables is present.
std::optional<LaunchEnvironment> read_set(const GetEnvironment& get, const VariableSet& set) {
  const auto rank = lookup(get, set.rank);
  const auto world_size = lookup(get, set.world_size);
  const auto local_rank = lookup(get, set.local_rank);
  // An allocation without a step has SLURM_NTASKS, and no process has a rank in it.
  if (!rank && is_slurm(set)) return std::nullopt;
  if (!rank && world_size) throw_partial(set.world_size, set.rank);
  if (!rank && local_rank && set.if_unnamed != LocalRank::IsTheRank)
    throw_partial(set.local_rank, set.rank);
  if (!rank) return std::nullopt;
  if (!world_size) throw_partial(set.rank, set.world_size);
  if (!local_rank && set.if_unnamed == LocalRank::Required) throw_partial(set.rank, set.local_rank);

  constexpr int kMostRanks = 1 << 20;
  LaunchEnvironment launch;
  launch.source = set.source;
  launch.world_size = to_int(set.world_size, *world_size, 1, kMostRanks);
  launch.rank = to_int(set.rank, *rank, 0, launch.world_size - 1);
  launch.local_rank.reset();
  if (local_rank)
    launch.local_rank = to_int(set.local_rank, *local_rank, 0, launch.world_size - 1);
  else if (set.if_unnamed == LocalRank::IsTheRank)
    launch.local_rank = launch.rank;
  return launch;
}

[[noreturn]] void throw_conflict(const char* first, int a, const char* second, int b) {
  throw Error(kWhere, std::string("expected one answer from the launchers, got ") + first + "=" +
                          std::to_string(a) + " and " + second + "=" + std::to_string(b) +
                          ". Unset the one that is left over from another launch.");
}

void check_agreement(const VariableSet& set, const LaunchEnvironment& launch,
                     const VariableSet& other_set, const LaunchEnvironment& other) {
  if (launch.world_size != other.world_size)
    throw_conflict(set.world_size, launch.world_size, other_set.world_size, other.world_size);
  if (launch.rank != other.rank) throw_conflict(set.rank, launch.rank, other_set.rank, other.rank);
  // PMI may have no local rank of its own; then there is nothing to compare.
  if (other_set.if_unnamed == LocalRank::Required && launch.local_rank &&
      launch.local_rank != other.local_rank)
    throw_conflict(set.local_rank, *launch.local_rank, other_set.local_rank, *other.local_rank);
}

void read_master(const GetEnvironment& get, LaunchEnvironment& launch) {
  const auto addr = lookup(get, "MASTER_ADDR");
  const auto port = lookup(get, "MASTER_PORT");
  if (addr) launch.master_addr = *addr;
  if (port) launch.master_port = to_int("MASTER_PORT", *port, 1, 65535);
  if (launch.world_size == 1) return;
  if (launch.master_addr.empty() || launch.master_port == 0)
    throw Error(kWhere, "expected MASTER_ADDR and MASTER_PORT for " +
                            std::to_string(launch.world_size) + " ranks, got " +
                            (addr ? "\"" + *addr + "\"" : std::string("no MASTER_ADDR")) + " and " +
                            (port ? *port : std::string("no MASTER_PORT")) +
                            ". Export rank 0's host name and a free port on it.");
}

}  // namespace

LaunchEnvironment read_launch_environment(const GetEnvironment& get) {
  const VariableSet* chosen = nullptr;
  LaunchEnvironment launch;
  launch.source = "single process";
  const bool inside_torchrun = lookup(get, "TORCHELASTIC_RUN_ID").has_value();
  for (const VariableSet& set : kVariableSets) {
    const std::string chosen_source = chosen == nullptr ? "" : chosen->source;
    if (chosen_source == "torchrun" && inside_torchrun) break;
    if (chosen_source == "mpirun" && std::string(set.source) == "slurm") continue;
    const auto found = read_set(get, set);
    if (!found) continue;
    if (chosen != nullptr) {
      check_agreement(*chosen, launch, set, *found);
      if (!launch.local_rank && set.if_unnamed == LocalRank::Required)
        launch.local_rank = found->local_rank;
    } else {
      chosen = &set;
      launch = *found;
    }
  }
  read_master(get, launch);
  return launch;
}

void expect_one_process(const std::string& program, const GetEnvironment& get) {
  for (const VariableSet& set : kVariableSets) {
    const auto world_size = lookup(get, set.world_size);
    if (!world_size || (is_slurm(set) && !lookup(get, set.rank))) continue;
    int value = 0;
    std::from_chars(world_size->data(), world_size->data() + world_size->size(), value);
    if (value <= 1) continue;
    throw Error(kWhere, "expected one process of " + program +
                            ", which starts its own ranks, got " + set.world_size + "=" +
                            *world_size +
                            ". Start it without a launcher, or unset the variable if none runs it; "
                            "its options say how many ranks there are.");
  }
}

}  // namespace equigrad::comm
