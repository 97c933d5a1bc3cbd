#include "engine/core/pending_save.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <sched.h>

#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/checkpoint/zero_to_fp32.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/core/together.hpp"
#include "engine/error.hpp"

namespace equigrad::core {
namespace {

using checkpoint::Path;

// Empty where there is none that can be read.
std::string text_of(const Path& file) {
  try {
    const checkpoint::MappedFile mapped(file);
    return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
  } catch (const Error&) {
    return {};
  }
}

bool has_elements(const PieceSource& source) { return source.header.begin < source.header.end; }

// The calling thread takes what time the others of this machine leave, and 0.3 % of a core at least
// (weights of sched(7)), and gives way at once: a step that runs beside it costs little more than
// alone, and who waits for it leaves it the core. Where the system refuses, it is as it was.
void yield_to_training() {
  const sched_param none{};
  static_cast<void>(::sched_setscheduler(/*pid=*/0, SCHED_IDLE, &none));
}

// Values are asked for to the end, also by a rank that cannot write any more.
std::string write_file(checkpoint::Storage& storage, const Path& file,
                       const std::vector<PieceSource>& sources) {
  std::exception_ptr failure;
  const auto attempt = [&failure](const auto& call) {
    if (failure) return;
    try {
      call();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::vector<checkpoint::PieceHeader> headers;
  for (const auto& source : sources)
    if (has_elements(source)) headers.push_back(source.header);
  std::optional<checkpoint::RankWriter> writer;
  attempt([&] { writer.emplace(storage, file, headers); });
  for (const auto& source : sources) {
    const auto values = source.values();
    if (!has_elements(source)) continue;
    attempt([&] {
      const auto here = values.cpu().contiguous();
      writer->write(here.const_data_ptr(), here.nbytes());
    });
  }
  std::string written;
  attempt([&] { written = checkpoint::write_rank_file(writer->finish()); });
  if (failure) std::rethrow_exception(failure);
  return written;
}

}  // namespace

PendingSave::PendingSave(comm::Communicator& communicator,
                         std::shared_ptr<checkpoint::Storage> storage, SaveAgreement agreement,
                         SaveWords words)
    : communicator_(communicator),
      storage_(std::move(storage)),
      agreement_(std::move(agreement)),
      words_(std::move(words)),
      file_(agreement_.folder() / checkpoint::rank_file_name(communicator.rank(),
                                                             communicator.world_size(),
                                                             agreement_.id)) {
  together(communicator_, kSaveCheckpoint, [this]() -> std::string {
    if (!is_first()) return {};
    storage_->make_directories(agreement_.folder());
    lock_ = storage_->lock(agreement_.folder());
    const auto script = Path(agreement_.directory) / checkpoint::kZeroToFp32Name;
    if (text_of(script) != checkpoint::zero_to_fp32_script())
      checkpoint::replace_file(*storage_, script, checkpoint::zero_to_fp32_script());
    return {};
  });
}

PendingSave::~PendingSave() {
  if (!written_.valid()) return;
  written_.wait();
  remove_own();
}

void PendingSave::write(const std::vector<PieceSource>& sources) {
  std::promise<std::string> written;
  written_ = written.get_future();
  try {
    written.set_value(write_file(*storage_, file_, sources));
  } catch (...) {
    written.set_exception(std::current_exception());
  }
}

void PendingSave::write_beside(const std::vector<PieceSource>& sources) {
  std::vector<PieceSource> copies;
  for (const auto& source : sources) {
    auto values = source.values();
    if (!has_elements(source)) continue;
    values = values.is_cpu() ? values.clone(at::MemoryFormat::Contiguous) : values.cpu();
    copies.push_back({source.header, [values] { return values; }});
  }
  written_ = std::async(std::launch::async, [this, copies = std::move(copies)] {
    yield_to_training();
    const at::NoGradGuard no_grad;
    return write_file(*storage_, file_, copies);
  });
}

void PendingSave::finish() {
  auto written = std::move(written_);
  std::vector<std::string> rank_files;
  try {
    rank_files = together(communicator_, kSaveCheckpoint, [&] { return written.get(); });
  } catch (const comm::CommunicationError&) {
    throw;  // rank 0 may have heard all, and name the file in its manifest
  } catch (...) {
    remove_own();
    throw;
  }
  together(communicator_, kSaveCheckpoint, [&]() -> std::string {
    if (is_first()) commit(rank_files);
    return {};
  });
}

void PendingSave::commit(const std::vector<std::string>& rank_files) const {
  checkpoint::Manifest manifest{.id = agreement_.id,
                                .world_size = communicator_.world_size(),
                                .engine = words_.engine,
                                .client_state = words_.client_state,
                                .files = {},
                                .tensors = {}};
  std::vector<checkpoint::RankFile> files;
  for (std::size_t rank = 0; rank < rank_files.size(); ++rank) {
    files.push_back(checkpoint::read_rank_file(rank_files[rank]));
    const auto path = agreement_.folder() / files.back().file.name;
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (!error && static_cast<int64_t>(bytes) == files.back().file.bytes) continue;
    throw Error(
        kSaveCheckpoint,
        fmt::format("expected to see the file of rank {}, \"{}\", on rank 0, got "
                    "{}. All ranks need one folder that they share.",
                    rank, path.string(), error ? error.message() : "one of another length"));
  }
  checkpoint::merge(manifest, files);
  write_manifest(checkpoint::write_manifest(manifest));
  if (agreement_.save_latest) {
    checkpoint::replace_file(*storage_, Path(agreement_.directory) / checkpoint::kLatestName,
                             checkpoint::write_latest(agreement_.tag));
  }
  std::set<std::string> named;
  for (const auto& file : manifest.files) named.insert(file.name);
  remove_files([&](const auto& name) { return !named.contains(name); });
}

// If it fails before it is there, nothing names this save's files, and they go.
void PendingSave::write_manifest(const std::string& text) const {
  const auto file = agreement_.folder() / checkpoint::kManifestName;
  try {
    storage_->sync_directory(agreement_.folder());
    checkpoint::replace_file(*storage_, file, text);
  } catch (...) {
    if (text_of(file) != text) {
      remove_files([&](const auto& name) { return name.find(agreement_.id) != std::string::npos; });
    }
    throw;
  }
}

// They take room and do no harm: what cannot be removed stays.
void PendingSave::remove_files(const std::function<bool(const std::string& name)>& is_meant) const {
  std::error_code error;
  std::vector<Path> meant;
  for (const auto& entry : std::filesystem::directory_iterator(agreement_.folder(), error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".safetensors") && is_meant(name))
      meant.push_back(entry.path());
  }
  for (const auto& path : meant) {
    try {
      storage_->remove(path);
    } catch (const Error&) {
    }
  }
}

void PendingSave::remove_own() const noexcept {
  try {
    storage_->remove(file_);
  } catch (...) {
    // The error that made the save fail is on its way to the caller.
  }
}

}  // namespace equigrad::core
