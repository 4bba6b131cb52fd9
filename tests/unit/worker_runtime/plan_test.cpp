#include "worker_runtime/engine/plan/plan.hpp"

#include "ddp/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace ddp::gradient_engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string text_of(const Drain&) { return "drain"; }
std::string text_of(const BroadcastBuffers& its) { return "broadcast buffers of " + std::to_string(its.root); }
std::string text_of(const AverageBuffers&) { return "average buffers"; }
std::string text_of(const FinishHooks&) { return "finish hooks"; }
std::string text_of(const ZeroAll&) { return "zero all"; }
std::string text_of(const Zero& its) { return "zero " + std::to_string(its.parameter); }
std::string text_of(const Keep& its) { return "keep " + std::to_string(its.parameter); }
std::string text_of(const Restore& its) { return "restore " + std::to_string(its.parameter); }
std::string text_of(const TellUnused& its) {
  std::string text = "tell unused:";
  for (const std::size_t parameter : its.parameters) text += " " + std::to_string(parameter);
  return text;
}
std::string text_of(const Reduce& its) { return "reduce " + std::to_string(its.bucket); }
std::string text_of(const Scale& its) { return "scale " + std::to_string(its.factor); }
std::string text_of(const Agree& its) {
  std::string text = "agree";
  if (its.own.flags.fault == 1) text += " missing";
  if (its.own.flags.fault == 2) text += " miscount";
  if (its.own.flags.canceller != 0) text += " canceller=" + std::to_string(its.own.flags.canceller);
  if (its.own.flags.frozen != 0) text += " frozen";
  if (!its.own.active.empty()) text += " active=";
  for (const std::int32_t active : its.own.active) text += std::to_string(active);
  if (!its.own.used.empty()) text += " used=";
  for (const std::uint8_t used : its.own.used) text += std::to_string(used);
  return text + (its.is_read ? "" : " unread");
}
std::string text_of(const Look&) { return "look"; }
std::string text_of(const Peek&) { return "peek"; }
std::string text_of(const FindFrozen& its) {
  std::string text = "find frozen:";
  for (std::size_t p = 0; p < its.own.size(); ++p) text += its.own[p] ? " " + std::to_string(p) : "";
  return text;
}
std::string text_of(const FindUnused& its) {
  std::string text = "find unused:";
  for (const std::size_t parameter : its.missing) text += " " + std::to_string(parameter);
  return text + (its.window.is_last ? " of the last window" : "");
}
std::string text_of(const FindNonFinite& its) {
  std::string text = "find non-finite";
  for (const std::size_t each : its.parameters) text += " " + std::to_string(each);
  return text;
}

std::string text_of(const FindMiscounts& its) {
  std::string text = "find miscounts:";
  if (its.own) {
    text += " " + std::to_string(its.own->parameter) + " " + std::to_string(its.own->found) + " instead of " +
            std::to_string(its.own->expected);
  }
  return text + (its.window.is_last ? " of the last window" : "");
}
std::string text_of(const TellCancelled& its) {
  return "tell cancelled by " + std::to_string(its.rank) + (its.window.is_last ? " in the last window" : "");
}

std::vector<std::string> texts(const Actions& actions) {
  std::vector<std::string> all;
  for (const Action& action : actions) all.push_back(std::visit([](const auto& its) { return text_of(its); }, action));
  return all;
}

// Parameters a to e in three buckets: {e}, {d, c}, {b, a}.
Plan five_parameters(PlanOptions options = {}) {
  return Plan({"a", "b", "c", "d", "e"}, {{4}, {3, 2}, {1, 0}}, options);
}

std::vector<std::string> ready(Plan& plan, std::size_t parameter) { return texts(plan.ready(plan.step(), parameter)); }
std::vector<std::string> end(Plan& plan) { return texts(plan.end(plan.step())); }
std::vector<std::string> cancel(Plan& plan) { return texts(plan.cancel(plan.step())); }

void use_all(Plan& plan) {
  for (const std::size_t parameter : {4, 3, 2, 1, 0}) ready(plan, parameter);
}

template <class Call>
std::string gradient_error(Call call) {
  try {
    call();
  } catch (const GradientError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Plan, ReducesEachBucketAsItFills) {
  Plan plan = five_parameters();
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain", "zero all"));
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0"));
  EXPECT_THAT(ready(plan, 3), IsEmpty());
  EXPECT_THAT(ready(plan, 2), ElementsAre("reduce 1"));
  EXPECT_THAT(ready(plan, 0), IsEmpty());
  EXPECT_THAT(ready(plan, 1), ElementsAre("reduce 2"));
  EXPECT_THAT(end(plan), ElementsAre("agree", "look"));
  EXPECT_THAT(texts(plan.looked({})), IsEmpty());
}

TEST(Plan, HoldsAFullBucketBackUntilThoseBeforeItAreFull) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  for (const std::size_t parameter : {0, 1, 2, 3}) EXPECT_THAT(ready(plan, parameter), IsEmpty());
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0", "reduce 1", "reduce 2"));
}

TEST(Plan, ReducesTheRestIfAParameterIsMissing) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  for (const std::size_t parameter : {4, 2, 0, 1}) ready(plan, parameter);
  EXPECT_THAT(end(plan), ElementsAre("zero 3", "reduce 1", "reduce 2", "agree missing", "look"));
  EXPECT_THAT(texts(plan.looked({.flags = {.fault = 1}})), ElementsAre("find unused: 3"));
}

TEST(Plan, SearchesForUnusedParametersOfOtherRanksToo) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  use_all(plan);
  end(plan);
  EXPECT_THAT(texts(plan.looked({.flags = {.fault = 1}})), ElementsAre("find unused:"));
}

TEST(Plan, RefusesAParameterThatIsReadyTwiceAndKeepsTheStep) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  ready(plan, 4);
  ready(plan, 3);
  EXPECT_THAT(gradient_error([&] { ready(plan, 3); }), HasSubstr("parameter d (index 3) is ready for the second time"));
  EXPECT_THAT(ready(plan, 2), ElementsAre("reduce 1")) << "the second ready(3) was counted";
}

TEST(Plan, RefusesAnIndexOutOfRange) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  EXPECT_THROW(ready(plan, 5), InvalidArgument);
  EXPECT_THROW(ready(plan, static_cast<std::size_t>(-1)), InvalidArgument);
}

TEST(Plan, RefusesAStepThatIsOver) {
  Plan plan = five_parameters();
  EXPECT_THAT(gradient_error([&] { ready(plan, 0); }), HasSubstr("ready() is called on a Step that is over"));
  plan.begin(Sync::on);
  EXPECT_THAT(gradient_error([&] { plan.begin(Sync::on); }), HasSubstr("the one before it is unfinished"));
  const std::uint64_t first = plan.step();
  plan.end(first);
  EXPECT_THAT(gradient_error([&] { plan.end(first); }), HasSubstr("finish() is called on a Step that is over"));
  EXPECT_THAT(texts(plan.cancel(first)), IsEmpty());
  plan.begin(Sync::on);
  EXPECT_THAT(gradient_error([&] { plan.ready(first, 4); }), HasSubstr("ready() is called on a Step that is over"));
  EXPECT_THAT(gradient_error([&] { plan.end(first); }), HasSubstr("finish() is called on a Step that is over"));
  EXPECT_THAT(texts(plan.cancel(first)), IsEmpty());
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0")) << "the old step had a part in the new one";
}

TEST(Plan, AWindowStartsAfterASynchronisedStepOnly) {
  Plan plan = five_parameters();
  EXPECT_THAT(texts(plan.begin(Sync::off)), ElementsAre("drain", "zero all"));
  EXPECT_THAT(ready(plan, 4), IsEmpty()) << "reduced without synchronisation";
  EXPECT_THAT(end(plan), IsEmpty());
  EXPECT_THAT(texts(plan.begin(Sync::off)), ElementsAre("drain"));
  end(plan);
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain"));
  end(plan);
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain", "zero all"));
}

TEST(Plan, ZeroesNothingAtTheStartOfAWindowIfBackwardOverwrites) {
  Plan plan = five_parameters({.zero_gradients = false});
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain"));
}

TEST(Plan, AParameterUsedInAnyStepOfTheWindowIsNotMissing) {
  Plan plan = five_parameters();
  plan.begin(Sync::off);
  ready(plan, 4);
  ready(plan, 3);
  end(plan);
  plan.begin(Sync::off);
  ready(plan, 4);  // once in each step is no second time
  ready(plan, 1);
  end(plan);
  plan.begin(Sync::on);
  EXPECT_THAT(ready(plan, 2), IsEmpty());
  EXPECT_THAT(end(plan), ElementsAre("zero 0", "reduce 0", "reduce 1", "reduce 2", "agree missing", "look"));

  plan.begin(Sync::on);
  EXPECT_THAT(end(plan), ::testing::Contains("agree missing")) << "the window before it is over";
}

TEST(Plan, ACancelledStepGivesTheOthersWhatTheyWaitFor) {
  Plan plan = five_parameters({.rank = 6});
  plan.begin(Sync::on);
  ready(plan, 4);
  EXPECT_THAT(cancel(plan), ElementsAre("reduce 1", "reduce 2", "agree canceller=7 unread"));
  EXPECT_FALSE(plan.is_open());
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain", "zero all"));
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0"));
}

TEST(Plan, ACancelledStepTellsNobodyIfNobodyWaits) {
  Plan plan = five_parameters();
  plan.begin(Sync::off);
  end(plan);
  plan.begin(Sync::off);
  EXPECT_THAT(cancel(plan), IsEmpty());
  EXPECT_THAT(texts(plan.begin(Sync::off)), ElementsAre("drain", "zero all")) << "what was accumulated counts on";
}

TEST(Plan, TellsWhoCancelledAndSearchesForNoUnusedParameterThen) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  end(plan);
  EXPECT_THAT(texts(plan.looked({.flags = {.fault = 1, .canceller = 3}})), ElementsAre("tell cancelled by 2"));
}

TEST(Plan, LooksAWindowLaterIfTheHostIsNotToWait) {
  Plan plan = five_parameters({.look_at = LookAt::end_of_next_window});
  plan.begin(Sync::on);
  ready(plan, 0);
  EXPECT_THAT(end(plan), ::testing::Not(::testing::Contains("look")));
  plan.begin(Sync::off);
  EXPECT_THAT(end(plan), IsEmpty());
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("agree", "look"));
  EXPECT_THAT(texts(plan.looked({.flags = {.fault = 1}})), ElementsAre("find unused: 1 2 3 4 of the last window"));
  plan.begin(Sync::on);
  EXPECT_THAT(cancel(plan), ::testing::Contains("look")) << "the others look at the window before, too";
  EXPECT_THAT(texts(plan.looked({})), IsEmpty());
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("agree")) << "it knows of the window that it cancelled";
}

TEST(Plan, StartsAnewAfterAFailure) {
  Plan plan = five_parameters({.look_at = LookAt::end_of_next_window});
  plan.begin(Sync::on);
  use_all(plan);
  end(plan);
  plan.begin(Sync::on);
  ready(plan, 4);
  plan.failed();
  EXPECT_THAT(gradient_error([&] { ready(plan, 3); }), HasSubstr("is over"));
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain", "zero all"));
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0"));
  EXPECT_THAT(end(plan), ::testing::Not(::testing::Contains("look")));
}

TEST(Plan, TakesNewBucketsBetweenWindowsOnly) {
  Plan plan = five_parameters();
  const std::vector<std::vector<std::size_t>> buckets = {{0, 4}, {1, 2, 3}};
  plan.begin(Sync::off);
  EXPECT_THAT(gradient_error([&] { plan.rebuild(buckets); }), HasSubstr("rebuild_buckets() is called before"));
  end(plan);
  EXPECT_THAT(gradient_error([&] { plan.rebuild(buckets); }), HasSubstr("rebuild_buckets() is called before"));
  plan.begin(Sync::on);
  end(plan);
  plan.rebuild(buckets);
  plan.begin(Sync::on);
  EXPECT_THAT(ready(plan, 4), IsEmpty());
  EXPECT_THAT(ready(plan, 0), ElementsAre("reduce 0"));
}

TEST(Plan, UnusedParametersAreZerosAndNoFaultIfTheOptionsSaySo) {
  Plan plan = five_parameters({.unused = Unused::zeros});
  plan.begin(Sync::on);
  for (const std::size_t parameter : {4, 2, 0, 1}) ready(plan, parameter);
  EXPECT_THAT(end(plan), ElementsAre("zero 3", "reduce 1", "reduce 2", "agree", "look"));
  EXPECT_THAT(texts(plan.looked({})), IsEmpty());
  EXPECT_THROW((void)plan.is_unused(3), InvalidArgument);
}

TEST(Plan, KnowsWhichParametersNoRankUsed) {
  Plan plan = five_parameters({.rank = 1, .unused = Unused::keep});
  EXPECT_FALSE(plan.is_unused(0));
  plan.begin(Sync::off);
  ready(plan, 4);
  end(plan);
  plan.begin(Sync::on);
  ready(plan, 1);
  EXPECT_THAT(end(plan), ::testing::Contains("agree used=01001"));
  plan.looked({.used = {0, 1, 0, 1, 1}});
  EXPECT_TRUE(plan.is_unused(0));
  EXPECT_FALSE(plan.is_unused(3)) << "another rank used it";
  EXPECT_THROW((void)plan.is_unused(5), InvalidArgument);
  plan.begin(Sync::on);
  EXPECT_THAT(cancel(plan), ::testing::Contains("agree canceller=2 used=11111 unread"));
}

TEST(Plan, LeavesAGradientThatNoRankUsedAsItWas) {
  Plan plan = five_parameters({.zero_gradients = false, .unused = Unused::keep});
  for (int i = 0; i < 2; ++i) {
    plan.begin(Sync::on);
    for (const std::size_t parameter : {4, 2, 0}) ready(plan, parameter);
    EXPECT_THAT(end(plan), ElementsAre("keep 1", "zero 1", "keep 3", "zero 3", "reduce 1", "reduce 2",
                                       "agree used=10101", "look"));
    EXPECT_THAT(texts(plan.looked({.used = {1, 0, 1, 1, 1}})), ElementsAre("restore 1")) << "another rank used 3";
  }
}

TEST(Plan, KeepsWhatAStaticGraphNeverUsesFromTheStartOfTheWindow) {
  Plan plan = five_parameters({.zero_gradients = false, .unused = Unused::keep, .is_static_graph = true});
  for (int i = 0; i < 2; ++i) {
    const auto begun = texts(plan.begin(Sync::on));
    if (i == 1) {
      EXPECT_THAT(begun, ElementsAre("drain", "keep 4", "zero 4"));
    }
    for (const std::size_t parameter : {3, 2, 1, 0}) ready(plan, parameter);
    const auto ended = end(plan);
    EXPECT_EQ(std::count(ended.begin(), ended.end(), "keep 4"), 1 - i);
    EXPECT_THAT(texts(plan.looked({.used = {1, 1, 1, 1, 0}})), ElementsAre("restore 4"));
  }
}

TEST(Plan, AHookIsToldWhatNoRankUsed) {
  Plan plan = five_parameters({.unused = Unused::keep, .has_hook = true});
  plan.begin(Sync::on);
  EXPECT_THAT(end(plan), ::testing::Contains("tell unused:"));
  EXPECT_THAT(texts(plan.looked({.used = {1, 0, 1, 0, 1}})), ElementsAre("tell unused: 1 3", "zero 1", "zero 3"));
  plan.begin(Sync::on);
  EXPECT_THAT(end(plan), ::testing::Contains("tell unused:")) << "the last list is no longer right";
  EXPECT_THAT(texts(plan.looked({.used = {1, 1, 1, 1, 1}})), IsEmpty());
}

// What ranks say that have all frozen what this one has.
Flags alike(const Actions& actions) {
  for (const Action& action : actions) {
    if (const auto* const agree = std::get_if<Agree>(&action)) return agree->own.flags;
  }
  return {};
}

TEST(Plan, AHookIsToldWhatIsFrozenBeforeItBecomesZero) {
  Plan plan = five_parameters({.unused = Unused::keep, .has_hook = true});
  plan.set_frozen(2, true);
  plan.begin(Sync::on);
  for (const std::size_t parameter : {4, 3, 1}) ready(plan, parameter);
  const Actions actions = plan.end(plan.step());
  const std::vector<std::string> ended = texts(actions);
  EXPECT_THAT(std::vector<std::string>(ended.end() - 4, ended.end()),
              ElementsAre("finish hooks", "agree frozen used=01011", "peek", "look"));
  EXPECT_THAT(texts(plan.peeked({.flags = alike(actions)})), ElementsAre("tell unused: 2", "zero 2"));
  EXPECT_THAT(texts(plan.looked({.flags = alike(actions), .used = {0, 1, 0, 1, 1}})),
              ElementsAre("tell unused: 0 2", "zero 0", "zero 2"))
      << "the last list is complete";
}

TEST(Plan, AHookIsToldWhatStaysFrozenInABucketThatIsReducedLate) {
  Plan plan = five_parameters({.unused = Unused::zeros, .has_hook = true});
  plan.set_frozen(2, true);
  plan.set_frozen(3, true);  // all of bucket 1
  const auto train = [&] {
    plan.begin(Sync::on);
    for (const std::size_t parameter : {4, 0, 1}) ready(plan, parameter);
    const Flags of_all = alike(plan.end(plan.step()));
    const std::vector<std::string> late = texts(plan.peeked({.flags = of_all}));
    plan.looked({.flags = of_all});
    return late;
  };
  train();
  plan.set_frozen(3, false);
  EXPECT_THAT(train(), ElementsAre("reduce 1", "finish hooks", "tell unused: 2", "zero 2", "drain"));
}

TEST(Plan, AHookIsToldThatNobodyUsesTheGradientsOfTheLastStepOfJoin) {
  Plan plan = five_parameters({.rank_count = 2, .uneven_inputs = UnevenInputs::divide_by_active, .has_hook = true});
  plan.begin_shadow();
  end(plan);
  EXPECT_THAT(texts(plan.looked({.active = {0, 1}})), ElementsAre("scale 2.000000"));
  plan.begin_shadow();
  end(plan);
  EXPECT_THAT(texts(plan.looked({.active = {0, 0}})),
              ElementsAre("tell unused: 0 1 2 3 4", "zero 0", "zero 1", "zero 2", "zero 3", "zero 4"));
}

TEST(Plan, AHookIsToldWhatNoRankUsedBeforeGradientsAreScaled) {
  Plan plan = five_parameters(
      {.rank_count = 2, .unused = Unused::keep, .uneven_inputs = UnevenInputs::divide_by_active, .has_hook = true});
  plan.begin_shadow();
  end(plan);
  EXPECT_THAT(texts(plan.looked({.active = {0, 1}, .used = {1, 0, 1, 1, 1}})),
              ElementsAre("tell unused: 1", "scale 2.000000", "zero 1"));
}

TEST(Plan, CheckLooksAtWhatNobodyHasLookedAt) {
  Plan plan = five_parameters({.look_at = LookAt::end_of_next_window});
  EXPECT_THAT(texts(plan.check()), IsEmpty());
  plan.begin(Sync::off);
  end(plan);
  EXPECT_THAT(gradient_error([&] { plan.check(); }), HasSubstr("check() is called before the gradients are averaged"));
  plan.begin(Sync::on);
  use_all(plan);
  end(plan);
  EXPECT_THAT(texts(plan.check()), ElementsAre("look"));
  EXPECT_THAT(texts(plan.looked({.flags = {.fault = 1}})), ElementsAre("find unused: of the last window"));
  EXPECT_THAT(texts(plan.check()), IsEmpty());
}

// Of the five parameters: a is used twice in a step, e not at all.
void use_static(Plan& plan) {
  for (const std::size_t parameter : {0, 3, 2, 1}) ready(plan, parameter);
}

TEST(Plan, AStaticGraphIsLearnedInTheFirstStepWithSyncOn) {
  Plan plan = five_parameters({.unused = Unused::zeros, .is_static_graph = true});
  plan.begin(Sync::off);
  for (int i = 0; i < 3; ++i) ready(plan, 3);  // not counted
  end(plan);
  plan.begin(Sync::on);
  use_static(plan);
  EXPECT_THAT(ready(plan, 0), IsEmpty()) << "nobody knows yet how often it comes";
  EXPECT_THAT(end(plan), ElementsAre("zero 4", "reduce 0", "reduce 1", "reduce 2", "agree", "look"));
  plan.looked({});
  for (int i = 0; i < 2; ++i) {
    plan.begin(Sync::on);
    EXPECT_THAT(ready(plan, 0), ElementsAre("reduce 0")) << "no step uses e";
    EXPECT_THAT(ready(plan, 0), IsEmpty());
    EXPECT_THAT(ready(plan, 3), IsEmpty());
    EXPECT_THAT(ready(plan, 1), IsEmpty()) << "bucket 2 before bucket 1";
    EXPECT_THAT(ready(plan, 2), ElementsAre("reduce 1", "reduce 2"));
    EXPECT_THAT(end(plan), ElementsAre("agree", "look"));
    plan.looked({});
    EXPECT_THAT(plan.ready_order(), ElementsAre(0U, 3U, 1U, 2U, 4U)) << "the last use counts";
    plan.rebuild({{4}, {3, 2}, {1, 0}});
  }
}

TEST(Plan, AStaticGraphWithAnotherCountIsAMiscount) {
  const struct {
    const char* what;
    std::vector<std::size_t> used;
    const char* want;
  } cases[] = {{"too few", {0, 3, 2, 1}, "find miscounts: 0 1 instead of 2"},
               {"too many", {0, 0, 0, 3, 2, 1}, "find miscounts: 0 3 instead of 2"},
               {"another parameter", {4, 0, 0, 3, 2, 1}, "find miscounts: 4 1 instead of 0"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Plan plan = five_parameters({.unused = Unused::zeros, .is_static_graph = true});
    plan.begin(Sync::on);
    use_static(plan);
    ready(plan, 0);
    end(plan);
    plan.looked({});
    plan.begin(Sync::on);
    for (const std::size_t parameter : c.used) ready(plan, parameter);
    EXPECT_THAT(end(plan), ::testing::Contains("agree miscount"));
    EXPECT_THAT(texts(plan.looked({.flags = {.fault = 2}})), ElementsAre(c.want));
  }
}

TEST(Plan, AStaticGraphIsNotLearnedFromAStepThatWentWrong) {
  Plan plan = five_parameters({.is_static_graph = true});
  plan.begin(Sync::on);
  use_static(plan);
  EXPECT_THAT(end(plan), ::testing::Contains("agree missing"));
  plan.looked({.flags = {.fault = 1}});
  plan.begin(Sync::on);
  use_static(plan);
  cancel(plan);
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ::testing::Contains("agree"));
}

TEST(Plan, ZeroesWhatAStaticGraphNeverUsesIfBackwardOverwrites) {
  Plan plan = five_parameters({.zero_gradients = false, .unused = Unused::zeros, .is_static_graph = true});
  plan.begin(Sync::on);
  use_static(plan);
  EXPECT_THAT(end(plan), ::testing::Contains("zero 4"));
  plan.looked({});
  EXPECT_THAT(texts(plan.begin(Sync::off)), ElementsAre("drain", "zero 4"));
  ready(plan, 4);  // accumulates
  end(plan);
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain"));
  use_static(plan);
  EXPECT_THAT(end(plan), ::testing::Not(::testing::Contains("zero 4")));
}

TEST(Plan, ABucketIsIdleOnceAllRanksHaveFrozenIt) {
  Plan plan = five_parameters();
  plan.set_frozen(1, true);  // with 0 in bucket 2
  plan.set_frozen(2, true);  // bucket 1
  plan.set_frozen(3, true);
  plan.begin(Sync::on);
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0", "reduce 1")) << "the other ranks may not have frozen it";
  EXPECT_THAT(gradient_error([&] { ready(plan, 3); }), HasSubstr("parameter d (index 3) is ready, but it is frozen"));
  EXPECT_THAT(ready(plan, 0), ElementsAre("reduce 2"));
  EXPECT_THAT(gradient_error([&] { plan.set_frozen(0, true); }), HasSubstr("set_frozen() is called before"));
  Actions actions = plan.end(plan.step());
  EXPECT_THAT(texts(actions), ElementsAre("agree frozen", "peek", "look"));
  EXPECT_THAT(texts(plan.peeked({.flags = alike(actions)})), IsEmpty());
  EXPECT_THAT(texts(plan.looked({.flags = alike(actions)})), IsEmpty());
  plan.begin(Sync::on);
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0"));
  EXPECT_THAT(ready(plan, 0), ElementsAre("reduce 2"));
  EXPECT_THAT(end(plan), ElementsAre("agree frozen", "look"));
}

TEST(Plan, ABucketThatThawsIsReducedOnceAllRanksAgree) {
  Plan plan = five_parameters({.unused = Unused::zeros});
  const auto train = [&](Flags of_all) {
    plan.begin(Sync::on);
    for (const std::size_t parameter : {4, 0, 1}) ready(plan, parameter);
    Actions actions = plan.end(plan.step());
    if (of_all.fault == 0 && of_all.canceller == 0) of_all = alike(actions);
    std::vector<std::string> after = texts(plan.peeked({.flags = of_all}));
    plan.looked({.flags = of_all});
    std::vector<std::string> all = texts(actions);
    all.insert(all.end(), after.begin(), after.end());
    return all;
  };
  plan.set_frozen(2, true);
  plan.set_frozen(3, true);
  train({});
  plan.set_frozen(3, false);
  EXPECT_THAT(train({.canceller = 1}), ElementsAre("zero 3", "agree frozen", "peek", "look")) << "nobody agrees then";
  EXPECT_THAT(train({}), ElementsAre("zero 3", "agree frozen", "peek", "look", "reduce 1", "drain"));
  EXPECT_THAT(train({}), ElementsAre("zero 3", "reduce 1", "reduce 2", "agree frozen", "look"));
}

TEST(Plan, RanksThatHaveFrozenDifferentParametersAreTold) {
  Plan plan = five_parameters();
  plan.set_frozen(2, true);
  plan.begin(Sync::on);
  for (const std::size_t parameter : {4, 3, 1}) ready(plan, parameter);
  const Flags own = alike(plan.end(plan.step()));
  const Flags of_all{.fault = 1, .frozen = own.frozen, .frozen_complement = ~0};  // another rank has frozen none
  EXPECT_THAT(texts(plan.peeked({.flags = of_all})), IsEmpty());
  EXPECT_THAT(texts(plan.looked({.flags = of_all})), ElementsAre("find frozen: 2"));
}

// On a device the optimizer steps before the ranks are told of the difference.
TEST(Plan, AHookIsToldWhatAllRanksHaveFrozenIfTheyDiffer) {
  Plan plan = five_parameters({.has_hook = true, .look_at = LookAt::end_of_next_window});
  const auto train = [&](const std::vector<std::size_t>& used, std::optional<Flags> of_all = {}) {
    plan.begin(Sync::on);
    for (const std::size_t parameter : used) ready(plan, parameter);
    const Actions actions = plan.end(plan.step());
    EXPECT_THAT(texts(actions), ::testing::Contains("peek"));
    return texts(plan.peeked({.flags = of_all.value_or(alike(actions))}));
  };
  const Flags different{.frozen = 2, .frozen_complement = ~1};
  plan.set_frozen(2, true);
  EXPECT_THAT(train({4, 3, 1, 0}), ElementsAre("tell unused: 2", "zero 2"));
  plan.set_frozen(4, true);
  EXPECT_THAT(train({3, 1, 0}, different), ElementsAre("tell unused: 2", "zero 2")) << "not 4";
  EXPECT_THAT(train({3, 1, 0}), ElementsAre("tell unused: 2 4", "zero 2", "zero 4"));
}

TEST(Plan, FrozenParametersAreZerosAndUnused) {
  Plan plan = five_parameters({.zero_gradients = false, .unused = Unused::keep});
  plan.set_frozen(2, true);
  EXPECT_THAT(texts(plan.begin(Sync::on)), ElementsAre("drain", "zero 2"));
  for (const std::size_t parameter : {4, 3, 1}) ready(plan, parameter);
  EXPECT_THAT(end(plan), ::testing::Contains("agree frozen used=01011"));
}

TEST(Plan, AStaticGraphIsLearnedAnewAfterAParameterFreezes) {
  Plan plan = five_parameters({.is_static_graph = true});
  for (int i = 0; i < 2; ++i) {
    plan.begin(Sync::on);
    for (const std::size_t parameter : {4, 3, 3, 2, 1, 0}) ready(plan, parameter);
    end(plan);
    plan.looked({});
  }
  plan.set_frozen(4, true);
  plan.begin(Sync::on);
  for (const std::size_t parameter : {3, 2, 1, 0}) ready(plan, parameter);
  EXPECT_THAT(end(plan), ::testing::Contains("agree frozen"));
}

TEST(Plan, AShadowGivesTheOthersWhatTheyWaitFor) {
  Plan plan = five_parameters({.rank = 1,
                               .rank_count = 3,
                               .zero_gradients = false,
                               .unused = Unused::keep,
                               .is_static_graph = true,
                               .uneven_inputs = UnevenInputs::divide_by_all});
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ::testing::Contains("agree active=010 used=11111"));
  plan.looked({.active = {1, 1, 1}, .used = {1, 1, 1, 1, 1}});
  EXPECT_EQ(plan.outcome().active_count, 3);
  EXPECT_THAT(texts(plan.begin_shadow()),
              ElementsAre("drain", "keep 0", "keep 1", "keep 2", "keep 3", "keep 4", "zero all"));
  EXPECT_THAT(end(plan), ElementsAre("reduce 0", "reduce 1", "reduce 2", "agree active=000 used=00000", "look"))
      << "nothing is missing, and nothing miscounted";
  EXPECT_THAT(texts(plan.looked({.active = {1, 0, 1}, .used = {0, 0, 0, 0, 1}})),
              ElementsAre("restore 0", "restore 1", "restore 2", "restore 3"));
  EXPECT_EQ(plan.outcome().active_count, 2);
  EXPECT_TRUE(plan.is_unused(0));
  EXPECT_THAT(plan.ready_order(), ElementsAre(4U, 3U, 2U, 1U, 0U)) << "a shadow has no order";
}

TEST(Plan, GradientsAreDividedByTheActiveRanks) {
  Plan plan = five_parameters({.rank_count = 3, .uneven_inputs = UnevenInputs::divide_by_active});
  const auto actions_for = [&](std::vector<std::int32_t> active) {
    plan.begin_shadow();
    end(plan);
    return texts(plan.looked({.active = std::move(active)}));
  };
  EXPECT_THAT(actions_for({0, 1, 1}), ElementsAre("scale 1.500000"));
  EXPECT_THAT(actions_for({0, 1, 0}), ElementsAre("scale 3.000000"));
  EXPECT_THAT(actions_for({0, 0, 0}), IsEmpty());
  EXPECT_THAT(actions_for({1, 1, 1}), IsEmpty());
}

TEST(Plan, BuffersComeFromTheLowestActiveRank) {
  Plan plan = five_parameters(
      {.rank_count = 3, .uneven_inputs = UnevenInputs::divide_by_all, .buffer_sync = BufferSync::broadcast});
  EXPECT_THAT(texts(plan.begin(Sync::off)), ElementsAre("drain", "zero all"));
  end(plan);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(texts(plan.begin(Sync::on)), ::testing::Contains("broadcast buffers of 0"));
    cancel(plan);
  }
  const auto next_root = [&](std::vector<std::int32_t> active) {
    plan.begin_shadow();
    end(plan);
    plan.looked({.active = std::move(active)});
    const auto actions = texts(plan.begin_shadow());
    end(plan);
    plan.looked({.active = {0, 0, 0}});  // keeps the last one
    return actions;
  };
  EXPECT_THAT(next_root({0, 0, 1}), ::testing::Contains("broadcast buffers of 2"));
  EXPECT_THAT(next_root({0, 1, 1}), ::testing::Contains("broadcast buffers of 1"));
}

TEST(Plan, GradientsThatAreNotFiniteAreTheGreatestFault) {
  Plan plan = five_parameters({});
  plan.begin(Sync::off);
  ready(plan, 3);
  plan.note_non_finite(3);
  end(plan);
  plan.begin(Sync::on);
  ready(plan, 1);
  plan.note_non_finite(1);
  plan.note_non_finite(3);
  const auto actions = plan.end(plan.step());
  const auto agree = std::find_if(actions.begin(), actions.end(),
                                  [](const Action& each) { return std::holds_alternative<Agree>(each); });
  ASSERT_NE(agree, actions.end());
  EXPECT_EQ(std::get<Agree>(*agree).own.flags.fault, static_cast<std::int32_t>(Fault::non_finite));
  Agreement of_all;
  of_all.flags.fault = static_cast<std::int32_t>(Fault::non_finite);
  EXPECT_THAT(texts(plan.looked(of_all)), ElementsAre("find non-finite 3 1"));
  plan.begin(Sync::on);
  use_all(plan);
  end(plan);
  EXPECT_THAT(texts(plan.looked(of_all)), ElementsAre("find non-finite")) << "of another rank";
}

TEST(Plan, HooksAreFinishedBeforeTheFlags) {
  Plan plan = five_parameters({.has_hook = true, .buffer_sync = BufferSync::average});
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("finish hooks", "tell unused:", "average buffers", "agree", "look"));
  plan.looked({});
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(cancel(plan), ElementsAre("finish hooks", "tell unused:", "average buffers", "agree canceller=1 unread"));
}

TEST(Plan, ACapturedWindowTellsNothing) {
  Plan plan = five_parameters({.buffer_sync = BufferSync::average, .look_at = LookAt::end_of_next_window});
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("average buffers", "agree"));  // looked at by the next window that is not captured
  plan.begin_captured(Sync::off);
  use_all(plan);
  EXPECT_THAT(end(plan), IsEmpty());
  EXPECT_THROW(plan.begin(Sync::on), GradientError) << "the window is captured in part";
  plan.begin_captured(Sync::on);
  EXPECT_THAT(ready(plan, 4), ElementsAre("reduce 0"));
  for (const std::size_t parameter : {3, 2, 1, 0}) ready(plan, parameter);
  EXPECT_THAT(end(plan), ElementsAre("average buffers", "drain"));
  EXPECT_TRUE(plan.is_captured());
  plan.begin(Sync::on);
  EXPECT_FALSE(plan.is_captured());
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("average buffers", "agree", "look"));
}

TEST(Plan, ACapturedWindowIsGivenUpWithoutAWordToTheOthers) {
  Plan plan = five_parameters();
  plan.begin_captured(Sync::on);
  ready(plan, 4);
  EXPECT_THROW(plan.end(plan.step()), GradientError) << "the other parameters have no gradients";
  EXPECT_THAT(cancel(plan), ElementsAre("drain"));
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("agree", "look"));
}

TEST(Plan, NoWindowIsCapturedThatHasSomethingToTellOrToDoFirst) {
  for (const PlanOptions& options : {PlanOptions{.unused = Unused::keep},
                                     PlanOptions{.uneven_inputs = UnevenInputs::stop}, PlanOptions{.has_hook = true}}) {
    EXPECT_THROW(five_parameters(options).begin_captured(Sync::on), InvalidArgument);
  }
  EXPECT_THROW(five_parameters({.rebuilds_buckets = true}).begin_captured(Sync::on), GradientError);
  EXPECT_THROW(five_parameters({.is_static_graph = true}).begin_captured(Sync::on), GradientError);
  Plan frozen = five_parameters();
  frozen.set_frozen(0, true);
  EXPECT_THROW(frozen.begin_captured(Sync::on), GradientError);
  Plan begun = five_parameters();
  begun.begin(Sync::off);
  end(begun);
  EXPECT_THROW(begun.begin_captured(Sync::on), GradientError);
}

TEST(Plan, ReleasedGradientsOfABucketAreFinishedBeforeTheNextBucket) {
  Plan plan = five_parameters({.has_hook = true, .releases_gradients = true});
  plan.begin(Sync::on);
  EXPECT_THAT(ready(plan, 4), ElementsAre("finish hooks", "reduce 0"));
  EXPECT_THAT(ready(plan, 3), IsEmpty());
  EXPECT_THAT(cancel(plan), ElementsAre("finish hooks", "reduce 1", "finish hooks", "reduce 2", "finish hooks",
                                        "tell unused:", "agree canceller=1 unread"));
}

TEST(Plan, ReleasedGradientsThatNobodyUsesAreZeroAlready) {
  Plan plan = five_parameters({.rank_count = 2,
                               .unused = Unused::keep,
                               .uneven_inputs = UnevenInputs::divide_by_all,
                               .has_hook = true,
                               .releases_gradients = true});
  plan.set_frozen(2, true);
  plan.begin_shadow();
  const Actions actions = plan.end(plan.step());
  EXPECT_THAT(texts(plan.peeked({.flags = alike(actions)})), ElementsAre("tell unused: 2"));
  EXPECT_THAT(texts(plan.looked({.flags = alike(actions), .active = {0, 0}, .used = {0, 0, 0, 0, 0}})),
              ElementsAre("tell unused: 0 1 2 3 4"));
}

TEST(Plan, BuffersAreAveragedBeforeTheFlags) {
  Plan plan = five_parameters({.buffer_sync = BufferSync::average});
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(end(plan), ElementsAre("average buffers", "agree", "look"));
  plan.looked({});
  plan.begin(Sync::on);
  use_all(plan);
  EXPECT_THAT(cancel(plan), ElementsAre("average buffers", "agree canceller=1 unread"));
}

TEST(Plan, AShadowTakesNoNoticeOfACancelledWindow) {
  Plan plan = five_parameters({.rank_count = 2, .uneven_inputs = UnevenInputs::stop});
  plan.begin_shadow();
  end(plan);
  EXPECT_THAT(texts(plan.looked({.flags = {.canceller = 2}, .active = {0, 1}})), IsEmpty());
  EXPECT_FALSE(plan.outcome().was_last_good);
  EXPECT_EQ(plan.outcome().active_count, 2) << "the window does not count";
  plan.begin(Sync::off);
  end(plan);
  EXPECT_THAT(gradient_error([&] { plan.begin_shadow(); }), HasSubstr("join() is called before"));
}

TEST(Plan, ARebuildIsDueOnceAfterTheFirstWindowWithoutAFault) {
  Plan plan = five_parameters({.rebuilds_buckets = true});
  const auto train = [&](Flags of_all) {
    plan.begin(Sync::off);
    end(plan);
    EXPECT_FALSE(plan.is_rebuild_due()) << "gradients are accumulated";
    plan.begin(Sync::on);
    use_all(plan);
    EXPECT_FALSE(plan.is_rebuild_due()) << "a step is open";
    end(plan);
    plan.looked({.flags = of_all});
  };
  train({.fault = 1});
  EXPECT_FALSE(plan.is_rebuild_due());
  train({.canceller = 1});
  EXPECT_FALSE(plan.is_rebuild_due());
  train({});
  EXPECT_TRUE(plan.is_rebuild_due());
  plan.rebuild({{0, 4}, {1, 2, 3}});
  EXPECT_FALSE(plan.is_rebuild_due());
  train({});
  EXPECT_FALSE(plan.is_rebuild_due());
}

TEST(Plan, ARebuildWaitsUntilAllRanksKnowOfTheSuccess) {
  Plan plan = five_parameters({.rebuilds_buckets = true, .look_at = LookAt::end_of_next_window});
  plan.begin(Sync::on);
  end(plan);
  EXPECT_FALSE(plan.is_rebuild_due());
  plan.begin(Sync::on);
  cancel(plan);
  plan.looked({});
  EXPECT_TRUE(plan.is_rebuild_due()) << "the others have looked at the same flags";
}

TEST(Plan, NoRebuildIsDueUnlessTheOptionsSaySo) {
  Plan plan = five_parameters();
  plan.begin(Sync::on);
  use_all(plan);
  end(plan);
  plan.looked({});
  EXPECT_FALSE(plan.is_rebuild_due());
}

TEST(Plan, RemembersTheOrderOfTheLastFinishedStep) {
  Plan plan = five_parameters();
  EXPECT_THAT(plan.ready_order(), ElementsAre(4U, 3U, 2U, 1U, 0U));
  plan.begin(Sync::off);
  ready(plan, 0);
  end(plan);
  plan.begin(Sync::on);
  ready(plan, 2);
  ready(plan, 3);
  end(plan);
  EXPECT_THAT(plan.ready_order(), ElementsAre(2U, 3U, 4U, 1U, 0U));
  plan.begin(Sync::on);
  ready(plan, 0);
  cancel(plan);
  EXPECT_THAT(plan.ready_order(), ElementsAre(2U, 3U, 4U, 1U, 0U));
}

}  // namespace
}  // namespace ddp::gradient_engine
