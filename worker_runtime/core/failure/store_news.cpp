#include "worker_runtime/core/failure/store_news.hpp"

#include <map>
#include <utility>

#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectLimit{10};
constexpr std::chrono::seconds kAnswerLimit{5};
constexpr std::chrono::seconds kSilenceMax{60};  // of the store's host, while this process waits for news

}  // namespace

std::shared_ptr<StoreNews> StoreNews::at(const Place& place) {
  static std::mutex mutex;
  static auto& all = *new std::map<Place, std::weak_ptr<StoreNews>>;  // never destroyed: groups may be static
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& each) { return each.second.expired(); });
  if (const auto found = all.find(place); found != all.end()) {
    if (auto news = found->second.lock()) return news;
  }
  auto news = std::make_shared<StoreNews>(place);
  all[place] = news;
  return news;
}

StoreNews::StoreNews(Place place)
    : place_(std::move(place)), wake_(base::make_event()), thread_(base::start_quiet_thread([this] { listen(); })) {}

StoreNews::~StoreNews() {
  stop_.cut("the last group of the process has ended");
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

store::Client StoreNews::connect(store::TimePoint deadline, base::Cut& cut) const {
  auto client = store::Client::connect({.host = place_.host, .port = place_.port, .deadline = deadline, .cut = &cut});
  expect_signs_of_life(client.descriptor(), kSilenceMax);
  return client;
}

// Lets threads in ask() go first.
void StoreNews::listen() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_over_ || (!is_taken_ && asker_count_ == 0); });
    if (is_over_) return;
    is_taken_ = true;
    lock.unlock();
    auto news = next_news();
    base::take_rings(wake_.get());
    lock.lock();
    is_taken_ = false;
    if (!client_) is_over_ = true;
    if (news) heard_.insert(std::move(*news));
    changed_.notify_all();
  }
}

// Empty if a thread wants to ask. Without a client if the store is gone.
std::optional<std::string> StoreNews::next_news() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      if (!client_) client_ = connect(Clock::now() + kConnectLimit, stop_);
      if (!client_->wait_unless(key(next_), wake_.get())) return std::nullopt;
      auto news = client_->get(key(next_), Clock::now() + kAnswerLimit);
      ++next_;
      return news;
    } catch (const std::exception&) {
      client_.reset();
    }
  }
  return std::nullopt;
}

bool StoreNews::ask(std::chrono::milliseconds limit, base::Cut& cut, const Calls& calls) {
  const auto end = Clock::now() + limit;
  std::unique_lock lock(mutex_);
  ++asker_count_;
  base::ring(wake_);
  bool is_done = false;
  if (changed_.wait_until(lock, end, [this] { return !is_taken_; })) {
    is_taken_ = true;
    lock.unlock();
    try {
      if (!client_) client_ = connect(end, cut);
      client_->cut_by(&cut);
      calls(*client_, end);
      client_->cut_by(&stop_);
      is_done = true;
    } catch (const std::exception&) {
      client_.reset();
    }
    lock.lock();
    is_taken_ = false;
  }
  --asker_count_;
  changed_.notify_all();
  return is_done;
}

void StoreNews::tell(store::Client& store, const std::string& news, store::TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (heard_.contains(news)) return;  // the search below begins behind what was heard
  }
  for (std::uint64_t number = next_; store.compare_set(key(number), "", news, deadline) != news;) ++number;
}

bool StoreNews::wait_for(const std::string& news, std::chrono::milliseconds limit, base::Cut& cut) {
  const auto end = Clock::now() + limit;
  const base::Cut::Waker waker(&cut, [this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [&] { return is_over_ || cut.is_cut() || heard_.contains(news); });
  return heard_.contains(news);
}

}  // namespace ddp::core
