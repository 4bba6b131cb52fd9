// Which job of a daemon a node belongs to, and which jobs are over.
//
// A job is found by its name, unless a node is of one already. Where a job of that name is ending, the node begins the
// next one of that name at once; but a node that still has a round of the ending one belongs to that, and where it is
// over is told how it ended.
//
// There is a limit on jobs, and one on those that were begun from one address (in IPv6: one /64): a quarter of it. A
// job that has begun no round is forgotten as soon as nobody is connected, unless one of its nodes comes again first.
//
// Server: runs the membership of one job (rendezvous/control/membership_server.hpp; the simulation has its own).
//
// Threads: one caller at a time (the event loop's thread).
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/address.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/host/host_words.hpp"
#include "rendezvous/membership/finished_jobs.hpp"

namespace ddp::rendezvous {

constexpr std::size_t kJobsMax = 10'000;

template <typename Server>
class JobTable {
 public:
  struct Handlers {
    // A job that begins with this node; what is known of the one of that name before it.
    std::function<std::unique_ptr<Server>(const Hello& hello, const JobBefore& before)> begin;
    std::function<void(std::unique_ptr<Server> job)> forget{};  // one that is over; empty: it is destroyed
  };
  using Direction = std::variant<std::monostate, std::reference_wrapper<Server>, FinishJob, Refused>;

  // Requires jobs_max >= 4.
  explicit JobTable(Handlers handlers, std::size_t jobs_max = kJobsMax)
      : handlers_(std::move(handlers)), jobs_max_(jobs_max) {}

  // Begins the job if nobody has come for it yet. `source`: the address that the node came from. monostate: its job is
  // served by one of its agents, at another port.
  Direction direct(const Hello& hello, const base::Address& source, TimePoint now) {
    if (hello.is_served_by_agent) return std::monostate();
    forget_what_is_over(now, hello.node_key);
    if (const auto* verdict = finished_.verdict_for(hello, now)) return *verdict;
    if (auto* job = job_with(hello.node_key)) return std::ref(*job);
    if (auto* job = ending_job_of(hello)) return std::ref(*job);
    auto found = jobs_.find(hello.run_id);
    JobBefore before;
    if (found != jobs_.end() && found->second.server->membership().is_ending()) {
      before.last_round = found->second.server->membership().last_begun();
      ending_.emplace_back(hello.run_id, std::move(found->second));  // its nodes are still ending
      jobs_.erase(found);
      found = jobs_.end();
    }
    if (found == jobs_.end()) {
      const auto network = base::network_of(source);
      if (const auto refused = objection(network, hello.held.has_value())) return *refused;
      if (const auto known = finished_.known_of(hello.run_id, now); before.last_round < known.last_round)
        before = known;
      found = jobs_.emplace(hello.run_id, Job{handlers_.begin(hello, before), network}).first;
      finished_.has_begun_again(hello.run_id);
    }
    return std::ref(*found->second.server);
  }

  bool take_farewell(const NodeEnded& node) {
    auto* job = job_with(node.node_key);
    return job != nullptr && job->take_farewell(node);
  }

  JobViews views(TimePoint now) {
    forget_what_is_over(now, {});
    JobViews out;
    for (const auto& [run_id, job] : jobs_) out.emplace(run_id, job.server->membership().view());
    return out;
  }

  // Null where there is none of that name, or none but those that are over or give way to the next one.
  const Server* find(const std::string& run_id) const {
    const auto found = jobs_.find(run_id);
    return found != jobs_.end() ? found->second.server.get() : nullptr;
  }

 private:
  struct Job {
    std::unique_ptr<Server> server;
    base::Address begun_from;  // a network
  };

  // A node with a round may come again, and keeps its round: other jobs have the places of its job.
  std::optional<Refused> objection(const base::Address& network, bool has_round) const {
    if (jobs_.size() + ending_.size() >= jobs_max_)
      return Refused{too_many_jobs_text(jobs_max_), kTooManyJobsAdvice, has_round, has_round};
    const auto is_of_it = [&network](const auto& entry) { return entry.second.begun_from == network; };
    const auto count = static_cast<std::size_t>(std::count_if(jobs_.begin(), jobs_.end(), is_of_it) +
                                                std::count_if(ending_.begin(), ending_.end(), is_of_it));
    if (count < jobs_max_ / 4) return {};
    return Refused{too_many_jobs_of_address_text(count), kTooManyJobsAdvice, has_round, has_round};
  }

  // Of which the node with this key is one already.
  Server* job_with(const std::string& node_key) const {
    for (const auto& [run_id, job] : jobs_)
      if (job.server->membership().knows(node_key)) return job.server.get();
    for (const auto& [run_id, job] : ending_)
      if (job.server->membership().knows(node_key)) return job.server.get();
    return nullptr;
  }

  // Of which the node has a round, though it was given up.
  Server* ending_job_of(const Hello& hello) const {
    const auto has_round_of = [&](const Server& job) {
      return hello.held && job.membership().is_ending() && !(job.membership().last_round() < hello.held->round);
    };
    if (const auto found = jobs_.find(hello.run_id); found != jobs_.end() && has_round_of(*found->second.server))
      return found->second.server.get();
    for (const auto& [run_id, job] : ending_)
      if (run_id == hello.run_id && has_round_of(*job.server)) return job.server.get();
    return nullptr;
  }

  // But for a job without a round of which this node is.
  void forget_what_is_over(TimePoint now, const std::string& node_key) {
    forget_what_is_over(ending_, true, now, node_key);
    forget_what_is_over(jobs_, false, now, node_key);
  }

  template <typename All>
  void forget_what_is_over(All& jobs, bool have_successors, TimePoint now, const std::string& node_key) {
    for (auto job = jobs.begin(); job != jobs.end();) {
      const bool is_over = is_to_be_forgotten(job->first, job->second, have_successors, now, node_key);
      job = is_over ? jobs.erase(job) : std::next(job);
    }
  }

  bool is_to_be_forgotten(const std::string& run_id, Job& job, bool has_successor, TimePoint now,
                          const std::string& node_key) {
    const auto& membership = job.server->membership();
    if (membership.verdict() || job.server->is_over())
      finished_.note(run_id, {membership.last_begun(), membership.restart_count(), membership.spent_restarts(now)},
                     membership.verdict(), has_successor, now);
    const bool is_awaited = !membership.has_begun() && !membership.is_ending() && membership.knows(node_key);
    if (!job.server->is_over() || is_awaited) return false;
    if (handlers_.forget) handlers_.forget(std::move(job.server));
    return true;
  }

  Handlers handlers_;
  const std::size_t jobs_max_;
  std::map<std::string, Job> jobs_;  // by run id
  std::vector<std::pair<std::string, Job>> ending_;
  FinishedJobs finished_;
};

}  // namespace ddp::rendezvous
