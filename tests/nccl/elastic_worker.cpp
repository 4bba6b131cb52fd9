// elastic_worker (tests/integration) with its parameters in the memory of a GPU, or over the stand-in: the same lines, files
// and sums, so that the same tests run it.
#include <cuda_runtime_api.h>
#include <ddp/elastic.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/nccl/elastic_update.hpp"
#include "tests/nccl/place.hpp"

namespace {

constexpr std::size_t kCount = 4096;

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// In one write, so that lines of several workers do not mix.
void print(const std::string& line) { static_cast<void>(!::write(STDOUT_FILENO, (line + "\n").data(), line.size() + 1)); }

int descriptor_count() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

class DeviceValues {
 public:
  explicit DeviceValues(ddp::Device device) : device_(device) {
    check(cudaMalloc(&data_, kBytes));
    check(cudaMemset(data_, 0, kBytes));
  }
  ~DeviceValues() { cudaFree(data_); }
  DeviceValues(const DeviceValues&) = delete;
  DeviceValues& operator=(const DeviceValues&) = delete;

  ddp::MemoryRange range() const { return {data_, kCount, ddp::DataType::int64, device_}; }
  std::int64_t* data() const { return static_cast<std::int64_t*>(data_); }
  void write(const std::vector<std::int64_t>& values) const {
    check(cudaMemcpy(data_, values.data(), kBytes, cudaMemcpyHostToDevice));
  }
  std::vector<std::int64_t> read(std::size_t count = kCount) const {
    std::vector<std::int64_t> values(count);
    check(cudaMemcpy(values.data(), data_, count * sizeof(std::int64_t), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  static constexpr std::size_t kBytes = kCount * sizeof(std::int64_t);
  ddp::Device device_;
  void* data_ = nullptr;
};

class Worker {
 public:
  Worker(std::string folder, std::chrono::milliseconds timeout) : folder_(std::move(folder)) {
    options_.group.timeout = timeout;
    options_.group.backend = "nccl";
    options_.group.device = device_.index;
    options_.group.share_device = place_.share_device;
    state_.add(parameters_.range());
    state_.add(step_);
  }

  void run() {
    ddp::run_elastic(state_, [this](ddp::ProcessGroup world) {
      try {
        train(world);
      } catch (const ddp::Error& error) {
        print("leaves pid=" + std::to_string(::getpid()) + " : " + error.what());
        throw;
      }
    }, options_);
    print("end pid=" + std::to_string(::getpid()) + " step=" + std::to_string(step_) + " parameters=" + text_of_parameters() +
          " commits=" + std::to_string(state_.commits()) + " ;");
  }

 private:
  // Not by LOCAL_RANK: several "nodes" share this machine's devices.
  ddp::Device own_device() const {
    const char* const rank = std::getenv("RANK");
    return {ddp::Device::Kind::cuda, place_.device.value_or(rank == nullptr ? 0 : std::atoi(rank))};
  }

  void train(ddp::ProcessGroup& world) {
    print("begin round=" + std::to_string(world.round().number) + " rank=" + std::to_string(world.rank()) +
          " pid=" + std::to_string(::getpid()) + " size=" + std::to_string(world.size()) + " step=" + std::to_string(step_) +
          " parameters=" + text_of_parameters() + " descriptors=" + std::to_string(descriptor_count()) + " ;");
    std::vector<std::int64_t> values(kCount);
    while (true) {
      for (std::size_t i = 0; i < kCount; ++i) values[i] = step_ * 1000 + static_cast<std::int64_t>(i);
      values[0] = world.rank() == 0 && exists(folder_ + "/stop") ? 1 : 0;
      sums_.write(values);
      world.all_reduce(sums_.range());
      check(ddp::nccl_test::update(parameters_.data(), sums_.data(), kCount));
      if (sums_.read(1)[0] != 0) {
        world.barrier();  // or it was a failed collective's, which this throws
        state_.restore();
        return;
      }
      ++step_;
      state_.commit();
      log_commit(world.size());
    }
  }

  void log_commit(int size) {
    const auto line = std::to_string(step_) + " " + std::to_string(size) + "\n";
    static_cast<void>(!::write(commits_, line.data(), line.size()));
  }

  std::string text_of_parameters() const {
    std::uint64_t sum = 0;
    for (const auto value : parameters_.read()) sum = sum * 31 + static_cast<std::uint64_t>(value);
    return std::to_string(sum);
  }

  std::string folder_;
  int commits_ = ::open((folder_ + "/commits").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  ddp::ElasticOptions options_;
  ddp::ElasticState state_;
  ddp::nccl_test::Place place_ = ddp::nccl_test::take_place();
  ddp::Device device_ = own_device();
  int is_set_ = (check(cudaSetDevice(device_.index)), 0);
  DeviceValues parameters_{device_};
  DeviceValues sums_{device_};
  std::int64_t step_ = 0;
};

}  // namespace

int main(int, char** argv) {
  const std::string folder = argv[1];
  if (::unlink((folder + "/die_before_meeting").c_str()) == 0) ::raise(SIGKILL);
  if (::unlink((folder + "/lose_gpu").c_str()) == 0) ::setenv("FAKE_GPU_FAULTS", "cudaEventRecord:200:sticky:700", 1);
  try {
    Worker(folder, std::chrono::milliseconds(argv[2] == nullptr ? 60'000 : std::atoi(argv[2]))).run();
    return 0;
  } catch (const std::exception& error) {
    print("error pid=" + std::to_string(::getpid()) + " " + error.what());
    return 3;
  }
}
