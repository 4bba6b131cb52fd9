// What a host's leader has to the leaders of the other hosts: two connections to each, one for data and one for news.
//
// How data moves says host_streams.hpp. News is what happens to ranks: it is read by a thread of its own, whatever the
// leader is doing, and its connection tells of a leader's end, and of a host that has gone silent (kSilenceMax).
//
// Threads: any. `heard` and `answer` are called by the news thread.
// Fork:    a forked child has none of the connections.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/backends/cpu/hosts/host_streams.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"

namespace ddp::cpu_backend {

using core::HostLayout;
using core::LinkSockets;

constexpr std::chrono::seconds kSilenceMax{30};  // of a host, whose kernel answers whatever its ranks are doing
constexpr std::chrono::seconds kAnswerMax{2};    // for a question to another leader's news thread

// What one leader says of a rank.
struct RankNews {
  Trouble trouble = Trouble::none;
  int rank = 0;
  int pid = 0;
  Presence presence = Presence::here;
  std::uint64_t calls = 0;
  FingerprintWords last_call{};
};

constexpr std::uint64_t kCallsUnknown = ~std::uint64_t{0};  // of a leader that ended without a word

class HostLinks {
 public:
  using Heard = std::function<void(const RankNews& news)>;
  using Answer = std::function<std::vector<RankNews>(std::uint64_t call)>;  // who of this host has not come to it

  // `sockets` by host. Throws std::system_error.
  HostLinks(const HostLayout& layout, int own_host, std::vector<LinkSockets> sockets, Heard heard, Answer answer);
  ~HostLinks();
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  // Of data. Connections that are given up for the news' sake end here too.
  HostStreams& streams() { return streams_; }
  void wake() { streams_.wake(); }

  // To all other leaders. Never blocks; a host that takes no more news is given up.
  void tell(const RankNews& news);

  // tell(), and the last word: nothing goes to the others from here on.
  void say_farewell(const RankNews& own);

  // Asks all other leaders who of their ranks has not come to a call; what they say is `heard`. Returns the hosts whose
  // leaders did not answer, and had not said their last word before. None once this leader has said its last word.
  std::vector<int> ask(std::uint64_t call);

  // Waits until the news of a host have come to their end, or as long as for an answer.
  void hear_out(int host);

 private:
  struct Wire;
  enum class Word : std::uint32_t { rank, farewell, question, answered };

  bool send_news(int host, Word word, const RankNews& news);
  void watch();
  void watch_for(int fd, int host);
  void read_news(int host);
  enum class Ending : std::uint8_t { closed, silent, babble };
  bool hear(int host, const Wire& wire);
  void end_news(int host, Ending how);

  struct Other {
    LinkSockets sockets;
    std::vector<std::byte> heard;  // a part of a message; the news thread's
    bool said_farewell = false;    // guarded by mutex_, as are the next two
    bool is_out = false;           // nothing more is heard; set by the news thread alone
    std::uint64_t answers = 0;
  };

  HostLayout layout_;
  int own_host_;
  std::vector<Other> others_;  // by host
  HostStreams streams_;
  Heard heard_;
  Answer answer_;
  std::mutex send_mutex_;   // of the news
  bool is_silent_ = false;  // guarded by send_mutex_: the farewell is said
  std::mutex mutex_;
  bool is_over_ = false;  // guarded by mutex_: nothing is asked any more
  std::condition_variable changed_;
  base::UniqueFd stop_;   // an eventfd for the news thread
  base::UniqueFd epoll_;  // the news thread's; it minds no limit of open files that falls later
  std::thread thread_;
};

}  // namespace ddp::cpu_backend
