// The connections that an agent has given up, and whose sockets it keeps open: the newest few. Their other sides are
// not to take the end of a connection that is not resumed for that of the node (Session::HangUp).
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

namespace ddp::rendezvous {

constexpr std::size_t kGivenUpMax = 4;

template <class Connection>
class GivenUp {
 public:
  // Returns the one whose socket is to be closed for it, if there is any.
  std::optional<Connection> add(Connection connection) {
    kept_.push_back(std::move(connection));
    if (kept_.size() <= kGivenUpMax) return {};
    std::optional<Connection> oldest(std::move(kept_.front()));
    kept_.pop_front();
    return oldest;
  }
  std::deque<Connection> take_all() { return std::exchange(kept_, {}); }

 private:
  std::deque<Connection> kept_;
};

}  // namespace ddp::rendezvous
