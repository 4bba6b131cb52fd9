// A worker that speaks to its agent as libddp does, but is no more than that: what ddprun does with the answers is
// tested with it from outside.
//
//   stop_worker FOLDER [NAME[=RANK]].. - what a rank does, or all of them without one:
//     deaf     takes no stops
//     late     takes stops only once FOLDER/go exists
//     seats    takes seats
//     die      ends with exit code 3 in the first round, once FOLDER/die exists
//     commit   has committed, and says so, once FOLDER/commit exists
//     mute     tells of no steps and no commits
//     fail     ends with exit code 4 when it hears of the step
//     finish   has done its work when it hears of the step, and ends with 0
//     hang     comes to the step and does not end
//     catch    prints "caught" at SIGUSR1
//     naked    dies of SIGUSR1, as if nobody had it ignored
//     late_usr1  comes to the step, and then dies of SIGUSR1
//
// It ends by SIGTERM only when its agent has said that the signal is meant for it, unless it is deaf.
//
// Ranks are not in step: each is ahead of the one before it by ten steps. At the step it prints "stops at STEP ;".
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/worker_link/message.hpp"

namespace {

using namespace ddp::worker_link;

constexpr std::uint64_t kAhead = 10;
constexpr int kStepMs = 2;

// In one write, so that lines of several workers do not mix.
void print(const std::string& line) {
  static_cast<void>(!::write(STDOUT_FILENO, (line + " ;\n").data(), line.size() + 3));
}

volatile sig_atomic_t term_came = 0;

void say_caught(int) { static_cast<void>(!::write(STDOUT_FILENO, "caught ;\n", 9)); }

std::uint32_t number_of(const std::string& round_id) {
  return static_cast<std::uint32_t>(std::atoi(round_id.substr(round_id.rfind('-') + 1).c_str()));
}

class Worker {
 public:
  Worker(std::string folder, std::set<std::string> does) : folder_(std::move(folder)), does_(std::move(does)) {}

  void run() {
    if (is("catch")) ::signal(SIGUSR1, say_caught);
    if (is("naked")) ::signal(SIGUSR1, SIG_DFL);
    if (!is("deaf")) ::signal(SIGTERM, [](int) { term_came = 1; });
    say(LinkHello{kVersion, is("seats"), !is("deaf") && !is("late")});
    begin();
    for (bool is_late = is("late");; ++step_) {
      if (is_late && has("go")) {
        is_late = false;
        say(LinkHello{kVersion, is("seats"), true});
      }
      if (is("die") && std::getenv("TORCHELASTIC_RESTART_COUNT") == std::string("0") && has("die")) std::exit(3);
      if (is("commit") && !has_committed_ && has("commit")) {
        has_committed_ = true;
        say(LinkProgress{round_, true, 8, {}});
        print("committed");
      }
      for (int wait_ms = kStepMs; auto message = next(wait_ms); wait_ms = 0)
        std::visit([this](const auto& what) { take(what); }, *message);
      if (step_ == stop_at_) stop();
    }
  }

 private:
  void begin() {
    step_ = 1 + kAhead * static_cast<std::uint64_t>(std::atoi(std::getenv("RANK")));
    stop_at_.reset();
    if (!is("mute")) say(LinkProgress{round_, true, 7, {}});
    print("up round=" + std::to_string(round_) + " rank=" + std::getenv("RANK") + " pid=" + std::to_string(::getpid()));
  }

  void stop() {
    say(LinkStopping{round_});
    print("stops at " + std::to_string(step_));
    while (is("hang")) ::pause();
    if (is("late_usr1")) {
      ::signal(SIGUSR1, SIG_DFL);
      ::raise(SIGUSR1);
    }
    std::exit(0);
  }

  // Waits for the step, as libddp does in the call that it has promised.
  void take(const LinkPrepareStop& message) {
    if (message.round != round_) return;
    say(LinkStopReady{round_, step_ + 1});
    ++step_;
    while (!stop_at_) {
      const auto answer = next(-1);
      if (!answer) std::exit(5);
      std::visit([this](const auto& what) { take(what); }, *answer);
    }
    if (step_ == stop_at_) stop();
  }

  void take(const LinkStopAt& message) {
    if (message.round != round_) return;
    if (is("fail")) std::exit(4);
    if (is("finish")) std::exit(0);
    stop_at_ = message.call;
  }

  void take(const LinkRoundOver& message) {
    if (!is("seats")) return;
    say(LinkLeft{message.round, {}, "the round is over"});
    stop_at_ = 0;
  }

  void take(const LinkSeat& message) {
    for (const auto& [name, value] : message.variables) ::setenv(name.c_str(), value.c_str(), 1);
    round_ = number_of(message.variables.at("DDPRUN_ROUND_ID"));
    begin();
  }

  void take(const LinkStop&) {
    ::signal(SIGTERM, SIG_DFL);
    if (term_came) ::raise(SIGTERM);
  }

  bool is(const std::string& what) const {
    return does_.count(what) != 0 || does_.count(what + "=" + std::getenv("RANK")) != 0;
  }
  bool has(const std::string& name) const { return ::access((folder_ + "/" + name).c_str(), F_OK) == 0; }

  void say(const FromWorker& message) const {
    const auto packet = encode(message);
    if (::send(socket_, packet.data(), packet.size(), MSG_NOSIGNAL) < 0) std::exit(6);
  }

  std::optional<ToWorker> next(int wait_ms) const {
    pollfd socket{socket_, POLLIN, 0};
    int count = -1;
    do {
      count = ::poll(&socket, 1, wait_ms);
    } while (count < 0 && errno == EINTR);
    if (count <= 0) return {};
    char packet[kPacketBytesMax];
    const auto length = ::recv(socket_, packet, sizeof packet, 0);
    if (length <= 0) std::exit(7);
    return parse_to_worker({packet, static_cast<std::size_t>(length)});
  }

  std::string folder_;
  std::set<std::string> does_;
  int socket_ = std::atoi(std::getenv(kSocketVariable));
  std::uint32_t round_ = number_of(std::getenv("DDPRUN_ROUND_ID"));
  std::uint64_t step_ = 1;
  bool has_committed_ = false;
  std::optional<std::uint64_t> stop_at_;
};

}  // namespace

int main(int argc, char** argv) { Worker(argv[1], {argv + 2, argv + argc}).run(); }
