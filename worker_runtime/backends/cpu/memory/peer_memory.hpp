// Reads the plain memory of the other ranks of a host, if the kernel permits it (process_vm_readv).
//
// The permission depends on more than this process can query (users, capabilities, Yama, seccomp, pid namespaces), so
// the ranks try it: each rank publishes the address of a random word, and every other rank reads that word. Ranks read
// each other's memory only if this works for each pair.
//
// Every later read fetches that word too. Another word means that another process has the pid, or another program runs
// in the process.
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
  // What a rank publishes: a word that no other process has, and its address.
  struct Probe {
    std::uint64_t address = 0;
    std::uint64_t word = 0;
  };

  // `pids` are those of the ranks of the host; `index` is this one's.
  PeerMemory(std::vector<int> pids, int index);

  Probe own_probe() const;

  // Tries to read every rank; `probes` are those of all. Returns whether that works.
  bool probe(std::vector<Probe> probes);

  // Takes in whether it works for all ranks.
  void agree(bool all_can_read) { can_read_all_ = all_can_read; }

  bool can_read_all() const { return can_read_all_; }

  // Whether this process's own memory is of the kind that others can read: what a device has mapped is not.
  bool is_readable(const void* data, std::size_t bytes) const;

  // `gone`: the process has ended, or runs another program. `denied`: the kernel refuses, or part of the range can't be
  // read; the peer may be alive and well.
  enum class Read : std::uint8_t { complete, gone, denied };
  Read read(int index, std::uint64_t address, std::byte* to, std::size_t bytes) const;

 private:
  std::vector<int> pids_;
  int index_;
  std::unique_ptr<std::uint64_t> word_;
  std::vector<Probe> probes_;
  bool can_read_all_ = false;
};

}  // namespace ddp::cpu_backend
