#include "worker_runtime/backends/nccl/failure_board.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::nccl_backend {

namespace {

constexpr std::chrono::seconds kConnectLimit{10};
constexpr std::chrono::seconds kTellLimit{1};

store::TimePoint after(std::chrono::milliseconds limit) { return std::chrono::steady_clock::now() + limit; }

}  // namespace

std::optional<StoreAddress> address_of(const store::Client& store) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(store.descriptor(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return std::nullopt;
  }
  StoreAddress found{host, 0};
  const auto [end, error] = std::from_chars(service, service + std::strlen(service), found.port);
  return error == std::errc() && *end == '\0' ? std::optional(found) : std::nullopt;
}

store::Client FailureBoard::connect(store::TimePoint deadline, io::Cut& cut) const {
  return store::Client::connect(
      {.host = place_.store.host, .port = place_.store.port, .deadline = deadline, .cut = &cut});
}

std::optional<Failure> FailureBoard::listen(io::Cut& cut) const {
  try {
    store::Client store = connect(after(kConnectLimit), cut);
    const std::string report = store.get(key("report"), after(process_group::kTimeoutMax));
    return core::decode_failure(report, place_.size);
  } catch (const Error&) {  // cut, or the store is gone
    return std::nullopt;
  }
}

Failure FailureBoard::tell(const Failure& own, const RankProgress& progress, std::chrono::milliseconds limit,
                           io::Cut& cut) {
  Failure first = own;
  try {
    const auto deadline = after(limit);
    store_ = connect(deadline, cut);
    const std::string report = store_->compare_set(key("report"), "", encode(own), deadline);
    first = core::decode_failure(report, place_.size).value_or(own);
    store_->append(key("progress"), encode(place_.rank, progress), deadline);
    if (store_->add(key("answers"), 1, deadline) >= place_.size) store_->set(key("all"), "", deadline);
  } catch (const Error&) {  // nobody hears it, or it hurries
    store_.reset();
  }
  return first;
}

bool FailureBoard::leave(std::chrono::milliseconds limit, io::Cut& cut) {
  try {
    if (!std::exchange(is_leaving_, true)) {
      const auto deadline = after(kTellLimit);
      store_ = connect(deadline, cut);
      if (store_->add(key("leaving"), 1, deadline) >= place_.size) store_->set(key("all_leave"), "", deadline);
    }
    if (!store_) return false;
    store_->wait({key("all_leave")}, after(limit));
    return true;
  } catch (const Error&) {
    return false;
  }
}

void FailureBoard::wait_for_answers(std::chrono::milliseconds limit) {
  if (!store_) return;
  try {
    store_->wait({key("all")}, after(limit));
  } catch (const TimeoutError&) {  // the client stays usable: what has come by now is what there is
  } catch (const Error&) {
    store_.reset();
  }
}

std::vector<std::optional<RankProgress>> FailureBoard::collect(std::chrono::milliseconds limit) {
  wait_for_answers(limit);
  if (!store_) return {};
  try {
    return core::decode_progress(store_->get(key("progress"), after(limit)), place_.size);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace ddp::nccl_backend
