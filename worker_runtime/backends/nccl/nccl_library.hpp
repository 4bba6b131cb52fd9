// NCCL, loaded where it is first used: one build serves every machine, and no other NCCL of the process is touched.
//
// Where it is looked for: DDP_NCCL_LIBRARY, and nowhere else where that is set; the loader's path; beside the Python
// wheels of $VIRTUAL_ENV and $CONDA_PREFIX. The oldest that is supported is 2.19.3. What came later is used where it is
// there; what is missing is said once, to stderr.
//
// Threads: any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/library.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"

namespace ddp::nccl_backend {

// Of the library itself, of communicators and of their memory.
struct NcclCommunicatorFunctions {
  abi::GetVersion* get_version = nullptr;
  abi::GetUniqueId* get_unique_id = nullptr;
  abi::GetErrorString* get_error_string = nullptr;
  abi::GetLastError* get_last_error = nullptr;
  abi::CommInitRankConfig* comm_init_rank_config = nullptr;
  abi::CommSplit* comm_split = nullptr;
  abi::CommFinalize* comm_finalize = nullptr;
  abi::CommDestroy* comm_destroy = nullptr;
  abi::CommAbort* comm_abort = nullptr;
  abi::CommGetAsyncError* comm_get_async_error = nullptr;
  abi::CommCount* comm_count = nullptr;
  abi::MemAlloc* mem_alloc = nullptr;
  abi::MemFree* mem_free = nullptr;
  abi::CommRegister* comm_register = nullptr;
  abi::CommDeregister* comm_deregister = nullptr;
};

// Of operations, and of group calls, which make one of several.
struct NcclOperationFunctions {
  abi::GroupStart* group_start = nullptr;
  abi::GroupEnd* group_end = nullptr;
  abi::RedOpCreatePreMulSum* red_op_create_pre_mul_sum = nullptr;
  abi::RedOpDestroy* red_op_destroy = nullptr;
  abi::AllReduce* all_reduce = nullptr;
  abi::Broadcast* broadcast = nullptr;
  abi::Reduce* reduce = nullptr;
  abi::AllGather* all_gather = nullptr;
  abi::ReduceScatter* reduce_scatter = nullptr;
  abi::Send* send = nullptr;
  abi::Recv* recv = nullptr;

  // Null, all three, if this NCCL is older than they are.
  abi::AlltoAll* all_to_all = nullptr;
  abi::Gather* gather = nullptr;
  abi::Scatter* scatter = nullptr;
};

struct NcclFunctions : NcclCommunicatorFunctions, NcclOperationFunctions {};

// "2.19.3"
std::string version_text(int version_code);

// The names to try, in order. Pure but for `python_folders`, which lists the folders "python3*" in a folder's lib/.
using Lookup = std::function<std::optional<std::string>(const char* name)>;
using PythonFolders = std::function<std::vector<std::string>(const std::string& lib_folder)>;
std::vector<std::string> library_names(const Lookup& variable, const PythonFolders& python_folders);
std::vector<std::string> python_folders_in(const std::string& lib_folder);

// What tells more than an error of NCCL's: how its log is had, or where it is, in words for `try:`. Pure.
std::string log_advice(const Lookup& variable);

class NcclLibrary {
 public:
  // The one of this process, loaded by the first call and never given back: NCCL's threads outlive any group. Throws
  // Error where there is none that serves.
  static const NcclLibrary& of_process();

  // The first of these names that can be loaded. Throws Error.
  explicit NcclLibrary(const std::vector<std::string>& names);

  const NcclFunctions* operator->() const { return &functions_; }
  int version() const { return version_; }
  const std::string& path() const { return path_; }
  std::string name() const;     // "NCCL 2.28.9 at /usr/lib/libnccl.so.2"
  std::string lacking() const;  // what is not there and what follows, in one line; empty where nothing is missing

  // "remote process exited or there was a network error: ...": the code in NCCL's words, and the last error line of its
  // log, which it keeps whatever NCCL_DEBUG says. Asked at once when something fails, it is that failure's first.
  std::string describe(abi::Result result, abi::Comm comm) const;

  const std::string& log_advice() const { return log_advice_; }  // of this process's environment

 private:
  void load_functions();
  void require_version();

  std::unique_ptr<base::Library> library_;
  std::string path_;
  std::string log_advice_;
  int version_ = 0;
  NcclFunctions functions_;
};

}  // namespace ddp::nccl_backend
