// Whether the gradients' all-reduce goes on while backward runs: two ranks on one GPU train examples/train_mlp_cuda
// with a trace, and the time in which both are at work is put in proportion to the time of each.
//
//   gpu_overlap_benchmark [--layers=8] [--width=2048] [--batch-size=8192] [--json=FILE]
//
// The ranks take turns on the GPU and talk over the loopback, which takes far longer than NVLink would. So the share of
// backward says what is possible, and the share of the all-reduces is what such a network leaves of it.
#include <ddp/process_group.hpp>
#include <ddp/trace.hpp>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/gpu/ddprun_job.hpp"
#include "benchmarks/gpu/figures.hpp"
#include "tests/nccl/place.hpp"
#include "training.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::benchmarks;
using Span = std::pair<double, double>;  // microseconds

constexpr const char* kFolderVariable = "DDP_OVERLAP_FOLDER";  // where workers leave their traces
constexpr std::chrono::minutes kPatience{5};

int be_worker(const Numbers& numbers) {
  const auto place = ddp::nccl_test::take_place();
  train::CudaOptions options;
  options.is_synthetic = true;
  options.layers = numbers["layers"];
  options.width = numbers["width"];
  options.batch_size = numbers["batch-size"];
  options.epochs = 2;
  ddp::InitOptions init;
  init.backend = "nccl";
  init.device = place.device;
  init.share_device = place.share_device;
  auto world = ddp::init_process_group(init);
  const ddp::Trace trace(std::string(std::getenv(kFolderVariable)) + "/" + std::to_string(world.rank()) + ".json");
  train::Training(world, options).run();
  return 0;
}

std::vector<Span> joined(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end());
  std::vector<Span> out;
  for (const Span& span : spans) {
    if (!out.empty() && span.first <= out.back().second) {
      out.back().second = std::max(out.back().second, span.second);
    } else {
      out.push_back(span);
    }
  }
  return out;
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

double length_in_both(const std::vector<Span>& some, const std::vector<Span>& others) {
  double sum = 0;
  for (const auto& [begin, end] : some) {
    for (const auto& [other_begin, other_end] : others)
      sum += std::max(0.0, std::min(end, other_end) - std::max(begin, other_begin));
  }
  return sum;
}

struct Trace {
  std::vector<Span> backward, all_reduce;
};

// Of the last epoch, as NCCL connects in the first: the second half of either kind.
Trace read(const fs::path& path) {
  std::ifstream file(path);
  const auto events = nlohmann::json::parse(file).at("traceEvents");
  Trace trace;
  for (const auto& event : events) {
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    const double begin = event.at("ts");
    const Span span{begin, begin + event.at("dur").get<double>()};
    if (name.rfind("backward", 0) == 0) trace.backward.push_back(span);
    if (name.rfind("all_reduce", 0) == 0) trace.all_reduce.push_back(span);
  }
  if (trace.backward.empty() || trace.all_reduce.empty())
    throw std::runtime_error("there is no backward or no all_reduce in " + path.string());
  std::sort(trace.backward.begin(), trace.backward.end());
  trace.backward.erase(trace.backward.begin(),
                       trace.backward.begin() + static_cast<std::ptrdiff_t>(trace.backward.size() / 2));
  const double begin = trace.backward.front().first;
  std::erase_if(trace.all_reduce, [&](const Span& span) { return span.first < begin; });
  trace.backward = joined(std::move(trace.backward));
  trace.all_reduce = joined(std::move(trace.all_reduce));
  return trace;
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / "overlap_XXXXXX") {
    std::string name = path_;
    if (::mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("can't make a folder in " + path_.parent_path().string());
    path_ = name;
    ::setenv(kFolderVariable, path_.c_str(), 1);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void measure(const Numbers& numbers, const std::vector<std::string>& arguments) {
  const Folder folder;
  DdprunJob job(job_of_two({}, arguments));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (const auto line = job.line(deadline)) std::fprintf(stderr, "%s\n", line->c_str());
  if (job.wait() != 0) throw std::runtime_error("the training failed");
  Figures figures("overlap");
  for (int rank = 0; rank < 2; ++rank) {
    const Trace trace = read(folder.path() / (std::to_string(rank) + ".json"));
    const double hidden = length_in_both(trace.all_reduce, trace.backward);
    const std::string of = "rank " + std::to_string(rank) + ": ";
    figures.add(of + "all-reduces in flight", length(trace.all_reduce) / 1000, "ms", 1);
    figures.add(of + "of that while backward runs", 100 * hidden / length(trace.all_reduce), "%", 1);
    figures.add(of + "backward", length(trace.backward) / 1000, "ms", 1);
    figures.add(of + "of that with an all-reduce in flight", 100 * hidden / length(trace.backward), "%", 1);
  }
  figures.write(numbers.json());
}

}  // namespace

int main(int argc, char** argv) {
  const Numbers numbers(argc, argv, {{"layers", 8, 100}, {"width", 2048, 32'768}, {"batch-size", 8192, 65'536}});
  try {
    if (is_worker()) return be_worker(numbers);
    measure(numbers, {argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
