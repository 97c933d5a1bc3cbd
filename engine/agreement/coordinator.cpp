#include "engine/agreement/coordinator.hpp"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::agreement {
namespace {

constexpr std::size_t kBitsPerWord = 63;
constexpr std::size_t kPointWords = 4;  // the engine, and where it is

}  // namespace

// The messages of all ranks.
struct Coordinator::Statements {
  at::Tensor words;               // [W, words]
  int64_t oldest_participant;     // what the first bit behind the point is of
  std::size_t participant_words;  // of them, behind the point
  int64_t world() const { return words.size(0); }
  int64_t at(int64_t rank, int64_t word) const {
    return words.const_data_ptr<int64_t>()[rank * words.size(1) + word];
  }
  int64_t participant(int64_t rank) const { return at(rank, 0); }
  PointWords point(int64_t rank) const { return {at(rank, 1), at(rank, 2), at(rank, 3)}; }
  bool bit(int64_t rank, std::size_t word, std::size_t which) const {
    const auto at_word = static_cast<int64_t>(word + which / kBitsPerWord);
    return ((at(rank, at_word) >> (which % kBitsPerWord)) & 1) != 0;
  }
  bool has_participant(int64_t rank, int64_t participant) const {
    return bit(rank, kPointWords, static_cast<std::size_t>(participant - oldest_participant));
  }
  // Marks of the ranks that are at a point of this kind for `participant`.
  std::vector<bool> marks(int64_t participant, int64_t kind, std::size_t count) const {
    std::vector<bool> any(count);
    for (int64_t rank = 0; rank < world(); ++rank) {
      if (this->participant(rank) != participant || point(rank).kind != kind) continue;
      for (std::size_t mark = 0; mark < count; ++mark)
        if (bit(rank, kPointWords + participant_words, mark)) any[mark] = true;
    }
    return any;
  }
};

struct Coordinator::Announced {
  int64_t participant;
  PointWords point;
  int64_t oldest_participant;
  std::size_t participant_words;
  comm::Exchange exchange;
  Participant::Then then;
};

// The thread that speaks while it lives; what it calls may speak too.
class Coordinator::Speaking {
 public:
  explicit Speaking(Coordinator& coordinator) : speaker_(coordinator.speaker_) {
    const auto me = std::this_thread::get_id();
    std::thread::id before;
    is_first_ = speaker_.compare_exchange_strong(before, me);
    if (is_first_ || before == me) return;
    throw Error("agreement",
                "expected one thread of a rank at a time to call the engines of one communicator, "
                "got a second one while the first waits for the other ranks. Make the calls from "
                "one thread, or give the engines a communicator each.");
  }
  ~Speaking() {
    if (is_first_) speaker_ = std::thread::id();
  }
  Speaking(const Speaking&) = delete;
  Speaking& operator=(const Speaking&) = delete;

 private:
  std::atomic<std::thread::id>& speaker_;
  bool is_first_ = false;
};

Coordinator& coordinator_of(comm::Communicator& communicator) {
  auto& companion = communicator.companion();
  if (!companion) companion = std::make_shared<Coordinator>(communicator);
  return *static_cast<Coordinator*>(companion.get());
}

// Constructing an engine synchronises, so ranks that exchange messages have constructed as many.
std::size_t Coordinator::participant_words() const {
  const auto participants = static_cast<std::size_t>(next_participant_ - oldest_participant_);
  return (participants + kBitsPerWord - 1) / kBitsPerWord;
}

at::Tensor Coordinator::message(int64_t participant, const PointWords& point,
                                const std::vector<bool>& marks) const {
  const std::size_t before = kPointWords + participant_words();
  const std::size_t words = before + (widest_ + kBitsPerWord - 1) / kBitsPerWord;
  const auto mine = at::zeros({static_cast<int64_t>(words)}, at::kLong);
  auto* message = mine.mutable_data_ptr<int64_t>();
  message[0] = participant;
  message[1] = point.kind;
  message[2] = point.which;
  message[3] = point.flag;
  const auto set_bit = [&](std::size_t word, std::size_t bit) {
    message[word + bit / kBitsPerWord] |= int64_t{1} << (bit % kBitsPerWord);
  };
  for (const auto& [number, one] : participants_)
    set_bit(kPointWords, static_cast<std::size_t>(number - oldest_participant_));
  for (std::size_t mark = 0; mark < marks.size(); ++mark)
    if (marks[mark]) set_bit(before, mark);
  return mine;
}

Coordinator::Statements Coordinator::say(int64_t participant, const PointWords& point,
                                         const std::vector<bool>& marks) {
  return {comm::exchange(communicator_, message(participant, point, marks)), oldest_participant_,
          participant_words()};
}

// Every engine's wanted pages, engines in the order of their making. A gather takes all ranks: if
// one has no such engine any more, none begins, and all throw.
void Coordinator::gather(const Statements& statements) {
  std::map<int64_t, int64_t> wanting;  // participant, a rank
  for (int64_t rank = 0; rank < statements.world(); ++rank) {
    if (statements.point(rank).is<WantPages>()) wanting.emplace(statements.participant(rank), rank);
  }
  for (const auto& [number, reader] : wanting) {
    for (int64_t rank = 0; rank < statements.world(); ++rank) {
      if (statements.has_participant(rank, number)) continue;
      throw Error("agreement",
                  fmt::format("expected engine {} on every rank, got rank {}, which has destroyed "
                              "it while rank {} reads its parameters. Destroy engines on every "
                              "rank at the same place.",
                              number, communicator_.name_of(rank), communicator_.name_of(reader)));
    }
  }
  for (const auto& [number, reader] : wanting) {
    auto* participant = participants_.at(number);
    const auto any = statements.marks(number, kind_of<WantPages>(), participant->marks_);
    std::vector<std::size_t> pages;
    for (std::size_t page = 0; page < any.size(); ++page)
      if (any[page]) pages.push_back(page);
    participant->gather_(pages);
  }
}

Agreement Coordinator::exchange(int64_t participant, const PointWords& point,
                                const std::vector<bool>& marks) {
  return conclude(say(participant, point, marks), participant, point, marks);
}

// The answer to the ranks' messages; sends this rank's again while there is none.
Agreement Coordinator::conclude(Statements statements, int64_t participant, const PointWords& point,
                                const std::vector<bool>& marks) {
  for (;; statements = say(participant, point, marks)) {
    bool wanted = false, same = true, postponed = false;
    std::optional<int64_t> abandoned;
    for (int64_t rank = 0; rank < statements.world(); ++rank) {
      const auto theirs = statements.point(rank);
      if (theirs.is<Abandoned>() && !abandoned) abandoned = rank;
      wanted = wanted || theirs.is<WantPages>();
      postponed = postponed || theirs.is_full_bucket();
      same = same && statements.participant(rank) == participant && theirs.is_same_point(point);
    }
    // First of all: who reads a page may be in a forward that has nothing to do with a pass that
    // threw elsewhere.
    if (wanted) {
      gather(statements);
      if (point.is<WantPages>()) return {};
      continue;
    }
    if (abandoned) {
      if (point.is<Abandoned>()) return {};
      throw Error("agreement",
                  fmt::format("expected every rank to finish its {}, got an exception on rank {}. "
                              "It counts on no rank; do it again, or leave it out, on all of "
                              "them.",
                              point.is<ObservedUpdate>() ? "step()"
                              : point.is_access()        ? "gather()"
                                                         : "backward pass",
                              communicator_.name_of(*abandoned)));
    }
    if (same) {
      Agreement agreement{true, point.flag, point.flag,
                          statements.marks(participant, point.kind, marks.size())};
      for (int64_t rank = 0; rank < statements.world(); ++rank) {
        agreement.least_flag = std::min(agreement.least_flag, statements.point(rank).flag);
        agreement.greatest_flag = std::max(agreement.greatest_flag, statements.point(rank).flag);
      }
      return agreement;
    }
    if (postponed) {
      if (point.is_full_bucket()) return {false, 0, 0, {}};
      continue;
    }
    int64_t other = 0;
    while (statements.participant(other) == statements.participant(0) &&
           statements.point(other).is_same_point(statements.point(0)))
      ++other;
    throw Error("agreement",
                fmt::format("expected every rank at the same place, got rank {} at {} and rank {} "
                            "at {}. Make the same calls of backward and step on every rank; "
                            "zero_grad() on all of them gives the window up.",
                            communicator_.name_of(0),
                            describe(statements.point(0), statements.participant(0)),
                            communicator_.name_of(other),
                            describe(statements.point(other), statements.participant(other))));
  }
}

Participant::Participant(comm::Communicator& communicator, std::size_t marks)
    : coordinator_(coordinator_of(communicator)),
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
  const auto agreement = conclude(
      {announced->exchange.wait(), announced->oldest_participant, announced->participant_words},
      announced->participant, announced->point, {});
  failure_is_known_ = was_known;
  announced->then(agreement);
}

void Participant::settle() {
  const Coordinator::Speaking speaking(coordinator_);
  coordinator_.settle();
}

void Participant::announce(const SyncPoint& point, Then then) {
  auto& at = coordinator_;
  const auto words = words_of(point);
  if (at.communicator_.world_size() == 1) return then({true, words.flag, words.flag, {}});
  const Coordinator::Speaking speaking(at);
  at.settle();
  at.announced_ = std::make_shared<Coordinator::Announced>(Coordinator::Announced{
      .participant = number_,
      .point = words,
      .oldest_participant = at.oldest_participant_,
      .participant_words = at.participant_words(),
      .exchange = comm::Exchange(at.communicator_, at.message(number_, words, {})),
      .then = std::move(then)});
}

void Participant::want(const std::vector<std::size_t>& pages) {
  if (coordinator_.communicator_.world_size() == 1) return gather_(pages);
  RECORD_USER_SCOPE("agreement.want");
  const Coordinator::Speaking speaking(coordinator_);
  coordinator_.settle();
  std::vector<bool> marks(marks_);
  for (const auto page : pages) marks[page] = true;
  const bool was_known = std::exchange(coordinator_.failure_is_known_, true);
  coordinator_.exchange(number_, words_of(WantPages{}), marks);
  coordinator_.failure_is_known_ = was_known;
}

Agreement Participant::meet(const SyncPoint& point, const std::vector<bool>& marks) {
  const auto words = words_of(point);
  if (coordinator_.communicator_.world_size() == 1) return {true, words.flag, words.flag, marks};
  RECORD_USER_SCOPE("agreement.meet");
  const Coordinator::Speaking speaking(coordinator_);
  coordinator_.settle();
  coordinator_.failure_is_known_ = words.is<LaunchBucket>();  // otherwise the others are in no pass
  auto agreement = coordinator_.exchange(number_, words, marks);
  coordinator_.failure_is_known_ = false;
  return agreement;
}

void Participant::abandon() {
  if (coordinator_.communicator_.world_size() == 1) return;
  const Coordinator::Speaking speaking(coordinator_);
  try {
    coordinator_.settle();
  } catch (const std::exception&) {
    // All know that somebody's pass threw.
  }
  if (std::exchange(coordinator_.failure_is_known_, true)) return;
  coordinator_.exchange(number_, words_of(Abandoned{}), {});
}

void Coordinator::meet_to_initialize() {
  if (communicator_.world_size() == 1) return;
  const Speaking speaking(*this);
  settle();
  const auto mine = participants_.empty() ? next_participant_ : participants_.begin()->first;
  oldest_participant_ = exchange(-1, words_of(Initialize{.oldest = mine}), {}).least_flag;
}

}  // namespace equigrad::agreement
