#include "engine/comm/shared_segment.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <random>
#include <sstream>

namespace equigrad::comm {
namespace {

constexpr std::size_t kLine = 64, kPage = 4096;  // of the caches; what the rings begin at

// The bell is shared, so FUTEX_PRIVATE_FLAG is not for it.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* most) {
  static_assert(sizeof word == sizeof(std::uint32_t));
  return syscall(SYS_futex, &word, operation, value, most, nullptr, 0);
}

}  // namespace

// How many bytes have been written and read since the start.
struct Ring::Counts {
  alignas(kLine) std::atomic<std::uint64_t> written;
  alignas(kLine) std::atomic<std::uint64_t> read;
};

struct SharedSegment::Head {
  std::uint64_t nonce;
  alignas(kLine) std::atomic<std::uint32_t> bell, sleepers, state;
};

namespace {

std::size_t stride_of(const SegmentSizes& sizes) { return kPage + sizes.ring_bytes; }
std::size_t bytes_of(const SegmentSizes& sizes) {
  return kPage + static_cast<std::size_t>(sizes.writers) * stride_of(sizes);
}

// A file beyond its limit is a signal, not an error.
bool may_have(std::size_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

std::uint64_t drawn() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device() | 1;
}

}  // namespace

std::size_t Ring::write(const std::byte* from, std::size_t bytes) {
  const auto written = counts_->written.load(std::memory_order_relaxed);
  const auto used =
      static_cast<std::size_t>(written - counts_->read.load(std::memory_order_acquire));
  bytes = std::min(bytes, capacity_ - used);
  const std::size_t at = written % capacity_, first = std::min(bytes, capacity_ - at);
  std::memcpy(bytes_ + at, from, first);
  std::memcpy(bytes_, from + first, bytes - first);
  counts_->written.store(written + bytes, std::memory_order_release);
  return bytes;
}

std::size_t Ring::read(std::byte* to, std::size_t bytes) {
  const auto read = counts_->read.load(std::memory_order_relaxed);
  const auto there =
      static_cast<std::size_t>(counts_->written.load(std::memory_order_acquire) - read);
  bytes = std::min(bytes, there);
  const std::size_t at = read % capacity_, first = std::min(bytes, capacity_ - at);
  std::memcpy(to, bytes_ + at, first);
  std::memcpy(to + first, bytes_, bytes - first);
  counts_->read.store(read + bytes, std::memory_order_release);
  return bytes;
}

SharedSegment::SharedSegment(int descriptor, void* memory, const SegmentSizes& sizes)
    : descriptor_(descriptor), memory_(memory), sizes_(sizes) {}

std::unique_ptr<SharedSegment> SharedSegment::make(const SegmentSizes& sizes) {
  const auto bytes = bytes_of(sizes);
  const int descriptor = may_have(bytes) ? memfd_create("equigrad", MFD_CLOEXEC) : -1;
  if (descriptor < 0) return nullptr;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory != MAP_FAILED) {  // of zeros
      std::unique_ptr<SharedSegment> made(new SharedSegment(descriptor, memory, sizes));
      made->head().nonce = drawn();
      return made;
    }
  }
  ::close(descriptor);
  return nullptr;
}

std::unique_ptr<SharedSegment> SharedSegment::map(const std::string& place,
                                                  const SegmentSizes& sizes) {
  std::istringstream words(place);
  std::string path;
  std::uint64_t nonce = 0;
  words >> path >> nonce;
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  const auto bytes = bytes_of(sizes);
  void* memory = MAP_FAILED;
  if (lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(bytes))
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  if (memory == MAP_FAILED) return nullptr;
  std::unique_ptr<SharedSegment> mapped(new SharedSegment(-1, memory, sizes));
  return mapped->head().nonce == nonce ? std::move(mapped) : nullptr;
}

SharedSegment::~SharedSegment() {
  hide();
  munmap(memory_, bytes_of(sizes_));
}

std::string SharedSegment::place() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_) + " " +
         std::to_string(head().nonce);
}

void SharedSegment::hide() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Ring SharedSegment::ring(int writer) const {
  auto* at = static_cast<std::byte*>(memory_) + kPage +
             static_cast<std::size_t>(writer) * stride_of(sizes_);
  return Ring(reinterpret_cast<Ring::Counts*>(at), at + kPage, sizes_.ring_bytes);
}

std::uint32_t SharedSegment::bell() const { return head().bell.load(); }

void SharedSegment::ring_bell() {
  head().bell.fetch_add(1);
  if (head().sleepers.load() > 0) futex(head().bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedSegment::sleep(std::uint32_t since, std::chrono::milliseconds most) {
  const timespec time{most.count() / 1000, most.count() % 1000 * 1'000'000};
  head().sleepers.fetch_add(1);
  futex(head().bell, FUTEX_WAIT, since, &time);
  head().sleepers.fetch_sub(1);
}

std::uint32_t SharedSegment::state() const { return head().state.load(); }
void SharedSegment::close(std::uint32_t state) {
  std::uint32_t open = 0;
  head().state.compare_exchange_strong(open, state);
}

}  // namespace equigrad::comm
