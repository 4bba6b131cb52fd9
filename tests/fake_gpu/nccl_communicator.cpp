#include "tests/fake_gpu/nccl_communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "base/host_name.hpp"
#include "base/quiet_thread.hpp"
#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/ledger.hpp"
#include "tests/fake_gpu/nccl_log.hpp"

namespace ddp::fake_gpu {

namespace {

constexpr const char* kPeerGone = "connection closed by a remote rank";
constexpr std::uint64_t kColorTag = 0xc0;  // of messages that belong to no collective; above all kinds of those
constexpr std::uint64_t kGoodbyeTag = 0xc1;

bool dead_peer_hangs() {
  const char* const choice = std::getenv("FAKE_NCCL_DEAD_PEER");
  return choice != nullptr && std::strcmp(choice, "hang") == 0;
}

Whereabouts whereabouts(const Place& place) {
  Whereabouts own{.rank = place.rank, .size = place.size, .device = physical_device(place.device)};
  const char* const id = std::getenv("NCCL_HOSTID");
  std::snprintf(own.host, sizeof own.host, "%s", id != nullptr ? id : base::host_name().c_str());
  return own;
}

// Empty where all are on devices of their own.
std::string shared_device(const std::vector<Whereabouts>& all) {
  for (const Whereabouts& a : all) {
    for (const Whereabouts& b : all) {
      if (a.rank < b.rank && a.device == b.device && std::strcmp(a.host, b.host) == 0)
        return "Duplicate GPU detected : rank " + std::to_string(a.rank) + " and rank " + std::to_string(b.rank) +
               " both on CUDA device " + std::to_string(a.device);
    }
  }
  return {};
}

struct ColorAndKey {
  int color = 0;
  int key = 0;
};

// The ranks of one color, in the order of the new communicator.
std::vector<int> members_of(int color, const std::vector<ColorAndKey>& all) {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].color == color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
  });
  return members;
}

// Each rank's bytes to all others, and theirs into `from`, by rank.
template <class T>
Messages all_to_others(const T& own, std::vector<T>& from, std::uint64_t tag) {
  Messages messages(static_cast<int>(from.size()));
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    messages.to[rank].push_back({tag, std::as_bytes(std::span(&own, 1))});
    messages.from[rank].push_back({tag, std::as_writable_bytes(std::span(&from[rank], 1))});
  }
  return messages;
}

}  // namespace

Result Communicator::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Result Communicator::readiness() const {
  const Result now = state();
  if (now == Result::in_progress) {
    set_last_error("Attempt to use communicator before the previous operation returned ncclSuccess");
    return Result::invalid_argument;
  }
  return now == Result::success && finalized_ ? Result::invalid_usage : now;
}

Result Communicator::begin(std::function<Result()> job, const Fault& fault) {
  const auto suffer_and_run = [this, job = std::move(job), fault] {
    const bool aborted = fault.kind == Fault::Kind::hang    ? wait_abort(abort_)
                         : fault.kind == Fault::Kind::delay ? wait_abort(abort_, fault.number)
                                                            : false;
    Result result = Result::internal_error;
    try {
      if (!aborted) result = fault.kind == Fault::Kind::async ? static_cast<Result>(fault.number) : job();
    } catch (const std::system_error& error) {
      set_last_error(error.what());
      result = Result::system_error;
    }
    const std::lock_guard lock(mutex_);
    if (state_ == Result::in_progress || state_ == Result::success) state_ = result;  // not over an error
    return result;
  };
  if (options_.blocking) return suffer_and_run();
  if (job_.joinable()) job_.join();
  {
    const std::lock_guard lock(mutex_);
    if (state_ != Result::success) return state_;  // an error of work on a stream, since the caller looked
    state_ = Result::in_progress;
  }
  job_ = base::start_quiet_thread(suffer_and_run);
  return Result::in_progress;
}

Result Communicator::begin_meeting(base::UniqueFd listener, const Fault& fault) {
  auto shared = std::make_shared<base::UniqueFd>(std::move(listener));
  return begin(
      [this, shared, fault] {
        if (!*shared) *shared = listen_at(address_of(options_.name, place().rank));
        if (fault.kind == Fault::Kind::die_inside) kill_this_process();
        return meet_others(*shared);
      },
      fault);
}

Result Communicator::meet_others(const base::UniqueFd& listener) {
  std::vector<Whereabouts> all;
  Outcome outcome = meet(options_.name, whereabouts(place()), listener.get(), abort_, all);
  if (outcome != Outcome::done) return result_of(outcome);
  if (const std::string text = shared_device(all); !text.empty()) {
    set_last_error(text);
    return Result::invalid_usage;
  }
  std::vector<std::string> addresses;
  for (int rank = 0; rank < place().size; ++rank) addresses.push_back(address_of(options_.name, rank));
  return result_of(connect_all(addresses, place().rank, listener.get(), abort_, links_));
}

Result Communicator::begin_launch(const std::vector<Call>& calls) {
  std::vector<Request> requests;
  std::vector<std::shared_ptr<Stream>> streams;
  Fault fault;
  for (const Call& call : calls) {
    requests.push_back(call.request);
    if (std::find(streams.begin(), streams.end(), call.stream) == streams.end()) streams.push_back(call.stream);
    if (fault.kind == Fault::Kind::none) fault = call.fault;
  }
  // A graph runs it each time that it is launched.
  const auto work = [self = shared_from_this(), requests, fault] {
    Operation operation(requests, self->place());
    self->execute(operation, fault);
  };
  const auto launch = [this, work, streams] {
    const std::lock_guard lock(mutex_);
    if (is_captured(*streams.front())) {
      enqueue(streams.front(), work);
      return Result::success;
    }
    std::vector<Point> after{last_};  // a communicator's work is done in the order of its calls, whatever its streams
    for (const auto& stream : streams) after.push_back(last_point(stream));
    last_ = enqueue(streams.front(), work, std::move(after));
    for (const auto& stream : streams) {
      if (stream != streams.front()) enqueue(stream, [] {}, {last_});
    }
    return Result::success;
  };
  return begin(launch, fault.kind == Fault::Kind::delay ? fault : Fault{});
}

void Communicator::execute(Operation& operation, const Fault& fault) {
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return at_work_ == 0; });  // a graph's work may come on another stream
    if (abort_.is_cut()) return;
    ++at_work_;
  }
  run(operation, fault);
  const std::lock_guard lock(mutex_);
  --at_work_;
  idle_.notify_all();
}

void Communicator::run(Operation& operation, const Fault& fault) {
  if (fault.kind == Fault::Kind::async) fail(static_cast<Result>(fault.number));
  if (fault.kind == Fault::Kind::async || fault.kind == Fault::Kind::hang) {
    wait_abort(abort_);
    return;
  }
  const bool die = fault.kind == Fault::Kind::die_inside;
  if (die && operation.sends_nothing()) kill_this_process();
  operation.multiply();
  const Outcome outcome = exchange(operation.take_messages(), links_, abort_, {.die_inside = die});
  if (outcome == Outcome::done) return operation.finish();
  if (outcome == Outcome::mismatch)
    std::fprintf(stderr, "fake NCCL: rank %d got a message of another call than it expected; it hangs, as NCCL may\n",
                 place().rank);
  if (outcome == Outcome::peer_gone && !dead_peer_hangs()) {
    set_last_error(kPeerGone);
    fail(Result::remote_error);
  }
  wait_abort(abort_);  // what waits for this work must not take it for done
}

void Communicator::fail(Result error) {
  const std::lock_guard lock(mutex_);
  if (state_ == Result::success || state_ == Result::in_progress) state_ = error;
}

// Of a job, which is an error where it can't go on.
Result Communicator::result_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::done: return Result::success;
    case Outcome::aborted: return Result::internal_error;
    case Outcome::mismatch: set_last_error("the ranks contradict each other"); return Result::invalid_usage;
    case Outcome::peer_gone: break;
  }
  if (dead_peer_hangs()) wait_abort(abort_);
  set_last_error(kPeerGone);
  return Result::remote_error;
}

Result Communicator::begin_split(int color, int key, bool blocking, Take take, const Fault& fault) {
  Point last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  if (!reached(last)) {
    set_last_error("ncclCommSplit while operations of the communicator are outstanding");
    return Result::invalid_usage;
  }
  const std::string name = options_.name + ".s" + std::to_string(splits_++);
  return begin([=, this, take = std::move(take)] { return split(color, key, blocking, name, take); }, fault);
}

Result Communicator::split(int color, int key, bool blocking, const std::string& name, const Take& take) {
  const base::UniqueFd listener = listen_at(address_of(name, place().rank));  // before the others hear of this rank
  std::vector<ColorAndKey> all(static_cast<std::size_t>(place().size));
  const ColorAndKey own{color, key};
  Outcome outcome = exchange(all_to_others(own, all, kColorTag), links_, abort_);
  if (outcome != Outcome::done) return result_of(outcome);
  if (color < 0) {
    take(nullptr);
    return Result::success;
  }
  all[static_cast<std::size_t>(place().rank)] = own;
  const std::vector<int> members = members_of(color, all);
  const auto rank = static_cast<int>(std::find(members.begin(), members.end(), place().rank) - members.begin());
  std::vector<std::string> addresses;
  for (const int member : members) addresses.push_back(address_of(name, member));
  auto made = std::make_shared<Communicator>(
      CommunicatorOptions{.place = {.rank = rank, .size = static_cast<int>(members.size()), .device = place().device},
                          .name = name + "." + std::to_string(color),
                          .blocking = blocking});
  outcome = connect_all(addresses, rank, listener.get(), abort_, made->links_);
  if (outcome == Outcome::done) take(std::move(made));
  return result_of(outcome);
}

Result Communicator::begin_finalize(const Fault& fault) {
  finalized_ = true;
  return begin([this] { return say_goodbye(); }, fault);
}

void Communicator::finalize_now(const Fault& fault) {
  if (begin_finalize(fault) == Result::in_progress) job_.join();
}

Result Communicator::say_goodbye() {
  Point last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  if (!wait_for(last, [this] { return abort_.is_cut(); })) return Result::internal_error;
  const char goodbye = 0;
  std::vector<char> all(static_cast<std::size_t>(place().size));
  return result_of(exchange(all_to_others(goodbye, all, kGoodbyeTag), links_, abort_));
}

void Communicator::abort() {
  abort_.cut("aborted");
  wake_waiting();
  if (job_.joinable()) job_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return at_work_ == 0; });
  links_.clear();
  for (std::size_t i = 0; i < registrations_.size(); ++i) gone("ncclCommRegister");
  registrations_.clear();
  for (std::size_t i = 0; i < operators_.size(); ++i) gone("ncclRedOp");
  operators_.clear();
}

abi::RedOp Communicator::make_operator(abi::DataType type, const tensor::Scalar& factor) {
  int number = static_cast<int>(abi::RedOp::average) + 1;
  while (operators_.count(number) != 0) ++number;
  operators_[number] = {type, factor};
  made("ncclRedOp");
  return static_cast<abi::RedOp>(number);
}

bool Communicator::destroy_operator(abi::RedOp op) {
  if (operators_.erase(static_cast<int>(op)) == 0) return false;
  gone("ncclRedOp");
  return true;
}

std::optional<tensor::Scalar> Communicator::factor_of(abi::RedOp op, abi::DataType type) const {
  const auto found = operators_.find(static_cast<int>(op));
  if (found == operators_.end() || found->second.first != type) return std::nullopt;
  return found->second.second;
}

void* Communicator::register_memory() {
  static std::atomic<std::uintptr_t> next{0};
  auto* const handle = reinterpret_cast<void*>(++next);
  registrations_.insert(handle);
  made("ncclCommRegister");
  return handle;
}

bool Communicator::deregister(void* handle) {
  if (registrations_.erase(handle) == 0) return false;
  gone("ncclCommRegister");
  return true;
}

}  // namespace ddp::fake_gpu
