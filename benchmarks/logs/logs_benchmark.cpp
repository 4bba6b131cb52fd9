// How many bytes of many workers' output a launcher brings into log files and to the console per second, and what that
// does to the rest of ddprun's event loop.
//
// Workers print lines of 100 bytes, one write each, as fast as they can; the console is a pipe that is read at once.
// Sides take turns within each round, because the machine's speed drifts. A launcher's start is taken off by a run that
// prints nothing. Every file is compared with what its worker printed. Beside them stand the machine's own bounds: the
// same bytes through one pipe, and into files with nobody between.
//
//   logs_benchmark [workers [megabytes per worker [rounds]]]      default 64 4 5
//
// torchrun is looked for beside $DDP_TEST_PYTHON, then on PATH.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "launcher/output/output.hpp"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::benchmarks::median;

constexpr std::size_t kLineBytes = 100;

std::string line_of(int rank, long number) {
  char text[kLineBytes + 1];
  std::snprintf(text, sizeof text, "rank %d line %ld ", rank, number);
  std::string line(text);
  line.resize(kLineBytes - 1, '.');
  return line + '\n';
}

void print_lines(int rank, long lines) {
  for (long i = 0; i < lines; ++i) {
    const auto line = line_of(rank, i);
    if (::write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::exit(1);
  }
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string self() { return fs::read_symlink("/proc/self/exe").string(); }

// `out` and `err` become stdout and stderr. In a session of its own, as a launcher's workers are, because the scheduler
// shares a busy machine out among sessions.
pid_t spawn(const Words& words, int out, int err) {
  auto arguments = arguments_of(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = -1;
  if (posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ) != 0) pid = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

struct Run {
  double seconds = 0;
  std::size_t console_lines = 0;
  bool failed = false;
};

// What an earlier run left to the disk must not be paid by the next one.
void settle(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ::syncfs(fd);
  ::close(fd);
}

// Its stdout is a pipe that is read until its end; its stderr is nowhere, so that only workers' lines are counted.
Run run_and_read(const Words& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const auto begin = Clock::now();
  const pid_t pid = spawn(words, ends[1], nowhere);
  ::close(ends[1]);
  ::close(nowhere);
  Run run;
  static char buffer[1 << 16];
  for (ssize_t length; (length = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    run.console_lines += static_cast<std::size_t>(std::count(buffer, buffer + length, '\n'));
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(ends[0]);
  run.seconds = seconds_since(begin);
  run.failed = status != 0;
  return run;
}

// How many files have exactly what their worker printed. The rank is the number at the end of the folder's name.
int complete_files(const fs::path& logs, long lines) {
  int complete = 0;
  for (const auto& entry : fs::recursive_directory_iterator(logs)) {
    if (entry.path().filename() != "stdout.log") continue;
    const auto folder = entry.path().parent_path().filename().string();
    const int rank = std::atoi(folder.c_str() + folder.find_last_not_of("0123456789") + 1);
    std::ifstream file(entry.path(), std::ios::binary);
    std::string text(kLineBytes, '\0');
    long number = 0;
    while (file.read(text.data(), kLineBytes) && text == line_of(rank, number)) ++number;
    complete += number == lines && file.gcount() == 0;
  }
  return complete;
}

struct Side {
  std::string name;
  Words command;  // up to the program
  bool to_console;
};

std::string torchrun() {
  const char* python = std::getenv("DDP_TEST_PYTHON");
  if (python != nullptr) {
    const auto beside = (fs::path(python).parent_path() / "torchrun").string();
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  }
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');)
    if (::access((folder + "/torchrun").c_str(), X_OK) == 0) return folder + "/torchrun";
  return {};
}

// The same bytes by one worker through one pipe to one reader.
double pipe_seconds(int workers, long lines) {
  return run_and_read({self(), "write-blocks", std::to_string(workers * lines * static_cast<long>(kLineBytes))})
      .seconds;
}

double file_seconds(const fs::path& folder, int workers, long lines) {
  settle(folder);
  std::vector<pid_t> pids;
  const auto begin = Clock::now();
  for (int rank = 0; rank < workers; ++rank) {
    const auto path = folder / ("bare_" + std::to_string(rank));
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pids.push_back(spawn({self(), "print", std::to_string(lines), std::to_string(rank)}, file, file));
    ::close(file);
  }
  for (const pid_t pid : pids) ::waitpid(pid, nullptr, 0);
  const auto seconds = seconds_since(begin);
  for (int rank = 0; rank < workers; ++rank) fs::remove(folder / ("bare_" + std::to_string(rank)));
  return seconds;
}

void compare_throughput(const fs::path& scratch, int workers, long lines, int rounds) {
  const auto ddprun = (fs::path(self()).parent_path() / "ddprun").string();
  const Words common{"--standalone", "--nproc-per-node=" + std::to_string(workers)};
  std::vector<Side> sides{{"ddprun --tee=3", {ddprun, "--tee=3"}, true},
                          {"ddprun --redirects=3", {ddprun, "--redirects=3"}, false}};
  if (const auto found = torchrun(); !found.empty())
    sides.push_back({"torchrun --tee=3", {found, "--no-python", "--tee=3"}, true});
  else
    std::printf("torchrun is not installed here\n");

  std::vector<std::vector<double>> start(sides.size()), rate(sides.size()), ratio(sides.size());
  std::vector<double> pipe, file;
  std::vector<double> shown(sides.size(), 1);
  std::vector<int> wrong(sides.size());
  const double megabytes = static_cast<double>(workers) * static_cast<double>(lines) * kLineBytes / 1e6;
  for (int round = 0; round < rounds; ++round) {
    pipe.push_back(megabytes / (pipe_seconds(workers, lines) - pipe_seconds(workers, 0)));
    file.push_back(megabytes / (file_seconds(scratch, workers, lines) - file_seconds(scratch, workers, 0)));
    for (std::size_t i = 0; i < sides.size(); ++i) {
      if (sides[i].name.find("torchrun") == 0 && round >= 3) continue;  // many seconds each; three will do
      const auto logs = scratch / "logs";
      const auto run = [&](long count) {
        auto words = sides[i].command;
        words.insert(words.end(), common.begin(), common.end());
        words.insert(words.end(), {"--log-dir=" + logs.string(), self(), "print", std::to_string(count)});
        fs::remove_all(logs);
        settle(scratch);
        return run_and_read(words);
      };
      const auto empty = run(0);
      const auto full = run(lines);
      start[i].push_back(empty.seconds);
      rate[i].push_back(megabytes / std::max(1e-3, full.seconds - empty.seconds));
      ratio[i].push_back(rate[0].back() / rate[i].back());
      if (sides[i].to_console)
        shown[i] = std::min(shown[i], static_cast<double>(full.console_lines) / static_cast<double>(workers * lines));
      wrong[i] += full.failed || complete_files(logs, lines) != workers;
      fs::remove_all(logs);
    }
  }
  std::printf("%d workers, %.0f MB together, median of %d rounds\n\n%-24s %10s %10s %16s %10s %16s\n", workers,
              megabytes, rounds, "", "start s", "MB/s", "ddprun --tee is", "console", "wrong runs");
  for (std::size_t i = 0; i < sides.size(); ++i)
    std::printf("%-24s %10.2f %10.0f %15.2fx %9.1f%% %16d\n", sides[i].name.c_str(), median(start[i]), median(rate[i]),
                median(ratio[i]), shown[i] * 100, wrong[i]);
  std::printf("%-24s %10s %10.0f\n%-24s %10s %10.0f\n", "bare: one pipe", "", median(pipe), "bare: into files", "",
              median(file));
  std::fflush(stdout);
}

double cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// How late a timer of 1 ms is on a loop that has this many workers' output to do, or with output_to_loop false on one
// that has nothing to do while the same workers print into files; and the longest turn of the loop in CPU time, which
// other processes do not lengthen.
void print_timer_lateness(const fs::path& scratch, const char* name, int workers, long lines, bool output_to_loop) {
  boost::asio::io_context io{1};
  ddp::launcher::OutputOptions options;
  options.log_directory = (scratch / "lateness").string();
  (output_to_loop ? options.tee : options.redirects).all = 3;
  const int before = ::fcntl(1, F_DUPFD_CLOEXEC, 3), nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  std::fflush(stdout);
  ::dup2(nowhere, 1);
  std::vector<double> late_us;
  double longest_turn_us = 0;
  {
    ddp::launcher::Output output(io, options, scratch.string(), [] {});
    bool is_open = false;
    output.begin_round({"run", 0, 0, workers, workers, "default", false}, {}, [&is_open](std::exception_ptr error) {
      if (error) std::rethrow_exception(error);
      is_open = true;
    });
    while (!is_open) io.run_one();
    io.restart();  // it may have had nothing else to do
    int running = 0;
    for (int rank = 0; rank < workers; ++rank) {
      const auto side = output.worker_side(rank);
      running += spawn({self(), "print", std::to_string(lines), std::to_string(rank)}, side[1], side[2]) > 0;
      output.worker_is_spawned(rank);
    }
    boost::asio::steady_timer timer(io);
    auto due = Clock::now();
    const std::function<void(boost::system::error_code)> tick = [&](boost::system::error_code) {
      late_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - due).count());
      while (::waitpid(-1, nullptr, WNOHANG) > 0) --running;
      if (running == 0) return io.stop();
      due = Clock::now() + std::chrono::milliseconds(1);
      timer.expires_at(due);
      timer.async_wait(tick);
    };
    tick({});
    for (double before_us = cpu_us(); io.run_one() > 0;) {
      const double now_us = cpu_us();
      longest_turn_us = std::max(longest_turn_us, now_us - before_us);
      before_us = now_us;
    }
    bool is_written = false;
    output.end_round({}, [&is_written] { is_written = true; });
    io.restart();
    while (!is_written) io.run_one();
  }
  ::dup2(before, 1);
  ::close(before);
  ::close(nowhere);
  const int complete = complete_files(options.log_directory, lines);
  std::sort(late_us.begin(), late_us.end());
  const auto part = [&](double share) {
    return late_us[static_cast<std::size_t>(share * static_cast<double>(late_us.size() - 1))];
  };
  std::printf("%-44s %8zu %10.0f %10.0f %10.0f %12.0f %10d\n", name, late_us.size(), part(0.5), part(0.99),
              late_us.back(), longest_turn_us, complete);
  std::fflush(stdout);
  fs::remove_all(options.log_directory);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "print") == 0) {
    const char* rank = std::getenv("RANK");
    print_lines(argc > 3 ? std::atoi(argv[3]) : rank != nullptr ? std::atoi(rank) : 0, std::atol(argv[2]));
    return 0;
  }
  if (argc > 2 && std::strcmp(argv[1], "write-blocks") == 0) {
    const std::string block(1 << 16, '\n');
    for (long left = std::atol(argv[2]); left > 0;) {
      const auto written =
          ::write(STDOUT_FILENO, block.data(), std::min<std::size_t>(block.size(), static_cast<std::size_t>(left)));
      if (written < 0) return 1;
      left -= written;
    }
    return 0;
  }
  const int workers = argc > 1 ? std::atoi(argv[1]) : 64, megabytes = argc > 2 ? std::atoi(argv[2]) : 4;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  if (workers < 1 || megabytes < 1 || rounds < 1) {
    std::fprintf(stderr,
                 "error: three numbers above 0 are wanted\nwhere: the arguments\ntry:   logs_benchmark 64 4 5\n");
    return 2;
  }
  auto scratch = (fs::temp_directory_path() / "logs_benchmark_XXXXXX").string();
  if (::mkdtemp(scratch.data()) == nullptr) return 1;
  const long lines = megabytes * 1'000'000L / static_cast<long>(kLineBytes);
  compare_throughput(scratch, workers, lines, rounds);
  std::printf("\n%-44s %8s %10s %10s %10s %12s %10s\n", "a timer of 1 ms on the event loop is late by", "times",
              "median us", "99 % us", "most us", "turn CPU us", "complete");
  print_timer_lateness(scratch, "while the workers print into files, as control", workers, lines * 4, false);
  print_timer_lateness(scratch, "while their output is tee'd by the loop", workers, lines * 4, true);
  fs::remove_all(scratch);
}
