#include "launcher/agent/guardian_requests.hpp"

#include <fcntl.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace ddp::launcher {
namespace {

using guardian::Sent;

constexpr std::chrono::milliseconds kRetryAfter{1};  // nothing tells when the guardian has taken descriptors

int duplicate_of(int socket) {
  const int fd = ::fcntl(socket, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "the guardian's socket");
  return fd;
}

// Empty where descriptors run out: then the guardian says so of the worker.
std::vector<base::UniqueFile> duplicates_of(std::span<const int> descriptors) {
  std::vector<base::UniqueFile> out;
  for (const int descriptor : descriptors) {
    base::UniqueFd fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
    if (!fd) return {};
    out.push_back(std::move(fd));
  }
  return out;
}

}  // namespace

GuardianRequests::GuardianRequests(boost::asio::io_context& io, int socket, std::function<void()> lost,
                                   std::chrono::milliseconds limit)
    : socket_(io, duplicate_of(socket)), limit_timer_(io), retry_timer_(io), lost_(std::move(lost)), limit_(limit) {}

void GuardianRequests::send(const guardian::Request& request, std::span<const int> descriptors) {
  auto packet = guardian::packet_of(request);
  if (waiting_.size() >= kWaitingMax) return lose();
  if (waiting_.empty()) {
    const auto how = guardian::send_request(socket_.native_handle(), packet, descriptors);
    if (how == Sent::done) return;
    if (how == Sent::failed) return lose();
    begin_limit();
    wait_for_room(how);
  }
  waiting_.push_back({std::move(packet), duplicates_of(descriptors)});
}

void GuardianRequests::send_waiting() {
  while (!waiting_.empty()) {
    const auto& next = waiting_.front();
    std::vector<int> descriptors;
    for (const auto& descriptor : next.descriptors) descriptors.push_back(descriptor.get());
    const auto how = guardian::send_request(socket_.native_handle(), next.packet, descriptors);
    if (how == Sent::failed) return lose();
    if (how != Sent::done) return wait_for_room(how);
    waiting_.pop_front();
    begin_limit();
  }
  limit_timer_.cancel();
}

void GuardianRequests::wait_for_room(Sent how) {
  const auto go_on = [this](boost::system::error_code error) {
    if (!error) send_waiting();
  };
  if (how == Sent::no_room) return socket_.async_wait(boost::asio::posix::stream_descriptor::wait_write, go_on);
  retry_timer_.expires_after(kRetryAfter);
  retry_timer_.async_wait(go_on);
}

// Of the request that is the next one.
void GuardianRequests::begin_limit() {
  limit_timer_.expires_after(limit_);
  limit_timer_.async_wait([this](boost::system::error_code error) {
    // It may be on its way when the request is sent.
    if (!error && !waiting_.empty() && limit_timer_.expiry() <= std::chrono::steady_clock::now()) lose();
  });
}

void GuardianRequests::lose() {
  waiting_.clear();
  limit_timer_.cancel();
  lost_();
}

}  // namespace ddp::launcher
