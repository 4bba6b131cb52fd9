#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/seccomp_filter.hpp"

namespace ddp::cpu_backend {
namespace {

// A forked process that stays, with other values in memory that this one has at the same address.
class MemoryPeer {
 public:
  MemoryPeer() {
    int ready[2];
    if (::pipe(ready) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);  // should the test die before it kills this child
      std::strcpy(text, "theirs");
      const PeerMemory own({0, 0}, 1);
      probe = own.own_probe();
      if (::write(ready[1], &probe, sizeof(probe)) < 0) ::_exit(1);
      for (;;) ::pause();
    }
    if (::read(ready[0], &probe, sizeof(probe)) < 0) pid_ = -1;
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~MemoryPeer() { end(); }
  MemoryPeer(const MemoryPeer&) = delete;
  MemoryPeer& operator=(const MemoryPeer&) = delete;

  int pid() const { return pid_; }
  void end() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = 0;
  }

  static inline char text[8] = "ours";
  PeerMemory::Probe probe;

 private:
  pid_t pid_ = 0;
};

std::uint64_t address_of(const void* at) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)); }

PeerMemory::Read read_text(const PeerMemory& memory, std::string& text) {
  char read[sizeof(MemoryPeer::text)] = {};
  const auto result = memory.read(1, address_of(MemoryPeer::text), reinterpret_cast<std::byte*>(read), sizeof(read));
  text = read;
  return result;
}

TEST(PeerMemory, IsReadUntilThePeerEnds) {
  MemoryPeer peer;
  PeerMemory memory({::getpid(), peer.pid()}, 0);
  ASSERT_TRUE(memory.probe({memory.own_probe(), peer.probe}));
  std::string text;
  ASSERT_EQ(read_text(memory, text), PeerMemory::Read::complete);
  EXPECT_EQ(text, "theirs");
  peer.end();
  EXPECT_EQ(read_text(memory, text), PeerMemory::Read::gone);
}

TEST(PeerMemory, OfAnotherProcessThanTheOneWhosePidItWasIsNotRead) {
  MemoryPeer peer;
  PeerMemory memory({::getpid(), ::getpid()}, 0);  // whose memory can be read, but has another word at that address
  EXPECT_FALSE(memory.probe({memory.own_probe(), peer.probe}));
  std::string text;
  EXPECT_EQ(read_text(memory, text), PeerMemory::Read::gone);
}

TEST(PeerMemory, ThatIsNotThereIsNotRead) {
  MemoryPeer peer;
  PeerMemory memory({::getpid(), peer.pid()}, 0);
  ASSERT_TRUE(memory.probe({memory.own_probe(), peer.probe}));
  std::byte one{};
  EXPECT_EQ(memory.read(1, 8, &one, 1), PeerMemory::Read::denied);
  EXPECT_TRUE(memory.is_readable(MemoryPeer::text, sizeof(MemoryPeer::text)));
  void* const closed = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(closed, MAP_FAILED);
  EXPECT_FALSE(memory.is_readable(closed, 4096));
  ::munmap(closed, 4096);
}

TEST(PeerMemory, IsNotReadWhereTheKernelRefuses) {
  MemoryPeer peer;
  const pid_t refused = ::fork();
  if (refused == 0) {
    testing::refuse_system_call(SYS_process_vm_readv, EPERM);
    PeerMemory memory({::getpid(), peer.pid()}, 0);
    ::_exit(memory.probe({memory.own_probe(), peer.probe}) ? 1 : 0);
  }
  int status = -1;
  ::waitpid(refused, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddp::cpu_backend
