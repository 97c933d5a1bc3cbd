// The launchers we can tell apart, and what happens when they disagree.
#include "engine/comm/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Variables kMaster{{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kSlurm{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}};
const Variables kPmi{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}};

TEST(Launch, AnEmptyEnvironmentIsOneRank) {
  EXPECT_EQ(read({}), (LaunchEnvironment{.rank = 0,
                                         .world_size = 1,
                                         .local_rank = 0,
                                         .master_addr = "",
                                         .master_port = 0,
                                         .source = "single process"}));
}

TEST(Launch, ReadsEachLauncher) {
  EXPECT_EQ(read(kTorchrun + kMaster), (LaunchEnvironment{.rank = 1,
                                                          .world_size = 4,
                                                          .local_rank = 1,
                                                          .master_addr = "node0",
                                                          .master_port = 29500,
                                                          .source = "torchrun"}));
  EXPECT_EQ(read(kMpirun + kMaster), (LaunchEnvironment{.rank = 3,
                                                        .world_size = 4,
                                                        .local_rank = 1,
                                                        .master_addr = "node0",
                                                        .master_port = 29500,
                                                        .source = "mpirun"}));
  EXPECT_EQ(read(kSlurm + kMaster), (LaunchEnvironment{.rank = 2,
                                                       .world_size = 4,
                                                       .local_rank = 0,
                                                       .master_addr = "node0",
                                                       .master_port = 29500,
                                                       .source = "slurm"}));
  EXPECT_EQ(read(kPmi + kMaster), (LaunchEnvironment{.rank = 2,
                                                     .world_size = 4,
                                                     .local_rank = 2,
                                                     .master_addr = "node0",
                                                     .master_port = 29500,
                                                     .source = "pmi"}));
  EXPECT_EQ(read(kPmi + kMaster + Variables{{"MPI_LOCALRANKID", "0"}}).local_rank, 0);
}

TEST(Launch, LocalRankIsNothingWhereNobodyNamesIt) {
  const Variables rank{{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(read(rank + kMaster),
            (LaunchEnvironment{1, 4, std::nullopt, "node0", 29500, "torchrun"}));
  const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}};
  EXPECT_EQ(read(rank + mpirun + kMaster).local_rank, 2);
  const Variables pmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}};
  EXPECT_EQ(read(rank + pmi + kMaster).local_rank, std::nullopt);
}

std::string refusal(const Variables& variables) {
  try {
    expect_one_process("equigrad train", [&variables](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, AProgramThatStartsItsOwnRanksIsRefusedSeveralProcesses) {
  for (const auto& [variables, said] : std::vector<std::pair<Variables, std::string>>{
           {kTorchrun, "WORLD_SIZE=4"},
           {Variables{{"WORLD_SIZE", "2"}}, "WORLD_SIZE=2"},
           {kMpirun, "OMPI_COMM_WORLD_SIZE=4"},
           {kSlurm, "SLURM_NTASKS=4"},
           {kPmi, "PMI_SIZE=4"}})
    EXPECT_THAT(refusal(variables),
                AllOf(HasSubstr("one process of equigrad train"), HasSubstr("got " + said + "."),
                      HasSubstr("without a launcher")));
  for (const auto& variables : {Variables{}, Variables{{"WORLD_SIZE", "1"}},
                                Variables{{"WORLD_SIZE", ""}}, Variables{{"SLURM_NTASKS", "8"}}})
    EXPECT_EQ(refusal(variables), "");
}

TEST(Launch, LaunchersThatAgreeAreOne) {
  const Variables both = kTorchrun + kMaster +
                         Variables{{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "4"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  EXPECT_EQ(read(both).source, "torchrun");
}

TEST(Launch, LaunchersThatDisagreeAreAnErrorThatNamesBoth) {
  EXPECT_THAT(error_of(kTorchrun + kMpirun + kMaster),
              AllOf(HasSubstr("RANK=1"), HasSubstr("OMPI_COMM_WORLD_RANK=3")));
  EXPECT_THAT(error_of(kTorchrun + kSlurm + kMaster + Variables{{"SLURM_NTASKS", "8"}}),
              AllOf(HasSubstr("WORLD_SIZE=4"), HasSubstr("SLURM_NTASKS=8")));
  EXPECT_THAT(error_of(kTorchrun + kMaster + kSlurm + Variables{{"SLURM_PROCID", "1"}}),
              AllOf(HasSubstr("LOCAL_RANK=1"), HasSubstr("SLURM_LOCALID=0")));
  EXPECT_THAT(error_of(kMpirun + kPmi + kMaster), HasSubstr("PMI_RANK=2"));
}

TEST(Launch, ALauncherInsideAnotherJobIsBelieved) {
  EXPECT_EQ(read(kTorchrun + kSlurm + kMaster + Variables{{"TORCHELASTIC_RUN_ID", "x"}}).rank, 1);
  EXPECT_EQ(read(kMpirun + kSlurm + kMaster).source, "mpirun");
}

TEST(Launch, AnAllocationWithoutAStepIsOneRank) {
  EXPECT_EQ(read({{"SLURM_NTASKS", "8"}}).world_size, 1);
}

TEST(Launch, PartOfASetIsAnErrorThatNamesBothHalves) {
  EXPECT_THAT(error_of({{"RANK", "0"}}), HasSubstr("RANK and WORLD_SIZE together"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE and RANK together"));
  EXPECT_THAT(error_of({{"LOCAL_RANK", "0"}}), HasSubstr("LOCAL_RANK and RANK together"));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
              HasSubstr("OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_LOCAL_RANK together"));
  EXPECT_THAT(error_of({{"PMI_SIZE", "2"}}), HasSubstr("PMI_SIZE and PMI_RANK together"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "0"}}), HasSubstr("SLURM_PROCID and SLURM_NTASKS"));
}

TEST(Launch, MalformedAndImpossibleNumbersAreErrors) {
  for (const char* rank : {"", "x", "1x", " 1", "-1", "4", "1.0", "99999999999"})
    EXPECT_THAT(error_of(kTorchrun + kMaster + Variables{{"RANK", rank}}),
                HasSubstr("RANK to be a whole number from 0 to 3"))
        << rank;
  EXPECT_THAT(error_of(kTorchrun + Variables{{"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error_of(kTorchrun + kMaster + Variables{{"LOCAL_RANK", "4"}}),
              HasSubstr("LOCAL_RANK"));
}

TEST(Launch, SeveralRanksNeedAPlaceToMeet) {
  EXPECT_THAT(error_of(kTorchrun), HasSubstr("expected MASTER_ADDR and MASTER_PORT for 4 ranks"));
  EXPECT_THAT(error_of(kTorchrun + Variables{{"MASTER_ADDR", "node0"}}),
              HasSubstr("no MASTER_PORT"));
  for (const char* port : {"0", "65536", "http"})
    EXPECT_THAT(error_of(kTorchrun + kMaster + Variables{{"MASTER_PORT", port}}),
                HasSubstr("MASTER_PORT to be a whole number from 1 to 65535"));
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}).master_addr, "");
}

}  // namespace
}  // namespace equigrad::comm
