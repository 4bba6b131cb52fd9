#include "rendezvous/store/store_thread.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "base/closed_in_child.hpp"
#include "base/fork_guard.hpp"
#include "base/quiet_thread.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/store/access_control.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::store {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kRefusalCountMax = 16;

}  // namespace

class StoreThread::Impl {
 public:
  explicit Impl(const StoreThreadOptions& options)
      : work_(io_.get_executor()),
        server_(io_, {.allow = options.allow,
                      .allow_option = options.allow_option,
                      .connection_count_max = options.connection_count_max,
                      .warn = [this](const base::Warning& warning) { note(warning.text); },
                      .count_changed = [this](std::size_t count) { set_connection_count(count); }}) {
    for (const auto& [key, value] : options.entries) server_.put(key, value);
    port_.emplace(io_,
                  port::PortOptions{.addresses = options.addresses,
                                    .first = options.first_port,
                                    .last = options.last_port,
                                    .warn = [this](const base::Warning& warning) { note(warning.text); }},
                  port::Handlers{.store = [this](base::UniqueFd socket, const sockaddr_storage& peer) {
                    server_.adopt(std::move(socket), peer);
                  }});
    number_ = port_->number();
    for (const int fd : port_->descriptors()) base::close_in_forked_children(fd);
    thread_ = base::start_quiet_thread([this] { run(); });
  }

  ~Impl() {
    asio::post(io_, [this] { io_.stop(); });
    thread_.join();
    for (const int fd : port_->descriptors()) base::keep_in_forked_children(fd);
  }

  bool in_forked_child() const { return fork_guard_.in_forked_child(); }
  std::uint16_t port() const { return number_; }

  void allow(const std::vector<std::string>& blocks) {
    static_cast<void>(AllowList::parse(blocks));
    asio::post(io_, [this, blocks] { server_.allow(blocks); });
  }

  std::vector<std::string> refusals() const {
    const std::lock_guard lock(mutex_);
    return refusals_;
  }

  void wait_until_alone(std::chrono::steady_clock::time_point end) const {
    std::unique_lock lock(mutex_);
    became_alone_.wait_until(lock, end, [this] { return connection_count_ == 0; });
  }

 private:
  // What one connection brings about must not end the others'.
  void run() {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& error) {
        note(error.what());
      }
    }
  }

  void note(const std::string& warning) {
    const std::lock_guard lock(mutex_);
    const bool is_known = std::find(refusals_.begin(), refusals_.end(), warning) != refusals_.end();
    if (!is_known && refusals_.size() < kRefusalCountMax) refusals_.push_back(warning);
  }

  void set_connection_count(std::size_t count) {
    const std::lock_guard lock(mutex_);
    connection_count_ = count;
    if (count == 0) became_alone_.notify_all();
  }

  base::ForkGuard fork_guard_;
  mutable std::mutex mutex_;
  mutable std::condition_variable became_alone_;
  std::size_t connection_count_ = 0;   // guarded by mutex_
  std::vector<std::string> refusals_;  // guarded by mutex_
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Server server_;
  std::optional<port::Port> port_;
  std::uint16_t number_ = 0;
  std::thread thread_;
};

StoreThread::StoreThread(const StoreThreadOptions& options) : impl_(std::make_unique<Impl>(options)) {}

StoreThread::~StoreThread() {
  if (impl_->in_forked_child()) static_cast<void>(impl_.release());  // it is the parent's
}

std::uint16_t StoreThread::port() const { return impl_->port(); }

void StoreThread::allow(const std::vector<std::string>& blocks) { impl_->allow(blocks); }

std::vector<std::string> StoreThread::refusals() const { return impl_->refusals(); }

void StoreThread::wait_until_alone(std::chrono::steady_clock::time_point end) const { impl_->wait_until_alone(end); }

}  // namespace ddp::store
