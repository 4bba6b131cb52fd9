// One rank of a communicator of the fake NCCL.
//
// What takes part with other ranks runs as a job: at once where the communicator is blocking, else on a thread of its
// own while the state is "in progress". A collective's job only puts the work on its stream, as NCCL's does.
//
// Threads: one caller at a time; nccl_handles.hpp sees to it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cut.hpp"
#include "tests/fake_gpu/faults.hpp"
#include "tests/fake_gpu/nccl_meeting.hpp"
#include "tests/fake_gpu/nccl_operation.hpp"
#include "tests/fake_gpu/streams.hpp"

namespace ddp::fake_gpu {

using abi::Result;

// One call of a collective, ready to be launched.
struct Call {
  Request request;
  Fault fault{};
  std::shared_ptr<Stream> stream;
};

struct CommunicatorOptions {
  Place place;
  std::string name;  // under which the ranks meet; the same on all
  bool blocking = true;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  explicit Communicator(CommunicatorOptions options) : options_(std::move(options)) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Place& place() const { return options_.place; }
  bool blocking() const { return options_.blocking; }

  // As ncclCommGetAsyncError() says it.
  Result state() const;
  // Whether something new may be called on it; invalid_argument while it is in progress.
  Result readiness() const;

  // Rank 0 gives the listener that the unique id leads to.
  Result begin_meeting(base::UniqueFd listener, const Fault& fault);
  Result begin_launch(const std::vector<Call>& calls);
  // `take` gets the new communicator (null for a negative color) before this one is ready again.
  using Take = std::function<void(std::shared_ptr<Communicator>)>;
  Result begin_split(int color, int key, bool blocking, Take take, const Fault& fault);
  // All ranks have to, as inside a node with NCCL.
  Result begin_finalize(const Fault& fault);
  // The same, and waits for it even where the communicator is non-blocking.
  void finalize_now(const Fault& fault);

  // Makes it fail with this error, unless it has failed already.
  void fail(Result error);

  // Ends the call that another thread is in: the first half of an abort.
  void interrupt() { abort_.cut("aborted"); }

  // Ends what is under way, and with it the communicator. Returns once none of its threads is at work.
  void abort();

  // An operator that multiplies before it sums; its number is this communicator's own.
  abi::RedOp make_operator(abi::DataType type, const tensor::Scalar& factor);
  bool destroy_operator(abi::RedOp op);
  // Nothing for an operator that was not made for this type.
  std::optional<tensor::Scalar> factor_of(abi::RedOp op, abi::DataType type) const;

  void* register_memory();
  bool deregister(void* handle);

 private:
  Result begin(std::function<Result()> job, const Fault& fault);
  Result meet_others(const base::UniqueFd& listener);
  Result split(int color, int key, bool blocking, const std::string& name, const Take& take);
  Result say_goodbye();
  Result result_of(Outcome outcome);
  void execute(Operation& operation, const Fault& fault);
  void run(Operation& operation, const Fault& fault);

  CommunicatorOptions options_;
  base::Cut abort_;
  Links links_;      // used by one job or one piece of work at a time
  std::thread job_;  // the last one
  int splits_ = 0;
  bool finalized_ = false;
  std::set<void*> registrations_;
  std::map<int, std::pair<abi::DataType, tensor::Scalar>> operators_;

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  // Guarded by mutex_.
  Result state_ = Result::success;
  Point last_;       // of the work on streams
  int at_work_ = 0;  // pieces of work that run
};

}  // namespace ddp::fake_gpu
