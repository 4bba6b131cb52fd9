#include "rendezvous/membership/recovery.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kClaimsToldEach = 1min;
constexpr auto kLastOneWaits = 1s;

constexpr std::size_t kHalf = 16;  // digits

}  // namespace

std::string call_proof(const std::string& nonce) { return nonce.substr(0, kHalf) + std::string(kHalf, '0'); }
std::string answer_proof(const std::string& nonce) {
  return nonce.size() < kHalf ? "" : std::string(kHalf, '0') + nonce.substr(kHalf);
}
bool is_answer_proof(const std::string& proof, const std::vector<std::string>& nonces) {
  return !proof.empty() && std::any_of(nonces.begin(), nonces.end(),
                                       [&](const std::string& nonce) { return answer_proof(nonce) == proof; });
}

void Recovery::claim(const std::string& node_key, const Held& held, bool is_own, TimePoint now) {
  claims_.add(node_key, held, is_own);
  if (!deadline_) deadline_ = now + timeout_;
}

std::optional<Recovery::Decision> Recovery::decision(TimePoint now) const {
  auto choice = claims_.choice(lost_group_rank_);
  if (!choice) return Decision{};
  if (now >= decided_at(*choice)) return Decision{std::move(choice)};
  return {};
}

Recovery::TimePoint Recovery::decided_at(const Claims::Choice& choice) const {
  if (!choice.is_greater_part && !choice.is_whole) return *deadline_;
  if (!choice.is_lone) return {};
  // The last one that is left: no other member can bear it out.
  const bool is_last = choice.is_whole && !choice.gone.empty();
  return is_last ? *deadline_ - timeout_ + kLastOneWaits : *deadline_;
}

std::optional<Recovery::TimePoint> Recovery::deadline() const {
  if (!are_claims_open()) return deadline_;
  const auto choice = claims_.choice(lost_group_rank_);
  const auto at = choice ? decided_at(*choice) : TimePoint{};
  return at == TimePoint{} ? *deadline_ : at;  // what is clear is decided as it comes
}

void Recovery::close_claims() {
  if (!is_adopted_) deadline_.reset();
  claims_.forget();
}

void Recovery::adopt(const Held& held, bool began_here, TimePoint now) {
  if (!are_claims_open()) deadline_ = now + timeout_;
  is_adopted_ = true;
  was_given_up_ = false;
  began_here_ = began_here;
  awaited_ = RankSet::below(held.group_world_size);
  nonces_ = held.nonces;
}

bool Recovery::is_over_now() {
  if (awaits_anyone() || !deadline_) return false;
  deadline_.reset();
  return true;
}

std::string Recovery::give_up() {
  auto out = nodes_text(awaited_);
  was_given_up_ = true;
  awaited_.clear();
  return out;
}

void Recovery::reset_wait() {
  awaited_.clear();
  deadline_.reset();
}

void Recovery::begin_own_round() { is_adopted_ = was_given_up_ = false; }

void Recovery::add_nonce(std::string nonce) {
  nonces_.insert(nonces_.begin(), std::move(nonce));
  if (nonces_.size() > kNoncesMax) nonces_.pop_back();
}

bool Recovery::proves_last_round(const std::vector<std::string>& of_node) const {
  const auto first_of = [](const std::vector<std::string>& nonces) {
    return nonces.empty() ? std::nullopt : std::optional(nonces.front());
  };
  return first_of(of_node) == first_of(nonces_);
}

bool Recovery::proves_any_round(const Held& held) const {
  return std::any_of(held.nonces.begin(), held.nonces.end(), [&](const std::string& nonce) {
    return std::find(nonces_.begin(), nonces_.end(), nonce) != nonces_.end();
  });
}

// An older program calls with whole nonces.
std::optional<std::string> Recovery::nonce_of_call(const Held& held) const {
  for (const auto& nonce : nonces_)
    for (const auto& told : held.nonces)
      if (call_proof(told) == call_proof(nonce)) return nonce;
  return {};
}

std::optional<std::string> Recovery::tell_claim(const std::string& place, std::uint32_t round, TimePoint now) {
  if (now < next_claim_told_) {
    ++claims_untold_;
    return {};
  }
  next_claim_told_ = now + kClaimsToldEach;
  return claim_ignored_text(place, round, std::exchange(claims_untold_, 0));
}

}  // namespace ddp::rendezvous
