#include "worker_runtime/core/bootstrap/leader_links.hpp"

#include <system_error>

#include "ddp/error.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"

namespace ddp::core {

LeaderLinks::LeaderLinks(const process_group::GroupMember& who, const HostLayout& layout)
    : who_(who), layout_(layout), own_host_(layout.host_of(who.rank)) {
  if (layout.host_count() > 1) links_.resize(static_cast<std::size_t>(layout.host_count()));
}

void LeaderLinks::add(Acceptor::Arrival& arrival) {
  const int host = layout_.host_of(arrival.hello.rank);
  if (links_.empty() || layout_.leader_of(host) != arrival.hello.rank) return;
  LinkSockets& link = links_[static_cast<std::size_t>(host)];
  (arrival.hello.purpose == RankHello::Purpose::data ? link.data : link.news) = std::move(arrival.socket);
}

void LeaderLinks::connect(const std::vector<Endpoint>& endpoints, const MeetingPlace& place, const std::string& secret,
                          base::Deadline& deadline) {
  RankHello hello;
  hello.rank = who_.rank;
  hello.size = who_.size;
  put_text(hello.secret, secret);
  put_text(hello.group, place.key_prefix);
  for (int host = 0; host < own_host_; ++host) {
    Endpoint endpoint = endpoints[static_cast<std::size_t>(host)];
    if (endpoint.address.empty()) endpoint.address = place.network.store_address;
    LinkSockets& link = links_[static_cast<std::size_t>(host)];
    try {
      hello.purpose = RankHello::Purpose::data;
      link.data = connect_tcp(endpoint, hello, deadline);
      hello.purpose = RankHello::Purpose::news;
      link.news = connect_tcp(endpoint, hello, deadline);
    } catch (const std::system_error& error) {
      fail_to_connect(host, endpoint, error.code().message());
    }
  }
}

bool LeaderLinks::are_complete() const {
  for (int host = 0; host < static_cast<int>(links_.size()); ++host) {
    const LinkSockets& link = links_[static_cast<std::size_t>(host)];
    if (host != own_host_ && (!link.data || !link.news)) return false;
  }
  return true;
}

void LeaderLinks::fail_to_connect(int host, const Endpoint& endpoint, const std::string& why) const {
  const int leader = layout_.leader_of(host);
  throw RankFailure("rank " + std::to_string(leader) + ", which leads its host, can't be reached at " +
                        endpoint.address + " port " + std::to_string(endpoint.port) + ": " + why + where(who_) +
                        "\ntry:   let the hosts of the job reach each other (DDP_SOCKET_IFNAME names the interface, "
                        "DDPRUN_PORT_RANGE the ports)",
                    {leader});
}

}  // namespace ddp::core
