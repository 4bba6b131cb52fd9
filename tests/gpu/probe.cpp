// What libddp and NCCL need of the kernel and of the driver, tried one by one, a line for each: some containers and
// sandboxes refuse a part of it. Ends with 0 where all that is needed is there, with 1 where something is not.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fcntl.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace {

bool is_all_there = true;

void needed(const char* what, bool is_there, const std::string& why = std::strerror(errno)) {
  std::printf("%s: %s\n", what, is_there ? "yes" : ("NO, " + why).c_str());
  is_all_there = is_all_there && is_there;
}

void optional(const char* what, const std::string& answer) { std::printf("%s: %s\n", what, answer.c_str()); }

bool wipes_on_fork() {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ::madvise(memory, 4096, MADV_WIPEONFORK) != 0) return false;
  auto* word = static_cast<volatile int*>(memory);
  *word = 7;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(*word);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0 && *word == 7;
}

bool has_pidfd() {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  return fd >= 0 && ::close(fd) == 0;
}

bool seals_memfd() {
  const int fd = ::memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return fd >= 0 && ::ftruncate(fd, 4096) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
         ::ftruncate(fd, 0) != 0 && ::close(fd) == 0;
}

bool has_abstract_sockets() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ::sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "ddprun probe " + std::to_string(::getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
  return fd >= 0 && ::bind(fd, reinterpret_cast<const ::sockaddr*>(&address), length) == 0 && ::close(fd) == 0;
}

// A child's memory, as a rank reads another's.
bool reads_a_childs_memory() {
  int value = 1, read = 0;
  std::array<int, 2> gate{};
  if (::pipe(gate.data()) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(gate[1]);
    ::_exit(::read(gate[0], &byte, 1) == 0 ? 0 : 1);
  }
  const ::iovec into{&read, sizeof read}, from{&value, sizeof value};
  const bool has_read = ::process_vm_readv(child, &into, 1, &from, 1, 0) == sizeof read && read == 1;
  const int reason = errno;
  ::close(gate[1]);
  ::close(gate[0]);
  ::waitpid(child, nullptr, 0);
  errno = reason;
  return has_read;
}

std::string line_of(const char* file) {
  std::ifstream stream(file);
  std::string line;
  return std::getline(stream, line) ? line : "cannot be read";
}

template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result) != cudaSuccess)
    return nullptr;
  return reinterpret_cast<Function>(function);
}

// Memory that can be exported to another process by a handle of this type (cuMem), as NCCL makes it.
std::string exports(CUmemAllocationHandleType type) {
  const auto create = driver_function<decltype(&cuMemCreate)>("cuMemCreate");
  const auto granularity = driver_function<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  const auto export_handle = driver_function<decltype(&cuMemExportToShareableHandle)>("cuMemExportToShareableHandle");
  const auto release = driver_function<decltype(&cuMemRelease)>("cuMemRelease");
  if (create == nullptr || granularity == nullptr || export_handle == nullptr || release == nullptr)
    return "the driver does not know the calls";
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  wanted.requestedHandleTypes = type;
  std::size_t size = 0;
  CUmemGenericAllocationHandle memory = 0;
  if (const CUresult code = granularity(&size, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM); code != CUDA_SUCCESS)
    return "no, cuMemGetAllocationGranularity: error " + std::to_string(code);
  if (const CUresult code = create(&memory, size, &wanted, 0); code != CUDA_SUCCESS)
    return "no, cuMemCreate: error " + std::to_string(code);
  std::array<char, 64> handle{};
  const CUresult code = export_handle(handle.data(), memory, type, 0);
  release(memory);
  return code == CUDA_SUCCESS ? "yes" : "no, cuMemExportToShareableHandle: error " + std::to_string(code);
}

std::string attribute(cudaDeviceAttr which) {
  int value = 0;
  const cudaError_t code = cudaDeviceGetAttribute(&value, which, 0);
  return code == cudaSuccess ? std::to_string(value) : cudaGetErrorString(code);
}

}  // namespace

int main() {
  optional("kernel", line_of("/proc/sys/kernel/osrelease"));
  needed("MADV_WIPEONFORK", wipes_on_fork());
  needed("pidfd_open", has_pidfd());
  needed("memfd with seals", seals_memfd());
  needed("abstract sockets", has_abstract_sockets());
  optional("process_vm_readv of a child", reads_a_childs_memory() ? "yes" : std::string("no, ") + std::strerror(errno));
  optional("Yama's ptrace_scope", line_of("/proc/sys/kernel/yama/ptrace_scope"));
  optional("/dev/shm", ::access("/dev/shm", W_OK) == 0 ? "writable" : std::strerror(errno));
  const cudaError_t code = cudaFree(nullptr);
  needed("a CUDA context", code == cudaSuccess, cudaGetErrorString(code));
  optional("cuMem by file descriptor", exports(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  optional("cuMem by fabric handle", exports(CU_MEM_HANDLE_TYPE_FABRIC));
  optional("unified addresses", attribute(cudaDevAttrUnifiedAddressing));
  optional("GPUDirect RDMA", attribute(cudaDevAttrGPUDirectRDMASupported));
  optional("compute mode (0: several processes at once)", attribute(cudaDevAttrComputeMode));
  return is_all_there ? 0 : 1;
}
