#include "rendezvous/link/link_words.hpp"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kAddressesShown = 6;

std::string list_of(const std::vector<std::string>& texts) {
  std::string out;
  for (std::size_t i = 0; i < texts.size() && i < kAddressesShown; ++i) out += (i == 0 ? "" : ", ") + texts[i];
  if (texts.size() > kAddressesShown) out += " and " + std::to_string(texts.size() - kAddressesShown) + " more";
  return texts.empty() ? "none" : out;
}

std::string last_text(const std::string& last) { return last.empty() ? "" : " (last: " + last + ")"; }

}  // namespace

const char* const kStrangerAdvice =
    "another port, the same on all nodes; `ss -ltnp` on that host shows who has this one";
const char* const kStartAdvice =
    "start ddprun on the node that has one of the endpoint's addresses, with the same endpoint; a node that is behind "
    "another address (NAT, a service name) serves it with `--rdzv-conf=is_host=true`";

std::string orphans_text(std::chrono::milliseconds limit) {
  return "nobody who knows of the job has answered for " + describe_duration(limit);
}

std::string serves_from_now_text(const std::string& lost_place, const std::string& why) {
  return "the endpoint " + lost_place + " is lost: " + why + "; this node serves the job from now on";
}

std::string connected_again_text(const std::string& place) { return "connected to the job again, at " + place; }

std::string connection_lost_text(const std::string& place, const std::string& why, bool do_workers_go_on,
                                 std::chrono::milliseconds limit) {
  return "the connection to the endpoint " + place + " is lost: " + why + "; it is tried again" +
         (do_workers_go_on ? ", and the workers go on" : "") + " for up to " + describe_duration(limit);
}

std::string no_answer_yet_text(const std::string& endpoint, const std::string& why, std::chrono::milliseconds left,
                               const std::vector<std::string>& own_addresses) {
  return "no answer from " + endpoint + " yet: " + why + "; it is tried for another " + describe_duration(left) +
         ". This host has " + list_of(own_addresses);
}

std::string refused_for_now_text(const std::string& place, const Refused& refused) {
  return "refused at " + place + ": " + refused.what + "; " + refused.try_this;
}

std::string forgeable_refusal_text(const std::string& why, std::chrono::milliseconds limit) {
  return why + ", which anybody on the way could say; it is tried again for " + describe_duration(limit);
}

std::string joining_text(const std::string& place, const std::string& host_name) {
  return "joining the job at " + place + ", from host " + host_name;
}

std::string unknown_name_advice(const std::string& endpoint_host) {
  return "`getent hosts " + endpoint_host + "` on this host, or an address in place of the name";
}

std::string several_ports_advice(const std::string& endpoint_host) {
  return "look at the output of ddprun on " + endpoint_host +
         ", which opens the first free one of these ports; between the nodes all of them must be open";
}

LinkLost job_gone_error(const LostJob& job) {
  return {"nobody of the job has answered for " + describe_duration(job.limit) + last_text(job.last),
          "host " + job.host_name + ", job " + job.run_id + ", which was at " + job.endpoint,
          "look at the output of ddprun, and of ddp-rendezvous, there"};
}

LinkLost no_answer_error(const LostJob& job, const SearchedAddresses& searched, const std::string& try_this) {
  return {"no answer from ddprun at " + job.endpoint + " within " + describe_duration(job.limit) + last_text(job.last),
          "joining job " + job.run_id + ", attempt " + std::to_string(searched.attempts) + ", from host " +
              job.host_name + "; the endpoint's addresses: " + list_of(searched.of_endpoint) +
              "; this host's: " + list_of(searched.own),
          try_this};
}

}  // namespace ddp::rendezvous
