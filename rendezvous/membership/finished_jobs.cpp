#include "rendezvous/membership/finished_jobs.hpp"

#include <algorithm>

namespace ddp::rendezvous {

void FinishedJobs::note(const std::string& run_id, const JobBefore& job, const std::optional<FinishJob>& verdict,
                        bool has_successor, TimePoint now) {
  forget_the_old(now);
  const auto* known = find(run_id);
  if (job.last_round == RoundId{} || (known != nullptr && !(known->job.last_round < job.last_round))) return;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.run_id == run_id; });
  if (entries_.size() >= kCountMax) entries_.pop_front();
  entries_.push_back({run_id, job, verdict, has_successor, now + kKept});
  if (auto& kept = entries_.back().verdict)
    kept->report.reset();  // as long as all the rest, and nobody asks for it again
}

JobBefore FinishedJobs::known_of(const std::string& run_id, TimePoint now) const {
  const auto* entry = find(run_id);
  if (entry == nullptr) return {};
  JobBefore out{entry->job.last_round};
  if (entry->verdict) return out;
  out.restart_count = entry->job.restart_count;
  out.spent_restarts = entry->job.spent_restarts;
  if (out.spent_restarts) age(*out.spent_restarts, now - (entry->until - kKept));
  return out;
}

void FinishedJobs::has_begun_again(const std::string& run_id) {
  for (auto& entry : entries_) entry.has_successor = entry.has_successor || entry.run_id == run_id;
}

const FinishJob* FinishedJobs::verdict_for(const Hello& hello, TimePoint now) {
  forget_the_old(now);
  const auto* entry = find(hello.run_id);
  if (entry == nullptr || !entry->verdict) return nullptr;
  const bool was_of_it =
      hello.held ? !(entry->job.last_round < hello.held->round) : hello.was_welcomed && !entry->has_successor;
  return was_of_it ? &*entry->verdict : nullptr;
}

const FinishedJobs::Entry* FinishedJobs::find(const std::string& run_id) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.run_id == run_id; });
  return found != entries_.end() ? &*found : nullptr;
}

void FinishedJobs::forget_the_old(TimePoint now) {
  while (!entries_.empty() && now >= entries_.front().until) entries_.pop_front();
}

}  // namespace ddp::rendezvous
