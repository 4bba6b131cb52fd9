#include "worker_runtime/backends/nccl/nccl_library.hpp"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::nccl_backend {

namespace {

constexpr const char* kVariable = "DDP_NCCL_LIBRARY";
constexpr const char* kSoName = "libnccl.so.2";
constexpr std::size_t kErrorTextMax = 512;  // bytes of NCCL's own line in a message

std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// It goes before what a program asks of NCCL, and nobody could end a call that blocks.
void require_calls_that_return() {
  const auto blocking = environment_variable("NCCL_COMM_BLOCKING");
  if (!blocking || *blocking == "0") return;
  throw InvalidArgument(
      "NCCL_COMM_BLOCKING is " + *blocking +
      ", so NCCL's calls would block, past any deadline\nwhere: the environment of this process\ntry:   unset it");
}

// Where the function was found, so that a message names the very file that was loaded.
std::string file_of(const void* function, const std::string& otherwise) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

}  // namespace

std::string version_text(int version_code) {
  const int major_unit = version_code < 10'000 ? 1'000 : 10'000;  // up to 2.8 the code had a digit less
  return std::to_string(version_code / major_unit) + "." + std::to_string(version_code % major_unit / 100) + "." +
         std::to_string(version_code % 100);
}

std::vector<std::string> library_names(const Lookup& lookup, const PythonFolders& python_folders) {
  if (const auto named = lookup(kVariable)) return {*named};
  std::vector<std::string> names{kSoName};
  for (const char* root : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const auto folder = lookup(root);
    if (!folder) continue;
    for (const std::string& python : python_folders(*folder + "/lib")) {
      names.push_back(python + "/site-packages/nvidia/nccl/lib/" + kSoName);
    }
  }
  return names;
}

std::vector<std::string> python_folders_in(const std::string& lib_folder) {
  std::vector<std::string> folders;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(lib_folder, unreadable)) {
    if (entry.path().filename().string().rfind("python3", 0) == 0) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Source: NCCL's documentation of NCCL_DEBUG and NCCL_DEBUG_FILE.
std::string log_advice(const Lookup& lookup) {
  const std::string level = lookup("NCCL_DEBUG").value_or("");
  const auto is = [&](const char* name) { return ::strcasecmp(level.c_str(), name) == 0; };
  if (!is("INFO") && !is("TRACE")) return "NCCL_DEBUG=INFO tells more";
  const auto file = lookup("NCCL_DEBUG_FILE");
  return "NCCL's log tells more: it is in " + (file ? *file : "this rank's output");
}

const NcclLibrary& NcclLibrary::of_process() {
  static std::mutex mutex;
  static const NcclLibrary* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) {
    require_calls_that_return();
    auto library = std::make_unique<NcclLibrary>(library_names(environment_variable, python_folders_in));
    if (const std::string lacking = library->lacking(); !lacking.empty()) {
      std::fprintf(stderr, "libddp: %s\n", lacking.c_str());
    }
    loaded = library.release();
  }
  return *loaded;
}

NcclLibrary::NcclLibrary(const std::vector<std::string>& names)
    : log_advice_(nccl_backend::log_advice(environment_variable)) {
  std::string last_error;
  for (const std::string& name : names) {
    library_ = std::make_unique<base::Library>(name);
    path_ = name;
    if (*library_) break;
    last_error = library_->error();
  }
  if (!library_ || !*library_) {
    throw Error("NCCL can't be loaded: " + last_error + "\nwhere: looked for " + list(names) +
                "\ntry:   install NCCL " + version_text(abi::kVersionOldest) + " or later, or set " + kVariable +
                " to the path of its libnccl.so.2");
  }
  require_version();
  load_functions();
}

void NcclLibrary::require_version() {
  int code = 0;
  if (!library_->find("ncclGetVersion", functions_.get_version) ||
      functions_.get_version(&code) != abi::Result::success) {
    throw Error(path_ + " is no NCCL: it has no ncclGetVersion that works\ntry:   set " + kVariable +
                " to the path of NCCL's libnccl.so.2");
  }
  version_ = code;
  path_ = file_of(reinterpret_cast<const void*>(functions_.get_version), path_);
  if (version_ >= abi::kVersionOldest) return;
  throw Error(name() + " is too old: " + version_text(abi::kVersionOldest) +
              " is the oldest that is supported\ntry:   install a later one, or set " + kVariable +
              " to the path of its libnccl.so.2");
}

void NcclLibrary::load_functions() {
  std::vector<std::string> missing;
  const auto need = [&](const char* symbol, auto*& function) {
    if (!library_->find(symbol, function)) missing.emplace_back(symbol);
  };
  need("ncclGetUniqueId", functions_.get_unique_id);
  need("ncclGetErrorString", functions_.get_error_string);
  need("ncclGetLastError", functions_.get_last_error);
  need("ncclCommInitRankConfig", functions_.comm_init_rank_config);
  need("ncclCommSplit", functions_.comm_split);
  need("ncclCommFinalize", functions_.comm_finalize);
  need("ncclCommDestroy", functions_.comm_destroy);
  need("ncclCommAbort", functions_.comm_abort);
  need("ncclCommGetAsyncError", functions_.comm_get_async_error);
  need("ncclCommCount", functions_.comm_count);
  need("ncclGroupStart", functions_.group_start);
  need("ncclGroupEnd", functions_.group_end);
  need("ncclRedOpCreatePreMulSum", functions_.red_op_create_pre_mul_sum);
  need("ncclRedOpDestroy", functions_.red_op_destroy);
  need("ncclAllReduce", functions_.all_reduce);
  need("ncclBroadcast", functions_.broadcast);
  need("ncclReduce", functions_.reduce);
  need("ncclAllGather", functions_.all_gather);
  need("ncclReduceScatter", functions_.reduce_scatter);
  need("ncclSend", functions_.send);
  need("ncclRecv", functions_.recv);
  need("ncclMemAlloc", functions_.mem_alloc);
  need("ncclMemFree", functions_.mem_free);
  need("ncclCommRegister", functions_.comm_register);
  need("ncclCommDeregister", functions_.comm_deregister);
  if (!missing.empty()) {
    throw Error(name() + " lacks " + list(missing) + "\ntry:   set " + kVariable +
                " to the path of a complete libnccl.so.2");
  }
  if (!library_->find("ncclAlltoAll", functions_.all_to_all) || !library_->find("ncclGather", functions_.gather) ||
      !library_->find("ncclScatter", functions_.scatter)) {
    functions_.all_to_all = nullptr;
    functions_.gather = nullptr;
    functions_.scatter = nullptr;
  }
}

std::string NcclLibrary::name() const { return "NCCL " + version_text(version_) + " at " + path_; }

std::string NcclLibrary::lacking() const {
  if (functions_.gather != nullptr) return "";
  return name() + " has no ncclAlltoAll, ncclGather, ncclScatter: they are made of sends and receives";
}

std::string NcclLibrary::describe(abi::Result result, abi::Comm comm) const {
  std::string text = functions_.get_error_string(result);
  const char* const last = functions_.get_last_error(comm);
  if (last == nullptr || *last == '\0') return text;
  const std::string_view lines(last);
  const std::size_t begin = std::min(lines.find_first_not_of('\n'), lines.size());
  const std::size_t end = std::min(lines.find('\n', begin), begin + kErrorTextMax);
  return text + ": " + std::string(lines.substr(begin, end - begin));
}

}  // namespace ddp::nccl_backend
