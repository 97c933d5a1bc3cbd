#include "engine/comm/roll_call.hpp"

#include <future>
#include <thread>
#include <utility>

namespace equigrad::comm {
namespace {

using Clock = std::chrono::steady_clock;

std::string key(int rank) { return "equigrad/failed/" + std::to_string(rank); }

std::vector<int> ask(const Board& board, int rank, int world_size, Clock::time_point until) {
  board.write(key(rank));
  for (;;) {
    std::vector<int> silent;
    for (int of = 0; of < world_size; ++of)
      if (of != rank && !board.has(key(of))) silent.push_back(of);
    if (silent.empty() || Clock::now() >= until) return silent;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

RollCall::RollCall(Board board, int rank, int world_size, std::chrono::milliseconds patience)
    : board_(std::move(board)), rank_(rank), world_size_(world_size), patience_(patience) {}

std::optional<std::vector<int>> RollCall::silent() const {
  if (!board_.write) return std::vector<int>();
  // A store that cannot be reached is waited for without end: the thread is left behind.
  std::promise<std::optional<std::vector<int>>> promise;
  auto answer = promise.get_future();
  std::thread([board = board_, rank = rank_, world_size = world_size_,
               until = Clock::now() + patience_, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(ask(board, rank, world_size, until));
    } catch (const std::exception&) {
      promise.set_value(std::nullopt);
    }
  }).detach();
  // Twice: one call of the store may begin just before the end.
  if (answer.wait_for(2 * patience_) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace equigrad::comm
