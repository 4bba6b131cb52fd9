// mpirun over the nodes of a batch job: Slurm starts its ranks, which are mpirun's all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ostream>
#include <string>

#include "tests/slurm/on_cluster.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Mpi {
  const char* name;
  const char* command;
  const char* with_master;  // options that hand MASTER_ADDR and MASTER_PORT to the ranks
  friend std::ostream& operator<<(std::ostream& out, const Mpi& mpi) { return out << mpi.name; }
};

class MpirunOverNodes : public OnCluster, public ::testing::WithParamInterface<Mpi> {
 protected:
  // Nothing, and the test is skipped, where there can be none, or not this mpirun.
  Cluster* make_cluster_with_mpirun() {
    const std::string path = std::string("/usr/bin/") + GetParam().name;
    if (::access(path.c_str(), X_OK) == 0) return make_cluster({});
    skip(path + " is not installed (./test.sh --interop installs it)");
    return nullptr;
  }

  static std::string mpirun() { return std::string("exec ") + GetParam().name + " " + GetParam().command; }
};

// The two nodes are one machine, but mpirun does not know that.
TEST_P(MpirunOverNodes, TakesAnAddressAndAPort) {
  Cluster* const cluster = make_cluster_with_mpirun();
  if (cluster == nullptr) return;
  const auto submit = [&](const std::string& options) {
    return cluster->submit(
        {"--nodes=2", "--ntasks-per-node=2", "--wrap=" + mpirun() + " " + options + " train_breast_cancer --epochs=2"});
  };
  const auto bad = submit("");
  EXPECT_EQ(cluster->wait(bad).value_or(Cluster::End{}).state, "FAILED");
  EXPECT_THAT(cluster->output(bad), AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("MASTER_PORT")));
  const auto good = submit(GetParam().with_master);
  EXPECT_EQ(cluster->wait(good), kCompleted);
  EXPECT_THAT(cluster->output(good), AllOf(HasSubstr("4 workers, batch 8"), HasSubstr("test accuracy ")));
  EXPECT_EQ(cluster->survivors(), "");
}

constexpr Mpi kMpis[] = {
    {"mpirun.openmpi", "--allow-run-as-root -np 4", "-x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500"},
    {"mpirun.mpich", "-np 4", "-genv MASTER_ADDR 127.0.0.1 -genv MASTER_PORT 29500"},
};

INSTANTIATE_TEST_SUITE_P(, MpirunOverNodes, ::testing::ValuesIn(kMpis), [](const auto& mpi) {
  return std::string(mpi.param.name).substr(std::string("mpirun.").size());
});

}  // namespace
}  // namespace ddp::test
