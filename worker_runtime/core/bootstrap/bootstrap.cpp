#include "worker_runtime/core/bootstrap/bootstrap.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/host_and_port.hpp"
#include "ddp/error.hpp"
#include "rendezvous/round/term.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"
#include "worker_runtime/core/bootstrap/rank0_store.hpp"
#include "worker_runtime/core/bootstrap/tcp_store.hpp"

namespace ddp::core {

namespace {

// Where nobody gave the ranks a round, rank 0 begins one before they meet, and the others read it after. The key stays:
// rank 0 of a later program writes its own over it before it accepts anybody.
class RoundAgreement {
 public:
  RoundAgreement(const Launch& launch, Store& store, const std::string& key_prefix, const base::Deadline& deadline)
      : store_(store), key_(key_prefix + "round"), deadline_(deadline), round_(launch.round) {
    if (round_ || launch.rank != 0) return;
    round_ = rendezvous::begin_term();
    store_.set(key_, to_string(*round_), deadline_.end());
  }

  RoundId after_meeting() {
    if (round_) return *round_;
    const std::string text = store_.get(key_, deadline_.end());
    if (const auto round = parse_round_id(text)) return *round;
    throw StoreError("the key '" + key_ + "' of the store holds '" + text + "', which is no round id");
  }

 private:
  Store& store_;
  std::string key_;
  const base::Deadline& deadline_;
  std::optional<RoundId> round_;
};

// The n-th group of a rank in a round meets the n-th of the others. A process whose program names its ranks may have
// several, one per thread, which count apart. One that the environment names is one rank, also if it was forked by a
// process that was another and had made a group.
std::string next_group_name(const Launch& launch) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, unsigned> group_counts;
  const std::lock_guard lock(mutex);
  return "group_" + std::to_string(group_counts[{store_key_prefix(launch), launch.name ? launch.rank : 0}]++);
}

store::Client connect_to_address(const Launch& launch, base::Deadline& deadline) {
  const StoreAddress& address = *launch.store;
  const auto connect_until = [&](base::Deadline::TimePoint end) {
    return store::Client::connect({.host = address.host, .port = address.port, .deadline = end, .cut = deadline.cut()});
  };
  LongWait wait(launch.rank, launch.size, deadline);
  try {
    return connect_until(wait.first_end());
  } catch (const TimeoutError& error) {
    if (wait.first_end() == deadline.end()) throw;
    wait.tell((launch.name ? "the store at " : "the launcher's store at ") +
              base::host_and_port(address.host, std::to_string(address.port)));
  }
  return connect_until(deadline.end());
}

struct Connection {
  std::shared_ptr<Store> store;
  std::optional<StoreAddress> address;  // as this process reaches it; empty for an object of the program
  NetworkOptions network;
};

// The program's, the launcher's, or that of rank 0. Empty for a group of one.
Connection connect_to_store(const Launch& launch, const std::string& store_allow, base::Deadline& deadline) {
  NetworkOptions network{.interface = launch.interface, .port_min = launch.ports.min, .port_max = launch.ports.max};
  if (launch.given_store) return {launch.given_store, std::nullopt, with_addresses_of_host(std::move(network))};
  if (!launch.store && !launch.own_store) return {};
  auto store = std::make_shared<TcpStore>(launch.store ? connect_to_address(launch, deadline)
                                                       : connect_to_rank0(launch, store_allow, deadline));
  network = with_addresses_of(store->descriptor(), std::move(network));
  const Endpoint reached = peer_of(store->descriptor());
  return {std::move(store), StoreAddress{reached.address, reached.port}, std::move(network)};
}

Meeting meet_with_refusals(const process_group::GroupMember& who, const MeetingPlace& place, base::Deadline& deadline) {
  try {
    return meet(who, place, deadline);
  } catch (const TimeoutError& error) {
    throw TimeoutError(error.what() + refusals_of_own_store(), error.ranks());
  }
}

}  // namespace

Bootstrap meet_ranks(const Launch& launch, const MakeSharedFile& make_shared_file, const std::string& store_allow,
                     base::Deadline& deadline) {
  Bootstrap made{.who = {launch.rank,
                         launch.size,
                         launch.local_rank,
                         launch.local_size,
                         {},
                         next_group_name(launch),
                         launch.is_of_launcher()},
                 .lets_any_read = launch.lets_any_read};
  auto& who = made.who;
  auto [store, address, network] = connect_to_store(launch, store_allow, deadline);
  if (!store) {
    who.round = launch.round ? *launch.round : rendezvous::begin_term();
    made.meeting = meet_alone(make_shared_file);
    return made;
  }
  made.news_prefix = store_key_prefix(launch);
  made.key_prefix = made.news_prefix + who.name + "/";
  made.news = std::move(address);
  RoundAgreement agreement(launch, *store, made.key_prefix, deadline);
  made.meeting = meet_with_refusals(who, {*store, made.key_prefix, std::move(network), make_shared_file}, deadline);
  who.round = agreement.after_meeting();
  if (who.local_size == 0) {
    const HostLayout& layout = made.meeting.layout;
    who.local_rank = layout.index_of(who.rank);
    who.local_size = static_cast<int>(layout.ranks_of(layout.host_of(who.rank)).size());
  }
  made.store = std::move(store);
  return made;
}

void leave_store(const Launch& launch, const Bootstrap& bootstrap, const base::Deadline& deadline) {
  if (launch.own_store) leave_rank0(launch, *bootstrap.store, bootstrap.key_prefix, deadline);
}

}  // namespace ddp::core
