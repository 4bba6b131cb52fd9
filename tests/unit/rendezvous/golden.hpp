// What PyTorch's client and server (torch 2.15, libuv) said to each other in one session, recorded between them.
//
// The Python client puts a slash before each key. One answer is not as recorded: list_keys came in the order of the
// server's hash table, and is in the order of the keys here.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "rendezvous/store/codec.hpp"

namespace ddp::store {

inline std::string bytes_of(const std::string& hex) {  // "01 ff" -> two bytes
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 3) {
    bytes += static_cast<char>(std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

struct Exchange {
  const char* what;
  Command command;
  std::string sent;      // by the client
  std::string answered;  // by the server, with the keys that the exchanges before it left
};

inline const std::string kGoldenValidate = bytes_of("00 ce f7 85 3c");

// In the order of the session, after VALIDATE.
inline const std::vector<Exchange>& golden_session() {
  // clang-format off
  static const std::vector<Exchange> session = {
      {"ping", command::Ping{0x0eb1}, bytes_of("0d b1 0e 00 00"), bytes_of("b1 0e 00 00")},
      {"set", command::Set{"/k", "v"},
       bytes_of("01 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76"), ""},
      {"wait, key is there", command::Wait{{"/k"}},
       bytes_of("06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b"), bytes_of("00")},
      {"get", command::Get{"/k"},
       bytes_of("03 02 00 00 00 00 00 00 00 2f 6b"), bytes_of("01 00 00 00 00 00 00 00 76")},
      {"add", command::Add{"/n", 5},
       bytes_of("04 02 00 00 00 00 00 00 00 2f 6e 05 00 00 00 00 00 00 00"), bytes_of("05 00 00 00 00 00 00 00")},
      {"check", command::Check{{"/k", "/zz"}},
       bytes_of("05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 7a 7a"),
       bytes_of("01")},
      {"wait, key is missing", command::Wait{{"/nope"}},
       bytes_of("06 01 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 2f 6e 6f 70 65"), ""},
      {"cancel_wait", command::CancelWait{}, bytes_of("0c"), bytes_of("01")},
      {"compare_set", command::CompareSet{"/k", "v", "w"},
       bytes_of("02 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76 01 00 00 00 00 00 00 00 77"),
       bytes_of("01 00 00 00 00 00 00 00 77")},
      {"compare_set, key is missing", command::CompareSet{"/q2", "", "w"},
       bytes_of("02 03 00 00 00 00 00 00 00 2f 71 32 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 77"),
       bytes_of("01 00 00 00 00 00 00 00 77")},
      {"num_keys", command::KeyCount{}, bytes_of("07"), bytes_of("03 00 00 00 00 00 00 00")},
      {"delete", command::Remove{"/k"},
       bytes_of("08 02 00 00 00 00 00 00 00 2f 6b"), bytes_of("01 00 00 00 00 00 00 00")},
      {"append", command::Append{"/k", "abc"},
       bytes_of("09 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 61 62 63"), ""},
      {"multi_set", command::MultiSet{{{"/a", "1"}, {"/b", "2"}}},
       bytes_of("0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31 "
                "02 00 00 00 00 00 00 00 2f 62 01 00 00 00 00 00 00 00 32"), ""},
      {"wait for both", command::Wait{{"/a", "/b"}},
       bytes_of("06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 62"),
       bytes_of("00")},
      {"multi_get", command::MultiGet{{"/a", "/b"}},
       bytes_of("0a 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 62"),
       bytes_of("01 00 00 00 00 00 00 00 31 01 00 00 00 00 00 00 00 32")},
      {"queue_push", command::QueuePush{"/Q", "x"},
       bytes_of("0e 02 00 00 00 00 00 00 00 2f 51 01 00 00 00 00 00 00 00 78"), ""},
      {"queue_len", command::QueueLength{"/Q"},
       bytes_of("10 02 00 00 00 00 00 00 00 2f 51"), bytes_of("01 00 00 00 00 00 00 00")},
      {"wait for the queue", command::Wait{{"/Q"}},
       bytes_of("06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 51"), bytes_of("00")},
      {"queue_pop", command::QueuePop{"/Q"},
       bytes_of("0f 02 00 00 00 00 00 00 00 2f 51"),
       bytes_of("01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 78")},
      {"list_keys", command::ListKeys{}, bytes_of("11"),
       bytes_of("05 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 62 "
                "02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e 03 00 00 00 00 00 00 00 2f 71 32")},
      {"barrier of one", command::Barrier{"/bb", 1},
       bytes_of("12 03 00 00 00 00 00 00 00 2f 62 62 01 00 00 00 00 00 00 00"), bytes_of("00")},
      {"barrier of two, one is missing", command::Barrier{"/bb2", 2},
       bytes_of("12 04 00 00 00 00 00 00 00 2f 62 62 32 02 00 00 00 00 00 00 00"), ""},
      {"cancel_wait of the barrier", command::CancelWait{}, bytes_of("0c"), bytes_of("01")},
  };
  // clang-format on
  return session;
}

}  // namespace ddp::store
