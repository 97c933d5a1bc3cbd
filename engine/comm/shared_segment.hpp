// Shared segment: memory of one rank that others of its machine write into and read from.
//
//   | nonce, bell, sleepers, state | ring of writer 0 | ring of writer 1 | ...
//
// A ring carries a stream of bytes from one writer to the segment's owner. The bell is a futex: who
// has moved something rings it, and who found nothing to do sleeps until it rings.
//
// Invariants: one writer and one reader a ring; what is written is seen whole before its bytes are
// counted as written. Memory lives until the last one who has mapped it lets it go, so what a rank
// had written before it ended can still be read.
// Units: bytes.
// Errors: none: null where the system gives no such memory, or not to this process, or where what a
// place names is another's (cloned machines have the same numbers of processes).
// Depends on: Linux (memfd_create, futex, /proc/PID/fd).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace equigrad::comm {

class Ring {
 public:
  struct Counts;
  Ring() = default;
  Ring(Counts* counts, std::byte* bytes, std::size_t capacity)
      : counts_(counts), bytes_(bytes), capacity_(capacity) {}
  // As many as fit, and as are there; 0 to `bytes`.
  std::size_t write(const std::byte* from, std::size_t bytes);
  std::size_t read(std::byte* to, std::size_t bytes);

 private:
  Counts* counts_ = nullptr;
  std::byte* bytes_ = nullptr;
  std::size_t capacity_ = 0;
};

struct SegmentSizes {
  int writers = 0;
  std::size_t ring_bytes = 0;  // whole pages
};

class SharedSegment {
 public:
  static std::unique_ptr<SharedSegment> make(const SegmentSizes& sizes);
  // Another rank's, by its place().
  static std::unique_ptr<SharedSegment> map(const std::string& place, const SegmentSizes& sizes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::string place() const;  // while this process has it open
  void hide();                // nobody else maps it
  Ring ring(int writer) const;

  std::uint32_t bell() const;
  void ring_bell();
  // Until it has rung since, or `most` has passed.
  void sleep(std::uint32_t since, std::chrono::milliseconds most);
  // 0, or why its owner reads and writes no more; the first one stands.
  std::uint32_t state() const;
  void close(std::uint32_t state);

 private:
  struct Head;
  SharedSegment(int descriptor, void* memory, const SegmentSizes& sizes);
  Head& head() const { return *static_cast<Head*>(memory_); }

  int descriptor_;
  void* memory_;
  SegmentSizes sizes_;
};

}  // namespace equigrad::comm
