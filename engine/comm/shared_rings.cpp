#include "engine/comm/shared_rings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

namespace equigrad::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Copied at a time, so that the other one begins while this one goes on.
constexpr std::size_t kChunkBytes = std::size_t{1} << 18;
constexpr std::size_t kPageBytes = 4096;
constexpr const char* kNowhere = "nowhere";

// States of a segment: its rank has left, has given up, or has, for it has lost rank state - kLost.
constexpr std::uint32_t kLeft = 1, kGaveUp = 2, kLost = 3;

std::uint32_t state_after(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const LostRank& lost) {
    return kLost + static_cast<std::uint32_t>(lost.rank());
  } catch (...) {
    return kGaveUp;
  }
}

struct Header {
  std::uint64_t number = 0, bytes = 0;
};

SegmentSizes sizes_of(int world_size) {
  const std::size_t each = SharedRings::kRingsBytes / static_cast<std::size_t>(world_size - 1);
  return {world_size, (each / kPageBytes + 1) * kPageBytes};
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
  std::exception_ptr error;  // it is lost

  bool is_open() const { return !sends.empty() || !receives.empty(); }
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
  const bool is_mapped = rings->map_all(board, rank, world_size) && rings->start_helper();
  const auto mapped = [](int of) { return "equigrad/mapped/" + std::to_string(of); };
  board.set(mapped(rank), is_mapped ? "1" : "0");
  bool are_mapped = is_mapped;
  for (int of = 0; of < world_size; ++of) are_mapped &= board.get(mapped(of)) == "1";
  if (!are_mapped) return nullptr;
  rings->mine_->hide();
  return rings;
}

bool SharedRings::start_helper() try {
  helper_ = std::make_unique<Helper>();
  helper_->thread = std::thread([this] { help(); });
  return true;
} catch (const std::system_error&) {  // no more threads
  return false;
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

// In a process that was forked from this one the memory is its parent's, and there is no thread.
SharedRings::~SharedRings() {
  if (process_ != getpid()) {
    static_cast<void>(helper_.release());
    return;
  }
  if (!helper_ || !helper_->thread.joinable()) return;
  send_rest();
  {
    const std::lock_guard lock(mutex_);
    helper_->is_stopping = true;
  }
  helper_->has_work.notify_one();
  helper_->thread.join();
  mine_->close(kLeft);
  for (const auto& way : ways_) way->theirs->ring_bell();
}

// Others may wait for what this rank has posted and did not wait for.
void SharedRings::send_rest() {
  const auto has_more = [](const auto& way) { return !way->sends.empty(); };
  auto end = Clock::now() + kFarewell;
  std::unique_lock lock(mutex_);
  while (!error_ && std::any_of(ways_.begin(), ways_.end(), has_more) && Clock::now() < end) {
    const auto since = mine_->bell();
    if (move()) {
      end = Clock::now() + kFarewell;
      continue;
    }
    lock.unlock();
    mine_->sleep(since, kLook);
    const auto ended = peers_->ended();
    lock.lock();
    if (!move()) look_for_ended(ended);
  }
}

void SharedRings::require_own_process() const {
  if (process_ != getpid())
    throw std::runtime_error("this process was forked from the rank that made these rings");
}

std::shared_ptr<SharedRings::Exchange> SharedRings::post(std::vector<Row> rows) {
  require_own_process();
  for (const auto& row : rows)
    if (!row.send.is_contiguous() || !row.receive.is_contiguous())
      throw std::runtime_error("rows are contiguous");
  auto exchange = std::make_shared<Exchange>(Exchange{std::move(rows), 0, nullptr});
  std::vector<std::shared_ptr<Exchange>> through;  // let go behind the lock
  const std::lock_guard lock(mutex_);
  through = take_through();
  exchange->error = error_;
  for (const auto& way : ways_)
    if (way->error) exchange->error = way->error;
  if (exchange->error) return exchange;
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
  posted_.push_back(exchange);
  while (move()) {
  }
  if (open_ > 0 && helper_->is_parked) helper_->has_work.notify_one();
  return exchange;
}

// For the thread that posts and waits. In order, so that what is behind one that is open stays.
std::vector<std::shared_ptr<SharedRings::Exchange>> SharedRings::take_through() {
  std::vector<std::shared_ptr<Exchange>> through;
  for (; !posted_.empty() && posted_.front()->open == 0; posted_.pop_front())
    through.push_back(std::move(posted_.front()));
  return through;
}

void SharedRings::wait(Exchange& exchange) {
  require_own_process();
  auto end = Clock::now() + timeout_;
  std::vector<std::shared_ptr<Exchange>> through;  // let go behind the lock
  std::unique_lock lock(mutex_);
  while (exchange.open > 0 && !exchange.error) {
    const auto since = mine_->bell();
    if (move()) {
      end = Clock::now() + timeout_;
      continue;
    }
    if (exchange.open == 0 || exchange.error) break;
    lock.unlock();
    mine_->sleep(since, kLook);
    const bool has_rung = mine_->bell() != since;
    const auto ended = has_rung ? std::vector<int>{} : peers_->ended();
    lock.lock();
    if (has_rung || move()) {
      end = Clock::now() + timeout_;
      continue;
    }
    look_for_ended(ended);  // who had ended before there was nothing left of it
    if (Clock::now() >= end)
      give_up(std::make_exception_ptr(std::runtime_error(
          fmt::format("Timed out waiting {}ms for rows of other ranks", timeout_.count()))));
  }
  if (const auto error = exchange.error) {
    give_up(error);
    std::rethrow_exception(error);
  }
  through = take_through();
  lock.unlock();
  exchange.rows.clear();
}

void SharedRings::look_for_ended(const std::vector<int>& ended) {
  for (const auto& way : ways_)
    if (way->is_open() && std::find(ended.begin(), ended.end(), way->peer) != ended.end())
      lose(*way, std::make_exception_ptr(LostRank(way->peer, "its process has ended")));
}

// Whether anything was there to do.
bool SharedRings::move() {
  bool has_moved = false;
  for (const auto& way : ways_) {
    if (!way->is_open()) continue;
    try {
      has_moved |= move_way(*way);
    } catch (...) {
      give_up(std::current_exception());
    }
  }
  return has_moved;
}

// A rank that has closed its memory may have written before.
bool SharedRings::move_way(Way& way) {
  const auto state = way.theirs->state();
  bool has_moved = false;
  if (!way.sends.empty()) {
    has_moved |= way.send_some();
    open_ -= way.end_first(way.sends);
  }
  if (!way.receives.empty()) {
    has_moved |= way.receive_some();
    open_ -= way.end_first(way.receives);
  }
  if (has_moved) {
    way.theirs->ring_bell();
  } else if (state == kGaveUp) {
    throw std::runtime_error(fmt::format("rank {} has given up", way.peer));
  } else if (state >= kLost) {
    throw LostRank(static_cast<int>(state - kLost), "it has left");
  } else if (state == kLeft) {
    lose(way, std::make_exception_ptr(LostRank(way.peer, "it has left")));
  }
  return has_moved;
}

// Exchanges with messages on it fail; earlier ones may be through without it.
void SharedRings::lose(Way& way, const std::exception_ptr& error) {
  way.error = error;
  for (auto* messages : {&way.sends, &way.receives}) {
    for (auto& message : *messages) {
      --message.of->open;
      message.of->error = error;
    }
    open_ -= messages->size();
    messages->clear();
  }
}

void SharedRings::give_up(const std::exception_ptr& error) {
  if (error_) return;
  error_ = error;
  for (const auto& way : ways_) lose(*way, error);
  mine_->close(state_after(error));
  for (const auto& way : ways_) way->theirs->ring_bell();
}

void SharedRings::help() {
  constexpr int kIdleLooks = 10;
  int idle = 0;
  std::unique_lock lock(mutex_);
  const auto stops = [&] { return helper_->is_stopping; };
  while (!stops()) {
    idle = open_ > 0 ? 0 : idle + 1;
    while (open_ > 0 && !stops() && move()) {  // who waits comes first
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    if (idle < kIdleLooks) {
      helper_->has_work.wait_for(lock, open_ > 0 ? kLazily : kIdle, stops);
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
