#include "rendezvous/link/endpoint_addresses.hpp"

#include <utility>

#include "base/address.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookUpLimit = 30s;  // after this time another look-up begins
constexpr auto kSlurmPause = 10s;   // each question costs a process, and the time of a controller that all nodes ask

}  // namespace

void EndpointAddresses::ask(std::function<void()> answered) {
  answered_ = std::move(answered);
  const auto now = Clock::now();
  if (answer_ || (looking_up_ && now - began_ < kLookUpLimit)) return;
  began_ = now;
  // Slurm is not asked again for an address that it has told.
  auto wanted = slurm_address_.empty() ? Wanted{endpoint_.host, endpoint_.port, endpoint_.may_be_slurm_node}
                                       : Wanted{slurm_address_, endpoint_.port};
  if (slurm_failed_at_ && now - *slurm_failed_at_ < kSlurmPause) wanted.may_be_slurm_node = false;
  looking_up_ = resolve_(io_, wanted, [this, asks_slurm = wanted.may_be_slurm_node](Resolved resolved) {
    looking_up_.reset();
    if (asks_slurm && resolved.error) {
      slurm_failed_at_ = Clock::now();
      slurm_error_ = resolved.error;
    } else if (resolved.error && slurm_error_) {
      resolved.error = slurm_error_;
    }
    answer_ = std::move(resolved);
    if (const auto tell = std::exchange(answered_, nullptr)) tell();
  });
}

std::optional<std::string> EndpointAddresses::take_answer() {
  auto resolved = *std::exchange(answer_, std::nullopt);
  if (resolved.error) return resolved.error;
  known_ = std::move(resolved.addresses);
  texts_.clear();
  for (const auto& address : known_) texts_.push_back(base::address_of(address).text());
  if (!resolved.slurm_address.empty()) slurm_address_ = resolved.slurm_address;
  return {};
}

void EndpointAddresses::stop() {
  leave();
  looking_up_.reset();
}

}  // namespace ddp::rendezvous
