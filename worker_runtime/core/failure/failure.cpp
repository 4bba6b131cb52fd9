#include "worker_runtime/core/failure/failure.hpp"

#include <algorithm>
#include <charconv>

#include "ddp/error.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

constexpr std::size_t kWhatBytesMax = 2'000;
constexpr std::size_t kRanksShown = 16;  // a message names no more ranks than a person reads

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool counts_from_0(const std::vector<int>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != static_cast<int>(i)) return false;
  }
  return true;
}

// Takes what comes before a separator off the text's front.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return front;
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// What the ranks' own words make of a failure.
class Judge {
 public:
  Judge(const FailedGroup& group, const Failure& failure, const std::vector<std::optional<RankProgress>>& progress)
      : group_(group), failure_(failure), progress_(progress) {}

  Verdict verdict() const;

 private:
  bool is_own() const { return failure_.rank == group_.who.rank; }
  std::vector<int> silent() const;
  std::vector<int> behind() const;
  std::vector<int> calling_otherwise() const;

  Verdict timeout() const;
  Verdict broken() const;
  Verdict given_up() const;

  std::string call() const;
  std::string group_name() const;
  std::string where() const;
  std::string how_far() const;

  const FailedGroup& group_;
  const Failure& failure_;
  const std::vector<std::optional<RankProgress>>& progress_;
};

// Those who said nothing.
std::vector<int> Judge::silent() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < progress_.size(); ++rank) {
    if (!progress_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// Those who have not come to the call; of a send or receive, who was to meet it.
std::vector<int> Judge::behind() const {
  if (!failure_.peers.empty()) return failure_.peers;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < progress_.size(); ++rank) {
    if (!progress_[rank] || progress_[rank]->called < failure_.number) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> Judge::calling_otherwise() const {
  std::vector<int> ranks;
  if (failure_.number == 0 || !failure_.peers.empty()) return ranks;
  for (std::size_t rank = 0; rank < progress_.size(); ++rank) {
    const auto& other = progress_[rank];
    if (other && other->oldest == failure_.number && other->operation != failure_.operation) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::string Judge::call() const {
  if (failure_.operation.empty()) return "the group";
  std::string text = failure_.operation;
  if (failure_.number > 0) text += ", call " + std::to_string(failure_.number);
  return text + ", " + std::to_string(failure_.bytes) + " bytes";
}

// " in group_0/1, which is ranks 2 and 5 of the job"
std::string Judge::group_name() const {
  if (group_.who.name.empty()) return "";
  std::string text = " in " + group_.who.name;
  if (counts_from_0(group_.job_ranks)) return text;
  return text + ", which is " + process_group::list_ranks(group_.job_ranks) + " of the job";
}

std::string Judge::where() const {
  return "\nwhere: rank " + std::to_string(group_.who.rank) + " of " + std::to_string(group_.who.size) + group_name() +
         ", pid " + std::to_string(group_.pid) + ", round " + to_string(group_.who.round) + ", " + group_.device +
         ", " + group_.library + how_far();
}

// Those who lag first: they are what is looked for.
std::string Judge::how_far() const {
  if (progress_.empty()) return "";
  std::vector<std::size_t> order(progress_.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) order[rank] = rank;
  const auto completed = [&](std::size_t rank) { return progress_[rank] ? progress_[rank]->called + 1 : 0; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return completed(a) < completed(b); });
  std::string text;
  for (std::size_t i = 0; i < std::min(order.size(), kRanksShown); ++i) {
    text += (i == 0 ? "\nranks: " : "; ") + describe(static_cast<int>(order[i]), progress_[order[i]]);
  }
  if (order.size() > kRanksShown) text += "; and " + std::to_string(order.size() - kRanksShown) + " more";
  return text;
}

Verdict Judge::timeout() const {
  if (const auto others = calling_otherwise(); !others.empty()) {
    const int other = others.front();
    return {Verdict::Kind::mismatch,
            "rank " + std::to_string(failure_.rank) + " called " + failure_.operation + ", rank " +
                std::to_string(other) + " called " + progress_[static_cast<std::size_t>(other)]->operation + " (call " +
                std::to_string(failure_.number) + ")" + where() +
                "\ntry:   let every rank call the same collectives in the same order, with the same type and count",
            others};
  }
  const std::vector<int> missing = behind();
  if (!is_own() && contains(missing, group_.who.rank)) {
    return {Verdict::Kind::rank_failure,
            "rank " + std::to_string(failure_.rank) + " gave up on the group: it waited " +
                std::to_string(failure_.limit.count()) + " ms for this rank in " + call() + where() +
                "\ntry:   see what this rank did meanwhile; give a longer timeout if it is only slow",
            {failure_.rank}};
  }
  const std::string within = ", within " + std::to_string(failure_.limit.count()) + " ms";
  const std::string all_came = progress_.empty() ? "" : ", though every rank has called it";
  const std::string text = missing.empty() ? call() + " did not complete" + within + all_came
                                           : process_group::list_ranks(missing) + " did not come to " + call() + within;
  return {
      Verdict::Kind::timeout,
      text + where() +
          "\ntry:   see what these ranks are doing (a debugger shows where they are); give a longer timeout if they "
          "are only slow",
      missing};
}

Verdict Judge::broken() const {
  std::vector<int> ranks = silent();
  std::string text;
  if (!ranks.empty()) text = process_group::list_ranks(ranks) + (ranks.size() == 1 ? " is gone: " : " are gone: ");
  if (!is_own() && ranks.empty()) ranks = {failure_.rank};
  text +=
      (is_own() ? "this rank" : "rank " + std::to_string(failure_.rank)) + " found in " + call() + ": " + failure_.what;
  const bool is_error = failure_.cause == Cause::device && is_own();
  return {is_error ? Verdict::Kind::error : Verdict::Kind::rank_failure,
          text + where() + "\ntry:   look at the end of the output of " +
              (ranks.empty() ? "every rank" : process_group::list_ranks(ranks)) + "; " + group_.log_advice,
          ranks};
}

Verdict Judge::given_up() const {
  if (is_own()) {
    return {Verdict::Kind::aborted,
            failure_.cause == Cause::left ? "it was destroyed" : "it was aborted: " + failure_.what};
  }
  const std::string deed =
      failure_.cause == Cause::left ? " has left the group" : " aborted the group: " + failure_.what;
  return {Verdict::Kind::rank_failure,
          "rank " + std::to_string(failure_.rank) + deed + where() + "\ntry:   look at the end of the output of rank " +
              std::to_string(failure_.rank),
          {failure_.rank}};
}

Verdict Judge::verdict() const {
  switch (failure_.cause) {
    case Cause::timed_out: return timeout();
    case Cause::transport:
    case Cause::device: return broken();
    case Cause::mismatch: return {Verdict::Kind::mismatch, failure_.what + where()};
    case Cause::aborted:
    case Cause::left: return given_up();
    case Cause::round_over: return {Verdict::Kind::round_over, failure_.what};
  }
  return {Verdict::Kind::error, failure_.what + where()};
}

}  // namespace

std::string encode(const Failure& failure) {
  std::string peers;
  for (const int peer : failure.peers) peers += (peers.empty() ? "" : ",") + std::to_string(peer);
  return std::to_string(static_cast<int>(failure.cause)) + " " + std::to_string(failure.rank) + " " +
         std::to_string(failure.number) + " " + std::to_string(failure.bytes) + " " +
         std::to_string(failure.limit.count()) + " " + peers + "\n" +
         first_line(failure.operation).substr(0, kOperationBytesMax) + "\n" +
         first_line(failure.what).substr(0, kWhatBytesMax);
}

std::optional<Failure> decode_failure(std::string_view text, int size) {
  std::string_view numbers = take(text, '\n');
  int cause = 0;
  std::chrono::milliseconds::rep limit = 0;
  Failure failure;
  if (!parse(take(numbers, ' '), cause) || cause < 0 || cause > static_cast<int>(Cause::round_over))
    return std::nullopt;
  if (!parse(take(numbers, ' '), failure.rank) || failure.rank < 0 || failure.rank >= size) return std::nullopt;
  if (!parse(take(numbers, ' '), failure.number) || !parse(take(numbers, ' '), failure.bytes) ||
      !parse(take(numbers, ' '), limit)) {
    return std::nullopt;
  }
  while (!numbers.empty()) {
    int peer = 0;
    if (!parse(take(numbers, ','), peer) || peer < 0 || peer >= size) return std::nullopt;
    failure.peers.push_back(peer);
  }
  failure.cause = static_cast<Cause>(cause);
  failure.limit = std::chrono::milliseconds(limit);
  failure.operation = std::string(take(text, '\n').substr(0, kOperationBytesMax));
  failure.what = std::string(text.substr(0, kWhatBytesMax));
  return failure;
}

Verdict judge(const FailedGroup& group, const Failure& failure,
              const std::vector<std::optional<RankProgress>>& progress) {
  return Judge(group, failure, progress).verdict();
}

void throw_verdict(const Verdict& verdict) {
  switch (verdict.kind) {
    case Verdict::Kind::timeout: throw TimeoutError(verdict.message, verdict.ranks);
    case Verdict::Kind::rank_failure: throw RankFailure(verdict.message, verdict.ranks);
    case Verdict::Kind::mismatch: throw MismatchError(verdict.message);
    case Verdict::Kind::error: throw Error(verdict.message);
    case Verdict::Kind::aborted:
    case Verdict::Kind::round_over: break;
  }
  throw_unusable(verdict);
}

void throw_unusable(const Verdict& first) {
  const std::string message = "the process group is of no further use: " + first.message;
  if (first.kind == Verdict::Kind::round_over) throw RoundOver(message);
  throw AbortedError(message);
}

}  // namespace ddp::core
