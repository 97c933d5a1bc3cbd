#include "engine/comm/shared_rings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace equigrad::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Copied at a time, so that the other one begins while this one goes on.
constexpr std::size_t kChunkBytes = std::size_t{1} << 18;
constexpr std::size_t kPageBytes = 4096;
constexpr const char* kNowhere = "nowhere";

struct Header {
  std::uint64_t number = 0, bytes = 0;
};

SegmentSizes sizes_of(int world_size) {
  const std::size_t each = SharedRings::kRingsBytes / static_cast<std::size_t>(world_size - 1);
  return {world_size, each / kPageBytes * kPageBytes};
}

bool is_wanted() {
  const char* said = std::getenv("EQUIGRAD_SHARED_MEMORY");
  return said == nullptr || std::string(said) != "0";
}

}  // namespace

struct SharedRings::Way {
  struct Message {
    std::shared_ptr<Exchange> of;
    std::byte* data;
    Header header;
    std::size_t moved = 0;  // header and data
    bool is_through() const { return moved == sizeof header + header.bytes; }
  };

  int peer = 0;
  std::unique_ptr<SharedSegment> theirs;
  Ring to_them, from_them;
  std::deque<Message> sends, receives;
  std::uint64_t sent = 0, received = 0;  // messages
  Header arrived;

  bool send_some();
  bool receive_some();
  std::size_t end_first(std::deque<Message>& messages);
};

struct SharedRings::Helper {
  std::thread thread;
  std::condition_variable has_work;
  bool is_stopping = false, is_parked = false;
};

bool SharedRings::Way::send_some() {
  auto& message = sends.front();
  std::size_t moved = 0;
  if (message.moved < sizeof message.header) {
    const auto* header = reinterpret_cast<const std::byte*>(&message.header);
    moved = to_them.write(header + message.moved, sizeof message.header - message.moved);
    message.moved += moved;
  }
  if (message.moved >= sizeof message.header && !message.is_through()) {
    const std::size_t at = message.moved - sizeof message.header;
    const auto more =
        to_them.write(message.data + at, std::min(message.header.bytes - at, kChunkBytes));
    message.moved += more;
    moved += more;
  }
  return moved > 0;
}

bool SharedRings::Way::receive_some() {
  auto& message = receives.front();
  std::size_t moved = 0;
  if (message.moved < sizeof arrived) {
    auto* header = reinterpret_cast<std::byte*>(&arrived);
    moved = from_them.read(header + message.moved, sizeof arrived - message.moved);
    message.moved += moved;
    if (message.moved < sizeof arrived) return moved > 0;
    if (arrived.number != message.header.number || arrived.bytes != message.header.bytes)
      throw std::runtime_error(
          fmt::format("message {} of {} bytes from rank {}, where {} bytes are due", arrived.number,
                      arrived.bytes, peer, message.header.bytes));
  }
  if (!message.is_through()) {
    const std::size_t at = message.moved - sizeof arrived;
    const auto more =
        from_them.read(message.data + at, std::min(message.header.bytes - at, kChunkBytes));
    message.moved += more;
    moved += more;
  }
  return moved > 0;
}

// How many messages ended: one or none.
std::size_t SharedRings::Way::end_first(std::deque<Message>& messages) {
  if (!messages.front().is_through()) return 0;
  --messages.front().of->open;
  messages.pop_front();
  return 1;
}

SharedRings::SharedRings(std::shared_ptr<const Peers> peers, std::chrono::milliseconds timeout)
    : peers_(std::move(peers)), timeout_(timeout), process_(getpid()) {}

std::shared_ptr<SharedRings> SharedRings::connect(const Board& board, int rank, int world_size,
                                                  std::shared_ptr<const Peers> peers,
                                                  std::chrono::milliseconds timeout) {
  if (world_size == 1 || world_size > kMostRanks) return nullptr;
  std::shared_ptr<SharedRings> rings(new SharedRings(std::move(peers), timeout));
  const bool is_mapped = rings->map_all(board, rank, world_size);
  const auto mapped = [](int of) { return "equigrad/mapped/" + std::to_string(of); };
  board.set(mapped(rank), is_mapped ? "1" : "0");
  bool are_mapped = is_mapped;
  for (int of = 0; of < world_size; ++of) are_mapped &= board.get(mapped(of)) == "1";
  if (!are_mapped) return nullptr;
  rings->mine_->hide();
  rings->helper_ = std::make_unique<Helper>();
  rings->helper_->thread = std::thread([&lent = *rings] { lent.help(); });
  return rings;
}

bool SharedRings::map_all(const Board& board, int rank, int world_size) {
  const auto place = [](int of) { return "equigrad/memory/" + std::to_string(of); };
  const auto sizes = sizes_of(world_size);
  if (is_wanted() && peers_->are_here(world_size)) mine_ = SharedSegment::make(sizes);
  board.set(place(rank), mine_ ? mine_->place() : kNowhere);
  bool is_mapped = mine_ != nullptr;
  for (int of = 0; of < world_size && is_mapped; ++of) {
    if (of == rank) continue;
    auto way = std::make_unique<Way>();
    way->peer = of;
    const auto at = board.get(place(of));
    if (at != kNowhere) way->theirs = SharedSegment::map(at, sizes);
    is_mapped = way->theirs != nullptr;
    if (!is_mapped) break;
    way->to_them = way->theirs->ring(rank);
    way->from_them = mine_->ring(of);
    ways_.push_back(std::move(way));
  }
  return is_mapped;
}

// In a process that was forked from this one the memory is its parent's, and the thread is not.
SharedRings::~SharedRings() {
  if (process_ != getpid()) {
    if (helper_) helper_->thread.detach();
    static_cast<void>(helper_.release());
    return;
  }
  if (!helper_) return;
  {
    const std::lock_guard lock(mutex_);
    helper_->is_stopping = true;
  }
  helper_->has_work.notify_one();
  helper_->thread.join();
  mine_->close();
  for (const auto& way : ways_) way->theirs->ring_bell();
}

std::shared_ptr<SharedRings::Exchange> SharedRings::post(std::vector<Row> rows) {
  auto exchange = std::make_shared<Exchange>(Exchange{std::move(rows), 0});
  std::vector<std::shared_ptr<Exchange>> through;  // let go behind the lock
  const std::lock_guard lock(mutex_);
  for (const auto& row : exchange->rows) {
    const auto way = std::find_if(ways_.begin(), ways_.end(),
                                  [&](const auto& one) { return one->peer == row.peer; });
    auto& to = **way;
    exchange->open += 2;
    open_ += 2;
    auto* from = const_cast<void*>(row.send.const_data_ptr());  // it is only read
    to.sends.push_back({exchange, static_cast<std::byte*>(from), {++to.sent, row.send.nbytes()}});
    to.receives.push_back({exchange,
                           static_cast<std::byte*>(row.receive.mutable_data_ptr()),
                           {++to.received, row.receive.nbytes()}});
  }
  through = take_through();
  posted_.push_back(exchange);
  if (error_) return exchange;
  while (move_or_fail()) {
  }
  if (open_ > 0 && helper_->is_parked) helper_->has_work.notify_one();
  return exchange;
}

// For the thread that posts and waits.
std::vector<std::shared_ptr<SharedRings::Exchange>> SharedRings::take_through() {
  std::vector<std::shared_ptr<Exchange>> through;
  for (; !posted_.empty() && posted_.front()->open == 0; posted_.pop_front())
    through.push_back(std::move(posted_.front()));
  return through;
}

void SharedRings::wait(Exchange& exchange) {
  const auto end = Clock::now() + timeout_;
  std::vector<std::shared_ptr<Exchange>> through;  // let go behind the lock
  std::unique_lock lock(mutex_);
  while (exchange.open > 0) {
    if (error_) std::rethrow_exception(error_);
    const auto since = mine_->bell();
    if (move_or_fail()) continue;
    if (error_) std::rethrow_exception(error_);
    lock.unlock();
    mine_->sleep(since, kLook);
    const bool has_rung = mine_->bell() != since;
    lock.lock();
    if (has_rung || exchange.open == 0) continue;
    for (const int rank : peers_->ended())
      fail(std::make_exception_ptr(LostRank(rank, "its process has ended")));
    if (!error_ && Clock::now() >= end)
      fail(std::make_exception_ptr(std::runtime_error(
          fmt::format("Timed out waiting {}ms for rows of other ranks", timeout_.count()))));
  }
  through = take_through();
  lock.unlock();
  exchange.rows.clear();
}

// Whether anything was there to do. A rank that has closed its memory may have written before.
bool SharedRings::move() {
  bool has_moved = false;
  for (const auto& way : ways_) {
    if (way->sends.empty() && way->receives.empty()) continue;
    const bool was_closed = way->theirs->is_closed();
    bool is_busy = false;
    if (!way->sends.empty()) {
      is_busy |= way->send_some();
      open_ -= way->end_first(way->sends);
    }
    if (!way->receives.empty()) {
      is_busy |= way->receive_some();
      open_ -= way->end_first(way->receives);
    }
    if (is_busy) way->theirs->ring_bell();
    if (!is_busy && was_closed) throw LostRank(way->peer, "it has left");
    has_moved |= is_busy;
  }
  return has_moved;
}

bool SharedRings::move_or_fail() {
  try {
    return move();
  } catch (...) {
    fail(std::current_exception());
    return false;
  }
}

// What is posted stays open, and is read no more.
void SharedRings::fail(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  for (const auto& way : ways_) {
    way->sends.clear();
    way->receives.clear();
  }
  open_ = 0;
}

void SharedRings::help() {
  constexpr int kIdleLooks = 100;
  int idle = 0;
  std::unique_lock lock(mutex_);
  const auto stops = [&] { return helper_->is_stopping; };
  while (!stops()) {
    idle = open_ > 0 ? 0 : idle + 1;
    if (open_ > 0) move_or_fail();
    if (idle < kIdleLooks) {
      helper_->has_work.wait_for(lock, kLazily, stops);
      continue;
    }
    helper_->is_parked = true;
    helper_->has_work.wait(lock, [&] { return stops() || open_ > 0; });
    helper_->is_parked = false;
    idle = 0;
    helper_->has_work.wait_for(lock, kLazily, stops);
  }
}

}  // namespace equigrad::comm
