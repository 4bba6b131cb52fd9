// Process groups of the C interface: how they are made, and what they say of themselves.
#include <ddp/ddp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/bootstrap.hpp"
#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "ddp/round.hpp"
#include "worker_runtime/c_interface/arguments.hpp"
#include "worker_runtime/c_interface/objects.hpp"
#include "worker_runtime/c_interface/status.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::c_interface {

template <>
struct ObjectOf<ddp_memory> {
  using type = RegisteredMemory;
  static constexpr const char* kName = "ddp_memory";
};

namespace {

constexpr std::size_t kStoreValueBytesMax = 64 << 10;  // see ddp::Store

// The program's callbacks as a store.
class CallbackStore : public Store {
 public:
  explicit CallbackStore(const ddp_store& callbacks) : callbacks_(callbacks) {
    if (!callbacks.set || !callbacks.get || !callbacks.add || !callbacks.wait) {
      throw InvalidArgument("ddp_store: a callback is NULL\ntry:   set, get, add and wait; only remove may be NULL");
    }
  }

  void set(const std::string& key, const std::string& value, TimePoint deadline) override {
    run("set", key,
        [&] { return callbacks_.set(callbacks_.context, key.c_str(), value.data(), value.size(), left_ms(deadline)); });
  }

  std::string get(const std::string& key, TimePoint deadline) override {
    std::string value(kStoreValueBytesMax, '\0');
    std::size_t bytes = 0;
    run("get", key, [&] {
      return callbacks_.get(callbacks_.context, key.c_str(), value.data(), value.size(), &bytes, left_ms(deadline));
    });
    if (bytes > value.size()) {
      throw StoreError("the program's store has a value of " + std::to_string(bytes) + " bytes, more than the " +
                       std::to_string(kStoreValueBytesMax) + " that ranks ever set\nwhere: get of the key " + key);
    }
    value.resize(bytes);
    return value;
  }

  std::int64_t add(const std::string& key, std::int64_t delta, TimePoint deadline) override {
    std::int64_t sum = 0;
    run("add", key, [&] { return callbacks_.add(callbacks_.context, key.c_str(), delta, &sum, left_ms(deadline)); });
    return sum;
  }

  void wait(const std::vector<std::string>& keys, TimePoint deadline) override {
    std::vector<const char*> texts;
    for (const std::string& key : keys) texts.push_back(key.c_str());
    run("wait", keys.empty() ? "" : keys.front(),
        [&] { return callbacks_.wait(callbacks_.context, texts.data(), texts.size(), left_ms(deadline)); });
  }

  void remove(const std::string& key, TimePoint deadline) override {
    if (callbacks_.remove == nullptr) return;
    run("remove", key, [&] { return callbacks_.remove(callbacks_.context, key.c_str(), left_ms(deadline)); });
  }

 private:
  static std::int64_t left_ms(TimePoint deadline) {
    using std::chrono::milliseconds;
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    return std::max<std::int64_t>(left.count(), 0);
  }

  template <class Call>
  static void run(const char* what, const std::string& key, Call&& call) {
    std::string text;
    const ddp_status status = call_back(what, text, call);
    if (status == DDP_OK) return;
    text = "the program's store failed: " + text + "\nwhere: " + what + " of the key " + key;
    if (status == DDP_TIMEOUT) throw TimeoutError(text);
    throw StoreError(text);
  }

  ddp_store callbacks_;
};

BootstrapOptions bootstrap_options(const ddp_bootstrap& read) {
  BootstrapOptions options;
  options.rank = read.rank;
  options.size = read.rank_count;
  if (read.local_rank_count != 0) {
    options.local_rank = read.local_rank;
    options.local_size = read.local_rank_count;
  } else if (read.local_rank != 0) {
    throw InvalidArgument("ddp_bootstrap: local_rank is " + std::to_string(read.local_rank) +
                          " and local_rank_count is 0\ntry:   both, or neither");
  }
  options.store_host = text_or_empty(read.store_host);
  options.store_port = read.store_port;
  if (read.store != nullptr) options.store = std::make_shared<CallbackStore>(read_struct(read.store, "ddp_store"));
  options.name = text_or_empty(read.name);
  if (read.round != nullptr) {
    options.round = parse_round_id(read.round);
    if (!options.round) throw InvalidArgument(std::string("ddp_bootstrap: round is no round's id: ") + read.round);
  }
  options.interface = text_or_empty(read.interface);
  options.port_min = read.port_min;
  options.port_max = read.port_max;
  return options;
}

ProcessGroup group_of(const ddp_bootstrap* bootstrap, const InitOptions& options) {
  if (bootstrap == nullptr) return init_process_group(options);
  const ddp_bootstrap read = read_struct(bootstrap, "ddp_bootstrap");
  const auto parent = read.parent != nullptr ? object_of(read.parent) : nullptr;
  ProcessGroup made = init_process_group(bootstrap_options(read), options);
  if (parent != nullptr) parent->impl()->add_sub_group(made.impl());
  return made;
}

// A new group where this rank is in it, else NULL.
void give_if_member(ddp_group* place, const ProcessGroup& group) {
  if (group.impl() == nullptr) {
    *place = nullptr;
  } else {
    give(place, group);
  }
}

}  // namespace

}  // namespace ddp::c_interface

using namespace ddp::c_interface;  // NOLINT: the functions of C are in no namespace

ddp_status ddp_init_process_group(const ddp_bootstrap* bootstrap, const ddp_init_options* options, ddp_group* group) {
  return call([&] {
    require(group, "group");
    give(group, group_of(bootstrap, init_options(options)));
  });
}

ddp_status ddp_group_destroy(ddp_group group) {
  return call([&] { destroy(group); });
}

ddp_status ddp_group_get_info(ddp_group group, ddp_group_info* info) {
  return call([&] {
    require(info, "info");
    const auto of = object_of(group);
    ddp_group_info known{};
    known.rank = of->rank();
    known.rank_count = of->size();
    known.local_rank = of->local_rank();
    known.local_rank_count = of->local_size();
    known.is_on_gpu = of->device().kind == ddp::Device::Kind::cuda ? 1 : 0;
    known.device_index = of->device().index;
    known.timeout_ms = of->timeout().count();
    write_round(known.round, of->round());
    write_struct(info, known, "ddp_group_info");
  });
}

ddp_status ddp_memory_allocate(ddp_group group, size_t bytes, const ddp_collective_options* options, ddp_memory* memory,
                               void** data) {
  return call([&] {
    require(memory, "memory");
    require(data, "data");
    const ddp_collective_options read = read_struct(options, "ddp_collective_options");
    if (read.on_host != 0)
      throw ddp::InvalidArgument(
          "ddp_memory_allocate: on_host is set, and the memory is the group's\ntry:   a group of cpu");
    const ddp::RegisteredMemory made = object_of(group)->allocate(bytes, collective_options(read));
    give(memory, made);
    *data = made.data();
  });
}

ddp_status ddp_memory_destroy(ddp_memory memory) {
  return call([&] { destroy(memory); });
}

ddp_status ddp_group_abort(ddp_group group, const char* reason) {
  return call([&] { object_of(group)->abort(text_or_empty(reason)); });
}

ddp_status ddp_group_check(ddp_group group) {
  return call([&] { object_of(group)->impl()->require_not_given_up(); });
}

ddp_status ddp_group_should_stop(ddp_group group, int32_t* should_stop) {
  return call([&] {
    require(should_stop, "should_stop");
    *should_stop = object_of(group)->should_stop() ? 1 : 0;
  });
}

ddp_status ddp_group_split(ddp_group group, int32_t color, int32_t key, ddp_group* result) {
  return call([&] {
    require(result, "result");
    give_if_member(result, object_of(group)->split(color, key));
  });
}

ddp_status ddp_group_new(ddp_group group, const int32_t* ranks, size_t rank_count, ddp_group* result) {
  return call([&] {
    require(result, "result");
    if (rank_count > 0) require(ranks, "ranks");
    give_if_member(result, object_of(group)->new_group(std::vector<int>(ranks, ranks + rank_count)));
  });
}
