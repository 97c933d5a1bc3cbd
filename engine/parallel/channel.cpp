#include "engine/parallel/channel.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

constexpr std::size_t kDimensions = 11;  // that a header has room for
constexpr int64_t kNothing = -1;         // a type: there was no tensor

// In front of the rows of a parcel; so long that rows of any type are aligned behind it.
struct Header {
  int64_t number = 0;
  int64_t state = 0;
  int64_t rows = 0;  // that the sender should have given
  int64_t dtype = kNothing;
  int64_t dimensions = 0;
  std::array<int64_t, kDimensions> sizes{};
};
constexpr int64_t kHeaderBytes = sizeof(Header);
static_assert(kHeaderBytes % 128 == 0);

Header header_of(int64_t number, State state, int64_t rows, const at::Tensor& given) {
  Header header{.number = number, .state = static_cast<int64_t>(state), .rows = rows};
  if (!given.defined()) return header;
  header.dtype = static_cast<int64_t>(given.scalar_type());
  header.dimensions = given.dim();
  const auto count = std::min(kDimensions, given.sizes().size());
  std::copy_n(given.sizes().begin(), count, header.sizes.begin());
  return header;
}

std::string text_of(at::ScalarType dtype, at::IntArrayRef sizes) {
  return fmt::format("{} [{}]", c10::toString(dtype), fmt::join(sizes, ", "));
}

std::string text_of(const Header& header) {
  if (header.dtype == kNothing) return "no tensor";
  const auto shown = std::min(static_cast<std::size_t>(header.dimensions), kDimensions);
  return text_of(static_cast<at::ScalarType>(header.dtype), {header.sizes.data(), shown}) +
         (shown < static_cast<std::size_t>(header.dimensions) ? " and more dimensions" : "");
}

}  // namespace

Channel::Channel(std::shared_ptr<comm::Communicator> world, const std::vector<Transfer>& plan,
                 Form form, Rows mine, int64_t channel)
    : world_(std::move(world)), form_(std::move(form)), mine_(mine), channel_(channel) {
  for (const auto& transfer : plan) {
    if (transfer.from == world_->rank()) outgoing_.push_back(transfer);
    if (transfer.to == world_->rank()) incoming_.push_back(transfer);
  }
}

int Channel::tag_of(int64_t number) const {
  return static_cast<int>(channel_ % kChannels * kNumbers + number % kNumbers);
}

std::vector<int64_t> Channel::sizes_of(int64_t rows) const {
  std::vector<int64_t> sizes{rows};
  sizes.insert(sizes.end(), form_.row_sizes.begin(), form_.row_sizes.end());
  return sizes;
}

at::Tensor Channel::empty_parcel(const Transfer& transfer) const {
  const auto numel = c10::multiply_integers(sizes_of(transfer.rows.count()));
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(form_.dtype));
  return at::empty({kHeaderBytes + bytes}, at::kByte);
}

at::Tensor Channel::rows_in(const at::Tensor& parcel, const Transfer& transfer) const {
  return parcel.narrow(0, kHeaderBytes, parcel.numel() - kHeaderBytes)
      .view(form_.dtype)
      .view(sizes_of(transfer.rows.count()));
}

std::string Channel::refusal_of(const at::Tensor& given) const {
  const auto sizes = sizes_of(mine_.count());
  if (given.defined() && given.scalar_type() == form_.dtype && given.sizes() == sizes) return {};
  return fmt::format("expected {}, got {}", text_of(form_.dtype, sizes),
                     text_of(header_of(0, State::Refused, 0, given)));
}

void Channel::send(int64_t number, State state, const at::Tensor& given) {
  const auto header = header_of(number, state, mine_.count(), given);
  for (const auto& transfer : outgoing_) {
    const auto bytes = empty_parcel(transfer);
    std::memcpy(bytes.data_ptr(), &header, kHeaderBytes);
    const auto rows = rows_in(bytes, transfer);
    if (state == State::Whole)
      rows.copy_(given.detach().narrow(0, transfer.rows.begin - mine_.begin, rows.size(0)));
    else
      rows.zero_();
    auto pending = world_->words().send(bytes, transfer.to, tag_of(number));
    under_way_.push_back({number, bytes, std::move(pending)});
  }
}

void Channel::take(const Transfer& transfer, const at::Tensor& parcel, int64_t number,
                   Arrived& arrived) const {
  Header header;
  std::memcpy(&header, parcel.data_ptr(), kHeaderBytes);
  EQUIGRAD_CHECK(header.number == number, "parallel.bridge", "a parcel has its message's number");
  const auto state = static_cast<State>(header.state);
  if (state == State::Whole) {
    arrived.rows.narrow(0, transfer.rows.begin - mine_.begin, transfer.rows.count())
        .copy_(rows_in(parcel, transfer));
  } else if (arrived.refusal.empty()) {
    arrived.refusal = fmt::format(
        "expected rank {} to send {}, got {}", transfer.from,
        text_of(form_.dtype, sizes_of(header.rows)),
        state == State::Refused ? text_of(header) : "none, for it was refused what it answers");
  }
}

Arrived Channel::receive(int64_t number) {
  std::vector<at::Tensor> parcels;
  std::vector<comm::PendingPtr> pending;
  for (const auto& transfer : incoming_) {
    parcels.push_back(empty_parcel(transfer));
    pending.push_back(world_->words().receive(parcels.back(), transfer.from, tag_of(number)));
  }
  Arrived arrived{.rows = at::empty(sizes_of(mine_.count()), form_.dtype), .refusal = {}};
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    pending[i]->wait();
    take(incoming_[i], parcels[i], number, arrived);
  }
  if (!arrived.refusal.empty()) arrived.rows = at::Tensor();
  return arrived;
}

void Channel::settle(int64_t number) {
  for (; !under_way_.empty() && under_way_.front().number <= number; under_way_.pop_front())
    under_way_.front().pending->wait();
}

}  // namespace equigrad::parallel
