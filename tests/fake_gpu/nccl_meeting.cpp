#include "tests/fake_gpu/nccl_meeting.hpp"

#include <optional>
#include <utility>

namespace ddp::fake_gpu {

namespace {

// Rank 0 of a meeting: takes in all the others, hears who they are, and tells all.
class Host {
 public:
  Host(const Whereabouts& own, int listener, const base::Cut& abort)
      : listener_(listener), abort_(abort), said_(static_cast<std::size_t>(own.size)) {
    said_[0] = own;
  }

  Outcome meet(std::vector<Whereabouts>& all) {
    for (std::size_t heard = 1; heard < said_.size();) {
      // A guest that has been heard says nothing more: its socket is readable when it has gone.
      std::vector<int> sockets{listener_};
      for (const base::UniqueFd& guest : guests_) sockets.push_back(guest.get());
      const auto ready = wait_readable(sockets, abort_);
      if (!ready) return Outcome::aborted;
      if (*ready != 0) return Outcome::peer_gone;
      if (const Outcome outcome = hear_one(); outcome != Outcome::done) return outcome;
      ++heard;
    }
    all.clear();
    for (const auto& each : said_) all.push_back(*each);
    for (const base::UniqueFd& guest : guests_) write_small(guest.get(), all.data(), all.size() * sizeof(Whereabouts));
    return Outcome::done;
  }

 private:
  Outcome hear_one() {
    base::UniqueFd guest;
    Whereabouts said;
    Outcome outcome = accept_one(listener_, abort_, guest);
    if (outcome == Outcome::done) outcome = read_all(guest.get(), &said, sizeof said, abort_);
    if (outcome != Outcome::done) return outcome;
    const auto rank = static_cast<std::size_t>(said.rank);
    if (said.size != static_cast<int>(said_.size()) || rank >= said_.size() || said_[rank]) return Outcome::mismatch;
    said_[rank] = said;
    guests_.push_back(std::move(guest));
    return Outcome::done;
  }

  int listener_;
  const base::Cut& abort_;
  std::vector<base::UniqueFd> guests_;
  std::vector<std::optional<Whereabouts>> said_;  // by rank
};

}  // namespace

std::string address_of(const std::string& name, int rank) { return name + "/" + std::to_string(rank); }

Outcome meet(const std::string& name, const Whereabouts& own, int listener, const base::Cut& abort,
             std::vector<Whereabouts>& all) {
  if (own.rank == 0) return Host(own, listener, abort).meet(all);
  const auto host = connect_to(address_of(name, 0));
  if (!host || !write_small(host->get(), &own, sizeof own)) return Outcome::peer_gone;
  all.resize(static_cast<std::size_t>(own.size));
  return read_all(host->get(), all.data(), all.size() * sizeof(Whereabouts), abort);
}

Outcome connect_all(const std::vector<std::string>& addresses, int own, int listener, const base::Cut& abort,
                    Links& links) {
  const auto count = static_cast<int>(addresses.size());
  links.resize(addresses.size());
  for (int lower = 0; lower < own; ++lower) {
    auto link = connect_to(addresses[static_cast<std::size_t>(lower)]);
    if (!link || !write_small(link->get(), &own, sizeof own)) return Outcome::peer_gone;
    links[static_cast<std::size_t>(lower)] = std::move(*link);
  }
  for (int higher = own + 1; higher < count; ++higher) {
    base::UniqueFd link;
    int who = 0;
    Outcome outcome = accept_one(listener, abort, link);
    if (outcome == Outcome::done) outcome = read_all(link.get(), &who, sizeof who, abort);
    if (outcome != Outcome::done) return outcome;
    if (who <= own || who >= count) return Outcome::mismatch;
    links[static_cast<std::size_t>(who)] = std::move(link);
  }
  return Outcome::done;
}

}  // namespace ddp::fake_gpu
