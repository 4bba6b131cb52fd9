// A process group whose host program says which ranks it has, and not the environment: for PyTorch, MPI, a test with
// threads, and any other program that has a store and ranks already.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/process_group.hpp"
#include "ddp/round.hpp"

namespace ddp {
inline namespace DDP_ABI {

// A key-value store that all ranks of a group reach. Derive from it to lend a group the store that a program has.
//
// The ranks meet through it. It is not used after init_process_group() has returned.
// Keys:    up to 8 KiB of printable ASCII. A value that was set stays until it is set again or removed.
// Values:  up to 64 KiB of any bytes.
// Threads: only the thread that calls init_process_group() calls the store. Ranks that are threads of one process call
//          it at the same time if they share the object.
// Errors:  each call throws TimeoutError at its deadline, and StoreError if the store can't be reached. Both end
//          init_process_group(), as any other exception does.
class DDP_EXPORT Store {
 public:
  // When a call gives up.
  using TimePoint = std::chrono::steady_clock::time_point;

  Store() = default;  // for classes that derive from it
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store();

  // Sets a key, in the place of an older value.
  virtual void set(const std::string& key, const std::string& value, TimePoint deadline) = 0;

  // Waits until the key is there.
  virtual std::string get(const std::string& key, TimePoint deadline) = 0;

  // Adds to a decimal number, atomically among all ranks, and returns the sum. A key that is not there counts as 0.
  virtual std::int64_t add(const std::string& key, std::int64_t delta, TimePoint deadline) = 0;

  // Waits until all keys are there.
  virtual void wait(const std::vector<std::string>& keys, TimePoint deadline) = 0;

  // Removes a key. A store that can't remove keys does nothing: then no two groups may have the same
  // BootstrapOptions::name.
  virtual void remove(const std::string& key, TimePoint deadline);
};

// Which rank this one is, and where it meets the others.
struct BootstrapOptions {
  int rank = 0;  // 0 <= rank < size
  int size = 1;  // of the group; >= 1

  // Of this host's ranks, as in LOCAL_RANK and LOCAL_WORLD_SIZE: 0 <= local_rank < local_size <= size. Both may be
  // missing: then the ranks find out which of them share a host.
  std::optional<int> local_rank{};
  std::optional<int> local_size{};  // how many ranks of the group are on this host; see local_rank

  // Exactly one of the two if there is more than one rank: a store that speaks PyTorch's TCPStore protocol (PyTorch's
  // own, or that of `ddp-rendezvous store`), or an object. Failure news among the ranks of the backend nccl need the
  // first: with an object, a rank learns of a failure elsewhere from NCCL or at its deadline (docs/backends.md).
  std::string store_host{};        // a name, or an IPv4 or IPv6 address
  std::uint16_t store_port = 0;    // 1 to 65535
  std::shared_ptr<Store> store{};  // instead of store_host and store_port

  // The same on all ranks. Another for each group that meets through the same store at the same time, and for each
  // start of the program if the store outlives it. The n-th group of a name meets the n-th of the other ranks.
  std::string name{};

  // The same on all ranks; without it rank 0 begins one. ProcessGroup::should_stop() needs that of ddprun
  // (DDPRUN_ROUND_ID).
  std::optional<RoundId> round{};

  // For the ranks of other hosts: the interface on which this rank listens (as DDP_SOCKET_IFNAME), and the range of its
  // ports (as DDPRUN_PORT_RANGE); 0: any free port.
  std::string interface {};
  std::uint16_t port_min = 0;  // the lowest port of the range; see interface
  std::uint16_t port_max = 0;  // the highest port of the range; >= port_min
};

// As init_process_group(options), with `bootstrap` in the place of the environment's RANK, WORLD_SIZE and MASTER_ADDR.
//
// Ranks may be threads of one process with the backend cpu: each thread calls this with a rank of its own.
//
// Throws InvalidArgument for options that are out of range or contradict each other, before anything is begun.
DDP_EXPORT ProcessGroup init_process_group(const BootstrapOptions& bootstrap, const InitOptions& options);

}  // namespace DDP_ABI
}  // namespace ddp
