#include "benchmarks/collectives/our_side.hpp"

#include <ddp/ddp.hpp>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "benchmarks/common/sides/collective_side.hpp"

namespace ddp::benchmarks {

namespace {

class OurSide : public PlainMemorySide {
 public:
  explicit OurSide(const ProcessGroup& group) : PlainMemorySide(group.rank(), group.size()), group_(group) {}

 private:
  float* allocate(const std::string& memory, std::size_t bytes) override {
    if (memory != "registered") return PlainMemorySide::allocate(memory, bytes);
    registered_.push_back(group_.allocate(bytes));
    return static_cast<float*>(registered_.back().data());
  }
  void deallocate() override {
    registered_.clear();
    PlainMemorySide::deallocate();
  }

  void all_reduce(float* data, std::size_t count) override { group_.all_reduce({data, count}); }
  void broadcast(float* data, std::size_t count) override { group_.broadcast({data, count}, 0); }
  void all_gather(float* data, std::size_t part) override {
    group_.all_gather({data + static_cast<std::size_t>(rank()) * part, part},
                      {data, part * static_cast<std::size_t>(ranks())});
  }
  void reduce_scatter(const float* input, float* output, std::size_t part) override {
    group_.reduce_scatter({input, part * static_cast<std::size_t>(ranks())}, {output, part});
  }
  void barrier() override { group_.barrier(); }

  ProcessGroup group_;
  std::vector<RegisteredMemory> registered_;
};

void take_own_host_name() {
  const std::string name = "rank" + std::string(std::getenv("RANK"));
  if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) {
    throw std::system_error(errno, std::generic_category(), "a host name of its own");
  }
  ::setenv("LOCAL_RANK", "0", 1);
  ::setenv("LOCAL_WORLD_SIZE", "1", 1);
}

}  // namespace

int be_our_rank(const char* socket_name, bool own_host) {
  if (own_host) take_own_host_name();
  const auto group = init_process_group();
  RankLink link(socket_name, group.rank());
  OurSide side(group);
  serve(side, link, group.rank(), group.size());
  return 0;
}

}  // namespace ddp::benchmarks
