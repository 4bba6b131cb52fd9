#include "worker_runtime/core/bootstrap/rank0_store.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "base/cut.hpp"
#include "base/host_addresses.hpp"
#include "base/host_and_port.hpp"
#include "base/process_wide.hpp"
#include "base/quiet_thread.hpp"
#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "rendezvous/slurm/node_address.hpp"
#include "rendezvous/store/store_thread.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kJobKey = "ddp/job";
constexpr std::chrono::milliseconds kBackoffFirst = 5ms;  // between two rounds over the ports; doubles
constexpr std::chrono::milliseconds kBackoffMax = 500ms;
constexpr std::chrono::milliseconds kPatienceFirst = 250ms;  // with what is at one port; doubles from round to round
constexpr std::chrono::milliseconds kPatienceMax = 8s;
constexpr std::chrono::milliseconds kLeaveLimit = 5s;
constexpr std::chrono::milliseconds kResolverLimit = 15s;  // of one look-up: scontrol is asked after it
constexpr std::chrono::milliseconds kSlurmLimit = 10s;
constexpr std::chrono::milliseconds kAdmitAgainFirst = 1s;  // after that names without an address are looked up again
constexpr std::chrono::milliseconds kAdmitAgainLimit = 10min;
constexpr rlim_t kOtherDescriptors = 32;             // of rank 0, beside one for each rank
constexpr std::size_t kConnectionCountMin = 16'384;  // to the store at once; foreign connections count too

std::string process_key(int rank) { return "ddp/process_" + std::to_string(rank); }

// Whose the store is. The user's number is in it because a store that anybody made may stand at the port.
std::string job_of(const Launch& launch) { return launch.own_store->job + " uid " + std::to_string(::geteuid()); }

// What this process has found, or serves.
struct Present {
  std::mutex mutex;
  std::string process = base::random_key();  // names this process to a store
  std::string job;                           // guarded by mutex, as are the next; of the store below
  std::optional<StoreAddress> address;
  std::vector<std::unique_ptr<store::StoreThread>> own;  // rank 0's; more than one only where the environment changes
};

Present& present() { return base::process_wide<Present>(); }

std::string where_text(const Launch& launch) {
  return "\nwhere: rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.size) + " (" +
         launch.own_store->rank_name + "), job '" + launch.own_store->job + "'";
}

std::string ports_text(const OwnStore& store) {
  const int last = store.first_port + store.port_count - 1;
  return std::to_string(store.first_port) + (store.port_count > 1 ? " to " + std::to_string(last) : "");
}

// --- rank 0 ---

std::vector<std::string> blocks_in(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string without_scope(const std::string& address) { return address.substr(0, address.find('%')); }

// The network in which rank 0's host has this address, as a block; none for an address that is not its own. By the name
// that others know, a host may know itself as loopback (127.0.1.1): which network is meant that does not say, so none.
std::vector<std::string> networks_of(const std::string& address) {
  const auto wanted = base::parse_address(without_scope(address));
  if (!wanted || wanted->is_loopback()) return {};
  std::vector<std::string> blocks;
  for (const auto& own : base::interface_addresses()) {
    if (own.address != *wanted) continue;
    blocks.push_back(own.address.text() + "/" + std::to_string(own.prefix_bits - (own.address.is_v4() ? 96 : 0)));
  }
  return blocks;
}

std::vector<std::string> addresses_of(const std::string& host) {
  return base::addresses_of_host(host, Clock::now() + kResolverLimit, nullptr).addresses;
}

// Lets in the other nodes, one by one as their addresses come. Those who are refused before try again. One name that
// does not resolve in a step of Slurm, and Slurm is asked for all: on such a cluster most don't, and each may take
// long. Returns those without an address.
std::vector<std::string> admit_nodes(store::StoreThread& store, const std::vector<std::string>& nodes, bool is_slurm) {
  std::optional<std::map<std::string, std::string>> of_slurm;
  std::vector<std::string> unknown;
  for (const auto& node : nodes) {
    auto addresses = of_slurm ? std::vector<std::string>() : addresses_of(node);
    if (addresses.empty() && is_slurm) {
      if (!of_slurm) of_slurm = slurm::ask_node_addresses(nodes, kSlurmLimit).of_node;
      const auto at = of_slurm->find(node);
      addresses = addresses_of(at == of_slurm->end() ? node : at->second);
    }
    for (auto& address : addresses) address = without_scope(address);
    if (addresses.empty()) unknown.push_back(node);
    store.allow(addresses);
  }
  return unknown;
}

// Lets in the network in which rank 0 is found: whose hosts the ranks are on, mpirun does not say, and where
// MASTER_ADDR leads over another network than the nodes' names, the others come from there. False where the host has no
// address yet.
bool admit_network(store::StoreThread& store, const std::string& host) {
  const auto addresses = addresses_of(host);
  for (const auto& address : addresses) store.allow(networks_of(address));
  return !addresses.empty();
}

// The process-wide store is never destroyed, so this thread may use it until the process ends. A name may become known
// later, as that of a pod does some time after its start.
void admit_others(store::StoreThread& store, const OwnStore& own) {
  base::start_quiet_thread([&store, own] {
    auto nodes = own.nodes;
    bool is_network_in = std::find(own.nodes.begin(), own.nodes.end(), own.host) != own.nodes.end();
    for (auto pause = kAdmitAgainFirst; pause < kAdmitAgainLimit; pause *= 2) {
      try {
        is_network_in = is_network_in || admit_network(store, own.host);
        nodes = admit_nodes(store, nodes, own.is_slurm);
      } catch (const std::exception&) {  // who is not let in says so at its deadline
      }
      if (is_network_in && nodes.empty()) return;
      std::this_thread::sleep_for(pause);
    }
  }).detach();
}

// The limit is the user's: a program that calls select() counts on it, so it is not raised here.
void require_descriptors(const Launch& launch) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = static_cast<rlim_t>(launch.size) + kOtherDescriptors;
  if (limit.rlim_cur >= needed) return;
  throw Error("rank 0 can't serve the store at which the ranks meet: this process may open " +
              std::to_string(limit.rlim_cur) + " descriptors, and " + std::to_string(launch.size) +
              " ranks connect to it" + where_text(launch) + "\ntry:   `ulimit -n " + std::to_string(2 * needed) +
              "` before the program starts, on rank 0's host");
}

std::unique_ptr<store::StoreThread> serve(const Launch& launch, const std::string& process, const std::string& allow) {
  require_descriptors(launch);
  const OwnStore& own = *launch.own_store;
  store::StoreThreadOptions options;
  options.connection_count_max = std::max(kConnectionCountMin, 2 * static_cast<std::size_t>(launch.size));
  const bool is_one_host = own.host.empty();
  if (is_one_host) options.addresses = {kLoopback};
  options.first_port = own.first_port;
  options.last_port = static_cast<std::uint16_t>(own.first_port + own.port_count - 1);
  options.allow = blocks_in(allow);
  options.allow_option = "DDPRUN_STORE_ALLOW";
  options.entries = {{kJobKey, job_of(launch)}, {process_key(0), process}};
  try {
    auto store = std::make_unique<store::StoreThread>(options);
    if (launch.local_size < launch.size) admit_others(*store, own);
    return store;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        "DDPRUN_STORE_ALLOW is '" + allow + "': " + error.what() +
        "\nwhere: the environment of this process, read by init_process_group()" +
        "\ntry:   DDPRUN_STORE_ALLOW=10.0.0.0/8,fd00::/8 with the networks of the other ranks, or any");
  } catch (const std::exception& error) {
    throw Error(
        "rank 0 can't serve the store at which the ranks meet: " + std::string(error.what()) + where_text(launch) +
        "\ntry:   MASTER_ADDR=rank 0's host and MASTER_PORT=a port that is free there, for "
        "all ranks; `ss -ltnp` shows who has ports " +
        ports_text(own) +
        (own.port_count > 1 ? "" : "; or, where that is a store for all ranks, TORCHELASTIC_USE_AGENT_STORE=True"));
  }
}

// --- the others ---

// Looks for rank 0's store, in rounds over the ports, each with more patience.
class Search {
 public:
  Search(const Launch& launch, const std::string& process, base::Deadline& deadline)
      : launch_(launch), own_(*launch.own_store), process_(process), deadline_(deadline) {
    if (own_.is_here) addresses_ = {kLoopback};
  }

  struct Found {
    store::Client client;
    StoreAddress address;
  };

  Found find() {
    auto patience = kPatienceFirst;
    LongWait wait(launch_.rank, launch_.size, deadline_);
    for (auto backoff = kBackoffFirst; !deadline_.passed(Clock::now()); backoff = std::min(2 * backoff, kBackoffMax)) {
      if (addresses_.empty()) find_host();
      for (const auto& address : addresses_) {
        for (int i = 0; i < own_.port_count; ++i) {
          if (deadline_.passed(Clock::now())) fail();
          const StoreAddress place{address, static_cast<std::uint16_t>(own_.first_port + i)};
          if (auto client = try_at(place, patience)) return {std::move(*client), place};
        }
      }
      if (wait.is_long()) wait.tell("rank 0's store at " + place_text());
      base::sleep_until(std::min(deadline_.end(), Clock::now() + backoff), deadline_.cut());
      patience = std::min(2 * patience, kPatienceMax);
    }
    fail();
  }

  // Where this process found it before: another's may be there by now.
  store::Client find_again(const StoreAddress& place) {
    addresses_ = {place.host};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.end() - Clock::now());
    if (auto client = try_at(place, left)) return std::move(*client);
    if (deadline_.passed(Clock::now())) fail();
    throw RankFailure("rank 0's store, at which this process has made a group before, has ended (" + seen_text() + ")" +
                          where_text(launch_) + "\ntry:   look at the end of the output of rank 0 (" + own_.rank_name +
                          "=0), which must run for as long as ranks make groups",
                      {0});
  }

 private:
  // By its name, else as Slurm's configuration has it. Slurm's controller serves a whole cluster: it is not asked
  // often.
  void find_host() {
    const auto resolver_end = [this] { return std::min(deadline_.end(), Clock::now() + kResolverLimit); };
    auto found = base::addresses_of_host(own_.host, resolver_end(), deadline_.cut());
    const std::string error = "the name " + own_.host + " can't be resolved: " + found.error;
    if (const auto now = Clock::now();
        found.addresses.empty() && own_.is_slurm && now >= slurm_again_ && now < deadline_.end()) {
      slurm_again_ = now + kSlurmLimit;
      const auto limit = std::min<Clock::duration>(kSlurmLimit, deadline_.end() - now);
      slurm_ = slurm::ask_node_address(own_.host, std::chrono::ceil<std::chrono::milliseconds>(limit));
    }
    if (found.addresses.empty() && !slurm_.address.empty())
      found = base::addresses_of_host(slurm_.address, resolver_end(), deadline_.cut());
    host_error_ = error + (slurm_.error.empty() ? "" : "; " + slurm_.error);
    addresses_ = std::move(found.addresses);
  }

  // Empty where there is no store of this job that this process has a part in; says why in errors_.
  std::optional<store::Client> try_at(const StoreAddress& place, std::chrono::milliseconds patience) {
    const auto now = Clock::now();
    const auto until = std::min(deadline_.end(), now + patience);
    auto& error_here = errors_[place.host][place.port];
    try {
      auto client = store::Client::connect(
          {.host = place.host, .port = place.port, .deadline = until, .tries_once = true, .cut = deadline_.cut()});
      if (!client.check({kJobKey}, until)) {
        error_here = "a store that is of no job like this one" + hint();
        return std::nullopt;
      }
      const auto job = client.get(kJobKey, until);
      if (job != job_of(launch_)) {
        error_here = "the store of another job, " + store::key_text(job);
        return std::nullopt;
      }
      if (client.compare_set(process_key(launch_.rank), "", process_, until) != process_) {
        error_here = "this job's store, but of a program that ran before: another process was rank " +
                     std::to_string(launch_.rank) + " there";
        return std::nullopt;
      }
      return client;
    } catch (const StoreError& error) {
      error_here = error.what();
    } catch (const TimeoutError&) {
      error_here = "no answer within " + std::to_string((until - now) / 1ms) + " ms";
    }
    return std::nullopt;
  }

  // Where MASTER_PORT names the one port.
  std::string hint() const {
    return own_.port_count > 1 ? "" : " (if all ranks are to use it: TORCHELASTIC_USE_AGENT_STORE=True)";
  }

  std::string place_text() const {
    const std::string host = own_.host.empty() ? "this host" : own_.host;
    return host + ", port " + ports_text(own_) + " (" + (addresses_.empty() ? host_error_ : seen_text()) + ")";
  }

  [[noreturn]] void fail() const {
    throw TimeoutError("rank 0 did not serve its store within " + std::to_string(deadline_.full_time().count()) +
                           " ms at " + place_text() + where_text(launch_) +
                           "\ntry:   look at the end of the output of rank 0 (" + own_.rank_name +
                           "=0); if it runs, this host must be able to reach those ports, or another that MASTER_ADDR "
                           "and MASTER_PORT name for all ranks",
                       {0});
  }

  // "20336: Connection refused; 20337 to 20343: ..."
  std::string seen_text() const {
    std::string text;
    for (const auto& [address, errors] : errors_) {
      for (auto at = errors.begin(); at != errors.end();) {
        const auto other = std::find_if(at, errors.end(), [&](const auto& each) { return each.second != at->second; });
        const int last = std::prev(other)->first;
        text += (text.empty() ? "" : "; ") + base::host_and_port(address, std::to_string(at->first)) +
                (last == at->first ? "" : " to " + std::to_string(last)) + ": " + at->second;
        at = other;
      }
    }
    return text;
  }

  const Launch& launch_;
  const OwnStore& own_;
  const std::string& process_;
  base::Deadline& deadline_;
  std::vector<std::string> addresses_;
  slurm::NodeAddress slurm_;         // its last answer
  Clock::time_point slurm_again_{};  // when it may be asked
  std::string host_error_;
  std::map<std::string, std::map<int, std::string>> errors_;  // the last of each address and port
};

}  // namespace

std::string refusals_of_own_store() {
  Present& here = present();
  const std::lock_guard lock(here.mutex);
  std::string text;
  for (const auto& store : here.own) {
    for (const auto& refusal : store->refusals()) text += "\nnote:  at some time " + refusal;
  }
  return text;
}

store::Client connect_to_rank0(const Launch& launch, const std::string& allow, base::Deadline& deadline) {
  Present& here = present();
  const std::lock_guard lock(here.mutex);
  if (here.job != launch.own_store->job) here.address.reset();
  if (!here.address && launch.rank == 0) {
    here.own.push_back(serve(launch, here.process, allow));
    here.address = StoreAddress{kLoopback, here.own.back()->port()};
  }
  here.job = launch.own_store->job;
  if (here.address && launch.rank == 0) {
    return store::Client::connect(
        {.host = here.address->host, .port = here.address->port, .deadline = deadline.end(), .cut = deadline.cut()});
  }
  Search search(launch, here.process, deadline);
  if (here.address) return search.find_again(*here.address);
  auto found = search.find();
  here.address = found.address;
  return std::move(found.client);
}

void wait_for_the_others_to_leave() {
  const store::StoreThread* store = nullptr;
  {
    Present& here = present();
    const std::lock_guard lock(here.mutex);
    if (!here.own.empty()) store = here.own.back().get();
  }
  if (store != nullptr) store->wait_until_alone(Clock::now() + kLeaveLimit);
}

void leave_rank0(const Launch& launch, Store& store, const std::string& key_prefix, const base::Deadline& deadline) {
  const std::string all = key_prefix + "all_have_left";
  try {
    if (launch.rank == 0) {
      store.wait({all}, std::min(deadline.end(), Clock::now() + kLeaveLimit));
    } else if (store.add(key_prefix + "have_left", 1, deadline.end()) == launch.size - 1) {
      store.set(all, "", deadline.end());
    }
  } catch (const TimeoutError&) {  // a rank that has not come by now will not come
  } catch (const StoreError&) {    // rank 0 has ended: the group stands, and notices that by itself
  }
}

}  // namespace ddp::core
