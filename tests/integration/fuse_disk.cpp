#include "tests/integration/fuse_disk.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/event_fd.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

constexpr std::chrono::seconds kStallMax{60};
constexpr std::uint32_t kWriteBytesMax = 128 * 1024;
constexpr std::size_t kRequestBytesMax = kWriteBytesMax + 4096;

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error("no file system of the test's own can be mounted: " + what + ": " + std::strerror(errno));
}

void enter_own_mount_namespace() {
  static bool is_done = false;
  if (std::exchange(is_done, true)) return;
  if (::unshare(CLONE_NEWNS) != 0) refuse("unshare");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) refuse("/");
}

fuse_attr attributes_of(std::uint64_t id, std::uint32_t mode, std::size_t size) {
  fuse_attr out{};
  out.ino = id;
  out.size = size;
  out.blocks = (size + 511) / 512;
  out.mode = mode;
  out.nlink = 1;
  out.blksize = 4096;
  return out;
}

}  // namespace

struct FuseDisk::Request {
  fuse_in_header head;
  std::string_view body;

  // The beginning of the body; what follows are names or data.
  template <class T>
  T as() const {
    T out{};
    std::memcpy(&out, body.data(), std::min(sizeof out, body.size()));
    return out;
  }
  template <class T>
  std::string_view after() const {
    return body.substr(std::min(sizeof(T), body.size()));
  }
};

FuseDisk::FuseDisk(std::filesystem::path folder, Options options)
    : folder_(std::move(folder)), options_(options), changed_(base::make_event()) {
  device_.reset(::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!device_) refuse("/dev/fuse");
  enter_own_mount_namespace();
  const auto how = "fd=" + std::to_string(device_.get()) + ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
                   ",group_id=" + std::to_string(::getgid()) + ",allow_other";
  if (::mount("ddp_test", folder_.c_str(), "fuse", MS_NOSUID | MS_NODEV, how.c_str()) != 0) refuse(folder_.string());
  nodes_[newest_].mode = S_IFDIR | 0755;
  server_ = std::thread([this] { serve(); });
}

FuseDisk::~FuseDisk() {
  end_stall();
  ::umount2(folder_.c_str(), MNT_DETACH);
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  base::ring(changed_);
  server_.join();
}

void FuseDisk::stall() {
  const std::lock_guard lock(mutex_);
  is_stalled_ = true;
  stall_ends_ = std::chrono::steady_clock::now() + kStallMax;
  base::ring(changed_);
}

void FuseDisk::heal() {
  if (!end_stall()) throw std::runtime_error("something waited for the stalled disk until the test gave it up");
}

// Whether it lasted until now.
bool FuseDisk::end_stall() {
  const std::lock_guard lock(mutex_);
  base::ring(changed_);
  return std::exchange(is_stalled_, false);
}

bool FuseDisk::holds_a_call() const {
  pollfd waiting{device_.get(), POLLIN, 0};
  return ::poll(&waiting, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1;
}

void FuseDisk::serve() {
  std::string bytes(kRequestBytesMax, '\0');
  while (true) {
    base::take_rings(changed_.get());
    bool is_stalled = false;
    {
      const std::lock_guard lock(mutex_);
      if (is_ending_) return;
      is_stalled_ = is_stalled_ && std::chrono::steady_clock::now() < stall_ends_;
      is_stalled = is_stalled_;
      const auto length = is_stalled ? -1 : ::read(device_.get(), bytes.data(), bytes.size());
      if (length >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
        Request request{};
        std::memcpy(&request.head, bytes.data(), sizeof request.head);
        request.body = std::string_view(bytes).substr(sizeof request.head, request.head.len - sizeof request.head);
        answer(request);
        continue;
      }
      if (!is_stalled && errno == ENODEV) return;  // it is not mounted any more
    }
    pollfd waits[] = {{changed_.get(), POLLIN, 0}, {is_stalled ? -1 : device_.get(), POLLIN, 0}};
    ::poll(waits, 2, is_stalled ? 1'000 : -1);
  }
}

void FuseDisk::reply(const Request& request, int error, std::string_view bytes) const {
  fuse_out_header head{static_cast<std::uint32_t>(sizeof head + bytes.size()), -error, request.head.unique};
  const iovec parts[] = {{&head, sizeof head}, {const_cast<char*>(bytes.data()), bytes.size()}};
  static_cast<void>(!::writev(device_.get(), parts, 2));  // refused if the caller has gone meanwhile
}

void FuseDisk::answer(const Request& request) {
  switch (request.head.opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: return;  // these have no answer
    case FUSE_INIT: return begin(request);
    case FUSE_LOOKUP: return find(request);
    case FUSE_MKDIR:
    case FUSE_CREATE: return make(request);
    case FUSE_GETATTR: {
      const auto& node = nodes_[request.head.nodeid];
      fuse_attr_out out{};
      out.attr = attributes_of(request.head.nodeid, node.mode, node.content.size());
      return reply_with(request, out);
    }
    case FUSE_SETATTR: return change(request);
    case FUSE_OPEN:
    case FUSE_OPENDIR: return reply_with(request, fuse_open_out{});
    case FUSE_READ: return read(request);
    case FUSE_WRITE: return write(request);
    case FUSE_READDIR: return list(request);
    case FUSE_UNLINK:
    case FUSE_RMDIR: return remove(request);
    case FUSE_RENAME: return move(request, request.as<fuse_rename_in>().newdir, request.after<fuse_rename_in>());
    case FUSE_RENAME2: return move(request, request.as<fuse_rename2_in>().newdir, request.after<fuse_rename2_in>());
    case FUSE_FLUSH: return reply(request, options_.close_waits ? 0 : ENOSYS);  // after ENOSYS it is asked no more
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_FSYNC: return reply(request, 0);
    default: return reply(request, ENOSYS);
  }
}

void FuseDisk::begin(const Request& request) {
  const auto in = request.as<fuse_init_in>();
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = std::min<std::uint32_t>(in.minor, FUSE_KERNEL_MINOR_VERSION);
  out.max_readahead = in.max_readahead;
  out.flags = FUSE_BIG_WRITES;
  out.max_background = 64;
  out.congestion_threshold = 48;
  out.max_write = kWriteBytesMax;
  out.time_gran = 1;
  reply_with(request, out);
}

void FuseDisk::find(const Request& request) {
  const auto& children = nodes_[request.head.nodeid].children;
  const auto found = children.find(request.body.data());
  if (found == children.end()) return reply(request, ENOENT);
  const auto& node = nodes_[found->second];
  fuse_entry_out out{};
  out.nodeid = found->second;
  out.attr = attributes_of(found->second, node.mode, node.content.size());
  reply_with(request, out);
}

void FuseDisk::make(const Request& request) {
  const bool is_folder = request.head.opcode == FUSE_MKDIR;
  const std::string name(is_folder ? request.after<fuse_mkdir_in>().data() : request.after<fuse_create_in>().data());
  auto& children = nodes_[request.head.nodeid].children;
  if (is_folder && children.count(name) != 0) return reply(request, EEXIST);
  const auto [entry, is_new] = children.emplace(name, newest_ + 1);
  const auto id = entry->second;
  auto& node = nodes_[id];
  newest_ = std::max(newest_, id);
  if (is_new) node.mode = is_folder ? S_IFDIR | 0755 : S_IFREG | 0644;
  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } out{};
  out.entry.nodeid = id;
  out.entry.attr = attributes_of(id, node.mode, node.content.size());
  is_folder ? reply_with(request, out.entry) : reply_with(request, out);
}

void FuseDisk::change(const Request& request) {
  const auto in = request.as<fuse_setattr_in>();
  auto& node = nodes_[request.head.nodeid];
  if ((in.valid & FATTR_SIZE) != 0) node.content.resize(in.size);
  if ((in.valid & FATTR_MODE) != 0) node.mode = (node.mode & S_IFMT) | (in.mode & 07777);
  fuse_attr_out out{};
  out.attr = attributes_of(request.head.nodeid, node.mode, node.content.size());
  reply_with(request, out);
}

void FuseDisk::move(const Request& request, std::uint64_t folder, std::string_view names) {
  const std::string from = names.data(), to = names.data() + from.size() + 1;
  auto& children = nodes_[request.head.nodeid].children;
  if (children.count(from) == 0) return reply(request, ENOENT);
  nodes_[folder].children[to] = children.at(from);
  children.erase(from);
  reply(request, 0);
}

void FuseDisk::remove(const Request& request) {
  reply(request, nodes_[request.head.nodeid].children.erase(request.body.data()) == 1 ? 0 : ENOENT);
}

void FuseDisk::write(const Request& request) {
  const auto in = request.as<fuse_write_in>();
  const auto bytes = request.after<fuse_write_in>().substr(0, in.size);
  auto& content = nodes_[request.head.nodeid].content;
  if (content.size() < in.offset + bytes.size()) content.resize(in.offset + bytes.size());
  std::copy(bytes.begin(), bytes.end(), content.begin() + static_cast<std::ptrdiff_t>(in.offset));
  fuse_write_out out{};
  out.size = in.size;
  reply_with(request, out);
}

void FuseDisk::read(const Request& request) {
  const auto in = request.as<fuse_read_in>();
  const std::string_view content = nodes_[request.head.nodeid].content;
  reply(request, 0, content.substr(std::min<std::size_t>(in.offset, content.size()), in.size));
}

void FuseDisk::list(const Request& request) {
  const auto in = request.as<fuse_read_in>();
  std::string out;
  std::uint64_t number = 0;
  for (const auto& [name, id] : nodes_[request.head.nodeid].children) {
    if (number++ < in.offset) continue;
    fuse_dirent entry{};
    entry.ino = id;
    entry.off = number;
    entry.namelen = static_cast<std::uint32_t>(name.size());
    entry.type = nodes_[id].mode >> 12U;
    const auto begin = reinterpret_cast<const char*>(&entry);
    auto record = std::string(begin, begin + FUSE_NAME_OFFSET) + name;
    record.resize(FUSE_DIRENT_ALIGN(record.size()));
    if (out.size() + record.size() > in.size) break;
    out += record;
  }
  reply(request, 0, out);
}

}  // namespace ddp::test
