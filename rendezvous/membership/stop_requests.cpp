#include "rendezvous/membership/stop_requests.hpp"

#include <utility>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kSameWish = 200ms;  // `timeout` and schedulers send a signal twice; a later one means it

}  // namespace

StopRequests::Next StopRequests::ask(NodeStop& node, const JobStop& stop, TimePoint now) {
  if (node.asked && now - *node.asked > kSameWish) return Next::kill;
  if (!node.asked) node.asked = now;
  if (stop_) return Next::nothing;
  stop_ = stop;
  return Next::stop;
}

bool StopRequests::workers_died(int signal_number, const std::string& host, std::chrono::milliseconds when) {
  const bool is_new = !stop_;
  if (is_new) stop_ = {JobStop::Source::workers, signal_number, host};
  stop_->note_signalled(when);
  return is_new;
}

bool StopRequests::warn() { return !std::exchange(is_warned_, true); }

}  // namespace ddp::rendezvous
