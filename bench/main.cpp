// ddp-bench: measures how data-parallel training scales on this machine.
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "bench/command_line.hpp"
#include "bench/job.hpp"
#include "bench/plot.hpp"
#include "bench/rank.hpp"
#include "bench/result.hpp"
#include "worker_runtime/metrics/single_rank_file.hpp"

namespace {

using namespace ddp::bench;

// A file to write at the end. Opened at once, because nobody wants to hear of a wrong path after minutes.
class Output {
 public:
  // An empty path: none. Throws UsageError.
  Output(const char* option, const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path, std::ios::binary | std::ios::trunc);
    if (!file_) throw UsageError(std::string(option) + ": " + path + " can't be written");
  }

  void write(const std::string& text) {
    if (!path_.empty() && !(file_ << text << std::flush)) throw ddp::Error(path_ + " can't be written");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

std::string cores_text(int count) { return std::to_string(count) + (count == 1 ? " core" : " cores"); }

void measure(const Measure& what, int core_count) {
  Output json("--json", what.json_file);
  Output svg("--svg", what.svg_file);
  std::vector<Result> results;
  std::vector<PlotPoint> points;
  std::string settings;
  for (const int ranks : what.ranks) {
    const Result result = results.emplace_back(measure_with(ranks, what.settings));
    points.push_back({ranks, speedup(result, results.front())});
    if (ranks == 1) {
      settings = describe(what.settings, result.parameters) + ", " + cores_text(core_count);
      std::cout << settings << "\n\n" << table_head();
      if (!what.single_file.empty()) {
        ddp::metrics::write_single_rank_file(what.single_file, result.samples_per_second);
      }
    }
    std::cout << table_row(result, results.front()) << std::flush;
  }
  json.write(to_json(results, what.settings, core_count));
  svg.write(speedup_plot(points, settings));
}

int run(const std::vector<std::string>& arguments) {
  const int core_count = static_cast<int>(std::thread::hardware_concurrency());
  const auto what = parse_command_line(arguments, core_count, DDPRUN_VERSION);
  if (const auto* show = std::get_if<ShowText>(&what)) return (std::cout << show->text).flush() ? 0 : 1;
  if (const auto* rank = std::get_if<RunRank>(&what)) {
    const auto result = measure_as_rank(rank->settings);
    if (result) std::cout << to_line(*result) << std::endl;
    return 0;
  }
  measure(std::get<Measure>(what), core_count);
  return std::cout ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << "\nwhere: the command line of ddp-bench\ntry:   `ddp-bench --help`\n";
    return 2;
  } catch (const JobFailed& error) {
    std::cerr << "error: " << error.what() << "; the reason is above\nwhere: ddp-bench\n"
              << "try:   a smaller --parameters, or fewer --ranks\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
