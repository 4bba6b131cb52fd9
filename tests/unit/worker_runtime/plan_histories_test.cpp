// Random histories of the plan: some ranks, each with its own Plan, over a stand-in for a group. Every rank makes
// gradients ready in an order of its own, leaves some out, cancels; collectives fail; buckets are rebuilt; options
// differ from history to history. A history is right if no rank waits for ever, all ranks begin the same collectives in
// the same order, each gradient is reduced once in a window and not before it is complete, and every rank is told what
// happened. Backward adds to gradients that are zero when a window begins, or overwrites what is there; with
// Unused::keep a gradient that no rank used then has its old bits. In some histories gradients are divided among the
// ranks, as ShardedOptimizer does: then each rank gets exactly its own part, and in some of them gradients are
// released, so that one bucket is on its way at a time.
#include "worker_runtime/engine/plan/plan.hpp"

#include "ddp/error.hpp"
#include "tests/sanitized.hpp"
#include "worker_runtime/engine/layout/layout.hpp"
#include "worker_runtime/engine/sharded/shards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddp::gradient_engine {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;
using Values = std::vector<std::int64_t>;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::mt19937_64 random_;
};

void require(bool is_right, const std::string& what) {
  if (!is_right) throw std::runtime_error(what);
}

// --- what the program of a rank does ---

enum class Call : std::uint8_t {
  freeze,
  begin_shadow,
  begin_off,
  begin_on,
  ready,
  ready_again,
  ready_of_old_step,
  end,
  cancel,
  rebuild
};

struct Op {
  Call call = Call::begin_on;
  std::size_t parameter = 0;
  std::int64_t value = 0;  // what backward adds to the gradient before it is ready; of freeze: 1 for frozen
  bool is_finite = true;   // the gradient, before it is ready
};

struct RankWindow {
  std::vector<Op> ops{};
  std::vector<std::size_t> missing{};
  std::vector<std::size_t> non_finite{};
  Values sums{};   // of this rank's micro-batches
  Values found{};  // by parameter: calls of ready() in the last one
  std::vector<bool> frozen{};
  bool is_cancelled = false;
  bool is_shadow = false;
  Fault fault = Fault::none;  // these two are known when its last micro-batch ends
  bool is_miscounted = false;
};

struct Window {
  Buckets rebuilt;  // before it; empty for none
  std::vector<RankWindow> ranks;

  int canceller() const {  // the highest; -1 for none
    for (std::size_t rank = ranks.size(); rank-- > 0;) {
      if (ranks[rank].is_cancelled) return static_cast<int>(rank);
    }
    return -1;
  }

  bool have_frozen_the_same() const {
    return std::all_of(ranks.begin(), ranks.end(), [this](auto& its) { return its.frozen == ranks[0].frozen; });
  }

  // What its flags tell every rank.
  std::string outcome() const {
    if (canceller() >= 0) return "cancelled by " + std::to_string(canceller());
    if (!have_frozen_the_same()) return "frozen";
    Fault worst = Fault::none;
    for (const RankWindow& its : ranks) worst = std::max(worst, its.fault);
    const char* const texts[] = {"", "unused", "miscount", "non-finite"};
    return texts[static_cast<std::size_t>(worst)];
  }

  bool is_unused(std::size_t parameter) const {
    return std::all_of(ranks.begin(), ranks.end(), [=](const RankWindow& its) {
      return its.is_shadow || its.frozen[parameter] ||
             std::count(its.missing.begin(), its.missing.end(), parameter) > 0;
    });
  }

  int active_count() const {
    return static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [](auto& its) { return !its.is_shadow; }));
  }

  std::int64_t sum(std::size_t parameter) const {
    return std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0},
                           [=](std::int64_t sum, const RankWindow& its) { return sum + its.sums[parameter]; });
  }
};

Buckets draw_buckets(std::size_t parameter_count, Dice& dice) {
  std::vector<std::size_t> order(parameter_count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  dice.shuffle(order);
  Buckets buckets;
  for (const std::size_t parameter : order) {
    if (buckets.empty() || dice.one_in(2)) buckets.emplace_back();
    buckets.back().push_back(parameter);
  }
  return buckets;
}

struct Chances {
  std::size_t cancel, leave_out;  // one in so many
};

// How often this rank uses each parameter in a step: once, unless the graph is static.
Values draw_uses(std::size_t parameter_count, const PlanOptions& options, Dice& dice) {
  Values uses(parameter_count, 1);
  if (!options.is_static_graph) return uses;
  const std::size_t least = options.unused == Unused::error ? 1 : 0;
  for (std::int64_t& its : uses) its = static_cast<std::int64_t>(least + dice.below(3));
  return uses;
}

// Adds a micro-batch; with a cancel in it, the window of this rank begins anew.
void draw_micro_batch(RankWindow& window, bool is_last, Chances chances, const Values& uses, std::vector<bool>& used,
                      Dice& dice) {
  std::vector<std::size_t> order;
  window.found.assign(used.size(), 0);
  for (std::size_t p = 0; p < used.size(); ++p) {
    if (window.frozen[p]) continue;
    for (std::int64_t use = 0; use < uses[p]; ++use) order.push_back(p);
    if (uses[p] != 1 && dice.one_in(chances.leave_out)) order.push_back(p);
  }
  if (!dice.one_in(3)) std::reverse(order.begin(), order.end());
  if (dice.one_in(2)) dice.shuffle(order);
  window.ops.push_back({.call = is_last ? Call::begin_on : Call::begin_off});
  const bool cancels = dice.one_in(chances.cancel);
  const std::size_t until = cancels ? dice.below(order.size() + 1) : order.size();
  for (std::size_t i = 0; i < until; ++i) {
    if (dice.one_in(chances.leave_out)) continue;
    const auto value = static_cast<std::int64_t>(1 + dice.below(1000));
    const bool is_finite = !dice.one_in(4 * chances.leave_out);
    window.ops.push_back({.call = Call::ready, .parameter = order[i], .value = value, .is_finite = is_finite});
    auto& non_finite = window.non_finite;
    const bool is_known = std::count(non_finite.begin(), non_finite.end(), order[i]) > 0;
    if (!is_finite && !is_known) non_finite.push_back(order[i]);
    ++window.found[order[i]];
    if (dice.one_in(16)) window.ops.push_back({.call = Call::ready_again, .parameter = order[i]});
    if (dice.one_in(16)) window.ops.push_back({.call = Call::ready_of_old_step, .parameter = order[i]});
    window.sums[order[i]] += value;
    used[order[i]] = true;
  }
  window.ops.push_back({.call = cancels ? Call::cancel : Call::end});
  if (!cancels) return;
  if (is_last) {
    window.is_cancelled = true;
  } else {
    std::fill(window.sums.begin(), window.sums.end(), 0);
    used.assign(used.size(), false);
    window.non_finite.clear();
  }
}

RankWindow shadow_window(std::size_t parameter_count, const std::vector<bool>& frozen, bool is_rebuilt) {
  RankWindow window{.sums = Values(parameter_count), .frozen = frozen, .is_shadow = true};
  for (std::size_t p = 0; p < parameter_count; ++p) {
    window.ops.push_back({.call = Call::freeze, .parameter = p, .value = frozen[p] ? 1 : 0});
  }
  if (is_rebuilt) window.ops.push_back({.call = Call::rebuild});
  window.ops.push_back({.call = Call::begin_shadow});
  window.ops.push_back({.call = Call::end});
  return window;
}

RankWindow draw_rank_window(const Values& uses, const std::vector<bool>& frozen, Chances chances, bool is_rebuilt,
                            Dice& dice) {
  const std::size_t parameter_count = uses.size();
  RankWindow window;
  window.sums.resize(parameter_count);
  window.frozen = frozen;
  for (std::size_t p = 0; p < parameter_count; ++p) {
    window.ops.push_back({.call = Call::freeze, .parameter = p, .value = frozen[p] ? 1 : 0});
  }
  if (is_rebuilt) window.ops.push_back({.call = Call::rebuild});
  std::vector<bool> used(parameter_count);
  for (std::size_t i = dice.below(3); i > 0; --i) draw_micro_batch(window, false, chances, uses, used, dice);
  draw_micro_batch(window, true, chances, uses, used, dice);
  for (std::size_t p = 0; p < parameter_count; ++p) {
    if (!used[p] && !frozen[p] && !window.is_cancelled) window.missing.push_back(p);
  }
  return window;
}

std::vector<Window> draw_windows(std::size_t rank_count, std::size_t parameter_count, const PlanOptions& options,
                                 Dice& dice) {
  std::vector<Values> uses;
  for (std::size_t rank = 0; rank < rank_count; ++rank) uses.push_back(draw_uses(parameter_count, options, dice));
  const Chances histories[] = {{1000, 1000}, {8, 1000}, {1000, 12}, {6, 6}};
  std::vector<Window> windows(1 + dice.below(4));
  const bool are_any_frozen = dice.one_in(3);
  std::vector<bool> frozen(parameter_count);
  std::vector<std::size_t> inputs(rank_count, windows.size());  // of each rank, in windows
  if (options.uneven_inputs != UnevenInputs::off) {
    for (std::size_t& its : inputs) its = dice.below(windows.size() + 1);
  }
  for (Window& window : windows) {
    const Chances chances = dice.one_in(8) ? Chances{1, 8} : histories[dice.below(std::size(histories))];
    if (dice.one_in(4)) window.rebuilt = draw_buckets(parameter_count, dice);
    const auto flip_one = [&](std::vector<bool>& its) { its[dice.below(parameter_count)].flip(); };
    for (std::size_t i = are_any_frozen ? dice.below(4) : 0; i > 0; --i) flip_one(frozen);
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      std::vector<bool> of_rank = frozen;
      if (are_any_frozen && dice.one_in(24)) flip_one(of_rank);
      if (inputs[rank]-- == 0) {
        inputs[rank] = 0;
        window.ranks.push_back(shadow_window(parameter_count, of_rank, !window.rebuilt.empty()));
        continue;
      }
      window.ranks.push_back(draw_rank_window(uses[rank], of_rank, chances, !window.rebuilt.empty(), dice));
    }
  }
  return windows;
}

PlanOptions draw_options(Dice& dice) {
  PlanOptions options{.zero_gradients = !dice.one_in(3),
                      .rebuilds_buckets = dice.one_in(2),
                      .unused = dice.one_in(2)   ? Unused::error
                                : dice.one_in(2) ? Unused::zeros
                                                 : Unused::keep,
                      .is_static_graph = dice.one_in(3)};
  options.has_hook = dice.one_in(2);
  options.releases_gradients = options.has_hook && dice.one_in(3);
  options.buffer_sync = static_cast<BufferSync>(dice.below(3));
  const UnevenInputs uneven[] = {UnevenInputs::divide_by_all, UnevenInputs::divide_by_active, UnevenInputs::stop};
  if (dice.one_in(3)) options.uneven_inputs = uneven[dice.below(3)];
  if (options.uneven_inputs != UnevenInputs::off || options.unused == Unused::keep) return options;
  options.look_at = dice.one_in(2) ? LookAt::end_of_window : LookAt::end_of_next_window;
  return options;
}

// --- the group ---

struct Collective {
  std::string name{};
  std::vector<std::size_t> parameters{};   // of the bucket
  std::optional<std::size_t> scattered{};  // the bucket of a reduce_scatter
  std::size_t arrived = 0;
  Values sums{};  // by parameter; of a reduce_scatter by element, padding included
  Agreement agreement{};
};

// Where the elements of gradients lie in buckets, and which rank owns them. The memory has addresses only.
struct Division {
  std::vector<GradientBucket> buckets;
  std::vector<Piece> pieces;
};

constexpr std::size_t kAligned = kGradientAlignmentBytes / sizeof(float);

// counts: elements, by parameter.
Division divide(const Buckets& lists, const std::vector<std::size_t>& counts, std::size_t rank_count) {
  static std::array<float, 1024> memory;
  Division division;
  for (const std::vector<std::size_t>& list : lists) {
    GradientBucket bucket;
    bucket.number = division.buckets.size();
    bucket.indices = list;
    std::size_t end = 0;
    for (const std::size_t parameter : list) {
      const std::size_t start = (end + kAligned - 1) / kAligned * kAligned;
      bucket.parameters.push_back({"p", {}, {memory.data() + start, counts[parameter], DataType::float32}});
      end = start + counts[parameter];
    }
    const std::size_t multiple = kAligned * rank_count;
    bucket.padded = {memory.data(), (end + multiple - 1) / multiple * multiple, DataType::float32};
    require(bucket.padded.count <= memory.size(), "a bucket is too large for this test");
    division.buckets.push_back(std::move(bucket));
  }
  division.pieces = pieces_of(division.buckets, static_cast<int>(rank_count));
  return division;
}

// What a parameter's gradient has as element i: no two of its elements have the same.
std::int64_t element(std::int64_t gradient, std::size_t i) { return gradient * static_cast<std::int64_t>(i + 1); }

struct Rank {
  Plan plan;
  Values gradients;  // at first different ones on each rank
  Values found;      // by parameter: calls of ready() in this step
  std::vector<bool> frozen;
  std::optional<Values> learned{};                  // of a static graph
  std::vector<int> reduced;                         // by parameter, how often in this window
  bool is_closing = false;                          // in end() or cancel()
  std::size_t window = 0, op = 0;                   // what comes next
  std::deque<Action> actions{};                     // to perform first
  std::size_t begun = 0;                            // collectives
  bool waits = false;                               // for what it has begun, before its next action
  std::deque<std::size_t> results{};                // of the flags: which collectives
  std::deque<std::size_t> untold{};                 // windows whose outcome it is still to hear
  std::optional<std::string> told{};                // in this end() or cancel()
  double scaled_by = 1;                             // in this window
  std::vector<std::size_t> unused{};                // what the hook is told
  bool begins_window = false;                       // its Drain is still to come
  bool is_drained = false;                          // and nothing was done since
  Values old{};                                     // the gradients then
  std::vector<bool> written{};                      // by parameter: by backward, in this window
  std::vector<std::optional<std::int64_t>> kept{};  // by parameter: in this window
  std::vector<std::size_t> under_way{};             // buckets whose hooks are not finished
  std::vector<Values> parts{};                      // by bucket: the sums that this rank owns, if gradients are divided
  std::optional<std::uint64_t> number{};            // of this window, as its first Reduce has it
};

class History {
 public:
  explicit History(std::uint64_t seed)
      : dice_(seed),
        rank_count_(1 + dice_.below(4)),
        parameter_count_(1 + dice_.below(5)),
        options_(draw_options(dice_)),
        is_divided_(options_.releases_gradients || (options_.has_hook && dice_.one_in(3))),
        windows_(draw_windows(rank_count_, parameter_count_, options_, dice_)),
        fails_at_(dice_.one_in(4) ? dice_.below(12) : SIZE_MAX) {
    const Buckets buckets = draw_buckets(parameter_count_, dice_);
    for (std::size_t rank = 0; rank < rank_count_; ++rank) {
      ranks_.push_back({.plan = plan_of(rank, buckets),
                        .gradients = Values(parameter_count_, 77 + static_cast<std::int64_t>(rank)),
                        .found = Values(parameter_count_),
                        .frozen = std::vector<bool>(parameter_count_),
                        .reduced = std::vector<int>(parameter_count_)});
    }
    const std::size_t counts[] = {1, 5, 16, 40};
    for (std::size_t p = 0; p < parameter_count_; ++p) counts_.push_back(counts[dice_.below(std::size(counts))]);
    buckets_.resize(rank_count_);
    divisions_.resize(rank_count_);
    for (std::size_t rank = 0; rank < rank_count_; ++rank) set_buckets(rank, buckets);
  }

  void set_buckets(std::size_t rank, const Buckets& buckets) {
    buckets_[rank] = buckets;
    if (!is_divided_) return;
    const auto same = std::find_if(buckets_.begin(), buckets_.end(),
                                   [&](const Buckets& each) { return &each != &buckets_[rank] && each == buckets; });
    divisions_[rank] = same == buckets_.end() ? std::make_shared<const Division>(divide(buckets, counts_, rank_count_))
                                              : divisions_[static_cast<std::size_t>(same - buckets_.begin())];
    ranks_[rank].parts.assign(buckets.size(), {});
  }

  Plan plan_of(std::size_t rank, const Buckets& buckets) const {
    PlanOptions options = options_;
    options.rank = static_cast<int>(rank);
    options.rank_count = static_cast<int>(rank_count_);
    return Plan(std::vector<std::string>(parameter_count_, "p"), buckets, options);
  }

  void play() {
    for (;;) {
      std::vector<std::size_t> able;
      bool are_all_done = true;
      for (std::size_t rank = 0; rank < rank_count_; ++rank) {
        if (is_done(ranks_[rank])) continue;
        are_all_done = false;
        if (!must_wait(ranks_[rank])) able.push_back(rank);
      }
      if (are_all_done) break;
      require(!able.empty(), "a deadlock");
      step(able[dice_.below(able.size())]);
    }
    for (const Rank& its : ranks_) require(its.begun == ranks_[0].begun, "a rank began more than another");
  }

 private:
  bool is_done(const Rank& its) const { return its.window == windows_.size() && its.actions.empty() && !its.waits; }

  bool must_wait(const Rank& its) const {
    return its.waits && its.begun > 0 && collectives_[its.begun - 1].arrived < rank_count_;
  }

  void step(std::size_t rank) {
    Rank& its = ranks_[rank];
    its.waits = false;
    if (std::exchange(its.is_drained, false)) its.old = its.gradients;
    if (!its.actions.empty()) {
      const Action action = std::move(its.actions.front());
      its.actions.pop_front();
      std::visit([&](const auto& each) { perform(rank, each); }, action);
    } else if (its.is_closing) {
      close(rank);
    } else {
      call(rank);
    }
  }

  const RankWindow& script(std::size_t rank) const { return windows_[ranks_[rank].window].ranks[rank]; }

  void call(std::size_t rank) {
    Rank& its = ranks_[rank];
    if (its.plan.is_rebuild_due()) return rebuild(rank, buckets_[rank]);
    const Op op = script(rank).ops[its.op++];
    const std::uint64_t number = its.plan.step();
    switch (op.call) {
      case Call::freeze:
        if (its.frozen[op.parameter] != (op.value == 1)) its.learned.reset();
        its.frozen[op.parameter] = op.value == 1;
        its.plan.set_frozen(op.parameter, op.value == 1);
        break;
      case Call::begin_shadow:
        note_begin(its);
        queue(its, its.plan.begin_shadow());
        its.found.assign(parameter_count_, 0);
        break;
      case Call::begin_off:
      case Call::begin_on:
        note_begin(its);
        queue(its, its.plan.begin(op.call == Call::begin_on ? Sync::on : Sync::off));
        its.found.assign(parameter_count_, 0);
        break;
      case Call::ready:
        if (!its.written[op.parameter] && !options_.zero_gradients) its.gradients[op.parameter] = 0;
        its.written[op.parameter] = true;
        its.gradients[op.parameter] += op.value;
        ++its.found[op.parameter];
        queue(its, its.plan.ready(number, op.parameter));
        if (!op.is_finite) its.plan.note_non_finite(op.parameter);
        break;
      case Call::ready_again:
        if (!options_.is_static_graph) must_refuse(its, number, op.parameter);
        break;
      case Call::ready_of_old_step: return must_refuse(its, number - 1, op.parameter);
      case Call::end:
      case Call::cancel:
        its.is_closing = its.op == script(rank).ops.size();  // the last of the window
        if (its.is_closing && op.call == Call::end) conclude(rank);
        queue(its, op.call == Call::end ? its.plan.end(number) : its.plan.cancel(number));
        require(!its.plan.is_open(), "a step is open after its end");
        require(its.is_closing || its.actions.empty(), "a step with Sync::off told somebody something");
        break;
      case Call::rebuild: return rebuild(rank, windows_[its.window].rebuilt);
    }
  }

  void note_begin(Rank& its) const {
    if (!its.plan.is_between_windows()) return;
    its.begins_window = true;
    its.written.assign(parameter_count_, false);
    its.kept.assign(parameter_count_, std::nullopt);
    its.reduced.assign(parameter_count_, 0);
  }

  void rebuild(std::size_t rank, Buckets buckets) {
    Rank& its = ranks_[rank];
    std::rotate(buckets.begin(), buckets.begin() + 1, buckets.end());
    set_buckets(rank, buckets);
    its.plan.rebuild(buckets_[rank]);
    require(!its.plan.is_rebuild_due(), "a second rebuild is due");
    its.waits = true;
    begin(rank, {.name = "rebuild"});
  }

  // The rank's window is at its end: what is wrong with it.
  void conclude(std::size_t rank) {
    Rank& its = ranks_[rank];
    RankWindow& window = windows_[its.window].ranks[rank];
    if (window.is_shadow) return;
    if (options_.unused == Unused::error && !window.missing.empty()) window.fault = Fault::missing;
    if (options_.is_static_graph) {
      window.is_miscounted = its.learned && *its.learned != window.found;
      if (window.is_miscounted) window.fault = Fault::miscount;
    }
    if (!window.non_finite.empty()) window.fault = Fault::non_finite;
    if (options_.is_static_graph && !its.learned && window.fault == Fault::none) its.learned = window.found;
  }

  // Whether all of its gradient is there.
  bool is_complete(const Rank& its, std::size_t parameter) const {
    if (its.frozen[parameter]) return true;
    if (!options_.is_static_graph) return its.found[parameter] > 0;
    return its.learned && its.found[parameter] >= (*its.learned)[parameter];
  }

  // They are performed before those that are left.
  static void queue(Rank& its, const Actions& actions) {
    its.actions.insert(its.actions.begin(), actions.begin(), actions.end());
  }

  static void must_refuse(Rank& its, std::uint64_t number, std::size_t parameter) {
    try {
      its.plan.ready(number, parameter);
    } catch (const GradientError&) {
      return;
    }
    throw std::runtime_error("a call that makes no sense was taken");
  }

  // The rank's collective: the first rank that begins it says what it is.
  void begin(std::size_t rank, const Collective& its) {
    const std::size_t number = ranks_[rank].begun++;
    if (number == collectives_.size()) {
      collectives_.push_back(its);
      collectives_.back().sums.resize(its.scattered ? divisions_[rank]->buckets[*its.scattered].padded.count
                                                    : its.parameters.size());
    }
    Collective& all = collectives_[number];
    require(all.name == its.name && all.parameters == its.parameters,
            "collective " + std::to_string(number) + " is " + all.name + " on one rank, " + its.name + " on another");
    if (its.scattered) {
      add_elements(rank, divisions_[rank]->buckets[*its.scattered], all.sums);
    } else {
      for (std::size_t i = 0; i < its.parameters.size(); ++i) {
        all.sums[i] += ranks_[rank].gradients[its.parameters[i]];
      }
    }
    merge(all.agreement, its.agreement);
    if (++all.arrived < rank_count_) return;
    if (number == fails_at_) return fail();
    if (all.scattered) return scatter(all);
    for (Rank& each : ranks_) {
      for (std::size_t i = 0; i < all.parameters.size(); ++i) each.gradients[all.parameters[i]] = all.sums[i];
    }
  }

  void add_elements(std::size_t rank, const GradientBucket& bucket, Values& sums) const {
    const auto* const start = static_cast<const float*>(bucket.padded.data);
    for (std::size_t p = 0; p < bucket.indices.size(); ++p) {
      const MemoryRange& range = bucket.parameters[p].values;
      const auto at = static_cast<std::size_t>(static_cast<const float*>(range.data) - start);
      const std::int64_t gradient = ranks_[rank].gradients[bucket.indices[p]];
      for (std::size_t i = 0; i < range.count; ++i) sums[at + i] += element(gradient, i);
    }
  }

  // Rank r gets the r-th part.
  void scatter(const Collective& all) {
    const auto count = static_cast<std::ptrdiff_t>(all.sums.size() / rank_count_);
    auto next = all.sums.begin();
    for (Rank& each : ranks_) {
      each.parts[*all.scattered].assign(next, next + count);
      next += count;
    }
  }

  static void merge(Agreement& all, const Agreement& its) {
    all.flags.fault = std::max(all.flags.fault, its.flags.fault);
    all.flags.canceller = std::max(all.flags.canceller, its.flags.canceller);
    require(all.used.empty() || all.used.size() == its.used.size(), "flags of different sizes");
    all.flags.frozen = std::max(all.flags.frozen, its.flags.frozen);
    all.flags.frozen_complement = std::max(all.flags.frozen_complement, its.flags.frozen_complement);
    all.active.resize(its.active.size());
    for (std::size_t i = 0; i < its.active.size(); ++i) all.active[i] = std::max(all.active[i], its.active[i]);
    all.used.resize(its.used.size());
    for (std::size_t i = 0; i < its.used.size(); ++i) all.used[i] = std::max(all.used[i], its.used[i]);
  }

  // The group has failed. The ranks go on with the window that none has begun, in a new group.
  void fail() {
    fails_at_ = SIZE_MAX;
    collectives_.clear();
    std::size_t next = 0;
    for (const Rank& each : ranks_) next = std::max(next, std::min(each.window + 1, windows_.size()));
    agreed_from_ = next;
    for (std::size_t rank = 0; rank < rank_count_; ++rank) {
      Rank& its = ranks_[rank];
      its.plan.failed();
      its.plan = plan_of(rank, buckets_[0]);  // the old ones may have agreed on different frozen parameters
      its.learned.reset();
      its.frozen.assign(parameter_count_, false);
      its.actions.clear();
      its.results.clear();
      its.untold.clear();
      its.told.reset();
      its.under_way.clear();
      its.number.reset();
      its.begun = its.op = 0;
      its.waits = its.is_closing = its.begins_window = its.is_drained = false;
      its.window = next;
      set_buckets(rank, Buckets(buckets_[0]));
    }
  }

  void perform(std::size_t rank, const Drain&) {
    Rank& its = ranks_[rank];
    its.waits = true;
    its.is_drained = std::exchange(its.begins_window, false);
  }

  void perform(std::size_t rank, const BroadcastBuffers& action) {
    ranks_[rank].waits = true;
    begin(rank, {.name = "broadcast buffers of " + std::to_string(action.root)});
  }

  void perform(std::size_t rank, const FinishHooks& action) {
    Rank& its = ranks_[rank];
    its.waits = true;
    if (is_divided_) {  // there is one stage
      if (must_wait(its)) return its.actions.push_front(action);
      if (options_.releases_gradients) release(its, buckets_[rank]);
      return its.under_way.clear();
    }
    its.under_way.clear();
    begin(rank, {.name = "later stages of hooks"});
  }

  static void release(Rank& its, const Buckets& buckets) {
    for (const std::size_t bucket : its.under_way) {
      for (const std::size_t parameter : buckets[bucket]) its.gradients[parameter] = 0;
    }
  }

  void perform(std::size_t rank, const AverageBuffers&) { begin(rank, {.name = "average buffers"}); }

  void perform(std::size_t rank, const ZeroAll&) {
    Rank& its = ranks_[rank];
    std::fill(its.gradients.begin(), its.gradients.end(), 0);
  }

  void perform(std::size_t rank, const Zero& action) { ranks_[rank].gradients[action.parameter] = 0; }

  void perform(std::size_t rank, const Reduce& action) {
    Rank& its = ranks_[rank];
    const auto& parameters = buckets_[rank][action.bucket];
    for (const std::size_t parameter : parameters) {
      ++its.reduced[parameter];
      require(is_complete(its, parameter) || its.is_closing, "a gradient was reduced before it was complete");
    }
    if (!its.number) its.number = action.window;
    require(its.number == action.window, "a window has two numbers");
    const std::string name = "reduce " + std::to_string(action.bucket) + " in window " + std::to_string(action.window);
    require(!options_.releases_gradients || its.under_way.empty(), "two buckets are on their way at a time");
    its.under_way.push_back(action.bucket);
    Collective collective{.name = name, .parameters = parameters};
    if (is_divided_) collective.scattered = action.bucket;
    begin(rank, collective);
  }

  void perform(std::size_t rank, const Keep& action) {
    Rank& its = ranks_[rank];
    require(!options_.zero_gradients, "a gradient that begins as zeros is kept");
    require(!its.kept[action.parameter], "a gradient is kept twice");
    its.kept[action.parameter] = its.gradients[action.parameter];
  }

  void perform(std::size_t rank, const Restore& action) {
    Rank& its = ranks_[rank];
    require(its.kept[action.parameter].has_value(), "a gradient comes back that was not kept");
    its.gradients[action.parameter] = *its.kept[action.parameter];
  }

  void perform(std::size_t rank, const TellUnused& action) {
    Rank& its = ranks_[rank];
    its.unused = action.parameters;
    if (options_.releases_gradients) return;                       // they are released by now, and so are zero
    for (const std::size_t p : its.unused) its.gradients[p] = 99;  // what the hook left there must not stay
  }

  void perform(std::size_t rank, const Scale& action) { ranks_[rank].scaled_by = action.factor; }

  void perform(std::size_t rank, const Agree& action) {
    Rank& its = ranks_[rank];
    if (action.is_read) {
      its.results.push_back(its.begun);
      its.waits = true;
    }
    begin(rank, {.name = "agree", .agreement = action.own});
  }

  void perform(std::size_t rank, const Look&) {
    Rank& its = ranks_[rank];
    require(!its.results.empty(), "a look at what nobody reads");
    const Agreement of_all = collectives_[its.results.front()].agreement;
    its.results.pop_front();
    its.told = "";
    queue(its, its.plan.looked(of_all));
  }

  void perform(std::size_t rank, const Peek&) {
    Rank& its = ranks_[rank];
    queue(its, its.plan.peeked(collectives_[its.results.back()].agreement));
  }

  // What the rank did in the window whose outcome it hears now.
  const auto& heard_of(std::size_t rank) const {
    const Rank& its = ranks_[rank];
    return windows_[its.untold.empty() ? its.window : its.untold.front()].ranks[rank];
  }

  // The collective in which ranks learn which of them the fault is of.
  void begin_finding(std::size_t rank, const char* fault) {
    ranks_[rank].told = fault;
    ranks_[rank].waits = true;
    begin(rank, {.name = std::string("find ") + fault});
  }

  void perform(std::size_t rank, const FindFrozen& action) {
    require(action.own == heard_of(rank).frozen, "a rank tells what it has not frozen");
    begin_finding(rank, "frozen");
  }

  void perform(std::size_t rank, const FindUnused& action) {
    require(action.missing == heard_of(rank).missing, "a rank names the wrong parameters");
    begin_finding(rank, "unused");
  }

  void perform(std::size_t rank, const FindNonFinite& action) {
    require(action.parameters == heard_of(rank).non_finite, "a rank names the wrong gradients");
    begin_finding(rank, "non-finite");
  }

  void perform(std::size_t rank, const FindMiscounts& action) {
    const bool is_own = heard_of(rank).is_miscounted;
    require(action.own.has_value() == is_own, "a rank tells a miscount that it has not");
    begin_finding(rank, "miscount");
  }

  void perform(std::size_t rank, const TellCancelled& action) {
    ranks_[rank].told = "cancelled by " + std::to_string(action.rank);
  }

  // All actions of the window's last call are performed.
  void close(std::size_t rank) {
    Rank& its = ranks_[rank];
    const Window& window = windows_[its.window];
    for (std::size_t p = 0; p < parameter_count_; ++p) {
      const bool may_be_left_out = its.frozen[p] || !window.outcome().empty();
      require(its.reduced[p] == 1 || (its.reduced[p] == 0 && may_be_left_out), "a gradient was not reduced once");
    }
    const bool is_finished = !window.ranks[rank].is_cancelled;
    if (is_finished && window.outcome().empty()) {
      is_divided_ ? check_parts(rank, window) : check_sums(its, window);
      check_old(its, window);
    }
    require(its.under_way.empty() || !options_.has_hook, "a hook is not finished");
    if (options_.has_hook) check_unused(its, window, is_finished);
    its.under_way.clear();
    if (options_.look_at == LookAt::end_of_window) {
      check_told(its, is_finished ? std::optional(its.window) : std::nullopt);
    } else {
      check_told(its, its.untold.empty() ? std::nullopt : std::optional(its.untold.front()));
      if (!its.untold.empty()) its.untold.pop_front();
      if (is_finished) its.untold.push_back(its.window);
    }
    its.told.reset();
    its.number.reset();
    its.scaled_by = 1;
    its.is_closing = false;
    its.op = 0;
    ++its.window;
  }

  void check_unused(const Rank& its, const Window& window, bool is_finished) const {
    const bool is_known = options_.look_at == LookAt::end_of_window && is_finished && window.outcome().empty();
    const std::vector<bool> frozen = is_finished && !window.have_frozen_the_same() ? agreed_before(window) : its.frozen;
    std::vector<std::size_t> wanted;
    for (std::size_t p = 0; p < parameter_count_; ++p) {
      const bool is_unused = window.active_count() == 0 || (options_.unused == Unused::keep && window.is_unused(p));
      if (frozen[p] || (is_known && is_unused)) wanted.push_back(p);
    }
    require(its.unused == wanted, "the hook is told of other parameters");
  }

  // What all ranks had frozen in the last good window before this one.
  std::vector<bool> agreed_before(const Window& window) const {
    for (auto i = static_cast<std::size_t>(&window - windows_.data()); i-- > agreed_from_;) {
      if (windows_[i].outcome().empty()) return windows_[i].ranks[0].frozen;
    }
    return std::vector<bool>(parameter_count_);
  }

  // Whether the gradient has to be what it was before the window.
  bool is_old(const Rank& its, const Window& window, std::size_t parameter) const {
    const bool are_wanted = options_.unused == Unused::keep && !options_.zero_gradients && !options_.releases_gradients;
    return are_wanted && window.is_unused(parameter) && !its.frozen[parameter];
  }

  void check_old(const Rank& its, const Window& window) const {
    for (std::size_t p = 0; p < parameter_count_; ++p) {
      if (is_old(its, window, p)) require(its.gradients[p] == its.old[p], "an unused gradient has other bits");
    }
  }

  void check_sums(const Rank& its, const Window& window) const {
    for (std::size_t p = 0; p < parameter_count_; ++p) {
      require(is_old(its, window, p) || its.gradients[p] == window.sum(p), "a wrong sum");
    }
  }

  // This rank has the sums of the elements that it owns; those of all ranks together are all elements, each once.
  void check_parts(std::size_t rank, const Window& window) const {
    const Rank& its = ranks_[rank];
    std::vector<std::size_t> owned(parameter_count_);
    for (const Piece& piece : divisions_[rank]->pieces) {
      owned[piece.parameter] += piece.count;
      if (static_cast<std::size_t>(piece.owner) != rank || its.reduced[piece.parameter] == 0) continue;
      const Values& part = its.parts[piece.bucket];
      require(piece.offset + piece.count <= part.size(), "a rank's part is too small");
      const std::int64_t sum = window.sum(piece.parameter);
      for (std::size_t i = 0; i < piece.count; ++i) {
        require(part[piece.offset + i] == element(sum, piece.first + i), "a rank has another part than its own");
      }
    }
    require(owned == counts_, "an element has no owner, or several");
    if (!options_.releases_gradients) return;
    for (const std::int64_t each : its.gradients) require(each == 0, "a gradient was not released");
  }

  std::size_t rank_of(const Rank& its) const { return static_cast<std::size_t>(&its - ranks_.data()); }

  void check_active(const Rank& its, int active_count) const {
    const bool are_counted = options_.uneven_inputs != UnevenInputs::off;
    const int all = static_cast<int>(rank_count_);
    require(its.plan.outcome().active_count == (are_counted ? active_count : all), "a wrong count of active ranks");
    const bool is_scaled = options_.uneven_inputs == UnevenInputs::divide_by_active && active_count > 0;
    require(its.scaled_by == (is_scaled ? static_cast<double>(all) / active_count : 1), "divided by a wrong number");
  }

  void check_told(const Rank& its, std::optional<std::size_t> window) const {
    std::string want = window ? windows_[*window].outcome() : "nothing";
    const bool is_cancelled = want.substr(0, 9) == "cancelled";
    if (window) require(its.plan.outcome().was_last_good == want.empty(), "a window that went otherwise");
    if (is_cancelled && options_.uneven_inputs != UnevenInputs::off && script(rank_of(its)).is_shadow) want = "";
    require(its.told.value_or("nothing") == want, "told " + its.told.value_or("nothing") + " instead of " + want);
    if (!want.empty() || is_cancelled) return;
    check_active(its, windows_[*window].active_count());
    if (options_.unused != Unused::keep) return;
    for (std::size_t p = 0; p < parameter_count_; ++p) {
      require(its.plan.is_unused(p) == windows_[*window].is_unused(p), "a wrong set of unused parameters");
    }
  }

  Dice dice_;
  std::size_t rank_count_;
  std::size_t parameter_count_;
  PlanOptions options_;
  bool is_divided_;  // gradients, among the ranks: buckets are reduced by a reduce_scatter
  std::vector<Window> windows_;
  std::size_t fails_at_;         // number of a collective
  std::size_t agreed_from_ = 0;  // the first window of this group
  std::vector<Rank> ranks_;
  std::vector<std::size_t> counts_;                         // of elements, by parameter
  std::vector<Buckets> buckets_;                            // by rank
  std::vector<std::shared_ptr<const Division>> divisions_;  // by rank
  std::vector<Collective> collectives_;
};

TEST(Plan, GivesAllRanksTheSameCollectivesInAnyHistory) {
  const std::uint64_t count = test::kIsSanitized ? 3'000 : 100'000;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    try {
      History(seed).play();
    } catch (const std::runtime_error& error) {
      FAIL() << "history " << seed << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace ddp::gradient_engine
