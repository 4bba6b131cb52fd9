#include "rendezvous/link/resolver.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/address.hpp"
#include "base/event_fd.hpp"
#include "base/host_addresses.hpp"
#include "base/quiet_thread.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/slurm/node_address.hpp"

namespace ddp::rendezvous {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kSlurmLimit{10};  // for its controller's answer

// What the thread and the event loop share; whoever is last lets go of it.
struct Answer {
  base::UniqueFd is_there = base::make_event();
  Resolved resolved;
};

Resolved look_up(const std::string& host, std::uint16_t port) {
  auto found = base::look_up(host, port);
  Resolved out;
  out.addresses = std::move(found.addresses);
  if (!found.error.empty()) out.error = "the name " + host + " can't be resolved: " + found.error;
  return out;
}

Resolved look_up(const Wanted& wanted) {
  auto by_name = look_up(wanted.host, wanted.port);
  if (!by_name.error || !wanted.may_be_slurm_node) return by_name;
  const auto node = slurm::ask_node_address(wanted.host, kSlurmLimit);
  if (!node.error.empty()) {
    *by_name.error += "; " + node.error;
    return by_name;
  }
  auto out = look_up(node.address, wanted.port);
  if (!out.error)
    out.slurm_address = node.address;
  else
    out.error = *by_name.error + "; Slurm has " + node.address + " for it: " + *out.error;
  return out;
}

}  // namespace

std::shared_ptr<void> resolve(asio::io_context& io, const Wanted& wanted, std::function<void(const Resolved&)> done) {
  const auto answer = std::make_shared<Answer>();
  const int duplicate = ::fcntl(answer->is_there.get(), F_DUPFD_CLOEXEC, 3);
  auto waiting = std::make_shared<asio::posix::stream_descriptor>(io, duplicate);
  waiting->async_wait(
      asio::posix::stream_descriptor::wait_read,
      [answer, done = std::move(done), waiting = std::weak_ptr(waiting)](boost::system::error_code error) {
        if (error || waiting.expired()) return;
        base::take_rings(answer->is_there.get());  // what the thread wrote before it rang is visible from here on
        done(answer->resolved);
      });
  base::start_quiet_thread([answer, wanted] {
    answer->resolved = look_up(wanted);
    base::ring(answer->is_there);
  }).detach();
  return waiting;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> out, loopback;
  for (const auto& [address, is_up, prefix_bits] : base::interface_addresses())
    if (is_up && !address.is_link_local()) (address.is_loopback() ? loopback : out).push_back(address.text());
  out.insert(out.end(), loopback.begin(), loopback.end());
  return out;
}

}  // namespace ddp::rendezvous
