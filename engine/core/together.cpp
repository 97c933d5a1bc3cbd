#include "engine/core/together.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>

#include "engine/error.hpp"

namespace equigrad::core {
namespace {

// Heard by all, in whole words.
std::vector<std::string> exchange_texts(comm::Communicator& communicator, const std::string& text) {
  const auto bytes = static_cast<int64_t>(text.size());
  const auto sizes = comm::exchange(communicator, at::full({1}, bytes, at::kLong));
  const auto words = (sizes.max().item<int64_t>() + 7) / 8;
  std::vector<std::string> texts(static_cast<std::size_t>(communicator.world_size()));
  if (words == 0) return texts;
  const auto mine = at::zeros({words}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), text.data(), text.size());
  const auto all = comm::exchange(communicator, mine);
  for (int64_t rank = 0; rank < communicator.world_size(); ++rank) {
    const auto row = all[rank];
    texts[static_cast<std::size_t>(rank)].assign(
        static_cast<const char*>(row.const_data_ptr()),
        static_cast<std::size_t>(sizes.view({-1})[rank].item<int64_t>()));
  }
  return texts;
}

constexpr char kDone = '+', kThrew = '-';

}  // namespace

std::vector<std::string> together(comm::Communicator& communicator, const std::string& where,
                                  const std::function<std::string()>& attempt) {
  std::exception_ptr failure;
  std::string mine;
  try {
    mine = kDone + attempt();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    mine = kThrew + std::string(error.what());
  } catch (...) {
    failure = std::current_exception();
    mine = kThrew + std::string("an exception that says nothing");
  }
  auto texts = exchange_texts(communicator, mine);
  if (failure) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].front() == kThrew) {
      throw Error(where, fmt::format("expected every rank to come to the end of it, got an error "
                                     "on rank {}: {}",
                                     communicator.name_of(static_cast<int64_t>(rank)),
                                     texts[rank].substr(1)));
    }
  }
  for (auto& text : texts) text.erase(0, 1);
  return texts;
}

bool are_on_one_host(comm::Communicator& communicator, const std::string& where) {
  const auto hosts = together(communicator, where, [] {
    std::string host;
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    if (!std::getline(boot, host)) return std::string();
    std::array<char, 256> name{};
    static_cast<void>(::gethostname(name.data(), name.size() - 1));
    return host + " " + name.data();
  });
  return !hosts.front().empty() &&
         std::all_of(hosts.begin(), hosts.end(), [&](const auto& one) { return one == hosts[0]; });
}

}  // namespace equigrad::core
