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
constexpr std::size_t kPointWords = 4;

std::string describe(int64_t participant, int64_t kind, int64_t number) {
  switch (static_cast<SyncKind>(kind)) {
    case SyncKind::Bucket:
      return fmt::format("the reduction of bucket {} of engine {}", number, participant);
    case SyncKind::Step:
      return fmt::format("step() of engine {} after {} backward passes", participant, number);
    case SyncKind::Observed:
      return fmt::format("the update of engine {}", participant);
    case SyncKind::Initialize:
      return "initialize()";
    case SyncKind::Access:
      if (number < 0)
        return fmt::format("{} of gather() of engine {}",
                           number == -1 ? "the end" : "the beginning", participant);
      return fmt::format("getter or setter {} of engine {}, parameter {}", number >> 40,
                         participant, number & ((int64_t{1} << 40) - 1));
    default:
      return fmt::format("a gather of engine {}", participant);
  }
}

}  // namespace

// The messages of all ranks.
struct Coordinator::Statements {
  at::Tensor words;               // [W, words]
  std::size_t participant_words;  // of them, behind the point
  int64_t world() const { return words.size(0); }
  int64_t at(int64_t rank, int64_t word) const {
    return words.const_data_ptr<int64_t>()[rank * words.size(1) + word];
  }
  int64_t participant(int64_t rank) const { return at(rank, 0); }
  SyncKind kind(int64_t rank) const { return static_cast<SyncKind>(at(rank, 1)); }
  int64_t number(int64_t rank) const { return at(rank, 2); }
  int64_t flag(int64_t rank) const { return at(rank, 3); }
  bool bit(int64_t rank, std::size_t word, std::size_t which) const {
    const auto at_word = static_cast<int64_t>(word + which / kBitsPerWord);
    return ((at(rank, at_word) >> (which % kBitsPerWord)) & 1) != 0;
  }
  bool has_participant(int64_t rank, int64_t participant) const {
    return bit(rank, kPointWords, static_cast<std::size_t>(participant));
  }
  bool full_bucket(int64_t rank) const { return kind(rank) == SyncKind::Bucket && flag(rank) == 0; }
  // Marks of the ranks that are at a point of `kind` of `participant`.
  std::vector<bool> marks(int64_t participant, SyncKind kind, std::size_t count) const {
    std::vector<bool> any(count);
    for (int64_t rank = 0; rank < world(); ++rank) {
      if (this->participant(rank) != participant || this->kind(rank) != kind) continue;
      for (std::size_t mark = 0; mark < count; ++mark)
        if (bit(rank, kPointWords + participant_words, mark)) any[mark] = true;
    }
    return any;
  }
};

struct Coordinator::Announced {
  int64_t participant;
  SyncPoint point;
  std::size_t participant_words;
  Exchange exchange;
  Participant::Then then;
};

// Constructing an engine synchronises, so ranks that exchange messages have constructed as many.
std::size_t Coordinator::participant_words() const {
  return (static_cast<std::size_t>(next_participant_) + kBitsPerWord - 1) / kBitsPerWord;
}

at::Tensor Coordinator::message(int64_t participant, const SyncPoint& point,
                                const std::vector<bool>& marks) const {
  const std::size_t before = kPointWords + participant_words();
  const std::size_t words = before + (widest_ + kBitsPerWord - 1) / kBitsPerWord;
  const auto mine = at::zeros({static_cast<int64_t>(words)}, at::kLong);
  auto* message = mine.mutable_data_ptr<int64_t>();
  message[0] = participant;
  message[1] = static_cast<int64_t>(point.kind);
  message[2] = point.number;
  message[3] = point.flag;
  const auto set_bit = [&](std::size_t word, std::size_t bit) {
    message[word + bit / kBitsPerWord] |= int64_t{1} << (bit % kBitsPerWord);
  };
  for (const auto& [number, one] : participants_)
    set_bit(kPointWords, static_cast<std::size_t>(number));
  for (std::size_t mark = 0; mark < marks.size(); ++mark)
    if (marks[mark]) set_bit(before, mark);
  return mine;
}

Coordinator::Statements Coordinator::say(int64_t participant, const SyncPoint& point,
                                         const std::vector<bool>& marks) {
  return {comm::exchange(communicator_, message(participant, point, marks)), participant_words()};
}

// Every engine's wanted pages, engines in the order of their making. A gather takes all ranks: if
// one has no such engine any more, none begins, and all throw.
void Coordinator::gather(const Statements& statements) {
  std::map<int64_t, int64_t> wanting;  // participant, a rank
  for (int64_t rank = 0; rank < statements.world(); ++rank) {
    if (statements.kind(rank) == SyncKind::Pages)
      wanting.emplace(statements.participant(rank), rank);
  }
  for (const auto& [number, reader] : wanting) {
    for (int64_t rank = 0; rank < statements.world(); ++rank) {
      if (statements.has_participant(rank, number)) continue;
      throw Error("comm.coordinator",
                  fmt::format("expected engine {} on every rank, got rank {}, which has destroyed "
                              "it while rank {} reads its parameters. Destroy engines on every "
                              "rank at the same place.",
                              number, rank, reader));
    }
  }
  for (const auto& [number, reader] : wanting) {
    auto* participant = participants_.at(number);
    const auto any = statements.marks(number, SyncKind::Pages, participant->marks_);
    std::vector<std::size_t> pages;
    for (std::size_t page = 0; page < any.size(); ++page)
      if (any[page]) pages.push_back(page);
    participant->gather_(pages);
  }
}

Agreement Coordinator::exchange(int64_t participant, const SyncPoint& point,
                                const std::vector<bool>& marks) {
  return conclude(say(participant, point, marks), participant, point, marks);
}

// The answer to the ranks' messages; sends this rank's again while there is none.
Agreement Coordinator::conclude(Statements statements, int64_t participant, const SyncPoint& point,
                                const std::vector<bool>& marks) {
  for (;; statements = say(participant, point, marks)) {
    bool wanted = false, same = true, postponed = false;
    std::optional<int64_t> abandoned;
    for (int64_t rank = 0; rank < statements.world(); ++rank) {
      if (statements.kind(rank) == SyncKind::Abandoned && !abandoned) abandoned = rank;
      wanted = wanted || statements.kind(rank) == SyncKind::Pages;
      postponed = postponed || statements.full_bucket(rank);
      same = same && statements.participant(rank) == participant &&
             statements.kind(rank) == point.kind && statements.number(rank) == point.number;
    }
    // First of all: who reads a page may be in a forward that has nothing to do with a pass that
    // threw elsewhere.
    if (wanted) {
      gather(statements);
      if (point.kind == SyncKind::Pages) return {};
      continue;
    }
    if (abandoned) {
      if (point.kind == SyncKind::Abandoned) return {};
      throw Error("comm.coordinator",
                  fmt::format("expected every rank to finish its {}, got an exception on rank {}. "
                              "It counts on no rank; do it again, or leave it out, on all of "
                              "them.",
                              point.kind == SyncKind::Observed ? "step()"
                              : point.kind == SyncKind::Access ? "gather()"
                                                               : "backward pass",
                              *abandoned));
    }
    if (same) {
      Agreement agreement{true, point.flag, point.flag,
                          statements.marks(participant, point.kind, marks.size())};
      for (int64_t rank = 0; rank < statements.world(); ++rank) {
        agreement.least_flag = std::min(agreement.least_flag, statements.flag(rank));
        agreement.greatest_flag = std::max(agreement.greatest_flag, statements.flag(rank));
      }
      return agreement;
    }
    if (postponed) {
      if (point.kind == SyncKind::Bucket && point.flag == 0) return {false, 0, 0, {}};
      continue;
    }
    int64_t other = 0;
    while (statements.participant(other) == statements.participant(0) &&
           statements.at(other, 1) == statements.at(0, 1) &&
           statements.number(other) == statements.number(0)) {
      ++other;
    }
    throw Error(
        "comm.coordinator",
        fmt::format("expected every rank at the same place, got rank 0 at {} and rank {} "
                    "at {}. Make the same calls of backward and step on every rank; "
                    "zero_grad() on all of them gives the window up.",
                    describe(statements.participant(0), statements.at(0, 1), statements.number(0)),
                    other,
                    describe(statements.participant(other), statements.at(other, 1),
                             statements.number(other))));
  }
}

Participant::Participant(Communicator& communicator, std::size_t marks)
    : coordinator_(communicator.coordinator()),
      marks_(marks),
      number_(coordinator_.next_participant_++),
      gather_([](const std::vector<std::size_t>&) {}) {
  coordinator_.participants_[number_] = this;
  coordinator_.widest_ = std::max(coordinator_.widest_, marks);
}

Participant::~Participant() {
  coordinator_.participants_.erase(number_);
  if (coordinator_.announced_ && coordinator_.announced_->participant == number_)
    coordinator_.announced_.reset();
}

// If the answer throws, all ranks know.
void Coordinator::settle() {
  if (!announced_) return;
  const auto announced = std::exchange(announced_, nullptr);
  const bool was_known = std::exchange(failure_is_known_, true);  // the others are in no pass
  const auto agreement = conclude({announced->exchange.wait(), announced->participant_words},
                                  announced->participant, announced->point, {});
  failure_is_known_ = was_known;
  announced->then(agreement);
}

void Participant::settle() { coordinator_.settle(); }

void Participant::announce(const SyncPoint& point, Then then) {
  auto& at = coordinator_;
  if (at.communicator_.world_size() == 1) return then({true, point.flag, point.flag, {}});
  at.settle();
  at.announced_ = std::make_shared<Coordinator::Announced>(Coordinator::Announced{
      number_, point, at.participant_words(),
      Exchange(at.communicator_, at.message(number_, point, {})), std::move(then)});
}

void Participant::want(const std::vector<std::size_t>& pages) {
  if (coordinator_.communicator_.world_size() == 1) return gather_(pages);
  coordinator_.settle();
  std::vector<bool> marks(marks_);
  for (const auto page : pages) marks[page] = true;
  const bool was_known = std::exchange(coordinator_.failure_is_known_, true);
  coordinator_.exchange(number_, {SyncKind::Pages}, marks);
  coordinator_.failure_is_known_ = was_known;
}

Agreement Participant::meet(const SyncPoint& point, const std::vector<bool>& marks) {
  if (coordinator_.communicator_.world_size() == 1) return {true, point.flag, point.flag, marks};
  coordinator_.settle();
  coordinator_.failure_is_known_ = point.kind == SyncKind::Bucket;  // the others are in no pass
  auto agreement = coordinator_.exchange(number_, point, marks);
  coordinator_.failure_is_known_ = false;
  return agreement;
}

void Participant::abandon() {
  if (coordinator_.communicator_.world_size() == 1) return;
  try {
    coordinator_.settle();
  } catch (const std::exception&) {
    // All know that somebody's pass threw.
  }
  if (std::exchange(coordinator_.failure_is_known_, true)) return;
  coordinator_.exchange(number_, {SyncKind::Abandoned}, {});
}

void Coordinator::meet_to_initialize() {
  if (communicator_.world_size() == 1) return;
  settle();
  exchange(-1, {SyncKind::Initialize}, {});
}

}  // namespace equigrad::comm
