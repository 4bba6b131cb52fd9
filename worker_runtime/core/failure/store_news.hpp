// What ranks tell each other through the store while they wait for nothing there: above all that a group has failed.
//
// A process has one connection for this, however many groups it has. The news of a job are numbered keys of the store,
// <prefix>news/0, <prefix>news/1 and so on. A rank that has news takes the first free number, and the thread of every
// process waits in the store for the next number. So nothing polls.
//
// All of this is best effort. If the connection breaks, the thread connects anew; if that fails for 10 s, it ends, and
// this process hears no news any more.
//
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "base/cut.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/store/client.hpp"

namespace ddp::core {

class StoreNews {
 public:
  struct Place {
    std::string host;
    std::uint16_t port = 0;
    std::string key_prefix;  // the same for all groups of a job in one round, and no other's

    auto operator<=>(const Place&) const = default;
  };

  // The one of this process for this place, as long as somebody holds it. Throws std::system_error.
  static std::shared_ptr<StoreNews> at(const Place& place);

  explicit StoreNews(Place place);
  ~StoreNews();
  StoreNews(const StoreNews&) = delete;
  StoreNews& operator=(const StoreNews&) = delete;

  // Runs `calls` with the connection, which this process shares: they must not wait for keys that may be missing. False
  // if the store did not answer by the end of `limit`, or `cut` was cut. `calls` get the deadline of each call.
  using Calls = std::function<void(store::Client& store, store::TimePoint deadline)>;
  bool ask(std::chrono::milliseconds limit, base::Cut& cut, const Calls& calls);

  // Tells all ranks that listen at this place. Only within ask(). News that have been told already are not told again.
  void tell(store::Client& store, const std::string& news, store::TimePoint deadline);

  // Waits until a rank has told this, also earlier. False at the end of `limit`, once `cut` is cut, or when the store
  // is gone.
  bool wait_for(const std::string& news, std::chrono::milliseconds limit, base::Cut& cut);

 private:
  store::Client connect(store::TimePoint deadline, base::Cut& cut) const;
  std::string key(std::uint64_t number) const { return place_.key_prefix + "news/" + std::to_string(number); }
  void listen();
  std::optional<std::string> next_news();

  const Place place_;
  base::UniqueFd wake_;  // an eventfd: ends the thread's wait in the store
  base::Cut stop_;       // ends its other waits

  std::mutex mutex_;
  std::condition_variable changed_;           // of all below
  bool is_taken_ = false;                     // guarded by mutex_; whether a thread uses client_
  int asker_count_ = 0;                       // guarded by mutex_; threads in ask()
  bool is_over_ = false;                      // guarded by mutex_
  std::set<std::string, std::less<>> heard_;  // guarded by mutex_

  std::optional<store::Client> client_;  // of the thread that has set is_taken_, as is the next
  std::uint64_t next_ = 0;               // the number of the next news
  std::thread thread_;                   // the last member
};

}  // namespace ddp::core
