// Reads the plain memory of the other ranks of a host, where the kernel lets a process do that (process_vm_readv).
//
// Whether it does depends on more than this process can ask for (users, capabilities, Yama, seccomp, pid namespaces),
// so it is tried: every rank publishes where a random word of its own lies, and every other one reads it. Only if that
// works for each pair is the memory of any read.
//
// Every later read takes that word along: what has another process's pid by then, or another program in it, is no peer.
//
// Threads: probe() and agree() before all else; read() from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ddp::cpu_backend {

// Lets any process of the same user read, and attach to, this one, where Yama would let only its ancestors.
void let_any_process_read_this_one();

class PeerMemory {
 public:
  // What a rank publishes: a word that no other process has, and where.
  struct Door {
    std::uint64_t address = 0;
    std::uint64_t word = 0;
  };

  // `pids` are those of the ranks of the host; `index` is this one's.
  PeerMemory(std::vector<int> pids, int index);

  Door door() const;

  // Tries to read every other rank; `doors` are those of all. Whether that works.
  bool probe(std::vector<Door> doors);

  // Takes in whether it works for all ranks.
  void agree(bool all_can_read) { can_read_all_ = all_can_read; }

  bool can_read_all() const { return can_read_all_; }

  // Whether this process's own memory is of the kind that others can read: what a device has mapped is not.
  bool is_readable(const void* data, std::size_t bytes) const;

  // False where the peer has gone, or its memory has.
  bool read(int index, std::uint64_t address, std::byte* to, std::size_t bytes) const;

 private:
  std::vector<int> pids_;
  int index_;
  std::unique_ptr<std::uint64_t> word_;
  std::vector<Door> doors_;
  bool can_read_all_ = false;
};

}  // namespace ddp::cpu_backend
