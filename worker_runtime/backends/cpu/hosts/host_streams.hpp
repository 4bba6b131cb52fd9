// The data connections of a host's leader to the leaders of the other hosts, and what all that moves over them has in
// common: moving what goes at once, and waiting where nothing does.
//
// A wait receives again and again for a moment, because a sleeper is woken late (5 to 10 us on loopback, where a
// message takes 4), and then sleeps. Where ranks outnumber cores it gives its core away between two tries.
//
// Threads: one at a time; wake() from any.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"

namespace ddp::cpu_backend {

using core::HostLayout;

class HostStreams {
 public:
  // `sockets` by host, borrowed; none for the own one.
  HostStreams(const HostLayout& layout, int own_host, std::vector<int> sockets);

  struct End {
    enum class Kind : std::uint8_t { complete, stopped, host_lost, timed_out };
    Kind kind = Kind::complete;
    std::vector<int> hosts;  // lost, or waited for
  };

  // What can end a wait before its time; `must_stop` is asked after each wake(), and before each sleep.
  struct Wait {
    std::function<bool()> must_stop;
    base::Deadline& deadline;
  };

  // What goes to a host and comes from it; the sizes are what the other side has, the other way round.
  struct Parcel {
    std::span<const std::byte> out;
    std::span<std::byte> in;
  };
  // One exchange, which all leaders enter in the same order, with parcels[h] for host h, be it an empty one. Throws
  // Error where another has something else in mind.
  End transfer(std::span<const Parcel> parcels, const Wait& wait);

  // A message to one host and one from another, or from the same.
  struct Swap {
    int to = 0, from = 0;
    std::span<const std::span<const std::byte>> out;  // its parts, at most kPartsMax
    std::span<std::byte> in;                          // room for what comes; more is refused by Error
    std::size_t expected = 0;                         // of that most likely; after less, nothing must come for a while
    std::size_t received = 0;                         // what came
  };
  static constexpr std::size_t kPartsMax = 4;
  End swap(Swap& swap, const Wait& wait);

  // Something that moves in steps, each as far as it goes at once.
  class Motion {
   public:
    enum class Step : std::uint8_t { done, moved, stuck, lost };
    struct Awaited {
      int host = 0;
      bool to_send = false, to_receive = false;
    };

    virtual ~Motion() = default;
    virtual Step step(HostStreams& streams) = 0;
    // What a step was stuck by, appended; or whom it has lost, alone.
    virtual void name(std::vector<Awaited>& awaited) const = 0;
  };
  End run(Motion& motion, const Wait& wait);

  // As much as goes at once; nothing where the connection is lost.
  std::optional<std::size_t> send(int host, msghdr& message) const;
  std::optional<std::size_t> receive(int host, msghdr& message) const;
  std::optional<std::size_t> send(int host, std::span<const std::byte> bytes) const;
  std::optional<std::size_t> receive(int host, std::span<std::byte> room) const;

  // How much may be on its way to a host at a time without filling more memory than it helps.
  std::size_t bytes_ahead(int host) const;

  void wake();

  int own_host() const { return own_host_; }
  int host_count() const { return static_cast<int>(sockets_.size()); }
  int leader_of(int host) const { return layout_.leader_of(host); }

 private:
  void sleep(std::span<const Motion::Awaited> awaited, base::Deadline& deadline);

  HostLayout layout_;
  int own_host_;
  std::vector<int> sockets_;
  bool may_spin_;               // whether every rank of this host can have a core to itself
  std::uint64_t exchange_ = 0;  // that was begun last
  std::atomic<bool> is_woken_{false};
  base::UniqueFd wake_;                   // an eventfd
  std::vector<Motion::Awaited> awaited_;  // kept, so that no wait allocates, as is the next
  std::vector<pollfd> polled_;
};

}  // namespace ddp::cpu_backend
