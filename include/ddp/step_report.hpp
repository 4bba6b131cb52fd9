// Where the time of training steps goes, over all ranks: computing, communication that computing does not hide, and
// waiting for the slowest rank. Says which rank that is, and how many samples per second the job trains.
//
//   ddp::StepReporter report(world, {.every = 100});
//   for (const auto& batch : batches) {
//     auto step = model.begin_step();
//     forward(batch);
//     backward([&](std::size_t p) { step.ready(p); });
//     report.finish(step, batch.size());   // in place of step.finish(); every 100 steps rank 0 prints a line
//     optimizer.step();
//   }
//
// Measured on each rank, with the host's clock: from the end of one finish() to the call of the next (compute), and how
// long finish() takes. All ranks leave finish() at about the same time, because all have the same result then. So
// compute times start together, and are compared without synchronised clocks: the rank with the longest arrives last,
// and the others wait for it. What is left of finish() after waiting is exposed communication.
//
// Not measured:
// - Communication that runs beside backward. It counts only as far as it slows computing, and then as compute.
// - Waiting in other collectives between two calls of finish(), such as those of BatchNorm over ranks: it counts as
//   compute, and hides which rank is slow.
// - On a GPU, what the device does: calls return before their work is done. Times are those of the host, so the samples
//   per second are right, and the parts of a step are not.
// - Over several hosts, by how much longer the last host takes to get a result than the first: some of it counts as
//   compute of the step after it.
//
// Steps with Sync::off count as compute: call their own finish(), and give their samples to the next report.finish().
//
// Collective: every rank calls finish() or add() equally often. Each `every` steps one all_gather of 24 bytes per step
// and rank; it is in no step's time. Between: two readings of the clock for each step.
// Errors: what finish() throws; the step is not counted then. Those of collectives. MismatchError of the comparison.
// Threads: one at a time. Copies share their state. A group of another size (run_elastic) takes a new reporter.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/export.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// What one rank measured of one step.
struct StepTimes {
  std::chrono::nanoseconds compute{0};  // from the end of the last finish() to the call of this one
  std::chrono::nanoseconds finish{0};   // of the call that waits for the other ranks
};

// Over a window of steps. The three times add up to the mean duration of a step; they are means over ranks and steps.
struct StepReport {
  std::uint64_t step = 0;                      // the window's last, where the reporter's first is 1
  std::size_t steps = 0;                       // that were measured in the window
  double samples_per_second = 0;               // of all ranks together
  std::chrono::nanoseconds compute{0};         // StepTimes::compute
  std::chrono::nanoseconds communication{0};   // exposed: the rest of finish() after waiting
  std::chrono::nanoseconds waiting{0};         // for the slowest rank of each step
  int slowest_rank = -1;                       // of the most steps; -1 of one rank
  std::size_t slowest_steps = 0;               // so many
  std::chrono::nanoseconds slowest_behind{0};  // in these, how much later it came than the others did on average
  std::optional<double> efficiency{};  // samples per second / (ranks * those of one rank alone); on rank 0, if known
};

DDP_EXPORT std::string to_text(const StepReport& report);  // one line, without its end
DDP_EXPORT std::string to_json(const StepReport& report);  // one object on one line; times in milliseconds

// How a report is written.
enum class ReportFormat : std::uint8_t {
  text,        // a line for people, as to_text()
  json_lines,  // an object for each line
};

// Options of a StepReporter.
struct StepReportOptions {
  std::uint64_t every = 100;                 // steps of a window, 1 to 10,000; the same on all ranks
  ReportFormat format = ReportFormat::text;  // of the lines
  // Gets each line, on rank 0 only. Empty: standard output. Progress::print_line() keeps lines apart from a bar.
  std::function<void(const std::string& line)> write{};
  // The samples per second of one rank alone, a small JSON file: a run with one rank writes it, with each report anew;
  // rank 0 of more ranks reads it at the start. Without such a file no efficiency is known.
  std::string single_rank_file{};
  // Every so many steps, after finish(), check_parameters_equal() of these; 0: never. The same on all ranks.
  std::uint64_t check_every = 0;
  std::vector<Parameter> check_parameters{};                       // what check_every compares
  std::function<std::chrono::steady_clock::time_point()> clock{};  // empty: std::chrono::steady_clock
  CollectiveOptions collective{};                                  // of the reporter's own collectives
};

// Measures the steps of a run; an example is at the top of this file.
class DDP_EXPORT StepReporter {
 public:
  // Takes no collective. Throws InvalidArgument for a group that is empty, options out of range, and on rank 0 if
  // single_rank_file has something else.
  explicit StepReporter(ProcessGroup group, StepReportOptions options = {});

  // Ends a step: calls step.finish() and returns its result. `samples`: of this rank, since the last call. Before the
  // first call nothing is known of when the others began, so the first step is in no report.
  int finish(DistributedDataParallel::Step& step, std::uint64_t samples);

  // The same for a program without DistributedDataParallel: `communicate` averages its gradients over all ranks.
  void finish(const std::function<void()>& communicate, std::uint64_t samples);

  // A step whose times the program took itself. Also for DistributedDataParallel::join(), whose `after_each_step` calls
  // add({}, 0), so that every rank counts equally many steps.
  void add(const StepTimes& times, std::uint64_t samples);

  // The newest report, the same on all ranks but for the efficiency.
  std::optional<StepReport> newest() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
