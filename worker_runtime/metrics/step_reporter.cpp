#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/parameter_check.hpp"
#include "ddp/step_report.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/metrics/single_rank_file.hpp"
#include "worker_runtime/metrics/step_summary.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"

namespace ddp {
namespace {

using gradient_engine::require_impl;
using metrics::kNotMeasured;
using metrics::kRankStepWords;
using metrics::RankStep;

constexpr std::uint64_t kWindowMax = 10'000;

constexpr const char* kName = "StepReporter";

[[noreturn]] void refuse_report(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: StepReporter\ntry:   " + advice);
}

void print_to_standard_output(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

StepReportOptions checked(const ProcessGroup& group, StepReportOptions options) {
  if (group.impl() == nullptr) refuse_report("an empty group", "a group that has this rank in it");
  if (options.every < 1 || options.every > kWindowMax) {
    refuse_report("a report every " + std::to_string(options.every) + " steps", "1 to 10000");
  }
  if (options.check_every > 0 && options.check_parameters.empty()) {
    refuse_report("check_every without parameters to compare", "check_parameters");
  }
  if (!options.write) options.write = print_to_standard_output;
  if (!options.clock) options.clock = [] { return std::chrono::steady_clock::now(); };
  return options;
}

}  // namespace

class StepReporter::Impl {
 public:
  Impl(ProcessGroup group, StepReportOptions options)
      : group_(std::move(group)), options_(checked(group_, std::move(options))) {
    if (group_.rank() == 0 && group_.size() > 1 && !options_.single_rank_file.empty()) {
      single_rank_ = metrics::read_single_rank_file(options_.single_rank_file);
    }
    window_.reserve(options_.every);
  }

  template <class Communicate>
  void finish(const Communicate& communicate, std::uint64_t samples) {
    const auto called = options_.clock();
    communicate();
    const auto left = options_.clock();
    RankStep step{kNotMeasured, 0, static_cast<std::int64_t>(samples)};
    if (is_started_) {
      step.compute_ns = std::chrono::nanoseconds(called - released_).count();
      step.finish_ns = std::chrono::nanoseconds(left - called).count();
    }
    is_started_ = true;
    released_ = left;
    add(step);
  }

  void add(const RankStep& step) {
    window_.push_back(step);
    ++step_;
    const bool is_report_due = window_.size() == options_.every;
    const bool is_check_due = options_.check_every > 0 && step_ % options_.check_every == 0;
    if (!is_report_due && !is_check_due) return;
    const auto gathered = is_report_due ? gather() : std::vector<std::int64_t>();
    if (is_check_due) check_parameters_equal(group_, options_.check_parameters, options_.collective);
    released_ = options_.clock();  // all ranks leave the collective at about the same time, as they do finish()
    if (is_report_due) report(gathered);
  }

  std::optional<StepReport> newest() const { return newest_; }

 private:
  // Empties the window.
  std::vector<std::int64_t> gather() {
    std::vector<std::int64_t> words;
    words.reserve(window_.size() * kRankStepWords);
    for (const RankStep& step : window_) words.insert(words.end(), {step.compute_ns, step.finish_ns, step.samples});
    window_.clear();
    return process_group::all_gather_words(group_, words, process_group::Within::nothing, options_.collective);
  }

  void report(const std::vector<std::int64_t>& words) {
    std::vector<RankStep> steps;
    steps.reserve(words.size() / kRankStepWords);
    for (std::size_t i = 0; i < words.size(); i += kRankStepWords) {
      steps.push_back({words[i], words[i + 1], words[i + 2]});
    }
    StepReport summary = metrics::summarize(steps, static_cast<std::size_t>(group_.size()));
    if (summary.steps == 0) return;
    summary.step = step_;
    if (single_rank_) summary.efficiency = summary.samples_per_second / (group_.size() * *single_rank_);
    newest_ = summary;
    if (group_.rank() != 0) return;
    if (group_.size() == 1 && !options_.single_rank_file.empty()) save(summary);
    options_.write(options_.format == ReportFormat::text ? to_text(summary) : to_json(summary));
  }

  // Of all windows so far.
  void save(const StepReport& window) {
    const double seconds = std::chrono::duration<double>(window.compute + window.communication).count() *
                           static_cast<double>(window.steps);
    seconds_ += seconds;
    samples_ += window.samples_per_second * seconds;
    if (seconds_ > 0 && samples_ > 0) {
      metrics::write_single_rank_file(options_.single_rank_file, samples_ / seconds_);
    }
  }

  ProcessGroup group_;
  StepReportOptions options_;
  std::optional<double> single_rank_;  // samples per second
  std::vector<RankStep> window_;
  std::uint64_t step_ = 0;
  bool is_started_ = false;
  std::chrono::steady_clock::time_point released_;  // when this rank last left a collective, once it is started
  double seconds_ = 0;                              // with one rank: measured so far
  double samples_ = 0;
  std::optional<StepReport> newest_;
};

StepReporter::StepReporter(ProcessGroup group, StepReportOptions options)
    : impl_(std::make_shared<Impl>(std::move(group), std::move(options))) {}

int StepReporter::finish(DistributedDataParallel::Step& step, std::uint64_t samples) {
  int active = 0;
  require_impl(impl_, kName).finish([&] { active = step.finish(); }, samples);
  return active;
}

void StepReporter::finish(const std::function<void()>& communicate, std::uint64_t samples) {
  require_impl(impl_, kName).finish(communicate, samples);
}

void StepReporter::add(const StepTimes& times, std::uint64_t samples) {
  require_impl(impl_, kName).add({times.compute.count(), times.finish.count(), static_cast<std::int64_t>(samples)});
}

std::optional<StepReport> StepReporter::newest() const { return require_impl(impl_, kName).newest(); }

}  // namespace ddp
