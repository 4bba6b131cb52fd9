// The line of operations that are under way, and random histories of it beside a slow plain model.
#include "worker_runtime/core/operation/operation_line.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <vector>

namespace ddp::core {
namespace {

using namespace std::chrono_literals;
using Stage = OperationLife::Stage;
using TimePoint = base::Deadline::TimePoint;

constexpr TimePoint kBegin{1h};

Collective call_of(CollectiveKind kind, std::size_t count) {
  const MemoryRange range{nullptr, count, DataType::float32};
  return {.kind = kind, .input = range, .output = range, .root = 1};
}

std::shared_ptr<Operation> operation_of(const std::vector<Collective>& calls, std::uint64_t number,
                                        base::Deadline::Duration time = 1s, TimePoint now = kBegin) {
  return std::make_shared<Operation>(calls, flight_recorder::Ticket{.collective_sequence = number},
                                     base::Deadline{now, now + time});
}

struct Line : OperationLine<Operation> {
  Line() : OperationLine(4) {}

  std::shared_ptr<Operation> launched(std::uint64_t number, base::Deadline::Duration time = 1s) {
    auto operation = operation_of({call_of(CollectiveKind::all_reduce, number)}, number, time);
    submit(operation);
    launch(*operation);
    return operation;
  }
};

TEST(OperationLine, NamesTheOldestForTheTimeOfTheLateOne) {
  Line line;
  line.launched(1, 5s);
  line.launched(2, 250ms);
  EXPECT_FALSE(line.late(kBegin + 249ms));
  const auto failure = line.late(kBegin + 250ms);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->cause, Cause::timed_out);
  EXPECT_EQ(failure->rank, 4);
  EXPECT_EQ(failure->number, 1U);
  EXPECT_EQ(failure->operation, "all_reduce of 1 float32 (sum)");
  EXPECT_EQ(failure->limit, 250ms);
}

TEST(OperationLine, LooksAtTheDeadlineOfWhatIsNotLaunchedToo) {
  Line line;
  line.submit(operation_of({call_of(CollectiveKind::barrier, 0)}, 1, 10ms));
  EXPECT_FALSE(line.late(kBegin + 9ms));
  EXPECT_TRUE(line.late(kBegin + 100ms));
}

TEST(OperationLine, GivesTheTimeAgainOnceIfTheProcessWasStopped) {
  Line line;
  line.launched(1, 100ms);
  EXPECT_FALSE(line.late(kBegin + 60s));
  EXPECT_FALSE(line.late(kBegin + 60s + 99ms));
  EXPECT_TRUE(line.late(kBegin + 120s));
}

TEST(OperationLine, TakesBackWhatWasNotBegun) {
  Line line;
  line.launched(1);
  const auto second = operation_of({call_of(CollectiveKind::barrier, 0)}, 2);
  line.submit(second);
  line.take_back(*second);
  EXPECT_EQ(second->life.stage(), Stage::refused);
  EXPECT_EQ(line.size(), 1U);
  EXPECT_EQ(line.progress().called, 1U);
}

TEST(OperationLine, HasASplitAsItsLastCallUntilTheNext) {
  Line line;
  line.note("split", 1);
  const RankProgress during = line.progress();
  EXPECT_EQ(during, (RankProgress{.called = 1, .oldest = 1, .operation = "split"}));
  const auto next = line.launched(2);
  line.start(*next);
  line.complete(*next);
  EXPECT_EQ(line.progress(),
            (RankProgress{.called = 2, .started = 2, .completed = 2, .operation = "all_reduce of 2 float32 (sum)"}));
}

TEST(OperationLine, DepartureCountsOnceACollectiveWaitsInVain) {
  Line line;
  line.launched(1);
  line.depart({.cause = Cause::left, .rank = 3, .number = 1});
  EXPECT_FALSE(line.departure_in_vain());
  line.launched(2);
  ASSERT_TRUE(line.departure_in_vain());
  EXPECT_EQ(line.departure_in_vain()->rank, 3);
}

TEST(OperationLine, EndsAllAndSaysNothingMoreOfThem) {
  Line line;
  const auto first = line.launched(1);
  const auto second = line.launched(2);
  line.start(*first);
  const auto failed = line.fail_all();
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_EQ(failed.front(), first);
  EXPECT_TRUE(line.is_empty());
  EXPECT_FALSE(line.complete(*first));
  EXPECT_FALSE(line.start(*second));
  EXPECT_EQ(line.progress().completed, 0U);
  EXPECT_EQ(line.progress().started, 1U);
}

// What happens to one group, drawn by chance. Everything that the line says is worked out again from the list of all
// operations that were ever submitted.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed) {}

  void run(int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) {
      step();
      compare();
    }
  }

 private:
  struct Known {
    std::shared_ptr<Operation> operation;
    std::uint64_t number = 0;  // 0: point to point
    bool is_launched = false;
    TimePoint end{};
    Stage stage = Stage::submitted;
    bool has_started = false;
  };

  static bool HasFatalFailure() { return ::testing::Test::HasFatalFailure(); }
  std::size_t below(std::size_t n) { return random_() % n; }
  bool is_open(const Known& known) const { return known.stage == Stage::submitted || known.stage == Stage::started; }

  Known* oldest() {
    for (Known& known : all_) {
      if (is_open(known)) return &known;
    }
    return nullptr;
  }

  void step() {
    now_ += std::chrono::milliseconds(below(20));
    const bool is_open_call = !all_.empty() && is_open(all_.back()) && !all_.back().is_launched;
    switch (below(8)) {
      case 0:
      case 1:
      case 2: return is_open_call ? launch() : submit();
      case 3:
        if (is_open_call && below(4) == 0) take_back();
        return;
      case 4: return start();
      case 5:
      case 6: return complete();
      default:
        if (below(40) == 0) fail_all();
    }
  }

  void submit() {
    const bool is_pair = below(4) == 0;
    std::vector<Collective> calls(1 + below(3), call_of(is_pair ? CollectiveKind::send : CollectiveKind::broadcast, 5));
    if (!is_pair) ++called_;
    const auto time = std::chrono::milliseconds(1 + below(900));
    const auto operation = operation_of(calls, called_, time, now_);
    line_.submit(operation);
    all_.push_back({.operation = operation, .number = is_pair ? 0 : called_, .end = now_ + time});
  }

  void launch() {
    line_.launch(*all_.back().operation);
    all_.back().is_launched = true;
  }

  void take_back() {
    if (all_.back().number > 0) --called_;
    line_.take_back(*all_.back().operation);
    all_.back().stage = Stage::refused;
  }

  void start() {
    Known* const front = oldest();
    if (front == nullptr || !front->is_launched) return;
    ASSERT_EQ(line_.start(*front->operation), front->stage == Stage::submitted);
    front->stage = Stage::started;
    front->has_started = true;
  }

  void complete() {
    Known* const front = oldest();
    if (front == nullptr) return;
    ASSERT_EQ(line_.complete(*front->operation), front->stage == Stage::started);
    if (front->stage == Stage::started) front->stage = Stage::done;
  }

  void fail_all() {
    std::vector<std::shared_ptr<Operation>> open;
    for (Known& known : all_) {
      if (!is_open(known)) continue;
      open.push_back(known.operation);
      known.stage = Stage::failed;
    }
    const auto failed = line_.fail_all();
    ASSERT_TRUE(std::equal(failed.begin(), failed.end(), open.begin(), open.end()));
  }

  void compare() {
    RankProgress want{.called = called_};
    std::size_t size = 0;
    std::shared_ptr<Operation> newest_started;
    bool is_any_late = false;
    for (const Known& known : all_) {
      ASSERT_EQ(known.operation->life.stage(), known.stage);
      if (known.has_started) want.started = std::max(want.started, known.number);
      if (known.stage == Stage::done) want.completed = std::max(want.completed, known.number);
      if (!is_open(known)) continue;
      ++size;
      if (known.stage == Stage::started) newest_started = known.operation;
      if (want.oldest == 0) want.oldest = known.number;
      is_any_late = is_any_late || now_ >= known.end;
    }
    const Known* const front = oldest();
    ASSERT_EQ(line_.size(), size);
    ASSERT_EQ(line_.oldest(), front == nullptr ? nullptr : front->operation);
    ASSERT_EQ(line_.newest_started(), newest_started);
    RankProgress progress = line_.progress();
    progress.operation.clear();
    ASSERT_EQ(progress, want);
    const auto late = line_.late(now_);
    ASSERT_EQ(late.has_value(), is_any_late);
    if (!late) return;
    ASSERT_EQ(late->operation, front->operation->describe());
    fail_all();  // as a group does
  }

  std::mt19937_64 random_;
  Line line_;
  TimePoint now_ = kBegin;
  std::vector<Known> all_;
  std::uint64_t called_ = 0;
};

TEST(OperationLine, AgreesWithAPlainModelOverRandomHistories) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History(seed).run(200);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace ddp::core
