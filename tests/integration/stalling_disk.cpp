#include "tests/integration/stalling_disk.hpp"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/event_fd.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

constexpr std::size_t kPathBytesMax = 4096;

std::string text_at(pid_t process, unsigned long long address) {
  std::string text(kPathBytesMax, '\0');
  // Memory ends at the end of a page, so what cannot be read is not asked for.
  std::size_t length = 0;
  while (length < text.size()) {
    const auto room = std::min<std::size_t>(4096 - (address + length) % 4096, text.size() - length);
    iovec here{text.data() + length, room}, there{reinterpret_cast<void*>(address + length), room};
    const auto count = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (count <= 0) break;
    length += static_cast<std::size_t>(count);
    if (text.find('\0') < length) break;
  }
  return text.substr(0, text.find('\0'));
}

std::string path_of_descriptor(pid_t process, unsigned long long descriptor) {
  std::error_code gone;
  return std::filesystem::read_symlink(
             "/proc/" + std::to_string(process) + "/fd/" + std::to_string(static_cast<int>(descriptor)), gone)
      .string();
}

std::string path_of(const seccomp_notif& call) {
  const auto process = static_cast<pid_t>(call.pid);
  switch (call.data.nr) {
    case SYS_openat:
    case SYS_mkdirat: return text_at(process, call.data.args[1]);
#ifdef SYS_open
    case SYS_open:
    case SYS_mkdir: return text_at(process, call.data.args[0]);
#endif
    default: return path_of_descriptor(process, call.data.args[0]);
  }
}

bool is_in(const std::string& path, const std::string& folder) {
  return path == folder || path.compare(0, folder.size() + 1, folder + "/") == 0;
}

}  // namespace

StallingDisk::StallingDisk(std::filesystem::path folder) : folder_(std::move(folder)), end_(base::make_event()) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) throw std::runtime_error("socketpair");
  here_.reset(pair[0]);
  there_.reset(pair[1]);
  thread_ = std::thread([this] { answer_all(); });
}

StallingDisk::~StallingDisk() {
  heal();
  base::ring(end_);
  thread_.join();
}

bool StallingDisk::is_possible() {
  unsigned action = SECCOMP_RET_USER_NOTIF;
  return ::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

void StallingDisk::enter() const {
  constexpr auto kHeld = std::to_array<unsigned>({
      SYS_openat,
      SYS_mkdirat,
#ifdef SYS_open
      SYS_open,
      SYS_mkdir,
#endif
      SYS_read,
      SYS_pread64,
      SYS_write,
  });
  std::array<sock_filter, kHeld.size() + 3> code{};
  code[0] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  for (std::size_t i = 0; i < kHeld.size(); ++i)
    code[i + 1] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kHeld[i], static_cast<unsigned char>(kHeld.size() - i), 0);
  code[kHeld.size() + 1] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  code[kHeld.size() + 2] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
  const sock_fprog program{code.size(), code.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  int listener =
      static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
  if (listener < 0) ::_exit(125);
  char byte = 0;
  iovec content{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof listener)] = {};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  auto* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof listener);
  std::memcpy(CMSG_DATA(header), &listener, sizeof listener);
  if (::sendmsg(there_.get(), &message, 0) != 1) ::_exit(125);
  ::close(listener);
}

void StallingDisk::stall() {
  const std::lock_guard lock(mutex_);
  is_stalled_ = true;
}

void StallingDisk::heal() {
  const std::lock_guard lock(mutex_);
  is_stalled_ = false;
  for (const auto& call : std::exchange(held_, {})) let_go(call.id);
}

bool StallingDisk::holds(const std::filesystem::path& path) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] {
    return std::any_of(held_.begin(), held_.end(), [&](const Call& call) { return is_in(call.path, path.string()); });
  });
}

void StallingDisk::answer_all() {
  while (true) {
    pollfd waits[] = {{end_.get(), POLLIN, 0}, {listener_ ? listener_.get() : here_.get(), POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0) continue;
    if (waits[0].revents != 0) return;
    if (!listener_) {
      char byte = 0;
      iovec content{&byte, 1};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &content;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      if (::recvmsg(here_.get(), &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return;
      int listener = -1;
      std::memcpy(&listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof listener);
      const std::lock_guard lock(mutex_);
      listener_.reset(listener);
    } else if ((waits[1].revents & POLLIN) != 0) {
      answer(waits[1].fd);
    } else if (waits[1].revents != 0) {
      return;  // no process is left that it is for
    }
  }
}

void StallingDisk::answer(int listener) {
  seccomp_notif call{};
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return;  // the caller has been killed meanwhile
  auto path = path_of(call);
  const std::lock_guard lock(mutex_);
  if (!is_stalled_ || !is_in(path, folder_)) return let_go(call.id);
  held_.push_back({call.id, std::move(path)});
  changed_.notify_all();
}

void StallingDisk::let_go(unsigned long long id) const {
  seccomp_notif_resp answer{};
  answer.id = id;
  answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  ::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);  // refused where the caller has been killed meanwhile
}

}  // namespace ddp::test
