#include "engine/parallel/bridge.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "engine/comm/communication_error.hpp"
#include "engine/error.hpp"
#include "engine/parallel/channel.hpp"

namespace equigrad::parallel {
namespace {

constexpr std::size_t kMostRowSizes = 9;
constexpr double kBySides = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kMade = "parallel.bridge";

std::atomic<int64_t> next_channel{0};  // of the bridges that this process makes

std::string where(const comm::Communicator& world, const char* call) {
  return fmt::format("rank {}/{}] [{}.{}", world.rank(), world.world_size(), kMade, call);
}

// What both sides must say alike, in words.
std::vector<int64_t> words_of(const Side& producer, const Side& consumer,
                              const BridgeOptions& options) {
  std::vector<int64_t> words;
  for (const auto& side : {producer, consumer})
    words.insert(words.end(), {side.first, side.data, side.replicas});
  words.insert(words.end(), {options.rows, static_cast<int64_t>(options.dtype),
                             options.gradients ? 1 : 0, options.in_flight,
                             std::bit_cast<int64_t>(options.gradient_factor.value_or(kBySides)),
                             static_cast<int64_t>(options.row_sizes.size())});
  words.insert(words.end(), options.row_sizes.begin(), options.row_sizes.end());
  words.resize(12 + kMostRowSizes);  // how many there are is among the words
  return words;
}

std::string options_text(const std::vector<int64_t>& words) {
  const auto side = [&](std::size_t at) {
    return fmt::format("{{first {}, data {}, replicas {}}}", words[at], words[at + 1],
                       words[at + 2]);
  };
  const auto count = std::min(static_cast<std::size_t>(words[11]), kMostRowSizes);
  const auto sizes = words.begin() + 12;
  const auto factor = std::bit_cast<double>(words[10]);
  return fmt::format(
      "producer {}, consumer {}, {} rows of {} [{}], gradients {}, in_flight {}, gradient_factor "
      "{}",
      side(0), side(3), words[6], c10::toString(static_cast<at::ScalarType>(words[7])),
      fmt::join(sizes, sizes + static_cast<std::ptrdiff_t>(count), ", "), words[8] != 0, words[9],
      std::isnan(factor) ? "of the sides" : fmt::format("{}", factor));
}

// Hears what every rank says; a channel that none of them has used.
int64_t agree(comm::Communicator& world, const std::vector<int64_t>& words) {
  const auto count = static_cast<int64_t>(words.size());
  const auto said = at::empty({count + 1}, at::kLong);
  std::copy(words.begin(), words.end(), said.data_ptr<int64_t>());
  said[count] = next_channel.load();
  const auto heard = comm::exchange(world, said);
  const auto words_of_rank = [&](int64_t rank) {
    const auto* row = heard.const_data_ptr<int64_t>() + rank * (count + 1);
    return std::vector<int64_t>(row, row + count);
  };
  for (int rank = 1; rank < world.world_size(); ++rank) {
    if (words_of_rank(rank) == words_of_rank(0)) continue;
    throw Error(kMade, fmt::format("expected all ranks to make the bridge alike, got {} on rank 0, "
                                   "and {} on rank {}. Give both sides the same sides and options.",
                                   options_text(words_of_rank(0)),
                                   options_text(words_of_rank(rank)), rank));
  }
  const auto channel = heard.select(1, count).max().item<int64_t>();
  next_channel = channel + 2;
  return channel;
}

void check(const BridgeOptions& options) {
  const auto sizes = at::IntArrayRef(options.row_sizes);
  if (sizes.size() > kMostRowSizes ||
      std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; }))
    throw Error(kMade, fmt::format("expected at most {} sizes of a row, none below 0, got [{}]. "
                                   "View the tensor with fewer dimensions.",
                                   kMostRowSizes, fmt::join(sizes, ", ")));
  if (options.gradients && !at::isFloatingType(options.dtype) && !at::isComplexType(options.dtype))
    throw Error(kMade, fmt::format("expected a floating type, for its gradients go back, got {}. "
                                   "Set gradients to false, or send another type.",
                                   c10::toString(options.dtype)));
  if (options.in_flight < 1 || options.in_flight >= Channel::kNumbers)
    throw Error(kMade, fmt::format("expected 1 to {} messages in flight, got {}. Set in_flight.",
                                   Channel::kNumbers - 1, options.in_flight));
}

void check_all_are_of_a_side(const Side& producer, const Side& consumer, int world_size) {
  for (int rank = 0; rank < std::max({world_size, producer.end(), consumer.end()}); ++rank) {
    const bool of_side = producer.has(rank) || consumer.has(rank);
    if (of_side == (rank < world_size)) continue;
    throw Error(kMade,
                fmt::format("expected each of {} ranks on one side, got rank {} {}. Give the "
                            "bridge a world that is its two sides.",
                            world_size, rank, of_side ? "that is not there" : "on neither"));
  }
}

}  // namespace

Bridge::Bridge(std::shared_ptr<comm::Communicator> world, const Side& producer,
               const Side& consumer, BridgeOptions options)
    : world_(std::move(world)), options_(std::move(options)) {
  const auto channel = agree(*world_, words_of(producer, consumer, options_));
  check(options_);
  const auto forth = plan_rows(options_.rows, producer, consumer);
  const auto back = plan_rows(options_.rows, consumer, producer);
  check_all_are_of_a_side(producer, consumer, world_->world_size());
  is_producer_ = producer.has(world_->rank());
  const auto& side = is_producer_ ? producer : consumer;
  rows_ = rows_of(options_.rows, side.place_of(world_->rank()), side.data);
  gradient_factor_ =
      options_.gradient_factor.value_or(1.0 * producer.data / static_cast<double>(consumer.data));
  const Form form{options_.dtype, options_.row_sizes};
  activations_ = std::make_unique<Channel>(world_, forth, form, rows_, channel);
  gradients_ = std::make_unique<Channel>(world_, back, form, rows_, channel + 1);
}

Bridge::~Bridge() {
  if (is_lost_ || std::uncaught_exceptions() > 0) return;
  try {
    finish();
  } catch (const std::exception&) {  // the other side has its own error
  }
}

template <class Function>
auto Bridge::or_lost(Function&& function) {
  try {
    return function();
  } catch (const comm::CommunicationError&) {
    is_lost_ = true;
    throw;
  }
}

void Bridge::check_side(bool of_producer, const char* call) const {
  if (is_producer_ == of_producer) return;
  throw Error(
      where(*world_, call),
      fmt::format("expected a rank of the {}, got one of the {}. A producer calls send and "
                  "receive_gradient, a consumer receive and send_gradient.",
                  of_producer ? "producer" : "consumer", is_producer_ ? "producer" : "consumer"));
}

void Bridge::send(const at::Tensor& output) {
  check_side(true, "send");
  or_lost([&] {
    const auto most = static_cast<std::size_t>(options_.in_flight);
    if (unanswered_.size() >= most) drop_refused();
    if (unanswered_.size() >= most)
      throw Error(where(*world_, "send"),
                  fmt::format("expected at most {} messages without a gradient, got one more. Call "
                              "receive_gradient() first, or set in_flight on both sides.",
                              most));
    const auto number = next_number_++;
    const auto refusal = activations_->refusal_of(output);
    activations_->send(number, refusal.empty() ? State::Whole : State::Refused, output);
    if (options_.gradients)
      unanswered_.push_back({.number = number,
                             .leaf = {},
                             .device = output.defined() ? output.device() : c10::Device(c10::kCPU),
                             .refused = !refusal.empty()});
    else
      activations_->settle(number - options_.in_flight);
    if (!refusal.empty())
      throw Error(where(*world_, "send"),
                  fmt::format("{} as message {}. Send the rows that the bridge was made for, or "
                              "make another bridge.",
                              refusal, number));
  });
}

// Answers to what this rank was refused.
void Bridge::drop_refused() {
  std::erase_if(unanswered_, [this](const Unanswered& of) {
    if (of.refused) gradients_->receive(of.number);
    return of.refused;
  });
}

at::Tensor Bridge::receive_gradient() {
  check_side(true, "receive_gradient");
  return or_lost([&] {
    drop_refused();
    if (unanswered_.empty())
      throw Error(where(*world_, "receive_gradient"),
                  options_.gradients
                      ? "expected a message without a gradient, got none. Call send() before."
                      : "expected a bridge with gradients, got one without. Set gradients.");
    const auto number = unanswered_.front().number;
    const auto device = unanswered_.front().device;
    auto arrived = gradients_->receive(number);
    unanswered_.pop_front();
    activations_->settle(number);
    return take(std::move(arrived), number, "receive_gradient").to(device);
  });
}

at::Tensor Bridge::take(Arrived arrived, int64_t number, const char* call) const {
  if (arrived.refusal.empty()) return std::move(arrived.rows);
  throw Error(where(*world_, call), fmt::format("{} as message {}. See what that rank was told.",
                                                arrived.refusal, number));
}

at::Tensor Bridge::receive() {
  check_side(false, "receive");
  return or_lost([&] {
    const auto number = next_number_++;
    auto arrived = activations_->receive(number);
    if (!arrived.refusal.empty() && options_.gradients)
      gradients_->send(number, State::Unanswered, {});
    auto rows = take(std::move(arrived), number, "receive").to(world_->device());
    if (!options_.gradients) return rows;
    rows.set_requires_grad(true);
    unanswered_.push_back(
        {.number = number, .leaf = rows, .device = rows.device(), .refused = false});
    return rows;
  });
}

void Bridge::check_order(const at::Tensor& gradient) const {
  for (const auto& of : unanswered_) {
    if (of.number == unanswered_.front().number || !gradient.defined()) continue;
    if (gradient.is_same(of.leaf.grad()))
      throw Error(where(*world_, "send_gradient"),
                  fmt::format("expected the gradient of message {}, got that of message {}. Send "
                              "gradients in the order in which messages came.",
                              unanswered_.front().number, of.number));
  }
}

void Bridge::send_gradient(const at::Tensor& gradient) {
  check_side(false, "send_gradient");
  or_lost([&] {
    if (unanswered_.empty())
      throw Error(where(*world_, "send_gradient"),
                  options_.gradients
                      ? "expected a message without a gradient, got none. Call receive() before."
                      : "expected a bridge with gradients, got one without. Set gradients.");
    check_order(gradient);
    const auto number = unanswered_.front().number;
    const auto refusal = gradients_->refusal_of(gradient);
    if (refusal.empty())
      gradients_->send(number, State::Whole,
                       gradient_factor_ == 1 ? gradient : gradient.detach() * gradient_factor_);
    else
      gradients_->send(number, State::Refused, gradient);
    unanswered_.pop_front();
    gradients_->settle(number - options_.in_flight);
    if (!refusal.empty())
      throw Error(where(*world_, "send_gradient"),
                  fmt::format("{} as the gradient of message {}. Send the gradient of what "
                              "receive() gave.",
                              refusal, number));
  });
}

void Bridge::finish() {
  or_lost([&] {
    drop_refused();
    activations_->settle(std::numeric_limits<int64_t>::max());
    gradients_->settle(std::numeric_limits<int64_t>::max());
  });
}

}  // namespace equigrad::parallel
