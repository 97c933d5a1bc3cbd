// Network: what messages between ranks cost, by latency and bandwidth.
//
// Ranks 0 .. g - 1 are on one host, the next g on the next. A message of m bytes takes a + m / b
// (Hockney, The communication challenge for MPP, Parallel Computing 20, 1994), a rank sends one at
// a time, and the messages of a host's ranks to other hosts share its b:
//
//   all to all   W - 1 messages of m bytes: g - 1 within the host, W - g between hosts, g ranks of
//                a host at once
//   relay        ceil(log2 W) messages, W - 1 times m bytes (engine/comm/relay.hpp); those of round
//                k go 2^k ranks far, min(2^k, g) of them from host to host
//   ring         W - 1 rounds of n / W bytes (an all-reduce: twice as many), each as slow as its
//                slowest link; as many rings as a host has cards, so a round has the host's whole b
//
// Patarasu & Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, J.
// Parallel Distrib. Comput. 69, 2009; Thakur, Rabenseifner, Gropp, Optimization of collective
// communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19, 2005.
//
// Invariants: counts are of one rank, the one that sends most. No message waits for another's.
// Units: seconds, bytes.
// Errors: equigrad::Error for ranks that are no whole number of hosts.
// Depends on: engine/error.hpp. No torch.
#pragma once

#include <cstdint>

namespace equigrad::perf {

struct Link {
  double latency_s = 0;
  double bytes_per_s = 1;
};

struct Network {
  int ranks_per_host = 8;
  Link within{5e-6, 100e9};   // bytes_per_s of a rank
  Link between{20e-6, 50e9};  // bytes_per_s of a host, all its cards together

  // Of so many ranks: fewer than a host has are on one host.
  int local_ranks(int world) const;
};

struct Traffic {
  std::int64_t messages = 0, messages_between = 0;  // of them, to other hosts
  std::int64_t bytes = 0, bytes_between = 0;
  double seconds = 0;

  Traffic& operator+=(const Traffic& other);
};

// One message; all ranks of a host send one to other hosts at a time.
Traffic message(const Network& network, int world, std::int64_t bytes, bool is_between);
Traffic relay(const Network& network, int world, std::int64_t bytes_each);
Traffic all_to_all(const Network& network, int world, std::int64_t bytes_each);
// `rounds`: 1 for a reduce-scatter or an all-gather of so many bytes in all, 2 for an all-reduce.
Traffic ring(const Network& network, int world, std::int64_t bytes, int rounds);

}  // namespace equigrad::perf
