// One ddp-rendezvous on one core, and as many agents as asked for on another: how soon all of them have been told to
// start, to stop and to start again, what an idle agent costs in bytes, CPU time and the daemon's memory.
//
// The agents are this one process: real TCP connections over the loopback, WebSocket frames and the project's own
// messages, pings both ways as a ddprun's connection has them, but no worker. Times are from just before the first
// message of a step is written to the moment at which the last agent has read its own, so the swarm's reading is in
// them.
//
// Beside it torchrun's c10d rendezvous, at the sizes that a machine can carry, where a Python with torch is found:
// DDP_TEST_PYTHON, else build/interop/venv. One process for each node, which has imported torch before the clock
// starts.
//
// With --tls daemon and agents have a token, and so TLS between them.
//
//   scale_benchmark [--agents=10000] [--rounds=5] [--heartbeat-timeout=3] [--idle=15] [--torch=16,64] [--tls]
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "rendezvous/security/tls.hpp"
#include "rendezvous/wire/message_json.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::rendezvous;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::security::Tls;
using ddp::security::TlsSession;

constexpr std::chrono::seconds kPatience{120};
constexpr std::chrono::milliseconds kRetryPause{100};
constexpr int kEventsMax = 1024;
constexpr int kHeaderBytes = 52;  // of a TCP segment over IPv4, with the timestamps that Linux adds
constexpr const char* kRunId = "scale";
constexpr const char* kToken = "a-token-for-this-benchmark-alone";

struct Arguments {
  int agents = 10'000, rounds = 5, idle_seconds = 15;
  double heartbeat_seconds = 3;
  std::vector<int> torch_nodes{16, 64};
  bool has_tls = false;
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }
[[noreturn]] void fail_by_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// --- processes ---

// The first and the last processor that this process may use.
std::pair<int, int> two_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) fail_by_errno("sched_getaffinity");
  int first = -1, last = -1;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) {
      if (first < 0) first = i;
      last = i;
    }
  return {first, last};
}

void stay_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) fail_by_errno("sched_setaffinity");
}

// A child whose first line of output is read, and which is ended with this object.
class Child {
 public:
  Child(const Words& words, const std::string& errors) {
    int output[2];
    if (::pipe2(output, O_CLOEXEC) != 0) fail_by_errno("pipe2");
    auto arguments = arguments_of(words);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    const int error = ::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(output[1]);
    output_ = output[0];
    if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
  }
  Child(const Child&) = delete;
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(output_);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Empty at the end of its output.
  std::string line(std::chrono::seconds patience) {
    const auto deadline = Clock::now() + patience;
    while (true) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        auto out = text_.substr(0, end);
        text_.erase(0, end + 1);
        return out;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd readable{output_, POLLIN, 0};
      if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left)) <= 0) return {};
      char buffer[4096];
      const auto length = ::read(output_, buffer, sizeof buffer);
      if (length <= 0) return {};
      text_.append(buffer, static_cast<std::size_t>(length));
    }
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
};

struct Usage {
  double cpu_ms = 0;        // since its start
  double anonymous_kb = 0;  // memory of its own
};

Usage usage_of(pid_t pid) {
  const auto folder = "/proc/" + std::to_string(pid);
  Usage out;
  std::ifstream(folder + "/schedstat") >> out.cpu_ms;  // in ns
  out.cpu_ms /= 1e6;
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("RssAnon:", 0) == 0) std::istringstream(line.substr(8)) >> out.anonymous_kb;
  return out;
}

// --- the swarm ---

std::string hex(std::size_t number, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%0*zx", digits, number);
  return text;
}

enum Opcode : unsigned char { kContinuation = 0, kText = 1, kClose = 8, kPing = 9, kPong = 10 };

// A client's frame. Its mask is 0, which leaves the payload as it is.
std::string frame(Opcode opcode, std::string_view payload) {
  std::string out{static_cast<char>(0x80 | opcode)};
  if (payload.size() < 126) {
    out += static_cast<char>(0x80 | payload.size());
  } else {
    out += static_cast<char>(0x80 | 126);
    out += static_cast<char>(payload.size() >> 8);
    out += static_cast<char>(payload.size() & 0xff);
  }
  out.append(4, '\0');
  return out.append(payload);
}

struct Traffic {
  double payload_bytes = 0, segments = 0;  // both ways
};

class Swarm {
 public:
  Swarm(const Arguments& arguments, std::uint16_t port)
      : arguments_(arguments),
        port_(port),
        ping_pause_(std::chrono::milliseconds(static_cast<int>(arguments.heartbeat_seconds * 500))),
        agents_(static_cast<std::size_t>(arguments.agents)),
        alive_(agents_.size()) {
    if ((epoll_ = ::epoll_create1(EPOLL_CLOEXEC)) < 0) fail_by_errno("epoll_create1");
    if (arguments_.has_tls) tls_.emplace(ddp::security::Token(kToken));
  }
  Swarm(const Swarm&) = delete;
  ~Swarm() {
    for (const auto& agent : agents_)
      if (agent.fd >= 0) ::close(agent.fd);
    ::close(epoll_);
  }

  // Connects `count` further agents at once, each of which says hello as soon as it can.
  void join(std::size_t count) {
    for (; count > 0; --count) connect(joined_++);
    run_until([this] { return welcomed_ == joined_; }, "to be welcomed");
  }

  // The last agent comes, its connection open already; returns the ms until all have been told to start.
  double start_by_last_hello() {
    hold_hello_ = true;
    connect(joined_++);
    run_until([this] { return agents_.back().state == State::open; }, "for the last connection");
    expect_start();
    const auto begin = Clock::now();
    say(agents_.size() - 1, to_json(hello_of(agents_.size() - 1)));
    run_until([this] { return told_ == alive_; }, "to be told to start");
    return ms_since(begin);
  }

  double stop_by_failure_of(std::size_t index) {
    told_ = 0;
    awaited_ = "\"type\":\"stop_round\"";
    const auto begin = Clock::now();
    say(index, to_json(RoundFailed{round_, "rank 0 was killed by SIGKILL after 1.0 s", {}}));
    run_until([this] { return told_ == alive_; }, "to be told to stop");
    return ms_since(begin);
  }

  // All rounds end at once, that of `failed` with a failure.
  double start_by_ends(std::size_t failed) {
    FailureReport failure;
    failure.host = "node" + std::to_string(failed);
    failure.program = "train";
    failure.ending = {Ending::Kind::killed, SIGKILL, false};
    failure.round = round_;
    const auto well = to_json(RoundEnded{round_, {}, 1, false}),
               badly = to_json(RoundEnded{round_, {failure}, 0, false});
    expect_start();
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < agents_.size(); ++i)
      if (agents_[i].fd >= 0) say(i, i == failed ? badly : well);
    run_until([this] { return told_ == alive_; }, "to be told to start again");
    return ms_since(begin);
  }

  // Every tenth agent dies at once, as with a switch; returns the ms until all others have been told to stop.
  double stop_by_deaths() {
    told_ = 0;
    awaited_ = "\"type\":\"stop_round\"";
    const auto begin = Clock::now();
    for (std::size_t i = 5; i < agents_.size(); i += 10) {
      ::close(std::exchange(agents_[i].fd, -1));
      agents_[i].state = State::none;
      --alive_;
    }
    run_until([this] { return told_ == alive_; }, "to be told to stop after others died");
    return ms_since(begin);
  }

  void idle(std::chrono::seconds duration) {
    const auto end = Clock::now() + duration;
    while (Clock::now() < end) turn(end);
  }

  [[nodiscard]] Traffic traffic() const {
    Traffic out;
    for (const auto& agent : agents_) {
      tcp_info info{};
      socklen_t length = sizeof info;
      if (::getsockopt(agent.fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) fail_by_errno("TCP_INFO");
      out.payload_bytes += static_cast<double>(info.tcpi_bytes_acked + info.tcpi_bytes_received);
      out.segments += info.tcpi_segs_in + info.tcpi_segs_out;
    }
    return out;
  }

  [[nodiscard]] int connections_made_again() const { return made_again_; }

 private:
  enum class State { none, connecting, shaking_hands, greeting, open };
  struct Agent {
    int fd = -1;
    State state = State::none;
    std::unique_ptr<TlsSession> tls;  // none: it is plain
    bool is_welcome = false;
    std::string input;    // of a frame that has not come whole, or of the HTTP answer
    std::string message;  // fragments of one
  };

  Hello hello_of(std::size_t index) const {
    Hello hello;
    hello.run_id = kRunId;
    hello.node_key = hex(index + 1, 32);
    hello.host_name = "node" + std::to_string(index);
    hello.node_rank = static_cast<int>(index);
    hello.nodes_min = arguments_.agents / 2;
    hello.nodes_max = arguments_.agents;
    hello.workers = 8;
    const auto own = "10." + std::to_string(index >> 16) + "." + std::to_string((index >> 8) & 255) + "." +
                     std::to_string(index & 255);
    hello.addresses = {own, "192.168." + std::to_string((index >> 8) & 255) + "." + std::to_string(index & 255),
                       "fd00::" + hex(index, 1)};
    hello.restarts_max = 1'000'000;
    hello.join_timeout = kPatience;
    return hello;
  }

  void connect(std::size_t index) {
    auto& agent = agents_[index];
    agent = {};
    agent.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (agent.fd < 0) fail_by_errno("socket of agent " + std::to_string(index));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(agent.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS)
      fail_by_errno("connect of agent " + std::to_string(index));
    // Over the loopback it is connected by now, unless the daemon's queue is full, and an agent speaks at once.
    pollfd writable{agent.fd, POLLOUT, 0};
    const bool is_connected = ::poll(&writable, 1, 0) == 1;
    agent.state = State::connecting;
    watch(index, EPOLL_CTL_ADD, is_connected ? EPOLLIN : EPOLLOUT);
    if (is_connected) greet(index);
  }

  void watch(std::size_t index, int operation, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = index;
    if (::epoll_ctl(epoll_, operation, agents_[index].fd, &event) != 0) fail_by_errno("epoll_ctl");
  }

  void write(std::size_t index, std::string_view bytes) {
    auto& agent = agents_[index];
    bool would_block = false;
    std::size_t length = 0;
    if (agent.tls) {
      const auto progress = agent.tls->write_some(bytes.data(), bytes.size());
      would_block = progress.want != TlsSession::Want::nothing;
      length = progress.bytes;
    } else {
      const auto sent = ::send(agent.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      would_block = sent >= 0 || errno == EAGAIN;
      length = static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    }
    if (length == bytes.size()) return;
    if (would_block) fail("the daemon does not read what agent " + std::to_string(index) + " says");
    if (agents_[index].is_welcome) fail_by_errno("agent " + std::to_string(index));
    connect_again(index);
  }

  void say(std::size_t index, const std::string& json) { write(index, frame(kText, json)); }

  void connect_again(std::size_t index) {
    ::close(agents_[index].fd);
    agents_[index] = {};
    if (++made_again_ > 10 * arguments_.agents) fail("the daemon closes nearly all connections that come at once");
    retries_.emplace_back(Clock::now() + kRetryPause, index);
  }

  void expect_start() {
    told_ = 0;
    awaited_ = "\"type\":\"start_round\"";
    group_ranks_.assign(agents_.size(), false);
  }

  template <class Condition>
  void run_until(Condition is_met, const std::string& what) {
    const auto deadline = Clock::now() + kPatience;
    while (!is_met()) {
      if (Clock::now() > deadline)
        fail("agents waited " + std::to_string(kPatience.count()) + " s " + what + "; welcomed " +
             std::to_string(welcomed_) + ", told " + std::to_string(told_));
      turn(deadline);
    }
  }

  void turn(Clock::time_point until) {
    for (auto now = Clock::now(); !pings_.empty() && pings_.front().first <= now; pings_.pop_front()) {
      if (agents_[pings_.front().second].fd < 0) continue;
      write(pings_.front().second, frame(kPing, ""));
      pings_.emplace_back(now + ping_pause_, pings_.front().second);
    }
    for (auto now = Clock::now(); !retries_.empty() && retries_.front().first <= now; retries_.pop_front())
      connect(retries_.front().second);
    if (!pings_.empty()) until = std::min(until, pings_.front().first);
    if (!retries_.empty()) until = std::min(until, retries_.front().first);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    epoll_event events[kEventsMax];
    const int count = ::epoll_wait(epoll_, events, kEventsMax, static_cast<int>(std::max<std::int64_t>(left, 0)));
    for (int i = 0; i < count; ++i) ready(events[i].data.u64);
  }

  void ready(std::size_t index) {
    auto& agent = agents_[index];
    if (agent.state == State::none) return;  // an event of the connection before
    if (agent.state == State::connecting) {
      watch(index, EPOLL_CTL_MOD, EPOLLIN);
      return greet(index);
    }
    if (agent.state == State::shaking_hands) return shake_hands(index);
    do {
      const auto length = read(agent);
      if (!length) return;
      if (*length == 0) {
        if (agent.is_welcome) fail("the daemon closed the connection of agent " + std::to_string(index));
        return connect_again(index);
      }
      take(index, std::string_view(buffer_.data(), *length));
    } while (agent.tls);  // which may hold more than the socket says
  }

  // What has come, into buffer_: its length, 0 at the end; empty where nothing is there yet.
  std::optional<std::size_t> read(Agent& agent) {
    if (agent.tls) {
      const auto progress = agent.tls->read_some(buffer_.data(), buffer_.size());
      if (progress.want != TlsSession::Want::nothing) return {};
      return progress.error ? 0 : progress.bytes;
    }
    const auto length = ::recv(agent.fd, buffer_.data(), buffer_.size(), 0);
    if (length < 0 && errno == EAGAIN) return {};
    return static_cast<std::size_t>(std::max<ssize_t>(length, 0));
  }

  void take(std::size_t index, std::string_view bytes) {
    auto& agent = agents_[index];
    if (agent.input.empty() && agent.state == State::open) {
      agent.input.assign(bytes.substr(take_frames(index, bytes)));
      return;
    }
    agent.input.append(bytes);
    const auto input = std::exchange(agent.input, {});
    auto taken = agent.state == State::greeting ? take_http_answer(index, input) : 0;
    if (agent.state == State::open) taken += take_frames(index, std::string_view(input).substr(taken));
    if (agent.state != State::none) agent.input = input.substr(taken);
  }

  void greet(std::size_t index) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(agents_[index].fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return connect_again(index);
    if (!tls_) return ask_for_upgrade(index);
    agents_[index].state = State::shaking_hands;
    agents_[index].tls = tls_->begin(agents_[index].fd, Tls::Side::client);
    shake_hands(index);
  }

  void shake_hands(std::size_t index) {
    const auto progress = agents_[index].tls->shake_hands();
    if (progress.want == TlsSession::Want::write)
      fail("the daemon does not read the greeting of agent " + std::to_string(index));
    if (progress.want == TlsSession::Want::read) return;
    if (agents_[index].tls->failure()) fail("TLS with the daemon failed");
    progress.error ? connect_again(index) : ask_for_upgrade(index);
  }

  void ask_for_upgrade(std::size_t index) {
    agents_[index].state = State::greeting;
    write(index, "GET /v1/agents HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port_) +
                     "\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                     "Sec-WebSocket-Version: 13\r\nUser-Agent: ddprun\r\n\r\n");
  }

  std::size_t take_http_answer(std::size_t index, std::string_view input) {
    const auto end = input.find("\r\n\r\n");
    if (end == std::string_view::npos) return 0;
    if (input.rfind("HTTP/1.1 101 ", 0) != 0)
      fail("the daemon answered: " + std::string(input.substr(0, input.find('\r'))));
    agents_[index].state = State::open;
    if (!hold_hello_) say(index, to_json(hello_of(index)));
    return end + 4;
  }

  // Returns how many bytes were whole frames.
  std::size_t take_frames(std::size_t index, std::string_view input) {
    std::size_t taken = 0;
    while (input.size() - taken >= 2) {
      const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(input[taken + i]); };
      std::size_t header = 2, length = byte(1);
      if (length == 127) fail("the daemon sent a frame of more than 64 KiB");
      if (length == 126) {
        if (input.size() - taken < 4) break;
        length = static_cast<std::size_t>(byte(2)) << 8 | byte(3);
        header = 4;
      }
      if (input.size() - taken < header + length) break;
      take_frame(index, byte(0), input.substr(taken + header, length));
      taken += header + length;
    }
    return taken;
  }

  void take_frame(std::size_t index, unsigned char first, std::string_view payload) {
    const auto opcode = static_cast<Opcode>(first & 0x0f);
    const bool is_last = (first & 0x80) != 0;
    auto& agent = agents_[index];
    if (opcode == kPing) return write(index, frame(kPong, payload));
    if (opcode == kPong) return;
    if (opcode == kClose) fail("the daemon said goodbye to agent " + std::to_string(index));
    if (is_last && agent.message.empty()) return hear(index, payload);
    agent.message.append(payload);
    if (is_last) hear(index, std::exchange(agent.message, {}));
  }

  // What the swarm waits for is found without parsing, so that the daemon is timed, not this.
  void hear(std::size_t index, std::string_view text) {
    if (!awaited_.empty() && text.find(awaited_) != std::string_view::npos) return hear_awaited(index, text);
    const auto message = to_agent_of(text).value();
    if (std::holds_alternative<Welcome>(message)) {
      if (std::exchange(agents_[index].is_welcome, true)) fail("an agent was welcomed twice");
      ++welcomed_;
      pings_.emplace_back(Clock::now() + ping_pause_, index);
    } else if (const auto* open = std::get_if<OpenStore>(&message)) {
      if (open->is_last) say(index, to_json(StoreOpened{open->round.number, 29'500}));
    } else if (std::holds_alternative<Refused>(message) || std::holds_alternative<FinishJob>(message)) {
      fail("agent " + std::to_string(index) + " was told what nobody expected: " + std::string(text.substr(0, 400)));
    }
  }

  void hear_awaited(std::size_t index, std::string_view text) {
    if (!group_ranks_.empty()) {
      constexpr std::string_view kName = "\"group_rank\":";
      const auto at = text.find(kName);
      const auto rank = static_cast<std::size_t>(std::atoi(std::string(text.substr(at + kName.size(), 8)).c_str()));
      if (at == std::string_view::npos || rank >= group_ranks_.size() || group_ranks_[rank])
        fail("two agents got the same rank, or one got none");
      group_ranks_[rank] = true;
      if (told_ == 0) round_ = std::get<StartRound>(to_agent_of(text).value()).round.number;
      started_.push_back(index);
    }
    if (++told_ < alive_) return;
    awaited_.clear();
    group_ranks_.clear();
    for (const auto agent : std::exchange(started_, {})) say(agent, to_json(RoundStarted{round_}));
  }

  const Arguments& arguments_;
  const std::uint16_t port_;
  const Clock::duration ping_pause_;
  int epoll_ = -1;
  std::optional<Tls> tls_;
  std::vector<Agent> agents_;
  std::size_t alive_;
  std::vector<char> buffer_ = std::vector<char>(1u << 20);
  std::deque<std::pair<Clock::time_point, std::size_t>> pings_, retries_;  // in the order of time
  std::size_t joined_ = 0, welcomed_ = 0, told_ = 0;                       // told: what is awaited
  std::string awaited_;
  std::vector<bool> group_ranks_;     // that have been given out in the round that starts
  std::vector<std::size_t> started_;  // agents
  std::uint32_t round_ = 0;
  bool hold_hello_ = false;
  int made_again_ = 0;
};

// --- the table ---

void print_row(const char* what, std::vector<double> values, const char* unit, const char* aim, double cpu_ms = -1) {
  std::sort(values.begin(), values.end());
  std::printf("%-58s %9.1f %9.1f %9.1f %-5s %8s", what, values[values.size() / 2], values.front(), values.back(), unit,
              aim);
  cpu_ms < 0 ? std::printf("\n") : std::printf(" %8.1f ms\n", cpu_ms);
}

void time_daemon(const Arguments& arguments, const fs::path& daemon_program, const std::string& errors) {
  const auto [daemon_processor, own_processor] = two_processors();
  stay_on(daemon_processor);  // the child inherits it
  arguments.has_tls ? ::setenv("DDPRUN_TOKEN", kToken, 1) : ::unsetenv("DDPRUN_TOKEN");
  Child daemon({daemon_program, "--port=0", "--host=127.0.0.1",
                "--heartbeat-timeout=" + std::to_string(arguments.heartbeat_seconds)},
               errors);
  stay_on(own_processor);
  int port = 0;
  const auto line = daemon.line(std::chrono::seconds(10));
  if (const auto at = line.find("port "); at != std::string::npos) port = std::atoi(line.c_str() + at + 5);
  if (port == 0) fail("the daemon did not say its port");

  auto cpu_since_last = [&, last = usage_of(daemon.pid()).cpu_ms]() mutable {
    const double now = usage_of(daemon.pid()).cpu_ms;
    return now - std::exchange(last, now);
  };
  std::printf("%d agents%s, heartbeat limit %.2f s, the daemon on processor %d, the swarm on %d\n", arguments.agents,
              arguments.has_tls ? " with TLS" : "", arguments.heartbeat_seconds, daemon_processor, own_processor);
  std::printf("%-58s %9s %9s %9s %-5s %8s %8s\n", "", "median", "least", "most", "", "aim", "daemon's CPU");
  const double kb_before = usage_of(daemon.pid()).anonymous_kb;
  Swarm swarm(arguments, static_cast<std::uint16_t>(port));
  const auto begin = Clock::now();
  const auto count = static_cast<std::size_t>(arguments.agents);
  swarm.join(count - 1);
  print_row("all but one connect at once -> all welcome", {ms_since(begin)}, "ms", "", cpu_since_last());
  std::printf("%-58s %9d\n", "  connections that had to be made again", swarm.connections_made_again());
  const double start_ms = swarm.start_by_last_hello();
  print_row("the last hello -> all told start_round", {start_ms}, "ms", "500", cpu_since_last());
  const double kb_joined = usage_of(daemon.pid()).anonymous_kb;

  std::vector<double> stop, start_again, stop_cpu, start_cpu;
  for (int round = 0; round < arguments.rounds; ++round) {
    swarm.idle(std::chrono::seconds(1));
    cpu_since_last();
    const auto failed = static_cast<std::size_t>(round * 7919) % count;
    stop.push_back(swarm.stop_by_failure_of(failed));
    stop_cpu.push_back(cpu_since_last());
    start_again.push_back(swarm.start_by_ends(failed));
    start_cpu.push_back(cpu_since_last());
  }
  std::sort(stop_cpu.begin(), stop_cpu.end());
  std::sort(start_cpu.begin(), start_cpu.end());
  print_row("one round_failed -> all told stop_round", stop, "ms", "150", stop_cpu[stop_cpu.size() / 2]);
  print_row("all say round_ended at once -> all told start_round", start_again, "ms", "",
            start_cpu[start_cpu.size() / 2]);

  swarm.idle(std::chrono::seconds(3));
  cpu_since_last();
  const auto traffic_before = swarm.traffic();
  const auto idle_begin = Clock::now();
  swarm.idle(std::chrono::seconds(arguments.idle_seconds));
  const double seconds = ms_since(idle_begin) / 1000;
  const auto traffic = swarm.traffic();
  const double agent_seconds = seconds * arguments.agents;
  const double payload = traffic.payload_bytes - traffic_before.payload_bytes;
  const double segments = traffic.segments - traffic_before.segments;
  print_row("idle: bytes a second and agent, both ways, at the sockets", {payload / agent_seconds}, "B/s",
            arguments.has_tls ? "200" : "100");
  print_row("  with the headers of TCP and IP", {(payload + segments * kHeaderBytes) / agent_seconds}, "B/s", "");
  print_row("idle: the daemon's CPU", {cpu_since_last() / seconds / 10}, "%", "");
  print_row("memory of the daemon for an agent, once all are there", {(kb_joined - kb_before) / arguments.agents}, "kB",
            arguments.has_tls ? "60" : "20");
  const double kb_after = usage_of(daemon.pid()).anonymous_kb;
  print_row("  after these rounds", {(kb_after - kb_before) / arguments.agents}, "kB", "");
  cpu_since_last();
  const double deaths_ms = swarm.stop_by_deaths();
  print_row("every tenth dies at once -> all others told stop_round", {deaths_ms}, "ms", "", cpu_since_last());
  const double without_ms = swarm.start_by_ends(count);
  print_row("  they say round_ended -> all told start_round", {without_ms}, "ms", "", cpu_since_last());
}

void time_torch(const Arguments& arguments, const std::string& errors) {
  const char* given = std::getenv("DDP_TEST_PYTHON");
  const std::string python = given != nullptr ? given : DDP_BENCHMARK_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) {
    std::printf("no Python with torch: ddp-rendezvous alone; `./test.sh --interop` installs it\n");
    return;
  }
  for (const int nodes : arguments.torch_nodes) {
    Child torch({python, DDP_BENCHMARK_TORCH_SIDE, std::to_string(nodes)}, errors);
    const auto line = torch.line(std::chrono::minutes(5));
    if (line.empty()) {
      std::printf("torchrun's c10d rendezvous, %d nodes: none within 5 min, or it failed: %s\n", nodes, errors.c_str());
      return;
    }
    std::printf("torchrun's c10d rendezvous, %3d nodes: %s\n", nodes, line.c_str());
  }
}

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const auto value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const int number = std::atoi(value.c_str());
    if (name == "--agents" && number >= 2)
      out.agents = number;
    else if (name == "--rounds" && number >= 1)
      out.rounds = number;
    else if (word == "--tls")
      out.has_tls = true;
    else if (name == "--idle" && number >= 1)
      out.idle_seconds = number;
    else if (name == "--heartbeat-timeout" && std::atof(value.c_str()) > 0)
      out.heartbeat_seconds = std::atof(value.c_str());
    else if (name == "--torch") {
      out.torch_nodes.clear();
      std::istringstream list(value);
      for (std::string one; std::getline(list, one, ',');) out.torch_nodes.push_back(std::atoi(one.c_str()));
    } else {
      throw std::invalid_argument("'" + word +
                                  "' is none of --agents=N, --rounds=N, --heartbeat-timeout=SECONDS, "
                                  "--idle=SECONDS, --torch=N,N, --tls");
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Arguments arguments;
  try {
    arguments = parse(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "error: %s\nwhere: the command line\ntry:   scale_benchmark --agents=1000\n", error.what());
    return 2;
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const auto own_program = fs::read_symlink("/proc/self/exe");
  const auto errors = (fs::temp_directory_path() / ("scale_benchmark_" + std::to_string(::getpid()) + ".log")).string();
  const auto processors = two_processors();
  try {
    time_daemon(arguments, own_program.parent_path() / "ddp-rendezvous", errors);
    if (processors.first != processors.second) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (int i = processors.first; i <= processors.second; ++i) CPU_SET(i, &set);
      ::sched_setaffinity(0, sizeof set, &set);
    }
    time_torch(arguments, errors);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\nwhere: after the last line above\ntry:   what the others said is in %s\n",
                 error.what(), errors.c_str());
    return 1;
  }
  fs::remove(errors);
  return 0;
}
