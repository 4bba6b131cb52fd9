// What recording costs, in CPU time, which other work on the machine changes least: an operation through all its
// states, by one thread and by two at once, without and with a trace; a span of the program's; the files of a failure
// with a full ring.
//
//   flight_recorder_benchmark [rounds]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "ddp/trace.hpp"
#include "worker_runtime/flight_recorder/dump.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"

namespace {

using namespace ddp::flight_recorder;

constexpr int kCalls = 100'000;

double seconds_of(const std::function<void()>& steps) {
  const std::clock_t begin = std::clock();
  steps();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median_of(int rounds, const std::function<void()>& steps) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) times.push_back(seconds_of(steps));
  return ddp::benchmarks::median(times);
}

void record_calls(Recorder& recorder, GroupId group) {
  const Operation operation{
      .name = "all_reduce", .reduce_op = "sum", .input_count = 1000, .output_count = 1000, .element_bytes = 4};
  for (int call = 0; call < kCalls; ++call) {
    const Ticket ticket = recorder.record(group, operation);
    recorder.start(ticket);
    recorder.complete(ticket);
  }
}

void say(const char* what, double seconds, double count) {
  std::printf("| %s | %.0f ns |\n", what, seconds * 1e9 / count);
}

void say_whole(const char* what, double seconds) { std::printf("| %s | %.1f ms |\n", what, seconds * 1e3); }

}  // namespace

int main(int argument_count, char** arguments) {
  const int rounds = argument_count > 1 ? std::atoi(arguments[1]) : 9;
  Recorder recorder;
  const GroupId group =
      recorder.open({.backend = "cpu", .name = "group_0", .description = "all ranks", .ranks = {0, 1}});
  std::printf("| %d calls, median of %d rounds | CPU time |\n| --- | --- |\n", kCalls, rounds);
  say("an operation: called, started, completed", median_of(rounds, [&] { record_calls(recorder, group); }), kCalls);
  say("the same by 2 threads at once",
      median_of(rounds,
                [&] {
                  std::thread other([&] { record_calls(recorder, group); });
                  record_calls(recorder, group);
                  other.join();
                }),
      2 * kCalls);
  const auto spans = [] {
    for (int call = 0; call < kCalls; ++call) const ddp::TraceSpan span("a span");
  };
  say("a span without a trace", median_of(rounds, spans), kCalls);
  const std::string directory = "/tmp/ddp_flight_recorder_benchmark_" + std::to_string(::getpid());
  const Files files = files_of({.prefix = directory + "/"}, {}, 0, 0);
  say_whole("the files of a failure, 4096 operations", median_of(rounds, [&] {
              const Snapshot snapshot = of_round(recorder.snapshot(), 0);
              write_files(files, to_json(snapshot, {}), to_pickle(snapshot, {}), "");
            }));
  {
    ddp::Trace trace(directory + "/trace.json");
    say("an operation with a trace", median_of(rounds, [&] { record_calls(recorder, group); }), kCalls);
    say("a span with a trace", median_of(rounds, spans), kCalls);
    say_whole("the file of a trace with 1,000,000 events", seconds_of([&] { trace.finish(); }));
  }
  std::filesystem::remove_all(directory);
}
