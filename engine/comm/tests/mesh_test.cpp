// Every rank is in the groups that its place says, and each group adds what its ranks have.
#include "engine/comm/mesh.hpp"

#include <ATen/ops/full.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "conformance/testing/error_of.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/comm/backend.hpp"

namespace equigrad::comm {
namespace {

using conformance::error_of;
using conformance::ScratchFolder;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using ::testing::HasSubstr;

TEST(Mesh, EveryPlaceIsOneRanks) {
  const MeshSizes sizes{.data = 3, .sequence = 2, .tensor = 4};
  for (int rank = 0; rank < sizes.world_size(); ++rank) {
    const auto place = place_of(rank, sizes);
    EXPECT_EQ((place.data * 2 + place.sequence) * 4 + place.tensor, rank);
    EXPECT_LT(place.data, 3);
    EXPECT_LT(place.sequence, 2);
    EXPECT_LT(place.tensor, 4);
  }
}

TEST(Mesh, DataTakesWhatIsLeft) {
  EXPECT_EQ(mesh_sizes(8, 2, 2), (MeshSizes{.data = 2, .sequence = 2, .tensor = 2}));
  EXPECT_EQ(mesh_sizes(4, 1, 1), (MeshSizes{.data = 4}));
  EXPECT_THAT(error_of([] { mesh_sizes(6, 1, 4); }),
              HasSubstr("got 6 ranks, which is no multiple of 4"));
  EXPECT_THAT(error_of([] { mesh_sizes(4, 0, 1); }), HasSubstr("sequence 0"));
}

// The ranks, by number in the world, of one of this rank's groups: bits of a sum.
std::set<int> ranks_of(const std::shared_ptr<Communicator>& group, int rank) {
  if (!group) return {rank};
  const auto mask = at::full({1}, static_cast<float>(1 << rank), at::kFloat);
  group->all_reduce_sum(mask)->wait();
  std::set<int> ranks;
  const int sum = static_cast<int>(mask.item<float>());
  for (int of = 0; of < 16; ++of)
    if ((sum >> of & 1) != 0) ranks.insert(of);
  return ranks;
}

// The same as errors call them, this rank at its own place.
std::set<int> names_of(const std::shared_ptr<Communicator>& group, int rank) {
  if (!group) return {rank};
  EXPECT_EQ(group->name_of(group->rank()), rank);
  std::set<int> names;
  for (int of = 0; of < group->world_size(); ++of)
    names.insert(static_cast<int>(group->name_of(of)));
  return names;
}

void expect_groups(const MeshSizes& sizes, const std::string& folder, int rank) {
  const auto file = folder + "/" + std::to_string(sizes.sequence) + std::to_string(sizes.tensor);
  const auto mesh = connect_gloo_mesh(rank, sizes, file, std::chrono::seconds(20));
  const auto mine = place_of(rank, sizes);
  std::set<int> world, zero, tensor, sequence;
  for (int of = 0; of < sizes.world_size(); ++of) {
    const auto place = place_of(of, sizes);
    world.insert(of);
    if (place.tensor == mine.tensor) zero.insert(of);
    if (place.data != mine.data) continue;
    if (place.sequence == mine.sequence) tensor.insert(of);
    if (place.tensor == mine.tensor) sequence.insert(of);
  }
  EXPECT_EQ(mesh.sizes(), sizes);
  EXPECT_EQ(ranks_of(mesh.world(), rank), world);
  EXPECT_EQ(ranks_of(mesh.zero(), rank), zero);
  EXPECT_EQ(ranks_of(mesh.tensor(), rank), tensor);
  EXPECT_EQ(ranks_of(mesh.sequence(), rank), sequence);
  EXPECT_EQ(names_of(mesh.world(), rank), world);
  EXPECT_EQ(names_of(mesh.zero(), rank), zero);
  EXPECT_EQ(names_of(mesh.tensor(), rank), tensor);
  EXPECT_EQ(names_of(mesh.sequence(), rank), sequence);
  EXPECT_EQ(mesh.tensor() == nullptr, sizes.tensor == 1);
  EXPECT_EQ(mesh.sequence() == nullptr, sizes.sequence == 1);
  if (mesh.tensor()) EXPECT_EQ(mesh.tensor()->rank(), mine.tensor);
  if (mesh.sequence()) EXPECT_EQ(mesh.sequence()->rank(), mine.sequence);
}

TEST(Mesh, GroupsAreItsLinesAndPlanes) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const std::vector<MeshSizes> all{{.data = 4},
                                   {.tensor = 4},
                                   {.sequence = 4},
                                   {.data = 2, .tensor = 2},
                                   {.data = 2, .sequence = 2},
                                   {.sequence = 2, .tensor = 2}};
  EXPECT_EQ(on_ranks(4,
                     [&](RankContext& context) {
                       for (const auto& sizes : all)
                         expect_groups(sizes, folder.path(), context.rank());
                     }),
            "");
}

// Its number among all ranks, and not its place in the group.
TEST(Mesh, AnErrorInAGroupNamesRanksOfTheWorld) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_EQ(on_ranks(4,
                     [&](RankContext& context) {
                       auto mesh = connect_gloo_mesh(context.rank(), {.data = 2, .tensor = 2},
                                                     folder.path("lost"), std::chrono::seconds(20));
                       const auto said = at::full({1}, context.rank(), at::kLong);
                       exchange(*mesh.world(), said);
                       if (context.rank() == 3) mesh = Mesh();
                       if (context.rank() != 1) return;
                       const auto text = error_of([&] { exchange(*mesh.zero(), said); });
                       EXPECT_THAT(text, HasSubstr("[rank 1 of ranks 1, 3] [comm."));
                       EXPECT_THAT(text, HasSubstr("Look for rank 3"));
                     }),
            "");
}

// A store whose server goes with rank 0. A group without it connects late, and so does the last
// rank.
class ServedByRank0 final : public c10d::HashStore {
 public:
  explicit ServedByRank0(int last) : of_last_(std::to_string(last)) {}
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (key.starts_with("zero/1") || key.ends_with("/" + of_last_))
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    expect_served(key);
    c10d::HashStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    expect_served(key);
    return c10d::HashStore::get(key);
  }
  void end() { has_ended_ = true; }

 private:
  void expect_served(const std::string& key) const {
    if (has_ended_) throw std::runtime_error("rank 0 has left before " + key);
  }
  const std::string of_last_;
  std::atomic<bool> has_ended_ = false;
};

// What went wrong on the others, which are threads.
std::string without_rank_0(const MeshSizes& sizes) {
  const int world = sizes.world_size();
  const auto store = c10::make_intrusive<ServedByRank0>(world - 1);
  std::vector<std::string> failed(static_cast<std::size_t>(world));
  std::vector<std::thread> others;
  for (int rank = 1; rank < world; ++rank)
    others.emplace_back([&, rank] {
      try {
        mesh_over(store, rank, sizes, std::nullopt, std::chrono::minutes(1));
      } catch (const std::exception& error) {
        failed[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  mesh_over(store, 0, sizes, std::nullopt, std::chrono::minutes(1));
  store->end();
  for (auto& one : others) one.join();
  std::string all;
  for (const auto& one : failed) all += one;
  return all;
}

TEST(Mesh, Rank0StaysUntilGroupsWithoutItAreConnected) {
  const auto alone = [](RankContext&) {
    for (const auto& sizes : {MeshSizes{.tensor = 2}, MeshSizes{.sequence = 2, .tensor = 2},
                              MeshSizes{.data = 2, .sequence = 2}})
      EXPECT_EQ(without_rank_0(sizes), "");
  };
  EXPECT_EQ(on_ranks(1, alone), "");
}

TEST(Mesh, OneCommunicatorIsAMeshOfDataAndNoneIsEmpty) {
  EXPECT_FALSE(Mesh());
  EXPECT_FALSE(Mesh(nullptr));
  EXPECT_FALSE(Mesh(std::shared_ptr<Communicator>()));
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto group = context.group();
                       const Mesh mesh = group;
                       EXPECT_TRUE(mesh);
                       EXPECT_EQ(mesh.sizes(), (MeshSizes{.data = 2}));
                       EXPECT_EQ(mesh.zero(), group);
                       EXPECT_EQ(mesh.world(), group);
                       EXPECT_EQ(mesh.tensor(), nullptr);
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::comm
