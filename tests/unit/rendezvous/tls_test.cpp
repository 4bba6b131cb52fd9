// Sessions under TLS, with what goes over the wire in the test's hands.
#include "rendezvous/security/tls.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/unique_fd.hpp"

namespace ddp::security {
namespace {

using Side = Tls::Side;
using Want = TlsSession::Want;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kPatienceMs = 60'000;

struct Wire {
  base::UniqueFd near, far;
};

Wire wire() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw std::runtime_error("socketpair");
  return {base::UniqueFd(fds[0]), base::UniqueFd(fds[1])};
}

// Two sessions and, between them, what one has sent and the other has not been given yet.
class Pair {
 public:
  Pair(const Tls& of_client, const Tls& of_server)
      : client(of_client.begin(client_wire_.near.get(), Side::client)),
        server(of_server.begin(server_wire_.near.get(), Side::server)) {}

  // Carries over what is on its way, changed by `change`; returns what it was.
  std::string carry_to_server(const std::function<void(std::string&)>& change = {}) {
    return carry(client_wire_.far, server_wire_.far, change);
  }
  std::string carry_to_client(const std::function<void(std::string&)>& change = {}) {
    return carry(server_wire_.far, client_wire_.far, change);
  }

  // Both sides' outcome.
  std::pair<TlsSession::Result, TlsSession::Result> shake_hands() {
    TlsSession::Result of_client, of_server;
    for (int i = 0; i < 4; ++i) {
      if (!of_client.error) of_client = client->shake_hands();
      carry_to_server();
      if (!of_server.error) of_server = server->shake_hands();
      carry_to_client();
    }
    return {of_client, of_server};
  }

 private:
  static std::string carry(const base::UniqueFd& from, const base::UniqueFd& to,
                           const std::function<void(std::string&)>& change) {
    std::string bytes(100'000, '\0');
    const ssize_t count = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    auto sent = bytes;
    if (change) change(sent);
    if (::send(to.get(), sent.data(), sent.size(), 0) != static_cast<ssize_t>(sent.size()))
      throw std::runtime_error("send");
    return bytes;
  }

  Wire client_wire_ = wire(), server_wire_ = wire();

 public:
  std::unique_ptr<TlsSession> client, server;
};

TEST(Tls, CarriesWhatIsSentAndShowsItToNobodyElse) {
  const Tls tls(Token("secret_of_a_test"));
  Pair pair(tls, tls);
  const auto [of_client, of_server] = pair.shake_hands();
  ASSERT_FALSE(of_client.error || of_server.error);
  ASSERT_EQ(of_client.want, Want::nothing);
  ASSERT_EQ(of_server.want, Want::nothing);
  const std::string text = "the word of a node";
  ASSERT_EQ(pair.client->write_some(text.data(), text.size()).bytes, text.size());
  EXPECT_THAT(pair.carry_to_server(), Not(HasSubstr("word")));
  char room[100];
  const auto read = pair.server->read_some(room, sizeof room);
  EXPECT_EQ(std::string(room, read.bytes), text);
  EXPECT_EQ(pair.server->read_some(room, sizeof room).want, Want::read);
  pair.client->say_goodbye();
  pair.carry_to_server();
  EXPECT_EQ(pair.server->read_some(room, sizeof room).error, boost::asio::error::eof);
  EXPECT_FALSE(pair.server->failure());
}

TEST(Tls, NoticesWhatWasChangedOnItsWay) {
  const Tls tls(Token("secret_of_a_test"));
  Pair pair(tls, tls);
  pair.shake_hands();
  ASSERT_EQ(pair.client->write_some("word", 4).bytes, 4u);
  pair.carry_to_server([](std::string& bytes) { bytes.back() = static_cast<char>(bytes.back() ^ 1); });
  char room[100];
  EXPECT_TRUE(pair.server->read_some(room, sizeof room).error);
  EXPECT_EQ(pair.server->failure(), TlsFailure::broken);
}

TEST(Tls, TellsAnotherTokenFromAStranger) {
  const Tls tls(Token("secret_of_a_test")), other(Token("secret_of_a_tes_"));
  Pair pair(other, tls);
  const auto [of_client, of_server] = pair.shake_hands();
  EXPECT_TRUE(of_client.error && of_server.error);
  EXPECT_EQ(pair.client->failure(), TlsFailure::other_token);
  EXPECT_EQ(pair.server->failure(), TlsFailure::other_token);
}

TEST(Tls, AcceptsEachOfTwoTokensAndConnectsWithTheFirst) {
  const Token old_one("the_old_token_of_the_nodes"), new_one("the_new_token_of_the_nodes");
  const auto both = [](const Token& first, const Token& second) {
    return Tokens::of_lines(std::string(first.text()) + "\n" + std::string(second.text()));
  };
  const struct {
    const char* what;
    Tokens client, server;
    bool connects;
  } cases[] = {{"step 1: old to old and new", old_one, both(old_one, new_one), true},
               {"step 1: old and new to old", both(old_one, new_one), old_one, true},
               {"step 2: new and old to old and new", both(new_one, old_one), both(old_one, new_one), true},
               {"step 2: old and new to new and old", both(old_one, new_one), both(new_one, old_one), true},
               {"step 3: new and old to new", both(new_one, old_one), new_one, true},
               {"step 3: new to new and old", new_one, both(new_one, old_one), true},
               {"only the first connects", both(new_one, old_one), old_one, false},
               {"old to new", old_one, new_one, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const Tls of_client(c.client), of_server(c.server);
    Pair pair(of_client, of_server);
    const auto [client, server] = pair.shake_hands();
    EXPECT_EQ(!client.error && !server.error, c.connects);
    if (c.connects) continue;
    EXPECT_EQ(pair.client->failure(), TlsFailure::other_token);
    EXPECT_EQ(pair.server->failure(), TlsFailure::other_token);
  }
}

// Drives a session to its end while something else is at the far side.
TlsSession::Result end_of_handshake(TlsSession& session, int socket) {
  while (true) {
    const auto progress = session.shake_hands();
    if (progress.error || progress.want == Want::nothing) return progress;
    pollfd ready{socket, static_cast<short>(progress.want == Want::read ? POLLIN : POLLOUT), 0};
    if (::poll(&ready, 1, kPatienceMs) != 1) return {Want::nothing, 0, boost::asio::error::timed_out};
  }
}

// OpenSSL as others use it.
struct Foreign {
  explicit Foreign(const SSL_METHOD* method) : context(::SSL_CTX_new(method)) {}
  ~Foreign() { ::SSL_CTX_free(context); }

  void get_certificate() {
    EVP_PKEY* const key = ::EVP_EC_gen("P-256");
    X509* const certificate = ::X509_new();
    ::X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    ::X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    ::X509_set_pubkey(certificate, key);
    ::X509_sign(certificate, key, ::EVP_sha256());
    ASSERT_EQ(::SSL_CTX_use_certificate(context, certificate), 1);
    ASSERT_EQ(::SSL_CTX_use_PrivateKey(context, key), 1);
    ::X509_free(certificate);
    ::EVP_PKEY_free(key);
  }

  // The handshake on this socket, which waits; whether it came to its end.
  bool shakes_hands(int socket, bool is_client) const {
    SSL* const ssl = ::SSL_new(context);
    ::SSL_set_fd(ssl, socket);
    const int result = is_client ? ::SSL_connect(ssl) : ::SSL_accept(ssl);
    char byte;
    const bool is_open = result == 1 && (!is_client || ::SSL_read(ssl, &byte, 1) > 0);  // a server may refuse late
    ::SSL_free(ssl);
    return is_open;
  }

  SSL_CTX* context;
};

class TlsOfOthers : public ::testing::Test {
 protected:
  TlsOfOthers() { ::fcntl(ours.get(), F_SETFL, O_NONBLOCK); }

  Wire both = wire();
  base::UniqueFd &ours = both.near, &theirs = both.far;
  const Tls tls{Token("secret_of_a_test")};
};

TEST_F(TlsOfOthers, ACertificateIsNoTokenForAClient) {
  Foreign server(::TLS_server_method());
  server.get_certificate();
  std::thread other([&] {
    server.shakes_hands(theirs.get(), false);
    theirs.reset();
  });
  const auto session = tls.begin(ours.get(), Side::client);
  EXPECT_TRUE(end_of_handshake(*session, ours.get()).error);
  EXPECT_EQ(session->failure(), TlsFailure::stranger);
  ours.reset();
  other.join();
}

TEST_F(TlsOfOthers, NobodyIsLetInWithoutAToken) {
  for (const bool has_certificate : {false, true}) {
    SCOPED_TRACE(has_certificate);
    both = wire();
    ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
    Foreign client(::TLS_client_method());
    if (has_certificate) client.get_certificate();
    bool was_let_in = true;
    std::thread other([&] { was_let_in = client.shakes_hands(theirs.get(), true); });
    {
      const auto session = tls.begin(ours.get(), Side::server);
      EXPECT_TRUE(end_of_handshake(*session, ours.get()).error);
      EXPECT_EQ(session->failure(), TlsFailure::stranger);
    }
    ours.reset();
    other.join();
    EXPECT_FALSE(was_let_in);
  }
}

TEST(TlsOfUs, OldVersionsAndKeysWithoutForwardSecrecyAreNotTaken) {
  const Tls tls(Token("secret_of_a_test"));
  Pair pair(tls, tls);
  pair.client->shake_hands();
  const auto hello = pair.carry_to_server();
  // RFC 8446, 4.2.9: extension 45 with one mode, psk_dhe_ke (1); 4.2.1: extension 43 with one version, 0x0304.
  EXPECT_THAT(hello, HasSubstr(std::string("\x00\x2d\x00\x02\x01\x01", 6)));
  EXPECT_THAT(hello, HasSubstr(std::string("\x00\x2b\x00\x03\x02\x03\x04", 7)));
  EXPECT_THAT(hello, HasSubstr("ddprun")) << "the key's name";
}

}  // namespace
}  // namespace ddp::security
