#include "rendezvous/membership/admission.hpp"

#include <algorithm>

#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

constexpr std::uint32_t kRoundNumberMax = 0xf0000000;

// The node that has a round may come again with it; meanwhile its workers go on.
Refused keeping_its_round(Refused refused) {
  refused.is_round_unknown = true;
  return refused;
}

Refused by_another_job(Refused refused) {
  refused.is_other_job = true;
  return refused;
}

}  // namespace

std::optional<Refused> Admission::other_job(const Hello& hello) const {
  const bool is_of_other_step =
      !hello.slurm_run.empty() && !options.slurm_run.empty() && hello.slurm_run != options.slurm_run;
  if (hello.run_id == options.run_id && is_of_other_step)
    return by_another_job(other_step_refusal(options.run_id, options.slurm_run, hello.slurm_run));
  if (hello.run_id == options.run_id) return {};
  // The id is not told: without a token it is all that a stranger needs to join.
  return by_another_job(other_job_refusal(hello.run_id));
}

std::optional<Refused> Admission::objection(const Hello& hello) const {
  if (auto other = other_job(hello)) return other;
  const bool may_settings_follow = claims_round(hello) && follows_claims();
  const auto its = settings_of(hello), ours = settings_of(options);
  const auto difference = may_settings_follow ? std::nullopt : first_difference(its, ours);
  if (difference) {
    auto refused = other_setting_refusal(*difference, its, ours);
    return hello.held ? keeping_its_round(std::move(refused)) : refused;
  }
  if (hello.node_rank) {
    if (*hello.node_rank >= (may_settings_follow ? hello.nodes_max : options.nodes_max))
      return rank_too_high_refusal(*hello.node_rank, options.nodes_max);
    // Once a round has begun the newcomer is more likely the replacement of a node whose end is not known yet: it
    // waits.
    const bool may_be_taken = !has_begun && !claims_round(hello) && nodes.may_be_wished(*hello.node_rank);
    for (auto entry = nodes.begin(); may_be_taken && entry != nodes.end(); ++entry)
      if (const auto& [id, node] = *entry; node.hello.node_rank == hello.node_rank && !nodes.is_absent(id))
        return rank_taken_refusal(*hello.node_rank, node.hello.host_name);
  }
  if (claims_round(hello) && !is_possible(hello)) return keeping_its_round(impossible_round_refusal(*hello.held));
  return {};
}

bool Admission::is_possible(const Hello& hello) const {
  const auto& held = *hello.held;
  return held.group_world_size <= (follows_claims() ? hello.nodes_max : options.nodes_max) &&
         held.group_world_size >= (follows_claims() ? hello.nodes_min : options.nodes_min) &&
         held.round.term <= options.term_max && held.round.number <= kRoundNumberMax;
}

int Admission::nodes_max_for(const Hello& hello) const {
  return claims_round(hello) && follows_claims() ? std::max(hello.nodes_max, options.nodes_max) : options.nodes_max;
}

Refused refusal_of_round(const std::string& host_name, const Held& held) {
  return keeping_its_round(unknown_round_refusal(host_name, held));
}

}  // namespace ddp::rendezvous
