// Launch: who this process is among the ranks, read from the environment of its launcher.
//
// In this order, and the first set that is present wins:
//   RANK                  WORLD_SIZE            LOCAL_RANK                  torchrun, DeepSpeed
//   OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_RANK  mpirun
//   SLURM_PROCID          SLURM_NTASKS          SLURM_LOCALID               srun
//   PMI_RANK              PMI_SIZE              MPI_LOCALRANKID             Hydra
//   none of them: one rank
// Without SLURM_PROCID the others of Slurm are an allocation only. Hydra's local rank is the rank
// where it isn't named; LOCAL_RANK may be left out, for only ranks on CUDA devices need it.
// A later set that gives another answer is an error, but for launchers that run inside others:
// under torchrun (TORCHELASTIC_RUN_ID) and under mpirun, Slurm's variables describe the outer job.
//
// Invariants: 0 <= rank < world_size; 0 <= local_rank < world_size, if it is known; with
// world_size > 1, master_addr is not empty and 1 <= master_port <= 65535.
// Errors: equigrad::Error for a value that is not a number, negative or out of range, a set of
// which only a part is present, and two sets that disagree; the message names both variables.
// Depends on: engine/error.hpp.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace equigrad::comm {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank = 0;  // nothing where none was named
  std::string master_addr;            // empty where nothing named one (one rank)
  int master_port = 0;                // 0 where nothing named one (one rank)
  std::string source;                 // "torchrun", "mpirun", "slurm", "pmi" or "single process"
  bool operator==(const LaunchEnvironment&) const = default;
};

using GetEnvironment = std::function<const char*(const char*)>;

// `get` is std::getenv, or a table in a test.
LaunchEnvironment read_launch_environment(const GetEnvironment& get);

// For a program that starts its own ranks: an error if a launcher runs several processes of it.
void expect_one_process(const std::string& program, const GetEnvironment& get);

}  // namespace equigrad::comm
