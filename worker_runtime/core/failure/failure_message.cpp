#include "worker_runtime/core/failure/failure_message.hpp"

#include <algorithm>

#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

using process_group::list_ranks;

constexpr std::size_t kRanksShown = 16;  // a message describes no more ranks than a person reads

std::string name_of(const RankReport& rank) {
  const std::string name = "rank " + std::to_string(rank.rank);
  return rank.pid == 0 ? name : name + " (pid " + std::to_string(rank.pid) + ")";
}

std::string and_more(std::size_t count) {
  return count > kRanksShown ? "; and " + std::to_string(count - kRanksShown) + " more" : "";
}

// "all_reduce of 100 float32 (sum), call 7, 400 bytes"
std::string call_of(const Failure& failure) {
  if (failure.operation.empty()) return "the group";
  std::string text = failure.operation;
  if (failure.number > 0) text += (failure.is_pair() ? ", message " : ", call ") + std::to_string(failure.number);
  if (failure.bytes > 0) text += ", " + std::to_string(failure.bytes) + " bytes";
  return text;
}

std::string finder_of(const FailedGroup& group, const Failure& failure) {
  return failure.rank == group.who.rank ? "this rank" : "rank " + std::to_string(failure.rank);
}

// Whether the ranks have the same numbers here and in the job.
bool has_numbers_of_job(const std::vector<int>& job_ranks) {
  for (std::size_t i = 0; i < job_ranks.size(); ++i) {
    if (job_ranks[i] != static_cast<int>(i)) return false;
  }
  return true;
}

// " in group_0/1, which is ranks 2 and 5 of the job"
std::string name_of(const FailedGroup& group) {
  if (group.who.name.empty()) return "";
  std::string text = " in " + group.who.name;
  if (has_numbers_of_job(group.job_ranks)) return text;
  return text + ", which is " + list_ranks(group.job_ranks) + " of the job";
}

std::string where(const FailedGroup& group) {
  std::string text = "\nwhere: rank " + std::to_string(group.who.rank) + " of " + std::to_string(group.who.size) +
                     name_of(group) + ", pid " + std::to_string(group.pid) + ", round " + to_string(group.who.round);
  for (const std::string& part : {group.device, group.library}) {
    if (!part.empty()) text += ", " + part;
  }
  return text;
}

// Where calls run on a device, how far the ranks came. Those that lag come first: they are what is looked for.
std::string how_far(const std::vector<RankReport>& reports) {
  const auto has_progress = [](const RankReport& rank) { return rank.progress.has_value(); };
  if (std::none_of(reports.begin(), reports.end(), has_progress)) return "";
  std::vector<const RankReport*> order;
  for (const RankReport& report : reports) order.push_back(&report);
  const auto lag = [](const RankReport& rank) { return rank.progress ? rank.progress->called + 1 : 0; };
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return lag(*a) < lag(*b); });
  std::string text;
  for (std::size_t i = 0; i < std::min(order.size(), kRanksShown); ++i) {
    text += (i == 0 ? "\nranks: " : "; ") + describe(order[i]->rank, order[i]->progress);
  }
  return text + and_more(order.size());
}

std::string fate_of(const RankReport& rank) {
  const std::string name = name_of(rank) + " ";
  switch (rank.presence) {
    case Presence::here: return name + "ended";
    case Presence::left: return name + "has left the group";
    case Presence::aborted: return name + "aborted the group";
    case Presence::gave_up: return name + "gave up on the group after a failure of its own";
    case Presence::unreachable: return name + "ended, or can't be reached any more";
    case Presence::protocol_error: return name + "sent what no rank of this group sends";
  }
  return name;
}

// What a rank did last, for a collective that it has not come to, or for a send or receive. Empty: unknown.
std::string last_call_of(const RankReport& rank, bool is_pair) {
  const std::string call = rank.call + ", call " + std::to_string(rank.number);
  switch (rank.answer) {
    case Answer::not_asked: return "";
    case Answer::silent: return name_of(rank) + " did not answer";
    case Answer::told: break;
  }
  if (rank.number == 0) return name_of(rank) + (is_pair ? " has called no collective yet" : " has called nothing yet");
  if (rank.is_in_call) return name_of(rank) + " did not finish " + call;
  return name_of(rank) + (is_pair ? "'s last collective is " : " last called ") + call;
}

std::string last_calls_of(const std::vector<RankReport>& ranks, bool is_pair) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kRanksShown); ++i) {
    const std::string call = last_call_of(ranks[i], is_pair);
    if (!call.empty()) text += "; " + call;
  }
  return text + and_more(ranks.size());
}

std::string look_at_output_of(const std::vector<int>& ranks) {
  return "\ntry:   look at the end of the output of " + (ranks.empty() ? "every rank" : list_ranks(ranks));
}

constexpr const char* kMemoryAdvice = "; `dmesg | grep -i oom` tells whether memory ran out";

// What the ranks did not come to: the call, or the first of several sends and receives.
std::string awaited_call(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& awaited) {
  if (!failure.is_pair()) return call_of(failure);
  const bool has_begun =
      std::all_of(awaited.begin(), awaited.end(), [](const RankReport& rank) { return rank.part == Part::begun; });
  const std::string end = has_begun ? "the end of " : "";
  if (awaited.size() == 1) return end + call_of(failure);
  return end + "what " + finder_of(group, failure) + " has called with them, beginning with " + call_of(failure);
}

std::string timeout_advice(const Failure& failure, const std::vector<RankReport>& awaited) {
  const std::string look = awaited.size() == 1
                               ? "\ntry:   see what this rank is doing (a debugger shows where it is); "
                               : "\ntry:   see what these ranks are doing (a debugger shows where they are); ";
  if (failure.is_pair()) {
    return look +
           "two ranks that send to each other, each before it receives, wait in vain, unless both calls are in one "
           "coalesce()";
  }
  return look + (awaited.size() == 1 ? "give a longer timeout if it is only slow"
                                     : "give a longer timeout if they are only slow");
}

}  // namespace

std::string timeout_message(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& awaited,
                            const std::vector<RankReport>& reports) {
  const std::string limit = std::to_string(failure.limit.count()) + " ms";
  std::string text;
  if (awaited.empty()) {
    text = call_of(failure) + " did not complete within " + limit;
    if (!reports.empty()) text += ", though every rank has called it";
  } else {
    text = list_ranks(ranks_of(awaited)) + " did not come to " + awaited_call(group, failure, awaited) + ", within " +
           limit + last_calls_of(awaited, failure.is_pair());
  }
  return text + where(group) + how_far(reports) + timeout_advice(failure, awaited);
}

std::string gave_up_message(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& reports) {
  return "rank " + std::to_string(failure.rank) + " gave up on the group: it waited " +
         std::to_string(failure.limit.count()) + " ms for this rank in " + call_of(failure) + where(group) +
         how_far(reports) + "\ntry:   see what this rank did meanwhile; give a longer timeout if it is only slow";
}

std::string lost_message(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& lost) {
  std::string text;
  for (const RankReport& rank : lost) text += (text.empty() ? "" : ", ") + fate_of(rank);
  if (failure.cause == Cause::aborted) text += ": " + failure.what;
  if (!failure.operation.empty()) {
    text += std::string("; this rank needed ") + (lost.size() == 1 ? "it" : "them") + " in " + call_of(failure);
  }
  const bool may_have_been_killed = std::any_of(lost.begin(), lost.end(), [](const RankReport& rank) {
    return rank.presence == Presence::here || rank.presence == Presence::unreachable;
  });
  return text + where(group) + look_at_output_of(ranks_of(lost)) + (may_have_been_killed ? kMemoryAdvice : "");
}

std::string error_message(const FailedGroup& group, const Failure& failure, const std::vector<int>& silent,
                          const std::vector<RankReport>& reports) {
  const std::string did_not_answer = silent.empty() ? "" : list_ranks(silent) + " did not answer: ";
  const bool is_own = failure.rank == group.who.rank;
  const std::vector<int> to_look_at = silent.empty() && !is_own ? std::vector<int>{failure.rank} : silent;
  std::string text = did_not_answer + finder_of(group, failure) + " found in " + call_of(failure) + ": " +
                     failure.what + where(group) + how_far(reports) + look_at_output_of(to_look_at);
  if (!silent.empty()) text += kMemoryAdvice;
  return group.log_advice.empty() ? text : text + "; " + group.log_advice;
}

std::string mismatch_message(const FailedGroup& group, const Failure& failure, const std::string& difference,
                             const std::vector<RankReport>& reports) {
  std::string text = difference;
  if (failure.number > 0) {
    text += (failure.is_pair() ? " (message " : " (call ") + std::to_string(failure.number) + ")";
  }
  return text + where(group) + how_far(reports) +
         (failure.is_pair()
              ? "\ntry:   let the sender and the receiver name the same type and count"
              : "\ntry:   let every rank call the same collectives in the same order, with the same type and count");
}

std::string no_memory_message(const FailedGroup& group, const MemoryRefusal& refusal) {
  return "rank " + std::to_string(refusal.rank) + " can't have " + std::to_string(refusal.bytes) + " bytes of " +
         refusal.memory + ": " + refusal.why + where(group) + "\ntry:   " + refusal.advice;
}

}  // namespace ddp::core
