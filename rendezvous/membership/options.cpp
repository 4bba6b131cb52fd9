#include "rendezvous/membership/options.hpp"

#include <utility>

namespace ddp::rendezvous {
namespace {

// Terms are seconds (rendezvous/round/term.hpp). Other clocks may be ahead by as much. A round of a later term would
// make all that follow such that a daemon that begins anew would not believe the nodes that have them.
constexpr std::uint64_t kTermAheadMax = 366 * 24 * 3600;

template <class Settings>
JobSettings settings_in(const Settings& its, std::optional<std::chrono::milliseconds> heartbeat_timeout) {
  return {its.nodes_min,    its.nodes_max,         its.restarts_max, its.restart_window,
          its.join_timeout, its.last_call_timeout, heartbeat_timeout};
}

}  // namespace

JobSettings settings_of(const Hello& hello) { return settings_in(hello, hello.heartbeat_timeout); }
JobSettings settings_of(const MembershipOptions& options) {
  return settings_in(options, options.nodes_heartbeat_timeout);
}

std::optional<JobSetting> first_difference(const JobSettings& a, const JobSettings& b) {
  if (a.nodes_min != b.nodes_min || a.nodes_max != b.nodes_max) return JobSetting::nodes;
  if (a.restarts_max != b.restarts_max) return JobSetting::restarts_max;
  if (a.restart_window != b.restart_window) return JobSetting::restart_window;
  if (a.join_timeout != b.join_timeout) return JobSetting::join_timeout;
  if (a.last_call_timeout != b.last_call_timeout) return JobSetting::last_call_timeout;
  const bool is_heartbeat_known = a.heartbeat_timeout && b.heartbeat_timeout;
  if (is_heartbeat_known && a.heartbeat_timeout != b.heartbeat_timeout) return JobSetting::heartbeat_timeout;
  return {};
}

void take_settings(MembershipOptions& options, const Hello& hello) {
  options.nodes_min = hello.nodes_min;
  options.nodes_max = hello.nodes_max;
  options.restarts_max = hello.restarts_max;
  options.restart_window = hello.restart_window;
  options.join_timeout = hello.join_timeout;
  options.last_call_timeout = hello.last_call_timeout;
  options.nodes_heartbeat_timeout = hello.heartbeat_timeout;
}

MembershipOptions options_of(const Hello& hello, RoundId term, const JobBefore& before) {
  MembershipOptions options;
  options.run_id = hello.run_id;
  options.slurm_run = hello.slurm_run;
  take_settings(options, hello);
  options.term = term;
  options.before = before;
  const auto& last = before.last_round;
  if (last.term >= term.term && last != RoundId{}) options.term.term = last.term + 1;
  return options;
}

MembershipOptions daemon_options(const Hello& hello, RoundId term, std::chrono::milliseconds heartbeat_timeout,
                                 const JobBefore& before) {
  auto options = options_of(hello, term, before);
  options.term_max = term.term + kTermAheadMax;
  options.greater_part_only = false;
  options.heartbeat_timeout = heartbeat_timeout;
  return options;
}

MembershipOptions agent_options(const Hello& hello, RoundId term, AgentHosting hosting) {
  auto options = options_of(hello, term);
  options.heartbeat_timeout = hosting.heartbeat_timeout;
  options.has_token = hosting.has_token;
  options.holds_endpoint = !hosting.is_next;
  if (options.holds_endpoint) options.endpoint_address = std::move(hosting.endpoint_address);
  options.lost = std::move(hosting.lost);
  return options;
}

}  // namespace ddp::rendezvous
