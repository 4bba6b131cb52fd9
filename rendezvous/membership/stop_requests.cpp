#include "rendezvous/membership/stop_requests.hpp"

#include <utility>

namespace ddp::rendezvous {

StopRequests::Next StopRequests::ask(NodeStop& node, const JobStop& stop, bool is_second, TimePoint now) {
  const bool says_again = std::exchange(node.says_again, false) && !is_second;
  is_second = is_second || (node.asked && now - *node.asked > kSameWish);
  if (!node.asked) node.asked = now;
  if (says_again) return Next::nothing;
  const bool is_new = !stop_;
  if (is_new) stop_ = stop;
  return is_second ? Next::kill : is_new ? Next::stop : Next::nothing;
}

bool StopRequests::workers_died(int signal_number, const std::string& host, std::chrono::milliseconds when) {
  const bool is_new = !stop_;
  if (is_new) stop_ = {JobStop::Source::workers, signal_number, host};
  stop_->note_signalled(when);
  return is_new;
}

bool StopRequests::warn() { return !std::exchange(is_warned_, true); }

}  // namespace ddp::rendezvous
