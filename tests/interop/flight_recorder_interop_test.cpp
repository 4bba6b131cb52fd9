// PyTorch's analyser `torchfrtrace` reads what the flight recorder writes, and comes to the right conclusions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/interop/python.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"
#include "worker_runtime/flight_recorder/dump.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"

namespace ddp::test {
namespace {

using namespace flight_recorder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class FlightRecorderInterop : public PythonTest {
 protected:
  void SetUp() override {
    need_module("torch");
    if (!IsSkipped()) need_module("torch.distributed.flight_recorder.fr_trace");
    // The analyser fails on coalesced calls without this module, which PyTorch does not bring along.
    std::ofstream(modules_.path() / "tabulate.py") << "def tabulate(rows, headers=None):\n    return str(rows)\n";
  }

  // What a Python program prints, on stdout and stderr; it must end with 0.
  std::string printed_by(const std::vector<std::string>& arguments) const {
    auto options = python_job();
    options.program = python();
    options.environment.push_back("PYTHONPATH=" + modules_.path().string());
    Job job(arguments, options);
    EXPECT_EQ(job.wait(), 0) << job.out() << job.err();
    return job.out() + job.err();
  }

  std::string analysis_of(const fs::path& folder, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"-m", "torch.distributed.flight_recorder.fr_trace", folder.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return printed_by(arguments);
  }

  // The files of ranks that have recorded this in a group of all of them.
  using Calls = std::function<void(int rank, Recorder& recorder, GroupId group)>;
  void write(int size, const std::string& backend, const Calls& calls) const {
    for (int rank = 0; rank < size; ++rank) {
      Recorder recorder;
      GroupFacts facts{.backend = backend, .name = "group_0", .description = "all ranks", .rank = rank};
      for (int other = 0; other < size; ++other) facts.ranks.push_back(other);
      calls(rank, recorder, recorder.open(facts));
      const Snapshot snapshot = recorder.snapshot();
      const DumpFacts dump{.rank = rank, .host = "node \xc3\xa9 \xff", .reason = "of a test"};
      write_files(files_of({.prefix = scratch_.path() / "trace_"}, {}, rank, 0), to_json(snapshot, dump),
                  to_pickle(snapshot, dump), "");
    }
  }

  ScratchDirectory scratch_;
  ScratchDirectory modules_;
};

constexpr std::uint64_t kCount = 6;

// One of each, as a rank of `size` records it.
std::vector<Operation> operations_of(int rank, std::uint64_t size) {
  const std::uint64_t at_root = rank == 0 ? kCount * size : 0;
  return {
      {.name = "all_reduce", .reduce_op = "sum", .input_count = kCount, .output_count = kCount, .element_bytes = 4},
      {.name = "broadcast",
       .type = DataType::int64,
       .input_count = kCount,
       .output_count = kCount,
       .element_bytes = 8,
       .root = 0},
      {.name = "reduce",
       .reduce_op = "average",
       .input_count = kCount,
       .output_count = rank == 0 ? kCount : 0,
       .element_bytes = 4,
       .root = 0},
      {.name = "all_gather", .input_count = kCount, .output_count = kCount * size, .element_bytes = 4},
      {.name = "reduce_scatter",
       .reduce_op = "sum",
       .input_count = kCount * size,
       .output_count = kCount,
       .element_bytes = 4},
      {.name = "gather", .input_count = kCount, .output_count = at_root, .element_bytes = 4, .root = 0},
      {.name = "scatter", .input_count = at_root, .output_count = kCount, .element_bytes = 4, .root = 0},
      {.name = "all_to_all", .input_count = kCount * size, .output_count = kCount * size, .element_bytes = 4},
      {.name = "barrier"},
      {.name = "allocate", .input_count = 4096, .output_count = 4096, .element_bytes = 1},
  };
}

TEST_F(FlightRecorderInterop, PythonReadsTheSameFromBothFiles) {
  write(2, "nccl", [](int rank, Recorder& recorder, GroupId group) {
    for (const Operation& operation : operations_of(rank, 2)) {
      const Ticket ticket = recorder.record(group, operation);
      if (ticket.collective_sequence % 2 == 0) recorder.complete(ticket);
    }
    recorder.refuse(recorder.record(group, Operation{.name = "barrier"}));
  });
  EXPECT_THAT(printed_by({script("compare_dumps.py"), scratch_.path().string()}), HasSubstr("2 pairs say the same"));
}

TEST_F(FlightRecorderInterop, TheAnalyserFindsNothingWrongWithOneOfEachOperation) {
  for (const char* backend : {"cpu", "nccl"}) {
    write(3, backend, [](int rank, Recorder& recorder, GroupId group) {
      for (const Operation& operation : operations_of(rank, 3)) recorder.complete(recorder.record(group, operation));
    });
    const auto said = analysis_of(scratch_.path(), {"-v"});
    EXPECT_THAT(said,
                AllOf(Not(HasSubstr("Not all ranks")), Not(HasSubstr("has errors")), Not(HasSubstr("unrecognized")),
                      Not(HasSubstr("pass_check=False")), HasSubstr("pass_check=True"), HasSubstr("new_window")));
  }
}

// In one direction: where both send and receive, it takes any for a mismatch, those of PyTorch's own recorder as well.
TEST_F(FlightRecorderInterop, TheAnalyserPairsCoalescedSendsWithTheirReceives) {
  write(2, "nccl", [](int rank, Recorder& recorder, GroupId group) {
    std::vector<Operation> calls;
    for (const std::uint64_t count : {3, 5}) {
      calls.push_back(rank == 0 ? Operation{.name = "send", .input_count = count, .element_bytes = 4, .peer = 1}
                                : Operation{.name = "receive", .output_count = count, .element_bytes = 4, .peer = 0});
    }
    recorder.complete(recorder.record(group, calls));
  });
  EXPECT_THAT(analysis_of(scratch_.path(), {"-v"}), AllOf(HasSubstr("Match"), Not(HasSubstr("MISMATCH"))));
}

TEST_F(FlightRecorderInterop, TheAnalyserNamesTheRankThatCallsSomethingElse) {
  write(3, "nccl", [](int rank, Recorder& recorder, GroupId group) {
    auto operations = operations_of(rank, 3);
    recorder.complete(recorder.record(group, operations[0]));
    recorder.fail(recorder.record(group, rank == 1 ? operations[8] : operations[0]));
  });
  EXPECT_THAT(analysis_of(scratch_.path()),
              AllOf(HasSubstr("sequence number: 2 has errors"), HasSubstr("COLLECTIVE_TYPE_MISMATCH")));
}

// Two halves, one of them in another order; rank 2 came too late to the second call of its half.
TEST_F(FlightRecorderInterop, TheAnalyserTellsSubGroupsApartAndNamesRanksOfTheJob) {
  write(4, "nccl", [](int rank, Recorder& recorder, GroupId group) {
    const Operation reduce = operations_of(rank, 2)[0];
    recorder.complete(recorder.record(group, Operation{.name = "split"}));
    const bool is_first_half = rank < 2;
    const GroupId half = recorder.open({.backend = "nccl",
                                        .name = is_first_half ? "group_0/1" : "group_0/2",
                                        .description = "2 ranks",
                                        .ranks = is_first_half ? std::vector<int>{0, 1} : std::vector<int>{3, 2},
                                        .rank = is_first_half ? rank : 3 - rank});
    recorder.complete(recorder.record(half, reduce));
    if (is_first_half) recorder.complete(recorder.record(half, reduce));
    if (rank == 3) recorder.fail(recorder.record(half, reduce));
  });
  EXPECT_THAT(analysis_of(scratch_.path()),
              AllOf(HasSubstr("Not all ranks joining collective, sequence number: 2"), HasSubstr("nccl:group_0/2"),
                    HasSubstr("missing ranks: {2}"), Not(HasSubstr("nccl:group_0/1"))));
}

// A real run: three ranks under ddprun, of which the last came too late to its third call.
TEST_F(FlightRecorderInterop, TheAnalyserNamesTheRankThatDidNotCome) {
  ::unsetenv("DDP_FLIGHT_RECORDER");
  Job job({"--standalone", "--nproc-per-node=3", "--rdzv-id=late", "--log-dir=" + scratch_.path().string(),
           built("late_worker")});
  ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
  const fs::path round = scratch_.path() / "latest/round_0";
  EXPECT_THAT(printed_by({script("compare_dumps.py"), round.string()}), HasSubstr("3 pairs say the same"));
  EXPECT_THAT(analysis_of(round), AllOf(HasSubstr("Not all ranks joining collective, sequence number: 3"),
                                        HasSubstr("collective: c10d:all_reduce"), HasSubstr("missing ranks: {2}")));

  // Its own file may be missing, as of a rank that was killed.
  fs::remove(round / "flight_recorder_2");
  EXPECT_THAT(analysis_of(round, {"--allow-incomplete-ranks"}), HasSubstr("missed FR dumps from ranks ({2})"));
}

}  // namespace
}  // namespace ddp::test
