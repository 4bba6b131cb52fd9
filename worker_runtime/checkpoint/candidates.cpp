#include "worker_runtime/checkpoint/candidates.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace ddp::checkpoint {
namespace {

struct Key {
  CheckpointId id;
  Source source;
  std::uint64_t manifest_checksum;

  friend bool operator<(const Key& a, const Key& b) {  // newest first
    if (!(a.id == b.id)) return b.id < a.id;
    return std::tie(a.source, a.manifest_checksum) < std::tie(b.source, b.manifest_checksum);
  }
};

// Ranges [first, last] of consecutive numbers: ranks that share a disk offer all parts.
nlohmann::json ranges_of(const std::vector<std::size_t>& numbers) {
  auto ranges = nlohmann::json::array();
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    ranges.push_back({numbers[i], numbers[last]});
    i = last + 1;
  }
  return ranges;
}

}  // namespace

std::string encode(const std::vector<Offer>& offers) {
  auto json = nlohmann::json::array();
  for (const Offer& offer : offers) {
    json.push_back({to_string(offer.id.round), offer.id.step, static_cast<int>(offer.source), offer.part_count,
                    ranges_of(offer.parts), offer.place, offer.problem, offer.is_complete, offer.manifest_checksum});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<Offer> parse_offers(std::string_view text) {
  std::vector<Offer> offers;
  for (const nlohmann::json& json : nlohmann::json::parse(text)) {
    Offer offer{{parse_round_id(json[0].get<std::string>()).value_or(RoundId{}), json[1].get<std::uint64_t>()},
                static_cast<Source>(json[2].get<int>()),
                json[3].get<std::size_t>(),
                json[8].get<std::uint64_t>(),
                {},
                json[5].get<std::string>(),
                json[6].get<std::string>(),
                json[7].get<bool>()};
    for (const nlohmann::json& range : json[4]) {
      for (auto part = range[0].get<std::size_t>(); part <= range[1].get<std::size_t>(); ++part) {
        offer.parts.push_back(part);
      }
    }
    offers.push_back(std::move(offer));
  }
  return offers;
}

std::vector<Candidate> candidates_of(const std::vector<std::vector<Offer>>& offers) {
  struct Found {
    Candidate candidate;
    std::vector<std::vector<int>> holders;  // ranks by part
    bool has_manifest = false;
  };
  std::map<Key, Found> all;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    for (const Offer& offer : offers[rank]) {
      const auto [entry, is_new] = all.try_emplace({offer.id, offer.source, offer.manifest_checksum});
      auto& [candidate, holders, has_manifest] = entry->second;
      if (is_new) {
        candidate.id = offer.id;
        candidate.source = offer.source;
        candidate.place = offer.place;
        candidate.manifest_checksum = offer.manifest_checksum;
      }
      if (candidate.problem.empty()) candidate.problem = offer.problem;
      candidate.is_complete = candidate.is_complete && offer.is_complete;
      if (offer.part_count == 0) continue;
      if (!has_manifest) {
        candidate.manifest_rank = static_cast<int>(rank);
        holders.resize(offer.part_count);
        has_manifest = true;
      }
      for (const std::size_t part : offer.parts) {
        if (part < holders.size()) holders[part].push_back(static_cast<int>(rank));
      }
    }
  }
  std::vector<Candidate> candidates;
  for (auto& [key, found] : all) {
    Candidate& candidate = found.candidate;
    const auto without_manifest = all.find({key.id, key.source, 0});
    if (without_manifest != all.end() && !without_manifest->second.candidate.is_complete) candidate.is_complete = false;
    std::string missing;
    for (std::size_t part = 0; part < found.holders.size(); ++part) {
      const auto& holders = found.holders[part];
      if (holders.empty()) {
        missing =
            "no rank has the part of rank " + std::to_string(part) + " of " + std::to_string(found.holders.size());
        break;
      }
      // A rank that has the part of its own number mostly wants it itself.
      const bool has_own = std::find(holders.begin(), holders.end(), static_cast<int>(part)) != holders.end();
      candidate.providers.push_back(has_own ? static_cast<int>(part) : holders[part % holders.size()]);
    }
    if (found.has_manifest && missing.empty()) {
      candidate.problem.clear();  // what one rank lacks another has
    } else if (!missing.empty()) {
      candidate.problem = missing + (candidate.problem.empty() ? "" : ": " + candidate.problem);
    } else if (candidate.problem.empty()) {
      candidate.problem = "it has no manifest";
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

}  // namespace ddp::checkpoint
