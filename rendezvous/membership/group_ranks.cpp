#include "rendezvous/membership/group_ranks.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string_view>
#include <tuple>

namespace ddp::rendezvous {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

bool is_before_naturally(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const auto take_number = [](const std::string& text, std::size_t& at) {
        while (at < text.size() && text[at] == '0') ++at;
        const auto begin = at;
        while (at < text.size() && is_digit(text[at])) ++at;
        return std::string_view(text).substr(begin, at - begin);
      };
      const auto x = take_number(a, i), y = take_number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

std::vector<std::size_t> give_group_ranks(const std::vector<RankCandidate>& candidates, std::size_t nodes_max) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto goes_before = [&](std::size_t a, std::size_t b) {
    const auto &x = candidates[a], &y = candidates[b];
    if (x.group_rank.has_value() != y.group_rank.has_value()) return x.group_rank.has_value();
    if (x.wish.has_value() != y.wish.has_value()) return x.wish.has_value();
    if (x.is_endpoint_host != y.is_endpoint_host) return x.is_endpoint_host;
    return is_before_naturally(x.host_name, y.host_name);
  };
  std::stable_sort(order.begin(), order.end(), goes_before);
  if (order.size() > nodes_max) {
    const auto place = [&](std::size_t a) {
      const auto& its = candidates[a];
      return std::tuple(!its.has_newest_work, !its.group_rank, !its.has_older_work);
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    order.resize(nodes_max);
    std::stable_sort(order.begin(), order.end(), goes_before);
  }
  std::vector<std::optional<std::size_t>> by_rank(order.size());
  std::vector<std::size_t> without_wish;
  for (const auto index : order) {
    const auto& candidate = candidates[index];
    const auto wish = candidate.group_rank ? candidate.group_rank : candidate.wish;
    if (wish && static_cast<std::size_t>(*wish) < by_rank.size() && !by_rank[static_cast<std::size_t>(*wish)])
      by_rank[static_cast<std::size_t>(*wish)] = index;
    else
      without_wish.push_back(index);
  }
  auto next = without_wish.begin();
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) order[rank] = by_rank[rank] ? *by_rank[rank] : *next++;
  return order;
}

}  // namespace ddp::rendezvous
