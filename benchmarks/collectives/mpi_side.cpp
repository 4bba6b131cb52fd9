// An MPI's ranks for collectives_benchmark: mpi_side SOCKET, under mpirun. Built once for each MPI that is found.
#include <mpi.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

#include "benchmarks/common/sides/collective_side.hpp"

namespace {

class MpiSide : public ddp::benchmarks::PlainMemorySide {
 public:
  using PlainMemorySide::PlainMemorySide;

 private:
  void all_reduce(float* data, std::size_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void broadcast(float* data, std::size_t count) override {
    MPI_Bcast(data, static_cast<int>(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
  void all_gather(float* data, std::size_t part) override {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, static_cast<int>(part), MPI_FLOAT, MPI_COMM_WORLD);
  }
  void reduce_scatter(const float* input, float* output, std::size_t part) override {
    MPI_Reduce_scatter_block(input, output, static_cast<int>(part), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    if (argc != 2) throw std::invalid_argument("the name of a socket is missing");
    ddp::benchmarks::RankLink link(argv[1], rank);
    MpiSide side(rank, ranks);
    ddp::benchmarks::serve(side, link, rank, ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\nwhere: a rank of MPI\ntry:   collectives_benchmark starts it\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
