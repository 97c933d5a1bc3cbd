#include "engine/agreement/coordinator.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

constexpr std::size_t kBitsPerWord = 63;
constexpr std::size_t kPlaceWords = 4;

std::string describe(int64_t seat, int64_t meeting, int64_t number) {
  switch (static_cast<Meeting>(meeting)) {
    case Meeting::Bucket:
      return fmt::format("the reduction of bucket {} of engine {}", number, seat);
    case Meeting::Step:
      return fmt::format("step() of engine {} after {} backward passes", seat, number);
    case Meeting::Observed:
      return fmt::format("the update of engine {}", seat);
    case Meeting::Initialize:
      return "initialize()";
    case Meeting::Access:
      if (number < 0)
        return fmt::format("{} of gather() of engine {}",
                           number == -1 ? "the end" : "the beginning", seat);
      return fmt::format("getter or setter {} of engine {}, parameter {}", number >> 40, seat,
                         number & ((int64_t{1} << 40) - 1));
    default:
      return fmt::format("a gather of engine {}", seat);
  }
}

}  // namespace

// The messages of all ranks.
struct Rendezvous::Said {
  at::Tensor words;        // [W, words]
  std::size_t seat_words;  // of them, behind the place
  int64_t world() const { return words.size(0); }
  int64_t at(int64_t rank, int64_t word) const {
    return words.const_data_ptr<int64_t>()[rank * words.size(1) + word];
  }
  int64_t seat(int64_t rank) const { return at(rank, 0); }
  Meeting meeting(int64_t rank) const { return static_cast<Meeting>(at(rank, 1)); }
  int64_t number(int64_t rank) const { return at(rank, 2); }
  int64_t flag(int64_t rank) const { return at(rank, 3); }
  bool bit(int64_t rank, std::size_t word, std::size_t which) const {
    const auto at_word = static_cast<int64_t>(word + which / kBitsPerWord);
    return ((at(rank, at_word) >> (which % kBitsPerWord)) & 1) != 0;
  }
  bool has_seat(int64_t rank, int64_t seat) const {
    return bit(rank, kPlaceWords, static_cast<std::size_t>(seat));
  }
  bool full_bucket(int64_t rank) const {
    return meeting(rank) == Meeting::Bucket && flag(rank) == 0;
  }
  // Marks of the ranks that said `meeting` for `seat`.
  std::vector<bool> marks(int64_t seat, Meeting meeting, std::size_t count) const {
    std::vector<bool> any(count);
    for (int64_t rank = 0; rank < world(); ++rank) {
      if (this->seat(rank) != seat || this->meeting(rank) != meeting) continue;
      for (std::size_t mark = 0; mark < count; ++mark)
        if (bit(rank, kPlaceWords + seat_words, mark)) any[mark] = true;
    }
    return any;
  }
};

struct Rendezvous::Announced {
  int64_t seat;
  Place place;
  std::size_t seat_words;
  Exchange exchange;
  Seat::Then then;
};

// Engines are made at a meeting, so ranks that talk have made as many.
std::size_t Rendezvous::seat_words() const {
  return (static_cast<std::size_t>(next_seat_) + kBitsPerWord - 1) / kBitsPerWord;
}

at::Tensor Rendezvous::message(int64_t seat, const Place& place,
                               const std::vector<bool>& marks) const {
  const std::size_t before = kPlaceWords + seat_words();
  const std::size_t words = before + (widest_ + kBitsPerWord - 1) / kBitsPerWord;
  const auto mine = at::zeros({static_cast<int64_t>(words)}, at::kLong);
  auto* message = mine.mutable_data_ptr<int64_t>();
  message[0] = seat;
  message[1] = static_cast<int64_t>(place.meeting);
  message[2] = place.number;
  message[3] = place.flag;
  const auto set_bit = [&](std::size_t word, std::size_t bit) {
    message[word + bit / kBitsPerWord] |= int64_t{1} << (bit % kBitsPerWord);
  };
  for (const auto& [number, one] : seats_) set_bit(kPlaceWords, static_cast<std::size_t>(number));
  for (std::size_t mark = 0; mark < marks.size(); ++mark)
    if (marks[mark]) set_bit(before, mark);
  return mine;
}

Rendezvous::Said Rendezvous::say(int64_t seat, const Place& place, const std::vector<bool>& marks) {
  return {comm::exchange(communicator_, message(seat, place, marks)), seat_words()};
}

// Every engine's wanted pages, engines in the order of their making. A gather takes all ranks: if
// one has no such engine any more, none begins, and all throw.
void Rendezvous::gather(const Said& said) {
  std::map<int64_t, int64_t> wanting;  // seat, a rank
  for (int64_t rank = 0; rank < said.world(); ++rank) {
    if (said.meeting(rank) == Meeting::Pages) wanting.emplace(said.seat(rank), rank);
  }
  for (const auto& [number, reader] : wanting) {
    for (int64_t rank = 0; rank < said.world(); ++rank) {
      if (said.has_seat(rank, number)) continue;
      throw Error("comm.rendezvous",
                  fmt::format("expected engine {} on every rank, got rank {}, which has destroyed "
                              "it while rank {} reads its parameters. Destroy engines on every "
                              "rank at the same place.",
                              number, rank, reader));
    }
  }
  for (const auto& [number, reader] : wanting) {
    auto* seat = seats_.at(number);
    const auto any = said.marks(number, Meeting::Pages, seat->marks_);
    std::vector<std::size_t> pages;
    for (std::size_t page = 0; page < any.size(); ++page)
      if (any[page]) pages.push_back(page);
    seat->gather_(pages);
  }
}

Met Rendezvous::exchange(int64_t seat, const Place& place, const std::vector<bool>& marks) {
  return conclude(say(seat, place, marks), seat, place, marks);
}

// The answer to what was said; says it again while it is not known.
Met Rendezvous::conclude(Said said, int64_t seat, const Place& place,
                         const std::vector<bool>& marks) {
  for (;; said = say(seat, place, marks)) {
    bool wanted = false, same = true, postponed = false;
    std::optional<int64_t> abandoned;
    for (int64_t rank = 0; rank < said.world(); ++rank) {
      if (said.meeting(rank) == Meeting::Abandoned && !abandoned) abandoned = rank;
      wanted = wanted || said.meeting(rank) == Meeting::Pages;
      postponed = postponed || said.full_bucket(rank);
      same = same && said.seat(rank) == seat && said.meeting(rank) == place.meeting &&
             said.number(rank) == place.number;
    }
    // First of all: who reads a page may be in a forward that has nothing to do with a pass that
    // threw elsewhere.
    if (wanted) {
      gather(said);
      if (place.meeting == Meeting::Pages) return {};
      continue;
    }
    if (abandoned) {
      if (place.meeting == Meeting::Abandoned) return {};
      throw Error("comm.rendezvous",
                  fmt::format("expected every rank to finish its {}, got an exception on rank {}. "
                              "It counts on no rank; do it again, or leave it out, on all of "
                              "them.",
                              place.meeting == Meeting::Observed ? "step()"
                              : place.meeting == Meeting::Access ? "gather()"
                                                                 : "backward pass",
                              *abandoned));
    }
    if (same) {
      Met met{true, place.flag, place.flag, said.marks(seat, place.meeting, marks.size())};
      for (int64_t rank = 0; rank < said.world(); ++rank) {
        met.least_flag = std::min(met.least_flag, said.flag(rank));
        met.greatest_flag = std::max(met.greatest_flag, said.flag(rank));
      }
      return met;
    }
    if (postponed) {
      if (place.meeting == Meeting::Bucket && place.flag == 0) return {false, 0, 0, {}};
      continue;
    }
    int64_t other = 0;
    while (said.seat(other) == said.seat(0) && said.at(other, 1) == said.at(0, 1) &&
           said.number(other) == said.number(0)) {
      ++other;
    }
    throw Error("comm.rendezvous",
                fmt::format("expected every rank at the same place, got rank 0 at {} and rank {} "
                            "at {}. Make the same calls of backward and step on every rank; "
                            "zero_grad() on all of them gives the window up.",
                            describe(said.seat(0), said.at(0, 1), said.number(0)), other,
                            describe(said.seat(other), said.at(other, 1), said.number(other))));
  }
}

Seat::Seat(Communicator& communicator, std::size_t marks)
    : rendezvous_(communicator.rendezvous()),
      marks_(marks),
      number_(rendezvous_.next_seat_++),
      gather_([](const std::vector<std::size_t>&) {}) {
  rendezvous_.seats_[number_] = this;
  rendezvous_.widest_ = std::max(rendezvous_.widest_, marks);
}

Seat::~Seat() {
  rendezvous_.seats_.erase(number_);
  if (rendezvous_.announced_ && rendezvous_.announced_->seat == number_)
    rendezvous_.announced_.reset();
}

// If the answer throws, all ranks know.
void Rendezvous::settle() {
  if (!announced_) return;
  const auto announced = std::exchange(announced_, nullptr);
  const bool told = std::exchange(told_, true);  // the others are in no pass
  const auto met = conclude({announced->exchange.wait(), announced->seat_words}, announced->seat,
                            announced->place, {});
  told_ = told;
  announced->then(met);
}

void Seat::settle() { rendezvous_.settle(); }

void Seat::announce(const Place& place, Then then) {
  auto& at = rendezvous_;
  if (at.communicator_.world_size() == 1) return then({true, place.flag, place.flag, {}});
  at.settle();
  at.announced_ = std::make_shared<Rendezvous::Announced>(Rendezvous::Announced{
      number_, place, at.seat_words(), Exchange(at.communicator_, at.message(number_, place, {})),
      std::move(then)});
}

void Seat::want(const std::vector<std::size_t>& pages) {
  if (rendezvous_.communicator_.world_size() == 1) return gather_(pages);
  rendezvous_.settle();
  std::vector<bool> marks(marks_);
  for (const auto page : pages) marks[page] = true;
  const bool told = std::exchange(rendezvous_.told_, true);
  rendezvous_.exchange(number_, {Meeting::Pages}, marks);
  rendezvous_.told_ = told;
}

Met Seat::meet(const Place& place, const std::vector<bool>& marks) {
  if (rendezvous_.communicator_.world_size() == 1) return {true, place.flag, place.flag, marks};
  rendezvous_.settle();
  rendezvous_.told_ = place.meeting == Meeting::Bucket;  // the others are in no pass
  auto met = rendezvous_.exchange(number_, place, marks);
  rendezvous_.told_ = false;
  return met;
}

void Seat::abandon() {
  if (rendezvous_.communicator_.world_size() == 1) return;
  try {
    rendezvous_.settle();
  } catch (const std::exception&) {
    // All know that somebody's pass threw.
  }
  if (std::exchange(rendezvous_.told_, true)) return;
  rendezvous_.exchange(number_, {Meeting::Abandoned}, {});
}

void Rendezvous::meet_to_initialize() {
  if (communicator_.world_size() == 1) return;
  settle();
  exchange(-1, {Meeting::Initialize}, {});
}

}  // namespace equigrad::comm
