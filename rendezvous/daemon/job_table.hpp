// Which job of a daemon a node belongs to, and which jobs are over.
//
// A job is found by its name, unless a node is of one already. Where a job of that name is ending, the node begins the
// next one of that name at once; but a node that still has a round of the ending one belongs to that, and where it is
// over is told how it ended.
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
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ddp/error.hpp"
#include "rendezvous/control/operator_view.hpp"
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
  using Direction = std::variant<std::reference_wrapper<Server>, FinishJob>;

  explicit JobTable(Handlers handlers) : handlers_(std::move(handlers)) {}

  // Begins the job where nobody has come for it yet. Throws Error where there are too many.
  Direction direct(const Hello& hello, TimePoint now) {
    forget_what_is_over(now);
    if (const auto* verdict = finished_.verdict_for(hello, now)) return *verdict;
    if (auto* job = job_with(hello.node_key)) return std::ref(*job);
    if (auto* job = ending_job_of(hello)) return std::ref(*job);
    auto found = jobs_.find(hello.run_id);
    JobBefore before;
    if (found != jobs_.end() && found->second->membership().is_ending()) {
      before.last_round = found->second->membership().last_round();
      ending_.emplace_back(hello.run_id, std::move(found->second));  // its nodes are still ending
      jobs_.erase(found);
      found = jobs_.end();
    }
    if (found == jobs_.end()) {
      if (jobs_.size() + ending_.size() >= kJobsMax)
        throw Error("there are " + std::to_string(kJobsMax) + " jobs already");
      if (const auto known = finished_.known_of(hello.run_id); before.last_round < known.last_round) before = known;
      found = jobs_.emplace(hello.run_id, handlers_.begin(hello, before)).first;
      finished_.has_begun_again(hello.run_id);
    }
    return std::ref(*found->second);
  }

  bool take_farewell(const std::string& node_key) {
    auto* job = job_with(node_key);
    return job != nullptr && job->take_farewell(node_key);
  }

  JobViews views(TimePoint now) {
    forget_what_is_over(now);
    JobViews out;
    for (const auto& [run_id, job] : jobs_) out.emplace(run_id, job->membership().view());
    return out;
  }

  // Null where there is none of that name, or none but those that are over or give way to the next one.
  const Server* find(const std::string& run_id) const {
    const auto found = jobs_.find(run_id);
    return found != jobs_.end() ? found->second.get() : nullptr;
  }

 private:
  using Job = std::pair<std::string, std::unique_ptr<Server>>;  // by run id

  // Of which the node with this key is one already.
  Server* job_with(const std::string& node_key) const {
    for (const auto& [run_id, job] : jobs_)
      if (job->membership().knows(node_key)) return job.get();
    for (const auto& [run_id, job] : ending_)
      if (job->membership().knows(node_key)) return job.get();
    return nullptr;
  }

  // Of which the node has a round, though it was given up.
  Server* ending_job_of(const Hello& hello) const {
    const auto has_round_of = [&](const Server& job) {
      return hello.held && job.membership().is_ending() && !(job.membership().last_round() < hello.held->round);
    };
    if (const auto found = jobs_.find(hello.run_id); found != jobs_.end() && has_round_of(*found->second))
      return found->second.get();
    for (const auto& [run_id, job] : ending_)
      if (run_id == hello.run_id && has_round_of(*job)) return job.get();
    return nullptr;
  }

  void forget_what_is_over(TimePoint now) {
    forget_what_is_over(ending_, true, now);
    forget_what_is_over(jobs_, false, now);
  }

  template <typename All>
  void forget_what_is_over(All& jobs, bool have_successors, TimePoint now) {
    for (auto job = jobs.begin(); job != jobs.end();)
      job = is_to_be_forgotten(job->first, job->second, have_successors, now) ? jobs.erase(job) : std::next(job);
  }

  bool is_to_be_forgotten(const std::string& run_id, std::unique_ptr<Server>& job, bool has_successor, TimePoint now) {
    const auto& membership = job->membership();
    if (membership.verdict() || job->is_over())
      finished_.note(run_id, {membership.last_round(), membership.restart_count()}, membership.verdict(), has_successor,
                     now);
    if (!job->is_over()) return false;
    if (handlers_.forget) handlers_.forget(std::move(job));
    return true;
  }

  Handlers handlers_;
  std::map<std::string, std::unique_ptr<Server>> jobs_;
  std::vector<Job> ending_;
  FinishedJobs finished_;
};

}  // namespace ddp::rendezvous
