// What checkpoint::disk() asks of the kernel, call by call: that a sync is an fsync of that very
// file, and that what the kernel refuses is an error. What is simulated stands on this.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <map>

#include "conformance/crash/disk/folder_image.hpp"
#include "engine/checkpoint/storage.hpp"
#include "engine/error.hpp"

namespace {

// Calls in their order, "fsync NAME", while they are watched; and what is refused, by the call.
struct Kernel {
  std::string folder;
  std::vector<std::string> calls;
  std::map<int, std::string> open;                 // names of descriptors, from the folder
  std::function<int(const std::string&)> refuses;  // an errno, or 0
  std::size_t most = SIZE_MAX;                     // that is written at once
};
Kernel* kernel = nullptr;

std::string inside(const char* path) {
  const std::string text = path;
  return text == kernel->folder ? "." : text.substr(kernel->folder.size() + 1);
}

// Whether the call is to be made: noted, and not refused.
bool let(const std::string& call) {
  kernel->calls.push_back(call);
  const int error = kernel->refuses ? kernel->refuses(call) : 0;
  if (error != 0) errno = error;
  return error == 0;
}

}  // namespace

// In the place of the C library's, for all of this program.
extern "C" {
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  const bool is_watched = kernel != nullptr && std::string(path).starts_with(kernel->folder);
  if (is_watched && !let(((flags & O_CREAT) != 0 ? "create " : "open ") + inside(path))) return -1;
  const auto number = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (is_watched && number >= 0) kernel->open[number] = inside(path);
  return number;
}
ssize_t write(int number, const void* data, size_t bytes) {
  const bool is_watched = kernel != nullptr && kernel->open.contains(number);
  if (is_watched && !let("write " + kernel->open[number])) return -1;
  return syscall(SYS_write, number, data, is_watched ? std::min(bytes, kernel->most) : bytes);
}
int fsync(int number) {
  if (kernel != nullptr && kernel->open.contains(number) && !let("fsync " + kernel->open[number]))
    return -1;
  return static_cast<int>(syscall(SYS_fsync, number));
}
int close(int number) {
  if (kernel != nullptr) kernel->open.erase(number);
  return static_cast<int>(syscall(SYS_close, number));
}
int rename(const char* from, const char* to) noexcept {
  if (kernel != nullptr && !let("rename " + inside(from) + " " + inside(to))) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (kernel != nullptr && !let("mkdir " + inside(path))) return -1;
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int unlink(const char* path) noexcept {
  if (kernel != nullptr && !let("unlink " + inside(path))) return -1;
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
}

namespace equigrad::conformance::crash {
namespace {

using checkpoint::disk;
using checkpoint::Path;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DiskCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "equigrad-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    watched_.folder = name;
  }
  void TearDown() override {
    kernel = nullptr;
    remove_folder(watched_.folder);
  }
  template <class Call>
  const std::vector<std::string>& calls_of(const Call& call) {
    watched_.calls.clear();
    kernel = &watched_;
    try {
      call();
    } catch (...) {
      kernel = nullptr;
      throw;
    }
    kernel = nullptr;
    return watched_.calls;
  }
  // The text of the error; empty if there is none.
  template <class Call>
  std::string error_of(const Call& call) {
    try {
      calls_of(call);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  Path at(const std::string& path) const { return Path(watched_.folder + "/" + path); }

  Kernel watched_;
};

TEST_F(DiskCalls, AFileIsReplacedByItsSyncThenItsRenameThenTheFoldersSync) {
  EXPECT_THAT(
      calls_of([&] { replace_file(disk(), at("latest"), "tag"); }),
      ElementsAre("unlink latest.saving", "create latest.saving", "write latest.saving",
                  "fsync latest.saving", "rename latest.saving latest", "open .", "fsync ."));
}

TEST_F(DiskCalls, TheNameOfEveryNewFolderIsSynced) {
  EXPECT_THAT(calls_of([&] { disk().make_directories(at("a/b")); }),
              ElementsAre("mkdir a", "open .", "fsync .", "mkdir a/b", "open a", "fsync a"));
  EXPECT_THAT(calls_of([&] { disk().make_directories(at("a/b")); }), ElementsAre());
}

TEST_F(DiskCalls, AFileThatIsThereIsNotWrittenOver) {
  write_bytes(watched_.folder + "/file", "old");
  EXPECT_THAT(error_of([&] { disk().create(at("file")); }), HasSubstr("File exists"));
  EXPECT_EQ(read_bytes(watched_.folder + "/file"), "old");
}

TEST_F(DiskCalls, WhatIsWrittenInPartsAndWithInterruptionsIsThereWhole) {
  watched_.most = 3;
  int times = 0;
  watched_.refuses = [&](const std::string& call) {
    return call == "write file" && ++times % 2 == 0 ? EINTR : 0;
  };
  calls_of([&] { disk().create(at("file"))->append("0123456789", 10); });
  EXPECT_EQ(read_bytes(watched_.folder + "/file"), "0123456789");
}

// Each call that the kernel can refuse, and each way to.
TEST_F(DiskCalls, WhatTheKernelRefusesIsAnErrorThatNamesTheFile) {
  const auto all = calls_of([&] {
    disk().make_directories(at("tag"));
    replace_file(disk(), at("tag/file"), "text");
  });
  for (const auto& [error, words] :
       {std::pair{ENOSPC, "No space left"}, {EIO, "Input/output error"}, {EACCES, "denied"}})
    for (const auto& refused : all) {
      write_folder({}, watched_.folder);
      watched_.refuses = [&, number = error](const std::string& call) {
        return call == refused ? number : 0;
      };
      const auto text = error_of([&] {
        disk().make_directories(at("tag"));
        replace_file(disk(), at("tag/file"), "text");
      });
      EXPECT_THAT(text, AllOf(HasSubstr(words), HasSubstr(watched_.folder))) << refused;
    }
}

}  // namespace
}  // namespace equigrad::conformance::crash
