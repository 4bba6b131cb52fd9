// How fast the store is, beside PyTorch's own: each server with each client, in turn within each round, because the
// machine's speed drifts. Printed are medians, and the median of the ratios within one round.
//
// A piece of work is counted from the first client's start to the last one's end. Servers are processes of their own,
// whose CPU time is counted too. PyTorch's side needs a Python that has torch: DDP_TEST_PYTHON, else
// build/interop/venv, else python3; without one only ours runs.
//
//   store_benchmark [rounds]      default 5
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "benchmarks/common/measure.hpp"
#include "rendezvous/store/client.hpp"

namespace {

using namespace ddp;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::benchmarks::median;

constexpr int kIdleConnections = 10'000;

store::TimePoint limit() { return Clock::now() + std::chrono::seconds(120); }
double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// A program that is talked to by lines; it ends with its standard input, or by a signal.
class Talker {
 public:
  explicit Talker(const Words& words) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    auto arguments = arguments_of(words);
    if (::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) pid_ = 0;
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_.reset(in[1]);
    out_ = ::fdopen(out[0], "r");
    if (pid_ == 0) throw std::runtime_error(words[0] + " does not start");
  }
  ~Talker() {
    in_.reset();
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
    std::fclose(out_);
  }
  Talker(const Talker&) = delete;

  pid_t pid() const { return pid_; }
  std::string line() {
    char text[512];
    if (std::fgets(text, sizeof text, out_) == nullptr) throw std::runtime_error("a side of the benchmark has ended");
    return text;
  }
  std::string ask(const std::string& question) {
    if (::write(in_.get(), question.data(), question.size()) < 0) throw std::runtime_error("a side has ended");
    return line();
  }

 private:
  pid_t pid_ = 0;
  base::UniqueFd in_;
  FILE* out_ = nullptr;
};

struct Server {
  explicit Server(const Words& words) : process(words) {
    const auto text = process.line();  // the port is its first number
    port = static_cast<std::uint16_t>(std::atoi(&text[text.find_first_of("0123456789")]));
  }

  double cpu_seconds() const {  // of all its threads
    double sum = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(process.pid()) + "/task")) {
      double nanoseconds = 0;
      std::ifstream(task.path() / "schedstat") >> nanoseconds;
      sum += nanoseconds / 1e9;
    }
    return sum;
  }
  double resident_kib() const {
    std::ifstream file("/proc/" + std::to_string(process.pid()) + "/status");
    for (std::string word; file >> word;)
      if (word == "VmRSS:" && file >> word) return std::atof(word.c_str());
    return 0;
  }

  Talker process;
  std::uint16_t port = 0;
};

struct Work {
  const char* what;
  const char* kind;
  int clients;
  int count;     // by each client
  bool is_rate;  // shown as operations per second, else as milliseconds each
};

store::Client connect(std::uint16_t port) {
  return store::Client::connect({.host = "127.0.0.1", .port = port, .deadline = limit()});
}

void do_work(store::Client& client, const Work& work, int index, const std::string& tag,
             std::vector<double>* latencies) {
  const std::string kind = work.kind, own = tag + "/own/" + std::to_string(index);
  for (int n = 0; n < work.count; ++n) {
    const auto begin = Clock::now();
    const auto key = tag + "/" + std::to_string(n);
    if (kind == "set") client.set(own, "sixteen bytes...", limit());
    if (kind == "get") client.get(own, limit());
    if (kind == "add") client.add(tag + "/sum", 1, limit());
    if (kind == "add_and_wait") {
      if (client.add(key, 1, limit()) == work.clients) client.set(key + "/go", "", limit());
      client.wait({key + "/go"}, limit());
    }
    if (kind == "barrier") client.barrier(key, work.clients, limit());
    if (kind == "fan_out") client.wait({tag + "/go"}, limit());
    if (latencies != nullptr) latencies->push_back(seconds(Clock::now() - begin));
  }
  if (kind == "set") client.key_count(limit());  // answered once all are stored
}

struct Spent {
  double seconds = 0;  // from the first start to the last end
  double cpu = 0;      // the server's, in the same time
};

Spent run_ours(const Server& server, const Work& work, const std::string& tag,
               std::vector<double>* latencies = nullptr) {
  const auto count = static_cast<std::size_t>(work.clients);
  std::vector<Clock::time_point> starts(count), ends(count);
  std::vector<std::vector<double>> times(count);
  std::latch connected(work.clients), go(1), finished(work.clients), leave(1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      auto client = connect(server.port);
      const int index = static_cast<int>(i);
      client.set(tag + "/own/" + std::to_string(index), "sixteen bytes...", limit());  // for get
      client.key_count(limit());
      connected.count_down();
      go.wait();
      starts[i] = Clock::now();
      do_work(client, work, index, tag, latencies != nullptr ? &times[i] : nullptr);
      ends[i] = Clock::now();
      finished.count_down();
      leave.wait();
    });
  }
  connected.wait();
  const double cpu = server.cpu_seconds();
  go.count_down();
  auto start = Clock::time_point::max();
  if (std::string(work.kind) == "fan_out") {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // by then all of them wait
    auto setter = connect(server.port);
    start = Clock::now();
    setter.set(tag + "/go", "", limit());
  }
  finished.wait();
  Spent spent;
  spent.cpu = server.cpu_seconds() - cpu;
  leave.count_down();
  for (auto& thread : threads) thread.join();
  if (std::string(work.kind) != "fan_out") start = *std::min_element(starts.begin(), starts.end());
  if (latencies != nullptr)
    for (const auto& some : times) latencies->insert(latencies->end(), some.begin(), some.end());
  spent.seconds = seconds(*std::max_element(ends.begin(), ends.end()) - start);
  return spent;
}

std::string shown(const Work& work, double each) {  // `each`: seconds for one operation
  if (std::isnan(each)) return "-";
  char text[32];
  if (work.is_rate) {
    std::snprintf(text, sizeof text, "%.1f k/s", 1 / each / 1000);
  } else {
    std::snprintf(text, sizeof text, "%.3g ms", each * 1000);
  }
  return text;
}

std::string ratio_text(double ratio) {
  if (std::isnan(ratio)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", ratio);
  return text;
}

std::optional<std::string> python_with_torch() {
  const char* given = std::getenv("DDP_TEST_PYTHON");
  for (const std::string& python :
       {std::string(given != nullptr ? given : ""), std::string(DDP_BENCHMARK_PYTHON), std::string("python3")}) {
    if (python.empty()) continue;
    if (std::system((python + " -c 'import torch.distributed' >/dev/null 2>&1").c_str()) == 0) return python;
  }
  return std::nullopt;
}

// Connections that have shaken hands and then say nothing.
class IdleConnections {
 public:
  IdleConnections(std::uint16_t port, int count) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const auto hello = store::encode(store::command::Validate{}) + store::encode(store::command::Ping{1});
    for (int i = 0; i < count; ++i) {
      base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      char answer[4];
      if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
          ::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0 ||
          ::recv(socket.get(), answer, sizeof answer, MSG_WAITALL) != sizeof answer)
        throw std::runtime_error("only " + std::to_string(i) + " idle connections could be made; see `ulimit -Hn`");
      sockets_.push_back(std::move(socket));
    }
  }

 private:
  std::vector<base::UniqueFd> sockets_;
};

void print_idle(const std::string& name, const Server& server) {
  const Work work{"", "add", 8, 2000, false};
  std::optional<IdleConnections> idle;
  for (const int count : {0, kIdleConnections}) {
    const double before = server.resident_kib();
    if (count > 0) idle.emplace(server.port, count);
    const double after = server.resident_kib();
    std::vector<double> latencies;
    const auto spent = run_ours(server, work, "idle" + std::to_string(count), &latencies);
    const double cpu_each = spent.cpu / (work.clients * work.count);
    std::sort(latencies.begin(), latencies.end());
    std::printf(
        "| %s | %d | %.3f ms | %.3f ms | %.1f us | %s |\n", name.c_str(), count, latencies[latencies.size() / 2] * 1e3,
        latencies[latencies.size() * 99 / 100] * 1e3, cpu_each * 1e6,
        count == 0 ? "" : (std::to_string(static_cast<int>((after - before) * 1024 / count)) + " bytes").c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  if (rounds < 1) {
    std::fprintf(stderr, "error: '%s' is no number of rounds\nwhere: the first argument\ntry:   store_benchmark 5\n",
                 argv[1]);
    return 2;
  }
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &descriptors);
  ::signal(SIGPIPE, SIG_IGN);
  // PyTorch looks up the name of each peer, on the server too: a second at most, where no name server answers, and no
  // line for each that it did not find. Connecting is not counted anywhere below.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);

  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "ddp-rendezvous";
  const auto python = python_with_torch();
  if (!python) std::printf("no Python with torch was found (DDP_TEST_PYTHON names one): only our side runs\n");
  std::vector<Words> commands{{program, "store", "--port=0", "--host=127.0.0.1"}};  // of the servers, ours first
  std::unique_ptr<Talker> torch_clients;
  if (python) {
    commands.push_back({*python, DDP_BENCHMARK_TORCH_SIDE, "serve"});
    torch_clients = std::make_unique<Talker>(Words{*python, DDP_BENCHMARK_TORCH_SIDE, "clients"});
    torch_clients->line();
  }
  std::vector<std::unique_ptr<Server>> servers;
  for (const auto& command : commands) servers.push_back(std::make_unique<Server>(command));

  const Work works[] = {
      {"set", "set", 1, 100'000, true},
      {"set", "set", 8, 40'000, true},
      {"get", "get", 1, 8'000, true},
      {"get", "get", 8, 4'000, true},
      {"add", "add", 1, 8'000, true},
      {"add", "add", 8, 4'000, true},
      {"barrier by add and wait", "add_and_wait", 8, 400, false},
      {"barrier by add and wait", "add_and_wait", 1000, 20, false},
      {"barrier by BARRIER", "barrier", 8, 800, false},
      {"barrier by BARRIER", "barrier", 1000, 40, false},
      {"one set wakes all", "fan_out", 1000, 1, false},
  };
  std::printf(
      "| | clients | our server, our client | PyTorch's, ours | times as fast | ours, PyTorch's | PyTorch's, "
      "PyTorch's | times as fast | server's CPU for each, ours : PyTorch's (our client) |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  int run = 0;
  for (const auto& work : works) {
    // [client][server], ours first
    std::array<std::array<std::vector<double>, 2>, 2> each;
    std::array<std::vector<double>, 2> cpu;  // [server], with our client
    std::array<std::vector<double>, 2> ratios;
    for (int round = 0; round < rounds; ++round) {
      // A thousand of PyTorch's clients can take a minute to connect; a few times will do.
      const bool with_torch_clients = python && (work.clients < 1000 || round < 6);
      for (std::size_t client = 0; client < (with_torch_clients ? 2u : 1u); ++client) {
        for (std::size_t turn = 0; turn < servers.size(); ++turn) {
          // Who comes first takes turns.
          const std::size_t s = (turn + static_cast<std::size_t>(round)) % servers.size();
          const std::string tag = "run" + std::to_string(++run);
          const int operations = work.is_rate ? work.clients * work.count : work.count;
          if (client == 0) {
            const auto spent = run_ours(*servers[s], work, tag);
            each[0][s].push_back(spent.seconds / operations);
            cpu[s].push_back(spent.cpu / operations);
            continue;
          }
          const auto answer =
              torch_clients->ask(std::to_string(servers[s]->port) + " " + work.kind + " " +
                                 std::to_string(work.clients) + " " + std::to_string(work.count) + " " + tag + "\n");
          if (std::atof(answer.c_str()) <= 0)
            throw std::runtime_error(std::string(work.what) + " failed with PyTorch's client");
          each[1][s].push_back(std::atof(answer.c_str()) / operations);
        }
        if (servers.size() == 2) ratios[client].push_back(each[client][1].back() / each[client][0].back());
      }
    }
    std::printf("| %s | %d | %s | %s | %s | %s | %s | %s | %.1f : %.1f us |\n", work.what, work.clients,
                shown(work, median(each[0][0])).c_str(), shown(work, median(each[0][1])).c_str(),
                ratio_text(median(ratios[0])).c_str(), shown(work, median(each[1][0])).c_str(),
                shown(work, median(each[1][1])).c_str(), ratio_text(median(ratios[1])).c_str(), median(cpu[0]) * 1e6,
                median(cpu[1]) * 1e6);
    std::fflush(stdout);
  }

  std::printf(
      "\n| add by 8 clients | idle connections beside | median | 99 %% | server's CPU for each | memory of an idle "
      "one |\n| --- | --- | --- | --- | --- | --- |\n");
  for (std::size_t s = 0; s < commands.size(); ++s) {
    print_idle(s == 0 ? "our server" : "PyTorch's", Server(commands[s]));  // new, so that its memory tells
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr,
               "error: %s\nwhere: store_benchmark\ntry:   run it again; DDP_TEST_PYTHON=/nowhere leaves PyTorch out\n",
               error.what());
  return 1;
}
