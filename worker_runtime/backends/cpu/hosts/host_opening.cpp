#include "worker_runtime/backends/cpu/hosts/host_opening.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kGatheredBytes = 256u << 10;  // of all hosts together
constexpr std::size_t kAlignment = 16;              // of each host's bytes, which are summed where they arrive
constexpr std::array<std::byte, kAlignment> kPadding{};

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What a fingerprint says that ranks must not differ in.
struct Call {
  std::uint64_t what = 0;
  std::uint64_t count = 0;
};

}  // namespace

// Before the bytes of a host, and before its calls, of which there is one where all ranks made the same. A change of it
// changes RankHello::magic.
struct HostOpening::Head {
  std::uint64_t bytes = 0;
  std::uint64_t calls = 0;
};

std::size_t HostOpening::bytes_max(int host_count) { return kGatheredBytes / static_cast<std::size_t>(host_count); }

HostOpening::HostOpening(const HostLayout& layout, int own_host)
    : layout_(layout), own_(static_cast<std::size_t>(own_host)), hosts_(static_cast<std::size_t>(layout.host_count())) {
  std::size_t room = 0;
  for (int host = 0; host < layout.host_count(); ++host) room += sent_bytes_max(host);
  received_.resize(room);
}

std::size_t HostOpening::sent_bytes_max(int host) const {
  return sizeof(Head) + layout_.ranks_of(host).size() * sizeof(Call) + padded(bytes_max(layout_.host_count()));
}

HostStreams::End HostOpening::run(HostStreams& streams, const std::vector<Fingerprint>& calls,
                                  std::span<const std::byte> own_bytes,
                                  const std::function<std::size_t(int host)>& bytes_of, const HostStreams::Wait& wait) {
  write_own_head(calls, own_bytes.size());
  hosts_[own_].bytes = own_bytes;
  const auto padding = std::span(kPadding).first(padded(own_bytes.size()) - own_bytes.size());
  std::size_t received = 0;
  for (std::size_t distance = 1; distance < hosts_.size(); distance *= 2) {
    const std::size_t count = std::min(distance, hosts_.size() - distance);  // of hosts
    std::size_t expected = 0;
    std::size_t most = 0;
    for (std::size_t i = distance; i < distance + count; ++i) {
      expected += sizeof(Head) + sizeof(Call) + padded(bytes_of(host_after(i)));
      most += sent_bytes_max(host_after(i));
    }
    const std::size_t passed_on = count > 1 ? hosts_[static_cast<std::size_t>(host_after(count - 1))].end : 0;
    const std::array<std::span<const std::byte>, 4> parts{own_head_, own_bytes, padding,
                                                          std::span(received_).first(passed_on)};
    HostStreams::Swap swap{.to = host_after(hosts_.size() - distance),
                           .from = host_after(distance),
                           .out = parts,
                           .in = std::span(received_).subspan(received, most),
                           .expected = expected};
    auto end = streams.swap(swap, wait);
    if (end.kind != HostStreams::End::Kind::complete) return end;
    const std::size_t up_to = received + swap.received;
    for (std::size_t i = distance; i < distance + count; ++i) received = take_in(received, up_to, host_after(i));
    if (received != up_to) refuse(swap.from);
  }
  compare(bytes_of);
  return {};
}

void HostOpening::write_own_head(const std::vector<Fingerprint>& calls, std::size_t bytes) {
  static_assert(sizeof(Head) % kAlignment == 0 && sizeof(Call) % kAlignment == 0);
  const auto is_first = [&](const Fingerprint& call) { return same_call(call, calls.front()); };
  const bool is_one = std::all_of(calls.begin(), calls.end(), is_first);
  hosts_[own_].calls.assign(calls.begin(), is_one ? calls.begin() + 1 : calls.end());
  const Head head{bytes, hosts_[own_].calls.size()};
  own_head_.resize(sizeof head + hosts_[own_].calls.size() * sizeof(Call));
  std::memcpy(own_head_.data(), &head, sizeof head);
  for (std::size_t i = 0; i < hosts_[own_].calls.size(); ++i) {
    const FingerprintWords words = encode(hosts_[own_].calls[i]);
    const Call call{words[0], words[1]};
    std::memcpy(own_head_.data() + sizeof head + i * sizeof call, &call, sizeof call);
  }
}

// What host `host` sent, which begins at `at` and ends before `up_to`. Returns where the next one's begins.
std::size_t HostOpening::take_in(std::size_t at, std::size_t up_to, int host) {
  OfHost& sender = hosts_[static_cast<std::size_t>(host)];
  Head head;
  if (up_to - at < sizeof head) refuse(host);
  std::memcpy(&head, received_.data() + at, sizeof head);
  at += sizeof head;
  const std::size_t ranks = layout_.ranks_of(host).size();
  const bool is_known = (head.calls == 1 || head.calls == ranks) && head.bytes <= bytes_max(layout_.host_count()) &&
                        up_to - at >= head.calls * sizeof(Call) + padded(head.bytes);
  if (!is_known) refuse(host);
  sender.calls.clear();
  for (std::size_t i = 0; i < head.calls; ++i, at += sizeof(Call)) {
    Call call;
    std::memcpy(&call, received_.data() + at, sizeof call);
    sender.calls.push_back(core::decode({call.what, call.count, 0}));
  }
  sender.bytes = std::span<const std::byte>(received_).subspan(at, head.bytes);
  return sender.end = at + padded(head.bytes);
}

void HostOpening::compare(const std::function<std::size_t(int host)>& bytes_of) {
  is_same_everywhere_ = std::all_of(hosts_.begin(), hosts_.end(), [&](const OfHost& host) {
    return host.calls.size() == 1 && same_call(host.calls.front(), hosts_.front().calls.front());
  });
  for (int host = 0; is_same_everywhere_ && host < layout_.host_count(); ++host) {
    const OfHost& each = hosts_[static_cast<std::size_t>(host)];
    if (each.bytes.size() != bytes_of(host)) refuse(host);
  }
}

Fingerprint HostOpening::call_of(int rank) const {
  const OfHost& host = hosts_[static_cast<std::size_t>(layout_.host_of(rank))];
  return host.calls.size() == 1 ? host.calls.front() : host.calls[static_cast<std::size_t>(layout_.index_of(rank))];
}

void HostOpening::refuse(int host) const {
  throw Error("rank " + std::to_string(layout_.leader_of(host)) +
              " opened a call as no rank does\nwhere: the connection between two hosts of the process group");
}

}  // namespace ddp::cpu_backend
