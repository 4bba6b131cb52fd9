// TLS 1.3 between those that have the same token, on sockets that do not block: encrypted, and proven both ways,
// without certificates. The pre-shared key and its name are made from the token (HKDF-SHA256), and every connection has
// fresh keys beside it (psk_dhe_ke), so a token that leaks later opens no recording. No tickets, no early data.
//
// OpenSSL is loaded when the first context is made, so that a job without a token does not pay for it.
//
// Threads: one caller at a time for each session, and for a context.
// Source: RFC 8446, RFC 9257, RFC 5869.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <memory>
#include <optional>

#include "rendezvous/security/token.hpp"

namespace ddp::security {

// What is wrong with the peer.
enum class TlsFailure {
  other_token,     // its token is not ours
  no_token_there,  // it is one of ours that has none
  stranger,        // it is something else
  broken           // what it sent was changed on its way
};

class TlsSession {
 public:
  enum class Want { nothing, read, write };

  // `want` says what the socket must be ready for before the same call is made again; nothing: it is done.
  struct Result {
    Want want = Want::nothing;
    std::size_t bytes = 0;
    boost::system::error_code error{};
  };

  virtual ~TlsSession() = default;

  virtual Result shake_hands() = 0;  // first
  virtual Result read_some(void* data, std::size_t size) = 0;
  virtual Result write_some(const void* data, std::size_t size) = 0;
  virtual std::optional<TlsFailure> failure() const = 0;  // where an error is none of the socket's
  virtual void say_goodbye() = 0;  // nothing more will be written; as far as the socket takes it at once
};

class Tls {
 public:
  enum class Side { client, server };

  // Throws TokenError where OpenSSL can't be loaded.
  explicit Tls(const Tokens& tokens);
  ~Tls();
  Tls(const Tls&) = delete;

  // The socket must live as long as the session, and this object too.
  std::unique_ptr<TlsSession> begin(int socket, Side side) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Tells a TLS client that is one of ours, and waits for an answer, that there is no token here.
void refuse_tls(int socket);

// What a process with a token has, for all of its connections; none: they are open.
struct Security {
  explicit Security(Tokens secrets) : tokens(std::move(secrets)), tls(tokens) {}

  Tokens tokens;
  Tls tls;
};

}  // namespace ddp::security
