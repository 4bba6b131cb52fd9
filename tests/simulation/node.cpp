#include "tests/simulation/node.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "launcher/node/event_order.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using namespace rendezvous;
using launcher::MeetingCore;
using launcher::NodeCore;
using launcher::WorkerGroupEvent;

namespace {

constexpr Duration kAtOnce = 100us;
constexpr Duration kLinkTrialTakes = 10ms;
constexpr Duration kFarewellLimit = 1s, kCallLimit = 1s;
constexpr Duration kKilledAtOnce = 100ms;  // GuardianLink waits as long for what the guardian has left
constexpr Duration kFileTimeMax = 3s;

std::string key_of(int number) {
  char key[33];
  std::snprintf(key, sizeof key, "%032x", static_cast<unsigned>(number));
  return key;
}

std::uint64_t unix_seconds(const World& world) {
  return 1'700'000'000 + static_cast<std::uint64_t>(world.clock.since_start() / std::chrono::seconds(1));
}

// The newest first.
std::vector<EndedNode> ended_nodes_on(const World& world, int host) {
  std::vector<EndedNode> out;
  if (!world.job.are_ends_proven) return out;
  for (auto node = world.nodes().rbegin(); node != world.nodes().rend(); ++node)
    if (const auto& left = (*node)->left_record(); left && (*node)->host() == host && out.size() < kEndedNodesMax)
      out.push_back(*left);
  return out;
}

Hello hello_of(const World& world, int number, int host, int workers) {
  const auto& job = world.job;
  Hello hello;
  hello.versions = job.node_versions;
  hello.started = unix_seconds(world);
  hello.run_id = kRunId;
  hello.node_key = key_of(number);
  hello.host_name = "h" + std::to_string(host);
  hello.nodes_min = job.nodes_min;
  hello.nodes_max = job.nodes_max;
  hello.workers = workers;
  hello.standby_port = static_cast<std::uint16_t>(kStandbyPort + number);
  hello.restarts_max = job.restarts_max;
  hello.restart_window = job.restart_window;
  hello.join_timeout = job.join_timeout;
  hello.last_call_timeout = job.last_call_timeout;
  hello.heartbeat_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(job.network.heartbeat_timeout);
  hello.grace = job.grace;
  hello.ended_nodes = ended_nodes_on(world, host);
  return hello;
}

Hello hello_in_place_of(const World& world, Hello hello, int number, int host, int workers) {
  hello.started = unix_seconds(world);
  hello.node_key = key_of(number);
  hello.workers = workers;
  hello.ended_nodes = ended_nodes_on(world, host);
  return hello;
}

Session::Options session_options(const Job& job) {
  Session::Options options;
  options.join_timeout = job.join_timeout;
  options.heartbeat_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(job.network.heartbeat_timeout);
  options.orphan_limit = job.orphan_limit;
  options.endpoint_ports = static_cast<int>(job.ports.size());
  return options;
}

MeetingCore::Options meeting_options(const World& world, bool serves, int host, const Hello& hello) {
  const auto& look_ups = world.job.look_ups;
  MeetingCore::Options options;
  options.run_id = kRunId;
  options.endpoint_host = world.endpoint_name();
  options.host_name = hello.host_name;
  options.may_have_daemon = look_ups.may_have_daemon;
  options.may_be_slurm_node = look_ups.kind == LookUps::Kind::slurm;
  if (options.may_be_slurm_node) options.own = {world.address_of(host)};
  if (look_ups.kind == LookUps::Kind::none || options.may_be_slurm_node) options.serves = serves;
  options.is_node_rank_0 = serves && look_ups.kind == LookUps::Kind::by_node_rank;
  return options;
}

}  // namespace

Node::Node(World& world, int number, int host, int workers, bool serves, const Node* in_place_of)
    : world_(world),
      process_{"n" + std::to_string(number) + "@h" + std::to_string(host), host},
      guardian_{process_.name + "'s guardian", host},
      tree_{process_.name + "'s workers", host},
      hello_(in_place_of != nullptr ? hello_in_place_of(world, in_place_of->hello_, number, host, workers)
                                    : hello_of(world, number, host, workers)),
      clock_ahead_(number * 37 % 11 * 1h),
      serves_first_(serves),
      term_(world.begin_term()),
      session_(session_options(world.job), hello_, now()),
      meeting_(meeting_options(world, serves, host, hello_)),
      core_({workers, world.job.nodes_max, world.job.grace, world.job.signal_window, world.job.restart_window,
             hello_.host_name, world.job.leaves_when_stopped, world.job.time_limit,
             world.job.time_limit > 0ms ? std::optional(now() + world.job.time_limit) : std::nullopt}),
      workers_(
          world, tree_, guardian_, process_, workers,
          [this](const std::vector<WorkerGroupEvent>& events) {
            note_killed(events);
            decide(events);
          },
          [this](int local_rank, const worker_link::FromWorker& message) {
            decide(NodeCore::WorkerSaid{local_rank, message});
          }),
      session_timer_(world.clock, process_),
      core_timer_(world.clock, process_),
      meeting_timer_(world.clock, process_) {}

void Node::start() {
  world_.trace(name(), " starts, ", workers_.count(), " workers", serves_first_ ? ", serves the endpoint" : "");
  if (world_.job.nodes_max > 1)
    world_.network->listen(process_, hello_.standby_port, [this](Channel& channel) { visit(channel); });
  const auto known_after_max = world_.job.look_ups.known_after_max;
  if (known_after_max > Duration(0) && world_.look_up_dice.chance(50))
    name_known_at_ = world_.clock.now() + world_.look_up_dice.between(Duration(0), known_after_max);
  meet(MeetingCore::Begin{});
  perform(NodeCore::Actions{});  // sets the timer, if there is a time limit
}

// --- ends ---

void Node::kill() {
  killed_by_ = world_.deadly_signal();
  world_.trace(name(), " is killed by signal ", killed_by_);
  end_process();
}

void Node::kill_guardian() {
  const int signal_number = world_.deadly_signal();
  world_.trace(guardian_.name, " is killed by signal ", signal_number);
  guardian_.is_alive = false;
  workers_.abandon();
  world_.clock.after(kKilledAtOnce, &process_, [this, signal_number] {
    decide(NodeCore::GuardianEnded{{launcher::Ending::Kind::killed, signal_number, false},
                                   1,
                                   workers_.is_any_left() || workers_.is_any_waiting()});
  });
}

void Node::kill_both() {
  world_.trace(name(), " and its guardian are killed");
  guardian_.is_alive = false;
  workers_.abandon();
  left_record_ = record_;
  end_process();
}

void Node::crash(bool is_told) {
  if (is_told) return kill_both();
  left_record_ = record_;
  world_.lose_host(host());
  world_.network->bring_back(host());
}

void Node::lose() {
  world_.trace(name(), " is gone with its host");
  process_.is_alive = guardian_.is_alive = tree_.is_alive = false;
  world_.node_ended(*this);
}

void Node::stop(int signal_number) {
  world_.trace(name(), " is told to stop by signal ", signal_number);
  is_told_to_stop_ = true;
  may_leave_ = may_leave_ || signal_number == SIGTERM;
  world_.blame.end();
  decide(NodeCore::StopSignalled{signal_number});
}

void Node::warn(int signal_number) {
  world_.trace(name(), " is warned");
  may_leave_ = true;
  world_.blame.end();
  decide(NodeCore::WarningSignalled{signal_number});
}

bool Node::close_in_order(double jitter) {
  if (channel_ == nullptr || !session_.is_joined()) return false;
  world_.trace(name(), " closes its connection and comes again");
  let_go_of_channel().close();
  session_step(Session::Ended{Session::How::closed, jitter});
  return true;
}

void Node::perform(const NodeCore::Finish& action) {
  exit_code_ = rendezvous::exit_code_of(action.outcome);
  world_.trace(name(), " finishes with ", *exit_code_);
  meeting_.finish();
  meeting_timer_.cancel();
  ++look_ups_;
  session_timer_.cancel();
  core_timer_.cancel();
  const auto end = [this] { world_.clock.after(kAtOnce, &process_, [this] { end_process(); }); };
  if (channel_ != nullptr) std::exchange(channel_, nullptr)->close();
  server_ ? server_->finish(end) : end();
}

void Node::end_process() {
  process_.is_alive = false;
  world_.network->end_of(process_);
  world_.node_ended(*this);
  guardian_takes_over();
}

void Node::guardian_takes_over() {
  if (!guardian_.is_alive) return;
  world_.clock.after(kAtOnce, &guardian_, [this] {
    workers_.end_all([this] {
      if (!has_finished() && !farewell_to_.empty()) left_record_ = record_;
      for (const auto& there : farewell_to_)
        world_.network->connect(guardian_, world_.host_of(there.address), there.port, kFarewellLimit,
                                [this](Network::Attempt, Channel* channel) {
                                  if (channel == nullptr) return;
                                  world_.trace(guardian_.name, " says farewell");
                                  left_record_.reset();
                                  channel->send(GuardiansWord{key(), killed_by_});
                                  channel->close();
                                });
    });
  });
}

// --- membership in this process ---

void Node::host_membership(MembershipOptions options) {
  if (server_) former_servers_.push_back(std::move(server_));
  server_ = std::make_unique<Server>(
      world_, process_, std::move(options),
      Server::OwnNode{key(), [this](const ToAgent& message) { session_step(Session::Heard{message}); },
                      [this](const HostCore::StepDown& how) {
                        former_servers_.push_back(std::move(server_));
                        hang_up_call();
                        meet(Session::stepped_down(how));
                      }});
  session_step(Session::Hosting{});
}

void Node::visit(Channel& channel) {
  channel.listen({[this, &channel](const Message& message) { visitor_says(channel, message); }, {}});
}

void Node::visitor_says(Channel& channel, const Message& message) {
  if (const auto* word = std::get_if<GuardiansWord>(&message)) {
    const bool is_of_host = session_.knows_host(word->node_key);
    session_step(Session::GuardianSaid{word->node_key, word->signal_number});
    meet(MeetingCore::GuardianSaid{{word->node_key, word->signal_number}, is_of_host});
    return channel.close();
  }
  const auto* hello = std::get_if<Hello>(&std::get<ToMembership>(message));
  if (hello == nullptr || has_finished()) return channel.close();
  const auto direction = meeting_.direct(hello->run_id, session_.whereabouts());
  if (std::holds_alternative<MeetingCore::Here>(direction) && server_) return server_->take_in(channel, *hello);
  if (const auto* elsewhere = std::get_if<Elsewhere>(&direction)) {
    world_.trace(name(), " sends ", hello->host_name, " to ", elsewhere->address);
    channel.send(*elsewhere);
  }
  channel.close();
}

// --- what the session decides ---

void Node::session_step(const Event& event) {
  if (!has_finished()) perform(session_.step(event, now()));
}

void Node::perform(const Session::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  const auto deadline = has_finished() ? std::nullopt : session_.next_deadline();
  if (deadline == session_waits_) return;
  session_waits_ = deadline;
  session_timer_.set(in_world(deadline), [this] {
    session_waits_.reset();
    perform(session_.tick(now()));
  });
}

void Node::perform(const Session::Connect& action) {
  close_channel();
  world_.trace("   ", name(), " connects to ", action.to.address.empty() ? "the endpoint" : action.to.address);
  target_ = action.to;
  if (target_.address.empty() && !is_name_known())
    return world_.clock.after(world_.look_up_dice.between(1ms, 50ms), &process_, [this, attempt = attempts_] {
      if (attempt != attempts_ || has_finished()) return;
      session_step(Session::Ended{Session::How::silent, static_cast<double>(world_.dice.below(1000)) / 1000, true});
    });
  const int host = target_.address.empty() ? world_.endpoint_host() : world_.host_of(target_.address);
  const int port = target_.address.empty() ? kEndpointPort + target_.port : target_.port;
  world_.network->connect(
      process_, host, port, action.limit,
      [this, host, port, attempt = attempts_](Network::Attempt how, Channel* channel) {
        if (attempt != attempts_ || has_finished()) {
          if (channel != nullptr) channel->close();
          return;
        }
        const double jitter = static_cast<double>(world_.dice.below(1000)) / 1000;
        if (how == Network::Attempt::turned_away)
          return session_step(Session::Ended{Session::How::closed, jitter, false,
                                             Session::Refusal{{"another token", ""}, world_.job.has_token}});
        if (channel == nullptr)
          return session_step(
              Session::Ended{how == Network::Attempt::refused ? Session::How::refused : Session::How::silent, jitter});
        channel_ = channel;
        channel->be_quiet();
        channel->listen(
            {[this](const Message& message) { session_step(Session::Heard{std::get<ToAgent>(message)}); },
             [this, jitter](const Closed& how_closed) {
               world_.trace(name(), " has lost its connection: ", how_closed.why);
               give_up(let_go_of_channel());
               session_step(Session::Ended{how_closed.by_peer ? Session::How::closed : Session::How::silent, jitter});
             }});
        session_step(Session::Connected{{world_.address_of(host), static_cast<std::uint16_t>(port)}});
      });
}

void Node::perform(const Session::HangUp& action) {
  if (action.is_end_told && channel_ != nullptr) std::exchange(channel_, nullptr)->close();
  close_channel();
}

// Whoever is left alone is not to take this node's change of mind for its end.
void Node::close_channel() {
  ++attempts_;
  if (channel_ == nullptr) return;
  channel_->close_quietly();
  give_up(let_go_of_channel());
}

Channel& Node::let_go_of_channel() {
  unheard_at = world_.clock.now();
  return *std::exchange(channel_, nullptr);
}

void Node::give_up(Channel& channel) {
  const auto let_go = given_up_.add(&channel);
  if (!let_go) return;
  world_.sockets_let_go += (*let_go)->is_end_unknown();
  (*let_go)->close();
}

void Node::perform(const Session::Send& action) {
  if (server_) return server_->send(action.message);
  if (channel_ != nullptr) channel_->send(action.message);
}

void Node::perform(const Session::HandOn& action) {
  if (has_finished()) return;
  if (const auto* verdict = std::get_if<FinishJob>(&action.message)) verdict_ = *verdict;
  meet(MeetingCore::Heard{action.message});
}

void Node::perform(const Session::Serve& action) {
  world_.trace(name(), " becomes the next host");
  meet(MeetingCore::ToServe{action.lost});
}

void Node::perform(const Session::Call& action) {
  hang_up_call();
  if (!is_name_known()) return;
  const int host = world_.endpoint_host(), port = kEndpointPort + action.to.port;
  world_.network->connect(process_, host, port, kCallLimit, [this, host, port](Network::Attempt, Channel* channel) {
    if (channel == nullptr) return;
    if (!server_) return channel->close();  // it has stepped down meanwhile
    hang_up_call();
    called_ = channel;
    channel->listen({[this, host, port](const Message& message) {
                       const auto* stop = std::get_if<StopRound>(&std::get<ToAgent>(message));
                       const Elsewhere there{world_.address_of(host), static_cast<std::uint16_t>(port)};
                       if (stop != nullptr && server_) server_->take_answer({*stop, there});
                     },
                     [this, channel](const Closed&) {
                       if (called_ == channel) called_ = nullptr;
                     }});
    auto hello = session_.hello_of_call();
    hello.node_key = key();  // zeros are the key of the first node here
    world_.trace("   ", name(), " calls at the endpoint");
    channel->send(ToMembership(hello));
  });
}

void Node::hang_up_call() {
  if (called_ != nullptr) std::exchange(called_, nullptr)->close();
}

void Node::perform(const Session::StopOrphans& action) {
  world_.trace(name(), " stops its workers: ", action.why);
  world_.clock.at(world_.clock.now(), &process_, [this, action] {
    decide(NodeCore::Orphaned{action.why, action.may_reseat});
  });
}

void Node::perform(const Session::GiveUp& action) {
  const auto* refused = std::get_if<Refused>(&action.why);
  const std::string why = refused != nullptr ? refused->what : "nobody was reached";
  world_.trace(name(), " gives up: ", why);
  // Workers that could not be killed may work on; the node has told of them.
  if (workers_.do_all_work() && !has_told_of_survivors_)
    throw Violation(name() + " gives up while its workers work: " + why);
  decide(NodeCore::MembershipLost{{why, "", ""}});
}

void Node::say(const ToMembership& message) {
  const auto* asked = std::get_if<StopAsked>(&message);
  if (asked != nullptr && asked->time_limit) {
    world_.trace(name(), " has come to its time limit");
    is_told_to_stop_ = true;
    world_.blame.end();
    ++world_.settings_used[index_of(Fault::time_limit)];
  }
  session_step(Session::Said{message});
}

// --- what the meeting core decides ---

void Node::meet(const MeetingCore::Event& event) { perform(meeting_.step(event, now())); }

void Node::perform(const MeetingCore::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  meeting_timer_.set(in_world(meeting_.next_deadline()), [this] { perform(meeting_.tick(now())); });
}

void Node::perform(const MeetingCore::LookUp&) {
  world_.clock.after(world_.look_up_dice.between(Duration(0), world_.job.look_ups.answer_max), &process_,
                     [this, number = ++look_ups_] {
                       if (number == look_ups_) meet(look_up());
                     });
}

MeetingCore::LookedUp Node::look_up() {
  const auto there = world_.address_of(world_.endpoint_host());
  MeetingCore::LookedUp answer;
  answer.own = {world_.address_of(host())};
  if (is_name_known()) {
    answer.addresses = {world_.job.look_ups.kind == LookUps::Kind::by_node_rank ? kAddressOfNobody : there};
  } else if (world_.job.look_ups.kind == LookUps::Kind::slurm && world_.look_up_dice.chance(50)) {
    answer.slurm_address = slurm_address_ = there;
  } else {
    answer.error = "no such name";
  }
  return answer;
}

TimePoint Node::world_now() const { return world_.clock.now(); }

std::optional<TimePoint> Node::in_world(std::optional<TimePoint> own) const {
  return own ? std::optional(*own - clock_ahead_) : std::nullopt;
}

void Node::perform(const MeetingCore::Join&) {
  begin_session_anew();
  has_session_begun_ = true;
  session_step(Session::Begin{});
}

// As launcher/agent/meeting.cpp, which makes another client.
void Node::begin_session_anew() {
  if (!has_session_begun_) return;
  ++attempts_;
  if (channel_ != nullptr) std::exchange(channel_, nullptr)->close();
  for (auto* channel : given_up_.take_all()) channel->close();
  session_timer_.cancel();
  session_waits_.reset();
  session_ = Session(session_options(world_.job), hello_, now());
}

void Node::perform(const MeetingCore::Lose& action) {
  world_.trace(name(), " can't serve the endpoint: ", action.what);
  world_.clock.at(world_.clock.now(), &process_, [this, action] {
    decide(NodeCore::MembershipLost{{action.what, "opening the endpoint of the job", action.try_this}});
  });
}

void Node::perform(const MeetingCore::OpenEndpoint&) {
  if (world_.network->is_taken(host(), world_.endpoint_port(), process_))
    return meet(MeetingCore::EndpointTaken{"the port is taken", "", true});
  begin_session_anew();
  world_.network->listen(process_, world_.endpoint_port(), [this](Channel& channel) { visit(channel); });
  meet(MeetingCore::EndpointOpened{});
}

void Node::perform(const MeetingCore::StartHosting& action) {
  const auto own = [this] { return std::vector<std::string>{world_.address_of(host())}; };
  auto options = world_.with_nonces(agent_options(
      hello_, action.is_first ? term_ : world_.begin_term(),
      {session_options(world_.job).heartbeat_timeout, world_.job.has_token, action.is_next,
       launcher::own_endpoint_address(world_.endpoint_name(), static_cast<int>(world_.job.ports.size()), own),
       action.lost}));
  if (action.is_first) return host_membership(std::move(options));
  world_.clock.at(world_.clock.now(), &process_, [this, options] {  // not within the session's step
    close_channel();
    host_membership(options);
  });
}

void Node::perform(const MeetingCore::StopHosting& action) { session_step(action.how); }

// After a membership that begins in the same step.
void Node::perform(const MeetingCore::TellHost& action) {
  world_.clock.at(world_.clock.now(), &process_, [this, node = action.node] {
    if (server_) server_->take_farewell(node);
  });
}

void Node::perform(const MeetingCore::HandOn& action) {
  const auto named = slurm_address_.empty() ? world_.endpoint_name() : slurm_address_;
  decide(NodeCore::MembershipSaid{action.message,
                                  meeting_.endpoint_host(target_.address.empty() ? named : target_.address)});
}

// --- what the node core decides ---

NodeCore::Facts Node::facts() const {
  return {now(), job_time(), serves(), session_.is_joined(), server_ ? 0ms : session_.clock().error(now())};
}

void Node::decide(const NodeCore::Event& event) {
  if (launcher::comes_after_words_of_workers(event)) workers_.hear_out();
  perform(core_.step(event, facts()));
}

void Node::perform(const NodeCore::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  const auto deadline = core_.next_deadline();
  if (deadline == core_waits_) return;
  core_waits_ = deadline;
  core_timer_.set(in_world(deadline), [this] {
    core_waits_.reset();
    perform(core_.tick(facts()));
  });
}

void Node::perform(const NodeCore::OpenOutput&) {
  ++closing_.questions;
  NodeCore::OutputOpened answer;
  if (world_.does_fail(*this, Call::output)) answer.why_not = "no space is left";
  if (are_files_slow(opening_)) return answer_late(opening_, answer);
  ++opening_.questions;
  world_.clock.at(world_.clock.now(), &process_, [this, answer] { decide(answer); });
}

void Node::close_output() {
  ++opening_.questions;
  if (are_files_slow(closing_)) return answer_late(closing_, NodeCore::OutputWritten{});
  ++closing_.questions;
  decide(NodeCore::OutputWritten{});
}

bool Node::are_files_slow(const FileWork& work) const {
  return world_.clock.now() < std::max(files_are_slow_until_, work.ends_at);
}

void Node::answer_late(FileWork& work, const NodeCore::Event& event) {
  const auto now = world_.clock.now();
  work.ends_at = std::max(work.ends_at, now);
  if (now < files_are_slow_until_) work.ends_at += world_.fault_dice.between(Duration(1), kFileTimeMax);
  world_.clock.at(work.ends_at, &process_, [this, &work, event, question = ++work.questions] {
    if (work.questions != question) return;
    ++world_.late_answers;
    decide(event);
  });
}

// Those that get a seat and those that are started belong to one round.
void Node::begin_round() {
  const auto& start = core_.round();
  if (workers_.round() == start.round) return;
  world_.trace(name(), " begins round ", to_string(start.round), " as node ", start.group_rank, " of ",
               start.group_world_size);
  world_.checks.begins(*this, start);
  world_.checks.is_led_to(*this, start.round, world_.host_reached(core_.store_address(), host()));
}

void Node::perform(const NodeCore::Spawn& action) {
  if (!guardian_.is_alive) {  // it can't be asked any more
    world_.clock.at(world_.clock.now(), &process_, [this, local_ranks = action.local_ranks] {
      decide(NodeCore::SpawnFailed{"the guardian has ended", local_ranks});
    });
    return;
  }
  begin_round();
  world_.checks.spawns(*this);
  if (world_.does_fail(*this, Call::spawn)) return let_spawn_fail(action.local_ranks);
  workers_.spawn(action.local_ranks, core_.round());
  std::vector<WorkerGroupEvent> started;
  for (const int local_rank : action.local_ranks) started.emplace_back(launcher::WorkerStarted{local_rank});
  world_.clock.at(world_.clock.now(), &process_, [this, started] { decide(started); });
}

// Those before it have been started. Either the guardian can't be asked any more, or it says that it can't.
void Node::let_spawn_fail(const std::vector<int>& local_ranks) {
  const auto first = local_ranks.begin() + static_cast<std::ptrdiff_t>(world_.fault_dice.below(local_ranks.size()));
  const std::vector<int> started(local_ranks.begin(), first), left(first, local_ranks.end());
  workers_.spawn(started, core_.round());
  const bool is_told_by_guardian = world_.fault_dice.chance(30);
  world_.clock.at(world_.clock.now(), &process_, [this, started, left, is_told_by_guardian] {
    std::vector<WorkerGroupEvent> events;
    for (const int local_rank : started) events.emplace_back(launcher::WorkerStarted{local_rank});
    if (!events.empty()) decide(events);
    if (is_told_by_guardian) return workers_.tell_not_started(left);
    decide(NodeCore::SpawnFailed{"no process is left", left});
  });
  world_.checks.fails(core_.round().round);
  world_.worker_ended(core_.round().round, false);
}

// The exception leaves the agent.
void Node::perform(const NodeCore::Rethrow&) {
  exit_code_ = 1;
  world_.trace(name(), " ends with an exception");
  session_timer_.cancel();
  core_timer_.cancel();
  world_.clock.at(world_.clock.now(), &process_, [this] { end_process(); });
}

void Node::perform(const NodeCore::Seat& action) {
  begin_round();
  if (action.are_all && world_.does_fail(*this, Call::seats)) {
    world_.clock.at(world_.clock.now(), &process_, [this, local_ranks = action.local_ranks] {
      decide(NodeCore::SeatsFailed{"no space is left", local_ranks});
    });
    return;
  }
  world_.trace(name(), " gives ", action.local_ranks.size(), " workers their seats");
  world_.seats_given += action.local_ranks.size();
  workers_.seat(action.local_ranks, core_.round());
}

void Node::perform(const launcher::KillWorker& action) {
  world_.trace(name(), " kills local rank ", action.local_rank);
  ++world_.killed_alone;
  workers_.kill_worker(action.local_rank);
}

void Node::perform(const NodeCore::SendRoundEnded& action) {
  const auto& ended = action.message;
  world_.trace(name(), " has ended its round, failures ", ended.failures.size(), ", stopped ", ended.stopped,
               ended.tree_survived ? ", some could not be killed" : "");
  has_told_of_survivors_ = ended.tree_survived;
  say(ended);
}

void Node::perform(const NodeCore::SendToWorker& action) {
  std::visit([&](const auto& message) { workers_.hear(action.local_rank, message); }, action.message);
}

void Node::perform(const NodeCore::SendToWorkers& action) {
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank)
    std::visit([&](const auto& message) { workers_.hear(local_rank, message); }, action.message);
}

void Node::perform(const NodeCore::ReadReasons& action) {
  const NodeCore::ReasonsRead answer{action.number, world_.reasons_of(have_exited(action.local_ranks))};
  are_files_slow(reading_) ? answer_late(reading_, answer) : decide(answer);
}

void Node::note_killed(const std::vector<WorkerGroupEvent>& events) {
  for (const auto& event : events)
    if (const auto* ended = std::get_if<launcher::WorkerEnded>(&event)) {
      killed_ranks_.erase(ended->local_rank);
      if (ended->ending.kind != launcher::Ending::Kind::exited) killed_ranks_.insert(ended->local_rank);
    }
}

std::vector<bool> Node::have_exited(const std::vector<int>& local_ranks) const {
  std::vector<bool> out;
  for (const int local_rank : local_ranks) out.push_back(killed_ranks_.count(local_rank) == 0);
  return out;
}

void Node::perform(const NodeCore::TryLinks& action) {
  world_.clock.after(kLinkTrialTakes, &process_, [this, to = action.to] {
    if (has_finished()) return;
    decide(NodeCore::LinksTried{std::all_of(to.begin(), to.end(), [this](const Elsewhere& there) {
      const int other = world_.host_of(there.address);
      return world_.network->is_open(host(), other) && world_.network->is_open(other, host()) &&
             world_.node_on(other) != nullptr;
    })});
  });
}

void Node::perform(const NodeCore::WriteRecord&) {
  const auto& round = core_.round();
  record_ = {key(), round.round, round.group_rank, round.group_world_size, round.nonce};
}

void Node::perform(const NodeCore::BeginStore& action) {
  if (world_.does_fail(*this, Call::store)) return decide(NodeCore::StoreFailed{"no descriptor is left"});
  world_.checks.opens_store(action.round, host());
  decide(NodeCore::StoreIsOpen{action.round, 4000});
}

void Node::perform(const NodeCore::SetFarewell& action) {
  farewell_to_ = action.is_wanted ? session_.farewell_targets() : std::vector<Session::Target>();
}

std::chrono::milliseconds Node::job_time() const {
  if (server_) return server_->job_time();
  return session_.clock().job_time(now());
}

}  // namespace ddp::simulation
