// The elastic worker with its parameters in the memory of a GPU, or over the stand-in: the same lines, files and sums,
// so that the same tests run it. One file more in FOLDER:
//   lose_gpu    the first process that finds it removes it and has the stand-in's GPU fail while it trains
#include "tests/integration/elastic_worker.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "tests/nccl/elastic_update.hpp"
#include "tests/nccl/place.hpp"

namespace {

using ddp::elastic_test::kCount;

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

class Worker : public ddp::elastic_test::Worker {
 public:
  Worker(std::string folder, std::chrono::milliseconds timeout)
      : ddp::elastic_test::Worker(std::move(folder), timeout) {
    options_.group.backend = "nccl";
    options_.group.device = device_.index;
    options_.group.share_device = place_.share_device;
    state_.add(parameters_.range());
  }

 private:
  // Not by LOCAL_RANK: several "nodes" share this machine's devices.
  ddp::Device own_device() const {
    const char* const rank = std::getenv("RANK");
    return {ddp::Device::Kind::cuda, place_.device.value_or(rank == nullptr ? 0 : std::atoi(rank))};
  }

  std::vector<std::int64_t> parameters() const override { return parameters_.read(); }

  bool update(ddp::ProcessGroup& world, const std::vector<std::int64_t>& values) override {
    sums_.write(values);
    world.all_reduce(sums_.range());
    check(ddp::nccl_test::update(parameters_.data(), sums_.data(), kCount));
    if (sums_.read(1)[0] == 0) return true;
    world.barrier();  // or it was a failed collective's, which this throws
    state_.restore();
    return false;
  }

  ddp::nccl_test::Place place_ = ddp::nccl_test::take_place();
  ddp::Device device_ = own_device();
  int is_set_ = (check(cudaSetDevice(device_.index)), 0);
  DeviceValues parameters_{device_};
  DeviceValues sums_{device_};
};

}  // namespace

int main(int, char** argv) {
  if (::unlink((std::string(argv[1]) + "/lose_gpu").c_str()) == 0)
    ::setenv("FAKE_GPU_FAULTS", "cudaEventRecord:200:sticky:700", 1);
  return ddp::elastic_test::run_worker<Worker>(argv);
}
