#include "worker_runtime/core/bootstrap/store_agreement.hpp"

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/error.hpp"

namespace ddp::core {

namespace {

constexpr std::string_view kGood = "good";
constexpr std::string_view kRefused = "refused: ";
constexpr std::size_t kMissingMax = 64;  // ranks that are looked for by name
constexpr std::chrono::seconds kLookLimit{1};

std::string arrival_key(int rank) { return "here/" + std::to_string(rank); }

}  // namespace

StoreAgreement::StoreAgreement(StartingRank own, Store& store, std::string key_prefix, const base::Deadline& deadline)
    : own_(std::move(own)), store_(store), key_prefix_(std::move(key_prefix)), deadline_(deadline) {
  store_.add(key(arrival_key(own_.rank)), 1, deadline_.end());
}

std::string StoreAgreement::first(const std::string& name, const std::string& value) {
  if (store_.add(key(name) + "/givers", 1, deadline_.end()) > 1) return take(name);
  give(name, value);
  return value;
}

void StoreAgreement::give(const std::string& name, const std::string& value) {
  store_.set(key(name), value, deadline_.end());
}

std::string StoreAgreement::take(const std::string& name) { return store_.get(key(name), deadline_.end()); }

void StoreAgreement::refuse(const std::string& why) { first("verdict", std::string(kRefused) + why); }

void StoreAgreement::wait_for_all() {
  std::string verdict;
  try {
    const bool is_last = store_.add(key("arrived"), 1, deadline_.end()) >= own_.size;
    verdict = is_last ? first("verdict", std::string(kGood)) : take("verdict");
  } catch (const TimeoutError&) {
    throw_missing();
  }
  if (verdict == kGood) return;
  if (verdict.starts_with(kRefused)) throw InvalidArgument(verdict.substr(kRefused.size()));
  throw StoreError("the key '" + key("verdict") + "' of the store holds '" + verdict.substr(0, 100) + "'");
}

void StoreAgreement::throw_missing() {
  std::vector<int> missing;
  const auto end = std::chrono::steady_clock::now() + kLookLimit;
  for (int rank = 0; rank < own_.size && missing.size() < kMissingMax; ++rank) {
    if (store_.add(key(arrival_key(rank)), 0, end) == 0) missing.push_back(rank);
  }
  throw TimeoutError(did_not_join_message(own_, missing, deadline_.full_time()), missing);
}

}  // namespace ddp::core
