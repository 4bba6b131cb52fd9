#include "tests/simulation/node.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using namespace rendezvous;
using launcher::MeetingCore;
using launcher::NodeCore;
using launcher::WorkerGroupEvent;

namespace {

constexpr Duration kAtOnce = 100us;
constexpr Duration kFarewellLimit = 1s;
constexpr Duration kFileTimeMax = 3s;

std::string key_of(int number) {
  char key[33];
  std::snprintf(key, sizeof key, "%032x", static_cast<unsigned>(number));
  return key;
}

Hello hello_of(const Job& job, int number, int host, int workers) {
  Hello hello;
  hello.versions = job.node_versions;
  hello.run_id = kRunId;
  hello.node_key = key_of(number);
  hello.host_name = "h" + std::to_string(host);
  hello.nodes_min = job.nodes_min;
  hello.nodes_max = job.nodes_max;
  hello.workers = workers;
  hello.standby_port = static_cast<std::uint16_t>(kStandbyPort + number);
  hello.restarts_max = job.restarts_max;
  hello.join_timeout = job.join_timeout;
  hello.last_call_timeout = job.last_call_timeout;
  hello.grace = job.grace;
  return hello;
}

Hello hello_in_place_of(Hello hello, int number, int workers) {
  hello.node_key = key_of(number);
  hello.workers = workers;
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

}  // namespace

Node::Node(World& world, int number, int host, int workers, bool serves, const Node* in_place_of)
    : world_(world),
      process_{"n" + std::to_string(number) + "@h" + std::to_string(host), host},
      guardian_{process_.name + "'s guardian", host},
      tree_{process_.name + "'s workers", host},
      hello_(in_place_of != nullptr ? hello_in_place_of(in_place_of->hello_, number, workers)
                                    : hello_of(world.job, number, host, workers)),
      serves_first_(serves),
      session_(session_options(world.job), hello_, world.clock.now()),
      meeting_({.serves = serves, .endpoint_host = "endpoint", .host_name = hello_.host_name}),
      core_({workers, world.job.nodes_max, world.job.grace, world.job.signal_window, {}, hello_.host_name}),
      workers_(
          world, tree_, guardian_, process_, workers,
          [this](const std::vector<WorkerGroupEvent>& events) { decide(events); },
          [this](int local_rank, const RoundId& round, std::uint64_t call) {
            decide(NodeCore::WorkerSaid{local_rank, worker_link::StopReady{round.number, call}});
          }),
      session_timer_(world.clock, process_),
      core_timer_(world.clock, process_) {}

void Node::start() {
  world_.trace(name(), " starts, ", workers_.count(), " workers", serves_first_ ? ", serves the endpoint" : "");
  if (world_.job.nodes_max > 1)
    world_.network->listen(process_, hello_.standby_port, [this](Channel& channel) { visit(channel); });
  meet(MeetingCore::Begin{});
}

// --- ends ---

void Node::kill() {
  world_.trace(name(), " is killed");
  end_process();
}

void Node::kill_guardian() {
  world_.trace(guardian_.name, " is killed");
  guardian_.is_alive = false;
  workers_.abandon();
  world_.clock.after(kAtOnce, &process_, [this] {
    decide(NodeCore::GuardianEnded{{launcher::Ending::Kind::killed, SIGKILL, false}, 1});
  });
}

void Node::kill_both() {
  world_.trace(name(), " and its guardian are killed");
  guardian_.is_alive = false;
  workers_.abandon();
  end_process();
}

void Node::lose() {
  world_.trace(name(), " is gone with its host");
  process_.is_alive = guardian_.is_alive = tree_.is_alive = false;
  world_.node_ended(*this);
}

void Node::stop(int signal_number) {
  world_.trace(name(), " is told to stop");
  is_told_to_stop_ = true;
  world_.blame.end();
  decide(NodeCore::StopSignalled{signal_number});
}

void Node::warn(int signal_number) {
  world_.trace(name(), " is warned");
  world_.blame.end();
  decide(NodeCore::WarningSignalled{signal_number});
}

bool Node::close_in_order(double jitter) {
  if (channel_ == nullptr || !session_.is_joined()) return false;
  world_.trace(name(), " closes its connection and comes again");
  std::exchange(channel_, nullptr)->close();
  session_step(Session::Ended{Session::How::closed, jitter});
  return true;
}

void Node::perform(const NodeCore::Finish& action) {
  world_.trace(name(), " finishes with ", action.exit_code);
  exit_code_ = action.exit_code;
  session_timer_.cancel();
  core_timer_.cancel();
  if (server_) server_->finish();
  if (channel_ != nullptr) std::exchange(channel_, nullptr)->close();
  world_.clock.after(kAtOnce, &process_, [this] { end_process(); });
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
      if (!farewell_to_) return;
      world_.network->connect(guardian_, world_.host_of(farewell_to_->address), farewell_to_->port, kFarewellLimit,
                              [this](Network::Attempt, Channel* channel) {
                                if (channel == nullptr) return;
                                world_.trace(guardian_.name, " says farewell");
                                channel->send(GuardiansWord{key()});
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
                      [this](const std::string& why) {
                        former_servers_.push_back(std::move(server_));
                        meet(MeetingCore::SteppedDown{why});
                      }});
  session_step(Session::Hosting{});
}

void Node::visit(Channel& channel) {
  channel.listen({[this, &channel](const Message& message) { visitor_says(channel, message); }, {}});
}

void Node::visitor_says(Channel& channel, const Message& message) {
  if (const auto* word = std::get_if<GuardiansWord>(&message)) {
    if (server_) server_->take_farewell(word->node_key);
    return channel.close();
  }
  const auto* hello = std::get_if<Hello>(&std::get<ToMembership>(message));
  if (hello == nullptr || has_finished()) return channel.close();
  if (server_) return server_->take_in(channel, *hello);
  if (const auto where = session_.whereabouts()) {
    world_.trace(name(), " sends ", hello->host_name, " to ", where->address);
    channel.send(Elsewhere{where->address, where->port});
  }
  channel.close();
}

// --- what the session decides ---

void Node::session_step(const Event& event) {
  if (!has_finished()) perform(session_.step(event, world_.clock.now()));
}

void Node::perform(const Session::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  const auto deadline = has_finished() ? std::nullopt : session_.next_deadline();
  if (deadline == session_waits_) return;
  session_waits_ = deadline;
  session_timer_.set(deadline, [this] {
    session_waits_.reset();
    perform(session_.tick(world_.clock.now()));
  });
}

void Node::perform(const Session::Connect& action) {
  close_channel();
  world_.trace("   ", name(), " connects to ", action.to.address.empty() ? "the endpoint" : action.to.address);
  target_ = action.to;
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
        if (channel == nullptr)
          return session_step(
              Session::Ended{how == Network::Attempt::refused ? Session::How::refused : Session::How::silent, jitter});
        channel_ = channel;
        channel->be_quiet();
        channel->listen(
            {[this](const Message& message) { session_step(Session::Heard{std::get<ToAgent>(message)}); },
             [this, jitter](const Closed& how_closed) {
               world_.trace(name(), " has lost its connection: ", how_closed.why);
               channel_ = nullptr;
               session_step(Session::Ended{how_closed.by_peer ? Session::How::closed : Session::How::silent, jitter});
             }});
        session_step(Session::Connected{{world_.address_of(host), static_cast<std::uint16_t>(port)}});
      });
}

void Node::perform(const Session::HangUp&) { close_channel(); }

// Whoever is left alone is not to take this node's change of mind for its end.
void Node::close_channel() {
  ++attempts_;
  if (channel_ != nullptr) std::exchange(channel_, nullptr)->close_quietly();
}

void Node::perform(const Session::Send& action) {
  if (server_) return server_->send(action.message);
  if (channel_ != nullptr) channel_->send(action.message);
}

void Node::perform(const Session::HandOn& action) {
  if (has_finished()) return;
  if (const auto* welcome = std::get_if<Welcome>(&action.message)) {
    const auto own = std::chrono::duration_cast<std::chrono::milliseconds>(world_.clock.since_start());
    clock_offset_ = welcome->job_time - own;
  }
  if (const auto* refused = std::get_if<Refused>(&action.message)) return perform(Session::GiveUp{*refused});
  if (const auto* verdict = std::get_if<FinishJob>(&action.message)) verdict_ = *verdict;
  meet(MeetingCore::Heard{action.message});
}

void Node::perform(const Session::Serve& action) {
  world_.trace(name(), " becomes the next host");
  meet(MeetingCore::ToServe{action.lost_group_rank});
}

void Node::perform(const Session::StopOrphans& action) {
  world_.trace(name(), " stops its workers: ", action.why);
  world_.clock.at(world_.clock.now(), &process_, [this, why = action.why] { decide(NodeCore::Orphaned{why}); });
}

void Node::perform(const Session::GiveUp& action) {
  const auto why = action.refused ? action.refused->what : "nobody was reached";
  world_.trace(name(), " gives up: ", why);
  decide(NodeCore::MembershipLost{{why, "", ""}});
}

void Node::say(const ToMembership& message) { session_step(Session::Said{message}); }

// --- what the meeting core decides ---

void Node::meet(const MeetingCore::Event& event) {
  for (const auto& action : meeting_.step(event, world_.clock.now()))
    std::visit([this](const auto& what) { perform(what); }, action);
}

void Node::perform(const MeetingCore::OpenEndpoint&) {
  world_.network->listen(process_, world_.endpoint_port(), [this](Channel& channel) { visit(channel); });
  meet(MeetingCore::EndpointOpened{});
}

void Node::perform(const MeetingCore::Host& action) {
  auto options = world_.options_for(hello_);
  if (!action.is_next) return host_membership(std::move(options));
  options.lost_group_rank = action.lost_group_rank;
  world_.clock.at(world_.clock.now(), &process_, [this, options] {  // not within the session's step
    close_channel();
    host_membership(options);
  });
}

void Node::perform(const MeetingCore::StopHosting& action) { session_step(Session::SteppedDown{action.why}); }

void Node::perform(const MeetingCore::HandOn& action) {
  decide(NodeCore::MembershipSaid{action.message, world_.address_of(world_.endpoint_host())});
}

// --- what the node core decides ---

NodeCore::Facts Node::facts() const { return {world_.clock.now(), job_time(), serves(), session_.is_joined()}; }

void Node::decide(const NodeCore::Event& event) { perform(core_.step(event, facts())); }

void Node::perform(const NodeCore::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  const auto deadline = core_.next_deadline();
  if (deadline == core_waits_) return;
  core_waits_ = deadline;
  core_timer_.set(deadline, [this] {
    core_waits_.reset();
    perform(core_.tick(facts()));
  });
}

void Node::perform(const NodeCore::OpenOutput&) {
  ++closing_.questions;
  if (are_files_slow(opening_)) return answer_late(opening_, NodeCore::OutputOpened{});
  ++opening_.questions;
  world_.clock.at(world_.clock.now(), &process_, [this] { decide(NodeCore::OutputOpened{}); });
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

void Node::perform(const NodeCore::Spawn& action) {
  const auto& start = core_.round();
  world_.trace(name(), " begins round ", to_string(start.round), " as node ", start.group_rank, " of ",
               start.group_world_size);
  world_.checks.begins(*this, start);
  workers_.spawn(start.round);
  std::vector<WorkerGroupEvent> started;
  for (const int local_rank : action.local_ranks) started.emplace_back(launcher::WorkerStarted{local_rank});
  world_.clock.at(world_.clock.now(), &process_, [this, started] { decide(started); });
}

void Node::perform(const launcher::KillOrphans&) {
  workers_.kill_orphans();
  world_.clock.at(world_.clock.now(), &process_, [this] { decide(NodeCore::WorkersChanged{launcher::OrphansGone{}}); });
}

void Node::perform(const NodeCore::SendRoundEnded& action) {
  const auto& ended = action.message;
  world_.trace(name(), " has ended its round, failures ", ended.failures.size(), ", stopped ", ended.stopped,
               ended.tree_survived ? ", some could not be killed" : "");
  say(ended);
}

// What virtual workers do not know of is not told them.
void Node::perform(const NodeCore::SendToWorker& action) {
  if (std::holds_alternative<worker_link::PrepareStop>(action.message)) workers_.prepare_stop(action.local_rank);
}

void Node::perform(const NodeCore::SendToWorkers& action) {
  if (const auto* stop = std::get_if<worker_link::StopAt>(&action.message)) workers_.stop_at(stop->call);
}

void Node::perform(const NodeCore::ReadReasons& action) {
  const NodeCore::ReasonsRead answer{action.number};
  are_files_slow(reading_) ? answer_late(reading_, answer) : decide(answer);
}

void Node::perform(const NodeCore::OpenStore& action) { decide(NodeCore::StoreIsOpen{action.round, 4000}); }

void Node::perform(const NodeCore::SetFarewell& action) {
  farewell_to_ = action.is_wanted && !server_ ? session_.whereabouts() : std::nullopt;
}

std::chrono::milliseconds Node::job_time() const {
  if (server_) return server_->job_time();
  return std::chrono::duration_cast<std::chrono::milliseconds>(world_.clock.since_start()) + clock_offset_;
}

}  // namespace ddp::simulation
