// Collectives and works of the C interface.
#include <ddp/ddp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/c_interface/arguments.hpp"
#include "worker_runtime/c_interface/objects.hpp"
#include "worker_runtime/c_interface/status.hpp"

namespace ddp::c_interface {

namespace {

// What every collective is given.
class GroupCall {
 public:
  GroupCall(ddp_group group, const ddp_collective_options* options, ddp_reduce_op op = DDP_SUM)
      : GroupCall(group, read_struct(options, "ddp_collective_options"), op) {}

  ProcessGroup* operator->() const { return group_.get(); }
  const CollectiveOptions& options() const { return options_; }
  bool is_root(std::int32_t root) const { return group_->rank() == root; }

  MemoryRange range(void* data, std::size_t count, ddp_data_type type) const {
    return {data, count, data_type(type), device_};
  }
  ConstMemoryRange range(const void* data, std::size_t count, ddp_data_type type) const {
    return {data, count, data_type(type), device_};
  }

  // A range with a part for each rank.
  MemoryRange range_of_all(void* data, std::size_t count, ddp_data_type type) const {
    return range(data, count_of_all(*group_, count), type);
  }
  ConstMemoryRange range_of_all(const void* data, std::size_t count, ddp_data_type type) const {
    return range(data, count_of_all(*group_, count), type);
  }

  std::vector<std::size_t> counts(const std::size_t* given, const char* name) const {
    require(given, name);
    return {given, given + group_->size()};
  }
  static std::size_t sum_of(const std::vector<std::size_t>& counts) {
    std::size_t sum = 0;
    for (const std::size_t count : counts) {
      if (__builtin_add_overflow(sum, count, &sum)) throw InvalidArgument("the counts are larger than any memory");
    }
    return sum;
  }
  std::size_t own_of(const std::vector<std::size_t>& counts) const {
    return counts[static_cast<std::size_t>(group_->rank())];
  }

 private:
  GroupCall(ddp_group group, const ddp_collective_options& options, ddp_reduce_op op)
      : group_(object_of(group)),
        options_(collective_options(options, op)),
        device_(options.on_host != 0 ? Device{} : group_->device()) {}

  std::shared_ptr<ProcessGroup> group_;
  CollectiveOptions options_;
  Device device_;
};

// With a place for a work begins the collective, else blocks until it is complete.
template <class Blocking, class Begin>
void run(ddp_work* work, Blocking&& blocking, Begin&& begin) {
  if (work == nullptr) {
    blocking();
  } else {
    give(work, begin());
  }
}

}  // namespace

}  // namespace ddp::c_interface

using namespace ddp::c_interface;  // NOLINT: the functions of C are in no namespace

ddp_status ddp_all_reduce(ddp_group group, void* inout, size_t count, ddp_data_type type, ddp_reduce_op op,
                          const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options, op);
    const auto range = of.range(inout, count, type);
    const auto how = reduce_op(op);
    run(
        work, [&] { of->all_reduce(range, how, of.options()); },
        [&] { return of->all_reduce_async(range, how, of.options()); });
  });
}

ddp_status ddp_broadcast(ddp_group group, void* inout, size_t count, ddp_data_type type, int32_t root,
                         const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto range = of.range(inout, count, type);
    run(
        work, [&] { of->broadcast(range, root, of.options()); },
        [&] { return of->broadcast_async(range, root, of.options()); });
  });
}

ddp_status ddp_all_gather(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                          const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto from = of.range(input, count, type);
    const auto to = of.range_of_all(output, count, type);
    run(
        work, [&] { of->all_gather(from, to, of.options()); },
        [&] { return of->all_gather_async(from, to, of.options()); });
  });
}

ddp_status ddp_reduce_scatter(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                              ddp_reduce_op op, const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options, op);
    const auto from = of.range_of_all(input, count, type);
    const auto to = of.range(output, count, type);
    const auto how = reduce_op(op);
    run(
        work, [&] { of->reduce_scatter(from, to, how, of.options()); },
        [&] { return of->reduce_scatter_async(from, to, how, of.options()); });
  });
}

ddp_status ddp_reduce(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                      ddp_reduce_op op, int32_t root, const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options, op);
    const auto from = of.range(input, count, type);
    const auto to = of.is_root(root) ? of.range(output, count, type) : ddp::MemoryRange();
    const auto how = reduce_op(op);
    run(
        work, [&] { of->reduce(from, to, root, how, of.options()); },
        [&] { return of->reduce_async(from, to, root, how, of.options()); });
  });
}

ddp_status ddp_gather(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type, int32_t root,
                      const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto from = of.range(input, count, type);
    const auto to = of.is_root(root) ? of.range_of_all(output, count, type) : ddp::MemoryRange();
    run(
        work, [&] { of->gather(from, to, root, of.options()); },
        [&] { return of->gather_async(from, to, root, of.options()); });
  });
}

ddp_status ddp_scatter(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type, int32_t root,
                       const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto from = of.is_root(root) ? of.range_of_all(input, count, type) : ddp::ConstMemoryRange();
    const auto to = of.range(output, count, type);
    run(
        work, [&] { of->scatter(from, to, root, of.options()); },
        [&] { return of->scatter_async(from, to, root, of.options()); });
  });
}

ddp_status ddp_all_to_all(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                          const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto from = of.range_of_all(input, count, type);
    const auto to = of.range_of_all(output, count, type);
    run(
        work, [&] { of->all_to_all(from, to, of.options()); },
        [&] { return of->all_to_all_async(from, to, of.options()); });
  });
}

ddp_status ddp_all_gather_v(ddp_group group, const void* input, void* output, const size_t* counts, ddp_data_type type,
                            const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto each = of.counts(counts, "counts");
    const auto from = of.range(input, of.own_of(each), type);
    const auto to = of.range(output, GroupCall::sum_of(each), type);
    run(
        work, [&] { of->all_gather_v(from, to, each, of.options()); },
        [&] { return of->all_gather_v_async(from, to, each, of.options()); });
  });
}

ddp_status ddp_reduce_scatter_v(ddp_group group, const void* input, void* output, const size_t* counts,
                                ddp_data_type type, ddp_reduce_op op, const ddp_collective_options* options,
                                ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options, op);
    const auto each = of.counts(counts, "counts");
    const auto from = of.range(input, GroupCall::sum_of(each), type);
    const auto to = of.range(output, of.own_of(each), type);
    const auto how = reduce_op(op);
    run(
        work, [&] { of->reduce_scatter_v(from, to, each, how, of.options()); },
        [&] { return of->reduce_scatter_v_async(from, to, each, how, of.options()); });
  });
}

ddp_status ddp_all_to_all_v(ddp_group group, const void* input, const size_t* input_counts, void* output,
                            const size_t* output_counts, ddp_data_type type, const ddp_collective_options* options,
                            ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto sent = of.counts(input_counts, "input_counts");
    const auto received = of.counts(output_counts, "output_counts");
    const auto from = of.range(input, GroupCall::sum_of(sent), type);
    const auto to = of.range(output, GroupCall::sum_of(received), type);
    run(
        work, [&] { of->all_to_all_v(from, sent, to, received, of.options()); },
        [&] { return of->all_to_all_v_async(from, sent, to, received, of.options()); });
  });
}

ddp_status ddp_send(ddp_group group, const void* input, size_t count, ddp_data_type type, int32_t peer,
                    const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto from = of.range(input, count, type);
    run(
        work, [&] { of->send(from, peer, of.options()); }, [&] { return of->send_async(from, peer, of.options()); });
  });
}

ddp_status ddp_receive(ddp_group group, void* output, size_t count, ddp_data_type type, int32_t peer,
                       const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    const auto to = of.range(output, count, type);
    run(
        work, [&] { of->receive(to, peer, of.options()); }, [&] { return of->receive_async(to, peer, of.options()); });
  });
}

ddp_status ddp_receive_from_any(ddp_group group, void* output, size_t count, ddp_data_type type, int32_t* source,
                                const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    require(source, "source");
    const GroupCall of(group, options);
    const auto to = of.range(output, count, type);
    run(
        work, [&] { *source = of->receive_from_any(to, of.options()); },
        [&] { return of->receive_from_any_async(to, source, of.options()); });
  });
}

ddp_status ddp_barrier(ddp_group group, const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    run(
        work, [&] { of->barrier(of.options()); }, [&] { return of->barrier_async(of.options()); });
  });
}

ddp_status ddp_monitored_barrier(ddp_group group, const ddp_collective_options* options) {
  return call([&] {
    const GroupCall of(group, options);
    of->monitored_barrier(of.options());
  });
}

ddp_status ddp_coalesce(ddp_group group, ddp_status (*calls)(void* context), void* context,
                        const ddp_collective_options* options, ddp_work* work) {
  return call([&] {
    const GroupCall of(group, options);
    if (calls == nullptr) throw ddp::InvalidArgument("ddp_coalesce: calls is NULL");
    ddp::Work all = of->coalesce(
        [&] {
          std::string text;
          const ddp_status status = call_back("the function of ddp_coalesce", text, [&] { return calls(context); });
          if (status == DDP_OK) return;
          ddp_set_last_error(text.c_str());
          throw CallbackFailed{status};
        },
        of.options());
    run(
        work, [&] { all.wait(); }, [&] { return all; });
  });
}

ddp_status ddp_work_wait(ddp_work work) {
  return call([&] { object_of(work)->wait(); });
}

ddp_status ddp_work_wait_for(ddp_work work, int64_t timeout_ms, int32_t* is_completed) {
  return call([&] {
    require(is_completed, "is_completed");
    *is_completed = object_of(work)->wait_for(std::chrono::milliseconds(timeout_ms)) ? 1 : 0;
  });
}

ddp_status ddp_work_is_completed(ddp_work work, int32_t* is_completed) {
  return call([&] {
    require(is_completed, "is_completed");
    *is_completed = object_of(work)->is_completed() ? 1 : 0;
  });
}

ddp_status ddp_work_duration(ddp_work work, int64_t* duration_ns) {
  return call([&] {
    require(duration_ns, "duration_ns");
    const auto duration = object_of(work)->duration();
    *duration_ns = duration ? duration->count() : -1;
  });
}

ddp_status ddp_work_on_completed(ddp_work work, void (*callback)(void* context, ddp_status status), void* context) {
  return call([&] {
    if (callback == nullptr) throw ddp::InvalidArgument("ddp_work_on_completed: callback is NULL");
    object_of(work)->on_completed([callback, context](const std::exception_ptr& error) {
      callback(context, error == nullptr ? DDP_OK : record(error));
    });
  });
}

ddp_status ddp_work_destroy(ddp_work work) {
  return call([&] { destroy(work); });
}
