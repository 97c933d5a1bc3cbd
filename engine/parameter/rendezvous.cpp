#include "engine/parameter/rendezvous.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

#include "engine/error.hpp"

namespace equigrad::parameter {
namespace {

constexpr std::size_t kBitsPerWord = 63;
constexpr std::size_t kPlaceWords = 3;

std::string describe(int64_t meeting, int64_t number) {
  if (static_cast<Meeting>(meeting) == Meeting::Bucket) {
    return fmt::format("the reduction of bucket {}", number);
  }
  return "step()";
}

}  // namespace

Rendezvous::Rendezvous(comm::Communicator& communicator, std::size_t pages, Gather gather)
    : communicator_(communicator), pages_(pages), gather_(std::move(gather)) {}

void Rendezvous::want(const std::vector<std::size_t>& pages) { exchange({0, 0, 0}, pages); }

bool Rendezvous::come_to(Meeting meeting, int64_t number, bool flushing) {
  const Place place{static_cast<int64_t>(meeting), number, flushing ? 1 : 0};
  auto result = Result::Served;
  while (result == Result::Served) result = exchange(place, {});
  return result == Result::MetFlushing;
}

Rendezvous::Result Rendezvous::exchange(const Place& place, const std::vector<std::size_t>& pages) {
  if (communicator_.world_size() == 1) {
    if (!pages.empty()) gather_(pages);
    return place.flushing != 0 ? Result::MetFlushing : Result::Met;
  }
  const std::size_t words = kPlaceWords + (pages_ + kBitsPerWord - 1) / kBitsPerWord;
  const auto mine = at::zeros({static_cast<int64_t>(words)}, at::kLong);
  auto* message = mine.mutable_data_ptr<int64_t>();
  message[0] = place.meeting;
  message[1] = place.number;
  message[2] = place.flushing;
  for (const auto page : pages) {
    message[kPlaceWords + page / kBitsPerWord] |= int64_t{1} << (page % kBitsPerWord);
  }
  const auto all = comm::exchange(communicator_, mine);
  const auto said = all.accessor<int64_t, 2>();

  std::vector<std::size_t> wanted;
  for (std::size_t page = 0; page < pages_; ++page) {
    const auto word = static_cast<int64_t>(kPlaceWords + page / kBitsPerWord);
    for (int64_t rank = 0; rank < communicator_.world_size(); ++rank) {
      if (((said[rank][word] >> (page % kBitsPerWord)) & 1) == 0) continue;
      wanted.push_back(page);
      break;
    }
  }
  if (!wanted.empty()) {
    gather_(wanted);
    return Result::Served;
  }
  bool flushing = said[0][2] != 0;
  for (int64_t rank = 1; rank < communicator_.world_size(); ++rank) {
    flushing = flushing && said[rank][2] != 0;
    if (said[rank][0] == said[0][0] && said[rank][1] == said[0][1]) continue;
    throw Error(
        "parameter.rendezvous",
        fmt::format("expected every rank at the same collective, got rank 0 at {} and rank {} "
                    "at {}. Make the same calls of backward and step on every rank.",
                    describe(said[0][0], said[0][1]), rank,
                    describe(said[rank][0], said[rank][1])));
  }
  return flushing ? Result::MetFlushing : Result::Met;
}

}  // namespace equigrad::parameter
