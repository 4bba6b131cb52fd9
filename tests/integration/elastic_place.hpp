// What differs between the places where the tests of run_elastic run: on CPUs, over the stand-in for CUDA
// (tests/fake_gpu), and on a GPU (tests/gpu).
#pragma once

#include <string>

namespace ddp::test {

struct ElasticPlace {
  std::string worker;      // the program, in the build's bin folder
  int kills;               // how often workers are killed in a row
  std::string timeout_ms;  // of a collective that some rank never enters, and of a meeting of the ranks
};

const ElasticPlace& elastic_place();

}  // namespace ddp::test
