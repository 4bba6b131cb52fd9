// The elastic worker with its parameters in the host's memory.
#include "tests/integration/elastic_worker.hpp"

namespace {

using ddp::elastic_test::kCount;

class Worker : public ddp::elastic_test::Worker {
 public:
  Worker(std::string folder, std::chrono::milliseconds timeout)
      : ddp::elastic_test::Worker(std::move(folder), timeout) {
    state_.add(parameters_);
  }

 private:
  std::vector<std::int64_t> parameters() const override { return parameters_; }

  bool update(ddp::ProcessGroup& world, const std::vector<std::int64_t>& values) override {
    std::vector<std::int64_t> sums = values;
    world.all_reduce(sums);
    if (sums[0] != 0) return false;
    for (std::size_t i = 1; i < kCount; ++i)
      parameters_[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(parameters_[i]) * 3 +
                                                 static_cast<std::uint64_t>(sums[i]));
    return true;
  }

  std::vector<std::int64_t> parameters_ = std::vector<std::int64_t>(kCount);
};

}  // namespace

int main(int, char** argv) { return ddp::elastic_test::run_worker<Worker>(argv); }
