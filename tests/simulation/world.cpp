#include "tests/simulation/world.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/address.hpp"
#include "tests/simulation/crowd.hpp"

namespace ddp::simulation {

using namespace rendezvous;

World::World(std::uint64_t seed, bool wants_trace)
    : dice(seed),
      stop_dice(~seed),
      scheduler_dice(seed + 0x5c4ed),
      fault_dice(seed + 0xfa017),
      seat_dice(seed + 0x5ea75),
      look_up_dice(seed + 0x100c),
      setting_dice(seed + 0x5e771),
      traces(wants_trace) {
  checks.away_from = [this](const void* teller) {
    std::set<const Node*> out;
    for (const auto* node : alive_)
      if (!node->runs() || !static_cast<const Server*>(teller)->has(node->key())) out.insert(node);
    return out;
  };
}

void World::write(const std::string& line) {
  if (!out) return;
  char time[32];
  std::snprintf(time, sizeof time, "%10.4f  ", static_cast<double>(clock.since_start().count()) / 1e6);
  out(time + line);
}

void World::begin() {
  network = std::make_unique<Network>(clock, dice, hosts(), job.network);
  network->changed = [this] { workers_changed(); };
  for (std::size_t i = 0; i < job.ports.size(); ++i) start_stranger(kEndpointPort + static_cast<int>(i), job.ports[i]);
}

// One of those that have a port of the endpoint's host before the job comes.
void World::start_stranger(int port, PortHolder holder) {
  if (holder == PortHolder::nobody) return;
  if (holder == PortHolder::silent) return network->swallow(0, port);
  if (holder == PortHolder::turns_away) return network->turn_away(0, port);
  network->listen(strangers_, port, [this, holder](Channel& channel) {
    if (holder == PortHolder::hangs_up) return channel.close();
    channel.listen({[this, &channel](const Message& message) {
                      auto options = options_of(Hello{}, begin_term());
                      options.run_id = "other";
                      const Membership other(std::move(options), clock.now());
                      const auto refused = other.other_job(std::get<Hello>(std::get<ToMembership>(message)));
                      channel.send(ToAgent(refused.value()));
                      channel.close();
                    },
                    {}});
  });
}

RoundId World::begin_term() {
  RoundId term;
  term.term = 1'700'000'000 + static_cast<std::uint64_t>(clock.since_start() / 1s);
  term.term_random = ++terms_;
  return term;
}

std::string World::endpoint_name() const {
  if (!job.is_endpoint_numeric) return kEndpointName;
  return job.look_ups.kind == LookUps::Kind::by_node_rank ? kAddressOfNobody : address_of(endpoint_host());
}

MembershipOptions World::with_nonces(MembershipOptions options) {
  options.nonce = [this] {
    char nonce[33];
    std::snprintf(nonce, sizeof nonce, "%032llx", static_cast<unsigned long long>(++nonces_));
    return std::string(nonce);
  };
  return options;
}

int World::host_reached(const std::string& name, int from) const {
  if (name == kEndpointName || name == kAddressOfNobody) return endpoint_host();
  return name == "127.0.0.1" ? from : host_of(name);
}

int World::stop_signal() {
  if (!job.has(Fault::stop_signals)) return SIGTERM;
  ++settings_used[index_of(Fault::stop_signals)];
  return setting_dice.one_of<int>({SIGTERM, SIGINT, SIGHUP});
}

int World::deadly_signal() {
  if (!job.has(Fault::deadly_signals)) return SIGKILL;
  ++settings_used[index_of(Fault::deadly_signals)];
  return setting_dice.one_of<int>({SIGKILL, SIGKILL, SIGSEGV, SIGABRT, SIGBUS});
}

// An error of its own would make a rank that missed another one the cause, so error files name nobody, or say that a
// peer is gone.
launcher::Reasons World::reasons_of(const std::vector<bool>& have_exited) {
  launcher::Reasons out;
  if (!job.has(Fault::reasons)) return out;
  ++settings_used[index_of(Fault::reasons)];
  const std::string gone = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer";
  if (setting_dice.chance(20)) out.stderr_lost = "No space left on device";
  for (const bool has_exited : have_exited) {
    out.messages.push_back(setting_dice.one_of<std::string>({"", has_exited ? gone : ""}));
    out.stderr_tails.push_back(
        setting_dice.one_of<std::vector<std::string>>({{}, {has_exited ? gone : "step 6"}, {"step 7", "step 8"}}));
  }
  return out;
}

// --- processes ---

Node& World::start_node(int host, const Node* in_place_of) {
  const bool serves = host == 0 && !job.is_daemon_apart;
  const int workers = dice.between(1, job.workers_max);
  nodes_.push_back(std::make_unique<Node>(*this, nodes_started_++, host, workers, serves, in_place_of));
  auto& node = *nodes_.back();
  alive_.push_back(&node);
  checks.members_change();
  node.start();
  return node;
}

void World::node_ended(Node& node) {
  std::erase(alive_, &node);
  checks.members_change();
  workers_changed();
}

bool World::does_fail(const Node& node, Call call) {
  const auto found = fails_until_.find({node.host(), call});
  if (found == fails_until_.end() || found->second < clock.now()) return false;
  trace("fault: ", node.name(), ": ", simulation::name_of(call), " fails");
  blame.forget();
  ++failed_calls[static_cast<std::size_t>(call)];
  return true;
}

Node* World::node_on(int host) const {
  for (auto* node : alive_)
    if (node->host() == host) return node;
  return nullptr;
}

void World::start_daemon() {
  trace("the daemon starts");
  daemons_.push_back(std::make_unique<Daemon>());
  daemon_ = daemons_.back().get();
  daemon_->process.host = job.hosts;
  auto& daemon = *daemon_;
  JobTable<Server>::Handlers handlers;
  handlers.begin = [this, &daemon](const Hello& hello, const JobBefore& before) {
    const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(job.network.heartbeat_timeout);
    auto options = with_nonces(daemon_options(hello, begin_term(), timeout, before));
    return std::make_unique<Server>(*this, daemon.process, std::move(options), Server::OwnNode{});
  };
  handlers.forget = [&daemon](std::unique_ptr<Server> ended) {
    ended->stop();
    daemon.forgotten.push_back(std::move(ended));
  };
  daemon.jobs = std::make_unique<JobTable<Server>>(std::move(handlers), job.jobs_max);
  network->listen(daemon.process, kEndpointPort, [this, &daemon](Channel& channel) {
    channel.listen({[this, &channel, &daemon](const Message& message) {
                      if (const auto* word = std::get_if<GuardiansWord>(&message)) {
                        daemon.jobs->take_farewell({word->node_key, word->signal_number});
                        return channel.close();
                      }
                      const auto* hello = std::get_if<Hello>(&std::get<ToMembership>(message));
                      if (hello == nullptr) return channel.close();
                      direct(daemon, channel, *hello);
                    },
                    {}});
  });
}

void World::direct(Daemon& daemon, Channel& channel, const Hello& hello) {
  const auto source = Crowd::is_of_it(hello.run_id) ? Crowd::address_of(hello.run_id) : address_of(channel.peer_host());
  const auto direction = daemon.jobs->direct(hello, base::parse_address(source).value(), clock.now());
  if (const auto* job_here = std::get_if<std::reference_wrapper<Server>>(&direction))
    return job_here->get().take_in(channel, hello);
  const auto answer = [&](const ToAgent& message) {
    trace_message(name_of(hello.node_key), message);
    channel.send(message);
  };
  if (const auto* verdict = std::get_if<FinishJob>(&direction)) answer(*verdict);
  if (const auto* refused = std::get_if<Refused>(&direction)) {
    if (!is_stranger(hello.node_key)) ++(hello.held ? refused_with_round : refused_new);
    answer(*refused);
  }
  channel.close();
}

void World::kill_daemon() {
  trace("the daemon is killed");
  daemon_->process.is_alive = false;
  for (auto* node : alive_) node->unheard_at = clock.now();
  checks.members_change();
  network->end_of(daemon_->process);
}

const Membership* World::membership_of_daemon() const {
  const auto* running = is_daemon_alive() ? daemon_->jobs->find(kRunId) : nullptr;
  return running != nullptr ? &running->membership() : nullptr;
}

bool World::is_round_undisturbed(const RoundId& round, std::chrono::milliseconds clocks_differ_by) const {
  if (!checks.is_complete(round) || checks.newest_complete() != round) return false;
  const auto is_two_way = [this](int a, int b) { return network->is_open(a, b) && network->is_open(b, a); };
  if (job.is_daemon_apart && (!is_daemon_alive() || !daemon_->process.runs())) return false;
  std::optional<std::chrono::milliseconds> first, last;
  for (const auto* node : alive_) {
    if (node->serves() && !node->runs()) return false;
    if (node->round().round != round) continue;
    if (!node->runs() || !node->session().is_joined()) return false;
    if (job.is_daemon_apart && !is_two_way(node->host(), job.hosts)) return false;
    for (const auto* other : alive_)
      if ((other->round().round == round || other->serves()) && !is_two_way(node->host(), other->host())) return false;
    const auto time = node->job_time();
    first = first ? std::min(*first, time) : time;
    last = last ? std::max(*last, time) : time;
  }
  return first && *last - *first <= clocks_differ_by;
}

// --- pauses ---

void World::pause(Process& process, Duration time) {
  trace(process.name, " is paused for ", time.count() / 1000, " ms");
  clock.pause(process);
  checks.members_change();
  network->watch_all();
  workers_changed();
  clock.after(time, nullptr, [this, &process, time] { go_on(process, time); });
}

// Its timers fall due with what has come meanwhile, so that it may take the others for silent.
void World::go_on(Process& process, Duration paused) {
  if (!process.is_alive) return;
  trace(process.name, " goes on");
  checks.members_change();
  workers_changed();  // until now
  if (paused > job.network.heartbeat_timeout && dice.chance(50)) network->all_seem_silent_to(process);
  clock.go_on(process);
  network->watch_all();
  workers_changed();
}

void World::freeze(int host, Duration time) {
  std::vector<Process*> processes;
  if (is_daemon_alive() && daemon_->process.host == host) processes.push_back(&daemon_->process);
  if (auto* node = node_on(host))
    for (auto* process : {&node->process(), &node->guardian(), &node->tree()}) processes.push_back(process);
  for (auto* process : processes) pause(*process, time);
}

void World::lose_host(int host) {
  trace("host ", host, " is lost");
  network->lose(host);
  while (auto* node = node_on(host)) node->lose();
}

void World::signal_every_process(int signal_number, Duration within) {
  trace("every process gets signal ", signal_number);
  blame.end();
  const auto time = [&] { return scheduler_dice.between(Duration(0), within); };
  for (auto* node : alive_) {
    clock.after(time(), &node->process(), [node, signal_number] {
      signal_number == SIGUSR1 ? node->warn(signal_number) : node->stop(signal_number);
    });
    for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
      clock.after(time(), &node->tree(), [node, local_rank, signal_number] {
        node->workers().take_schedulers_signal(local_rank, signal_number);
      });
  }
}

// --- what happens between them ---

std::string World::name_of(const std::string& node_key) const {
  return is_stranger(node_key) ? "a stranger" : node_of(node_key).name();
}

void World::tells(const Server& server, const std::string& node_key, const ToAgent& message) {
  trace_message(name_of(node_key), message);
  if (is_stranger(node_key)) return;
  checks.is_told(&server, node_of(node_key), message);
  blame.is_told(message, checks.changes_of_members());
}

void World::trace_heard(const std::string& node_key, const ToMembership& message) {
  if (!traces) return;
  const auto name = name_of(node_key);
  if (const auto* opened = std::get_if<StoreOpened>(&message))
    trace("   from ", name, ": store_opened ", opened->round);
  if (const auto* started = std::get_if<RoundStarted>(&message))
    trace("   from ", name, ": round_started ", started->round);
  if (const auto* failed = std::get_if<RoundFailed>(&message))
    trace("   from ", name, ": round_failed ", failed->round);
  if (const auto* ended = std::get_if<RoundEnded>(&message)) trace("   from ", name, ": round_ended ", ended->round);
  if (std::holds_alternative<StopAsked>(message)) trace("   from ", name, ": stop_asked");
}

void World::trace_message(const std::string& name, const ToAgent& message) {
  if (!traces) return;
  if (const auto* start = std::get_if<StartRound>(&message))
    trace("   to ", name, ": start_round ", to_string(start->round), " as node ", start->group_rank, " of ",
          start->group_world_size, ", restart ", start->restart_count, start->why ? "; " + *start->why : "");
  else if (const auto* stop = std::get_if<StopRound>(&message))
    trace("   to ", name, ": stop_round ", stop->round, stop->why ? "; " + *stop->why : "");
  else if (const auto* open = std::get_if<OpenStore>(&message))
    trace("   to ", name, ": open_store ", to_string(open->round));
  else if (const auto* refused = std::get_if<Refused>(&message))
    trace("   to ", name, ": refused; ", refused->what);
  else if (const auto* finish = std::get_if<FinishJob>(&message))
    trace("   to ", name, ": finish_job ", finish->exit_code, "; ", finish->what.value_or(""));
}

void World::workers_changed() {
  if (job.is_daemon_apart)
    for (auto* node : alive_) was_cut_off(*node);
  checks.collectives_complete(
      alive_, [this](int from, int to) { return network->is_open(from, to); },
      [this](Node& node) { return job.is_daemon_apart && (was_cut_off(node) || is_told_to_stop(node)); },
      [this](const RoundId& round) {
        const auto* known = job.is_daemon_apart ? membership_of_daemon() : nullptr;
        return known != nullptr && known->last_round() < round && round < known->term();
      });
}

// Whoever comes for a job that is ending in a daemon begins the next one of its name at once, while the workers of the
// old one still have their grace (seed 7323 with --faults=all --seats --look-ups).
bool World::is_told_to_stop(const Node& node) const {
  return std::any_of(alive_.begin(), alive_.end(), [&](const Node* other) {
    return other->is_told_to_stop() && other->workers().round() == node.workers().round();
  });
}

// A daemon that never stopped goes on with whoever reaches it, so those of an older round that it does not hear may go
// on by themselves, until they hear of it again, and have stopped. So may they while one that was started again has not
// decided which round goes on. (Seed 19687: two frozen nodes go on with a round after others began the next one.)
bool World::was_cut_off(Node& node) {
  const auto* const known = membership_of_daemon();
  const bool is_heard = known != nullptr && known->has_begun() && daemon_->process.runs() && node.process().runs() &&
                        network->is_open(node.host(), job.hosts) && network->is_open(job.hosts, node.host()) &&
                        node.session().is_joined();
  if (!is_heard) node.unheard_at = clock.now();
  return node.unheard_at && clock.now() - *node.unheard_at < 5s + job.network.heartbeat_timeout + job.grace;
}

// Membership may reach both of them, so only these deadlines tell that there is a cut.
void World::miss_each_other(int a, int b) {
  if (job.is_collective_endless) return;
  const auto timeout = fault_dice.between(job.collective_timeout_min, job.collective_timeout_max);
  if (fault_dice.chance(50)) std::swap(a, b);
  clock.after(timeout, nullptr, [this, a, b] {
    if (network->is_open(a, b) || network->is_open(b, a)) return;
    auto *one = node_on(a), *other = node_on(b);
    if (one != nullptr && other != nullptr && one->workers().round() == other->workers().round() &&
        one->workers().do_all_work() && other->workers().do_all_work()) {
      miss(*one, *other);
      clock.after(fault_dice.between(Duration(0), 500ms), nullptr, [this, one, other, round = one->workers().round()] {
        if (other->is_alive() && other->workers().round() == round) miss(*other, *one);
      });
    }
    clock.after(1s, nullptr, [this, a, b] { miss_each_other(a, b); });
  });
}

void World::miss(Node& one, const Node& other) {
  auto& workers = one.workers();
  checks.fails(workers.round());
  gave_up_.try_emplace(workers.round(), workers.rank_first());
  std::vector<int> missed;
  for (int local_rank = 0; local_rank < other.workers().count(); ++local_rank)
    missed.push_back(other.workers().rank_first() + local_rank);
  for (int local_rank = 0; local_rank < workers.count(); ++local_rank)
    if (workers.does_work(local_rank)) workers.miss_host(local_rank, missed);
}

void World::worker_ended(const RoundId& round, bool is_success, std::optional<int> hung_rank) {
  if (is_success || job.is_collective_endless) return;
  for (auto* node : alive_) {
    if (node->workers().round() != round) continue;
    for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank) {
      if (!node->workers().does_work(local_rank)) continue;
      clock.after(dice.between(job.collective_timeout_min, job.collective_timeout_max), &node->tree(),
                  [this, node, local_rank, round, hung_rank] {
                    if (node->workers().round() != round || !node->workers().does_work(local_rank)) return;
                    const auto gave_up = gave_up_.find(round);
                    node->workers().miss_a_rank(
                        local_rank, hung_rank,
                        gave_up == gave_up_.end() ? std::nullopt : std::optional(gave_up->second));
                  });
    }
  }
}

std::uint64_t World::commits_of(const RoundId& round) {
  const auto [known, is_first] = commits_.try_emplace(round, 0);
  if (!is_first) return known->second;
  for (const auto* node : alive_)
    if (node->workers().round() == round)
      for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
        known->second = std::max(known->second, node->workers().commits(local_rank));
  return ++known->second;
}

std::vector<Node*> World::nodes_alive() const { return alive_; }

}  // namespace ddp::simulation
