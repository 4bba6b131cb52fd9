// Elastic state and run_elastic of the C interface.
#include "ddp/elastic.hpp"

#include <ddp/ddp.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/memory.hpp"
#include "worker_runtime/c_interface/arguments.hpp"
#include "worker_runtime/c_interface/objects.hpp"
#include "worker_runtime/c_interface/status.hpp"
#include "worker_runtime/process_group/make_group.hpp"

namespace ddp::c_interface {

template <>
struct ObjectOf<ddp_elastic_state> {
  using type = ElasticState;
  static constexpr const char* kName = "ddp_elastic_state";
};

namespace {

std::vector<int> named_ranks() {
  std::vector<std::int32_t> named(ddp_last_error_ranks(nullptr, 0));
  ddp_last_error_ranks(named.data(), named.size());
  return {named.begin(), named.end()};
}

// An error of libddp becomes the exception that it was: run_elastic answers some with a new round, and any once the
// round is over. Any other status is the program's, and passes through.
[[noreturn]] void throw_status(ddp_status status, const std::string& text) {
  switch (status) {
    case DDP_INVALID_ARGUMENT: throw InvalidArgument(text);
    case DDP_MISMATCH: throw MismatchError(text);
    case DDP_TIMEOUT: throw TimeoutError(text, named_ranks());
    case DDP_RANK_FAILURE: throw RankFailure(text, named_ranks());
    case DDP_ABORTED: throw AbortedError(text);
    case DDP_ROUND_OVER: throw RoundOver(text);
    case DDP_GRADIENT_ERROR: throw GradientError(text);
    case DDP_CHECKPOINT_ERROR: throw CheckpointError(text);
    case DDP_STORE_ERROR: throw StoreError(text);
    default: throw CallbackFailed{status};
  }
}

template <class Callback>
void run_callback(const char* what, const Callback& callback) {
  std::string text;
  const ddp_status status = call_back(what, text, callback);
  if (status != DDP_OK) throw_status(status, text);
}

// A handle for the time of a callback.
class LentGroup {
 public:
  explicit LentGroup(const ProcessGroup& group) : handle_(Handles<ddp_group>::all().add(group)) {}
  ~LentGroup() {
    try {
      static_cast<void>(Handles<ddp_group>::all().take(handle_));
    } catch (const Error&) {  // the program has destroyed it
    }
  }
  LentGroup(const LentGroup&) = delete;
  LentGroup& operator=(const LentGroup&) = delete;

  ddp_group handle() const { return handle_; }

 private:
  ddp_group handle_;
};

class CallbackContents : public ElasticContents {
 public:
  explicit CallbackContents(const ddp_elastic_contents& callbacks) : callbacks_(callbacks) {
    if (callbacks.commit == nullptr || callbacks.restore == nullptr || callbacks.fetch == nullptr ||
        callbacks.adopt == nullptr) {
      throw InvalidArgument("ddp_elastic_contents: a callback is NULL\ntry:   commit, restore, fetch and adopt");
    }
  }

  void commit() override {
    run_callback("commit", [&] { return callbacks_.commit(callbacks_.context); });
  }
  void restore() override {
    run_callback("restore", [&] { return callbacks_.restore(callbacks_.context); });
  }
  void fetch(ProcessGroup& group, int source) override {
    const LentGroup lent(group);
    run_callback("fetch", [&] { return callbacks_.fetch(callbacks_.context, lent.handle(), source); });
  }
  void adopt() override {
    run_callback("adopt", [&] { return callbacks_.adopt(callbacks_.context); });
  }

 private:
  const ddp_elastic_contents callbacks_;
};

ElasticOptions elastic_options(const ddp_elastic_options* given) {
  const ddp_elastic_options read = read_struct(given, "ddp_elastic_options");
  ElasticOptions options;
  options.group = init_options(read.group);
  if (read.seat_timeout_ms != 0) options.seat_timeout = std::chrono::milliseconds(read.seat_timeout_ms);
  return options;
}

}  // namespace

}  // namespace ddp::c_interface

using namespace ddp::c_interface;  // NOLINT: the functions of C are in no namespace

ddp_status ddp_elastic_state_create(const ddp_elastic_contents* contents, ddp_elastic_state* state) {
  return call([&] {
    require(state, "state");
    ddp::ElasticState made;
    if (contents != nullptr)
      made.set_contents(std::make_shared<CallbackContents>(read_struct(contents, "ddp_elastic_contents")));
    give(state, std::move(made));
  });
}

ddp_status ddp_elastic_state_destroy(ddp_elastic_state state) {
  return call([&] { destroy(state); });
}

ddp_status ddp_elastic_state_add(ddp_elastic_state state, void* values, size_t bytes) {
  return call([&] {
    if (bytes > 0) require(values, "values");
    object_of(state)->add(ddp::MemoryRange(values, bytes, ddp::DataType::uint8));
  });
}

ddp_status ddp_elastic_state_commit(ddp_elastic_state state) {
  return call([&] { object_of(state)->commit(); });
}

ddp_status ddp_elastic_state_commits(ddp_elastic_state state, uint64_t* commits) {
  return call([&] {
    require(commits, "commits");
    *commits = object_of(state)->commits();
  });
}

ddp_status ddp_run_elastic(ddp_elastic_state state, ddp_status (*train)(void* context, ddp_group world), void* context,
                           const ddp_elastic_options* options) {
  return call([&] {
    if (train == nullptr) throw ddp::InvalidArgument("train is NULL");
    const auto run = [&](const ddp::ProcessGroup& world) {
      const LentGroup lent(world);
      run_callback("train", [&] { return train(context, lent.handle()); });
    };
    ddp::run_elastic(*object_of(state), run, elastic_options(options));
  });
}

ddp_status ddp_get_launcher_store(ddp_launcher_store* store) {
  return call([&] {
    require(store, "store");
    ddp_launcher_store known{};
    if (const auto launch = ddp::process_group::present_launch(); launch.store) {
      if (launch.store->host.size() >= sizeof known.host)
        throw ddp::InvalidArgument("the name of the store's host is too long: " + launch.store->host);
      known.port = launch.store->port;
      std::memcpy(known.host, launch.store->host.c_str(), launch.store->host.size() + 1);
    }
    write_struct(store, known, "ddp_launcher_store");
  });
}
