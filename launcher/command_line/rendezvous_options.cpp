#include "launcher/command_line/rendezvous_options.hpp"

#include <algorithm>
#include <tuple>

#include "base/host_and_port.hpp"
#include "base/loopback.hpp"
#include "launcher/command_line/nearest_word.hpp"
#include "launcher/command_line/option_values.hpp"
#include "rendezvous/store/memory_budget.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::uint16_t kStaticPort = 29500, kDynamicPort = 29400;  // torchrun's
constexpr milliseconds kFixedJoinTimeout{900'000};                  // torchrun's `timeout` of static
constexpr milliseconds kKeepAliveInterval{5'000};                   // torchrun's, used where only the other one
constexpr int kKeepAliveAttempts = 3;                               // of the two is given

// What --rdzv-conf says, checked.
struct Conf {
  std::optional<milliseconds> join_timeout, last_call_timeout, heartbeat_timeout, keep_alive_interval, timeout;
  std::optional<int> keep_alive_attempts, rank, store_memory;
  std::optional<bool> is_host;
  std::vector<std::string> without_effect;
};

const std::vector<std::string_view> kConfKeys{"join_timeout",
                                              "last_call_timeout",
                                              "close_timeout",
                                              "heartbeat_timeout",
                                              "keep_alive_interval",
                                              "keep_alive_max_attempt",
                                              "read_timeout",
                                              "store_memory",
                                              "store_type",
                                              "is_host",
                                              "rank",
                                              "timeout"};

Conf conf_of(const GivenOption& given) {
  Conf conf;
  for (const auto& [key, value] : key_values_of(given)) {
    const auto checked = [&key = key, &value = value, &given](const auto& result, const char* wanted,
                                                              const char* example) {
      if (result) return *result;
      throw UsageError("--rdzv-conf: " + key + " takes " + wanted + ", not '" + value + "'", given.where,
                       "`--rdzv-conf=" + key + "=" + example + "`");
    };
    const auto time = [&checked, &value = value] {
      return checked(seconds(value), "seconds above 0 and up to a week", "30");
    };
    if (key == "join_timeout") {
      conf.join_timeout = time();
    } else if (key == "last_call_timeout") {
      conf.last_call_timeout = time();
    } else if (key == "heartbeat_timeout") {
      conf.heartbeat_timeout = time();
    } else if (key == "keep_alive_interval") {
      conf.keep_alive_interval = time();
    } else if (key == "keep_alive_max_attempt") {
      conf.keep_alive_attempts = checked(whole_number(value, 1, 1000), "a whole number from 1 to 1000", "3");
    } else if (key == "timeout") {
      conf.timeout = time();
    } else if (key == "rank") {
      conf.rank = checked(whole_number(value, 0, kNodesMax - 1), "a node's rank", "0");
    } else if (key == "store_memory") {
      conf.store_memory =
          checked(whole_number(value, store::kMemoryMibMin, store::kMemoryMibMax), "MiB from 64 to 1048576", "1024");
    } else if (key == "is_host") {
      conf.is_host = checked(truth(value), "true or false", "true");
    } else if (key == "close_timeout" || key == "read_timeout") {
      time();
      conf.without_effect.push_back(key + ": join_timeout is the one limit of a meeting");
    } else if (key == "store_type") {
      if (value != "tcp")
        throw UsageError("--rdzv-conf: store_type=" + value + " is not to be had", given.where,
                         "leave it out: nodes meet over TCP");
      conf.without_effect.push_back(key + ": nodes always meet over TCP");
    } else {
      const auto nearest = nearest_word(key, kConfKeys);
      throw UsageError(
          "--rdzv-conf has no key '" + key + "'", given.where,
          "`" + std::string(nearest.empty() ? "join_timeout" : nearest) + "`; docs/torchrun.md lists all keys");
    }
  }
  return conf;
}

std::string count_of_nodes(const RendezvousConfig& config) {
  return config.nodes_min == config.nodes_max
             ? std::to_string(config.nodes_max) + " nodes"
             : std::to_string(config.nodes_min) + " to " + std::to_string(config.nodes_max) + " nodes";
}

class Reader {
 public:
  Reader(const GivenOptions& given, std::vector<std::string>& notices) : given_(given), notices_(notices) {}

  RendezvousConfig read() {
    read_common();
    if (given_.is_on("standalone"))
      read_standalone();
    else if (is_local())
      read_local();
    else if (is_dynamic_)
      read_dynamic();
    else
      read_fixed();
    for (const auto& setting : conf_.without_effect) say_no_effect("--rdzv-conf " + setting);
    return config_;
  }

 private:
  const GivenOption* find(std::string_view name) const { return given_.find(name); }

  // An empty endpoint, id or address is none, as with torchrun.
  const GivenOption* find_filled(std::string_view name) const {
    const auto* given = find(name);
    return given == nullptr || given->value.empty() ? nullptr : given;
  }

  void read_common() {
    if (const auto* nodes = find("nnodes")) std::tie(config_.nodes_min, config_.nodes_max) = node_counts_of(*nodes);
    if (const auto* backend = find("rdzv-backend")) {
      if (backend->value == "etcd" || backend->value == "etcd-v2")
        throw UsageError("--rdzv-backend=" + backend->value + " is not to be had: nodes meet without another service",
                         backend->where, "`--rdzv-backend=c10d --rdzv-endpoint=HOST:29400`");
      is_dynamic_ = word_of(*backend) == "c10d";
    }
    if (const auto* endpoint = find_filled("rdzv-endpoint")) endpoint_ = endpoint_of(*endpoint);
    if (const auto* address = find("master-addr")) master_address_ = host_of(*address);
    if (const auto* port = find("master-port")) master_port_ = port_of(*port);
    if (const auto* address = find_filled("local-addr")) config_.local_address = host_of(*address);
    if (const auto* id = find_filled("rdzv-id")) config_.run_id = name_of(*id);
    if (const auto* limit = find("orphan-limit"))
      config_.orphan_limit = std::chrono::seconds(number_of(*limit, 1, kSecondsMax));
    if (const auto* ports = find("port-range")) std::tie(config_.port_first, config_.port_last) = port_range_of(*ports);
    if (const auto* conf = find_filled("rdzv-conf")) conf_ = conf_of(*conf);
    if (const auto* rank = find("node-rank")) config_.node_rank = number_of(*rank, 0, kNodesMax - 1);

    if (conf_.store_memory) config_.store_memory_mib = *conf_.store_memory;
    if (conf_.last_call_timeout) config_.last_call_timeout = *conf_.last_call_timeout;
    if (conf_.keep_alive_interval || conf_.keep_alive_attempts)
      config_.heartbeat_timeout = conf_.keep_alive_interval.value_or(kKeepAliveInterval) *
                                  conf_.keep_alive_attempts.value_or(kKeepAliveAttempts);
    if (conf_.heartbeat_timeout) config_.heartbeat_timeout = *conf_.heartbeat_timeout;
  }

  // One node, and no address at which another could be.
  bool is_local() const {
    if (config_.nodes_max > 1) return false;
    const bool none_given = is_dynamic_ ? !endpoint_ : !endpoint_ && !master_port_;
    const auto host = endpoint_ ? endpoint_->host : master_address_.value_or("localhost");
    const auto port = endpoint_ ? endpoint_->port : master_port_;
    return none_given ? is_dynamic_ || base::is_loopback_host(host) : base::is_loopback_host(host) && port == 0;
  }

  void read_standalone() {
    if (config_.nodes_max > 1)
      throw UsageError("--standalone is one node, --nnodes says " + count_of_nodes(config_), find("nnodes")->where,
                       "drop --standalone, and give `--rdzv-backend=c10d --rdzv-endpoint=HOST:29400`");
    if (find("rdzv-backend") != nullptr && !is_dynamic_) say_overridden("rdzv-backend");
    if (endpoint_ && !(base::is_loopback_host(endpoint_->host) && endpoint_->port.value_or(0) == 0))
      say_overridden("rdzv-endpoint");
    if (master_address_ && !base::is_loopback_host(*master_address_)) say_overridden("master-addr");
    if (master_port_.value_or(0) != 0) say_overridden("master-port");
    if (config_.node_rank.value_or(0) != 0) say_overridden("node-rank");
    read_local();
  }

  void read_local() {
    if (!given_.is_on("standalone") && !is_dynamic_) check_node_rank();
    if (!given_.is_on("standalone") && is_dynamic_ && config_.node_rank.value_or(0) != 0)
      say_no_effect(find("node-rank")->where + ": there is one node");
    if (const auto* conf = find_filled("rdzv-conf")) {
      const auto settings = key_values_of(*conf);
      if (std::any_of(settings.begin(), settings.end(), [](const auto& each) { return each.key != "store_memory"; }))
        say_no_effect(conf->where + ": one node waits for no other");
    }
    if (const auto* address = find_filled("local-addr")) say_no_effect(address->where + ": there is one node");
    conf_.without_effect.clear();
    auto local = RendezvousConfig();
    local.run_id = config_.run_id;
    local.port_first = config_.port_first;
    local.port_last = config_.port_last;
    local.store_memory_mib = config_.store_memory_mib;
    config_ = local;
  }

  void read_fixed() {
    config_.mode = RendezvousConfig::Mode::fixed;
    if (config_.nodes_min != config_.nodes_max)
      throw UsageError("--nnodes=" + find("nnodes")->value + " is a range, which the static backend can't have",
                       find("nnodes")->where,
                       "`--rdzv-backend=c10d --rdzv-endpoint=HOST:29400`, or one number of nodes");
    config_.host = endpoint_ ? endpoint_->host : master_address_.value_or("127.0.0.1");
    config_.port = endpoint_ ? endpoint_->port.value_or(kStaticPort) : master_port_.value_or(kStaticPort);
    check_port();
    if (!config_.node_rank) config_.node_rank = conf_.rank;
    check_node_rank();
    if (!config_.node_rank && config_.nodes_max > 1)
      notices_.push_back("this is node 0 of " + std::to_string(config_.nodes_max) + " (--node-rank)");
    config_.node_rank = config_.node_rank.value_or(0);
    if (config_.run_id.empty()) config_.run_id = "none";
    config_.join_timeout = conf_.timeout.value_or(conf_.join_timeout.value_or(kFixedJoinTimeout));
    if (config_.nodes_max > 1 && !endpoint_ && !master_address_)
      notices_.push_back("the nodes meet at " + base::host_and_port(config_.host, config_.port) +
                         ", which is this machine only (--master-addr)");
    if (endpoint_)
      for (const auto* name : {"master-addr", "master-port"})
        if (find(name) != nullptr) say_no_effect(find(name)->where + ": --rdzv-endpoint goes before it");
    if (conf_.is_host) say_no_effect("--rdzv-conf is_host: node 0 is where the nodes meet");
    if (conf_.last_call_timeout) say_no_effect("--rdzv-conf last_call_timeout: the number of nodes is fixed");
  }

  void read_dynamic() {
    config_.mode = RendezvousConfig::Mode::dynamic;
    if (!endpoint_)
      throw UsageError("--rdzv-backend=c10d with " + count_of_nodes(config_) + " needs an endpoint",
                       find("rdzv-backend")->where,
                       "`--rdzv-endpoint=HOST:29400`, an address of one of the nodes and the same on all");
    if (find("rdzv-id") != nullptr && config_.run_id.empty() && config_.nodes_max > 1)
      throw UsageError("--rdzv-id is empty", find("rdzv-id")->where, "`--rdzv-id=my-job`, the same on all nodes");
    config_.host = endpoint_->host;
    config_.port = endpoint_->port.value_or(kDynamicPort);
    config_.is_host = conf_.is_host;
    check_port();
    if (config_.run_id.empty()) {
      config_.run_id = "none";
      notices_.push_back("the job has no id: it would meet any other without one at " +
                         base::host_and_port(config_.host, config_.port) + " (--rdzv-id)");
    }
    if (conf_.join_timeout) config_.join_timeout = *conf_.join_timeout;
    if (!config_.node_rank) config_.node_rank = conf_.rank;
    for (const auto* name : {"master-addr", "master-port"})
      if (find(name) != nullptr) say_no_effect(find(name)->where + ": c10d has --rdzv-endpoint");
    if (conf_.timeout) say_no_effect("--rdzv-conf timeout: c10d has join_timeout");
  }

  void check_port() const {
    if (config_.port != 0 || config_.nodes_max == 1) return;
    throw UsageError("port 0 is a free one, which the other nodes can't know",
                     find(endpoint_ ? "rdzv-endpoint" : "master-port")->where,
                     endpoint_ ? "`--rdzv-endpoint=" + base::host_and_port(config_.host, kDynamicPort) + "`"
                               : "`--master-port=" + std::to_string(kStaticPort) + "`");
  }

  void check_node_rank() const {
    if (config_.node_rank.value_or(0) < config_.nodes_max) return;
    const auto rank = std::to_string(*config_.node_rank);
    throw UsageError("node " + rank + " is beyond " +
                         (config_.nodes_max == 1 ? "the only one" : "the " + count_of_nodes(config_)) +
                         ", which count from 0",
                     find(find("node-rank") != nullptr ? "node-rank" : "rdzv-conf")->where,
                     "`--nnodes=" + std::to_string(*config_.node_rank + 1) + "` or more, the same on all nodes");
  }

  void say_overridden(std::string_view name) { say_no_effect(find(name)->where + ": --standalone goes before it"); }
  void say_no_effect(const std::string& setting_and_why) { notices_.push_back("without effect: " + setting_and_why); }

  const GivenOptions& given_;
  std::vector<std::string>& notices_;
  RendezvousConfig config_;
  bool is_dynamic_ = false;
  std::optional<Endpoint> endpoint_;
  std::optional<std::string> master_address_;
  std::optional<std::uint16_t> master_port_;
  Conf conf_;
};

}  // namespace

RendezvousConfig rendezvous_of(const GivenOptions& given, std::vector<std::string>& notices) {
  return Reader(given, notices).read();
}

}  // namespace ddp::launcher
