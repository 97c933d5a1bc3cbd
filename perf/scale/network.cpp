#include "perf/scale/network.hpp"

#include <algorithm>
#include <string>

#include "engine/error.hpp"

namespace equigrad::perf {
namespace {

double time_of(const Link& link, double messages, double bytes) {
  return messages * link.latency_s + bytes / link.bytes_per_s;
}

}  // namespace

int Network::local_ranks(int world) const {
  const int local = std::min(ranks_per_host, world);
  if (local < 1 || world % local != 0)
    throw Error("scale.network", "expected ranks that fill hosts of " +
                                     std::to_string(ranks_per_host) + ", got " +
                                     std::to_string(world) + ". Give a multiple of it, or fewer.");
  return local;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  messages += other.messages;
  messages_between += other.messages_between;
  bytes += other.bytes;
  bytes_between += other.bytes_between;
  seconds += other.seconds;
  return *this;
}

namespace {

// `sharing`: ranks of a host that send to others at a time.
Traffic message(const Network& network, std::int64_t bytes, bool is_between, int sharing) {
  Traffic traffic;
  traffic.messages = 1;
  traffic.bytes = bytes;
  traffic.messages_between = is_between ? 1 : 0;
  traffic.bytes_between = is_between ? bytes : 0;
  traffic.seconds = is_between ? time_of(network.between, 1, static_cast<double>(bytes * sharing))
                               : time_of(network.within, 1, static_cast<double>(bytes));
  return traffic;
}

}  // namespace

Traffic message(const Network& network, int world, std::int64_t bytes, bool is_between) {
  return message(network, bytes, is_between, network.local_ranks(world));
}

Traffic relay(const Network& network, int world, std::int64_t bytes_each) {
  const int local = network.local_ranks(world);
  Traffic traffic;
  for (int known = 1; known < world; known *= 2)
    traffic += message(network, std::min(known, world - known) * bytes_each, world > local,
                       std::min(known, local));
  return traffic;
}

Traffic all_to_all(const Network& network, int world, std::int64_t bytes_each) {
  const int local = network.local_ranks(world);
  Traffic traffic;
  traffic.messages = world - 1;
  traffic.messages_between = world - local;
  traffic.bytes = traffic.messages * bytes_each;
  traffic.bytes_between = traffic.messages_between * bytes_each;
  traffic.seconds =
      time_of(network.within, local - 1, static_cast<double>((local - 1) * bytes_each)) +
      time_of(network.between, static_cast<double>(traffic.messages_between),
              static_cast<double>(traffic.bytes_between * local));
  return traffic;
}

Traffic ring(const Network& network, int world, std::int64_t bytes, int rounds) {
  const int local = network.local_ranks(world);
  Traffic traffic;
  if (world == 1) return traffic;
  traffic.messages = std::int64_t{rounds} * (world - 1);
  traffic.bytes = rounds * (bytes - bytes / world);
  // Every neighbour's link carries as much; one rank of a host has its neighbour on another.
  if (world > local) {
    traffic.messages_between = traffic.messages;
    traffic.bytes_between = traffic.bytes;
  }
  const auto messages = static_cast<double>(traffic.messages);
  const auto sent = static_cast<double>(traffic.bytes);
  traffic.seconds = time_of(network.within, messages, sent);
  if (world > local)
    traffic.seconds = std::max(traffic.seconds, time_of(network.between, messages, sent));
  return traffic;
}

}  // namespace equigrad::perf
