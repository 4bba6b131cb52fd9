// What every backend starts from: who this rank is, the store in which the ranks have met, and how they met.
//
// Threads: one caller.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/launch.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

struct Bootstrap {
  process_group::GroupMember who;
  std::shared_ptr<Store> store{};      // null for a group of one
  std::string key_prefix{};            // of this group in the store; no other group has had it in this round
  std::optional<StoreAddress> news{};  // of a store for the news of failures (core/failure/store_news.hpp)
  std::string news_prefix{};           // of the keys of these news: the same for all groups of the round
  Meeting meeting{};                   // one backend takes the file, the pidfds and the connections out of it
  bool lets_any_read = false;          // DDP_PTRACE=any: see backends/cpu/memory/peer_memory.hpp
};

// Meets the other ranks. `store_allow`: see connect_to_rank0(). Throws as init_process_group().
Bootstrap meet_ranks(const Launch& launch, const MakeSharedFile& make_shared_file, const std::string& store_allow,
                     base::Deadline& deadline);

// Every rank calls it when the backends have begun. On rank 0, if that serves the store, it waits until all have.
void leave_store(const Launch& launch, const Bootstrap& bootstrap, const base::Deadline& deadline);

}  // namespace ddp::core
