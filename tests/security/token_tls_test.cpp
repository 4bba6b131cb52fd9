// TLS as others speak it, with a key that is derived from the token by the formula of docs/control_channel.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/security/nodes_with_tokens.hpp"

namespace ddp::test::token {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenTls : public ::testing::Test {
 protected:
  void SetUp() override {
    Job openssl({"openssl", "version"}, of_env());
    if (openssl.wait() != 0 || openssl.out().rfind("OpenSSL 3", 0) != 0)
      GTEST_SKIP() << "the program openssl of OpenSSL 3 is not installed";
    ASSERT_GT(daemon.port, 0) << daemon.program.err();
  }

  static Job::Options of_env() {
    Job::Options out;
    out.program = "/usr/bin/env";
    return out;
  }

  // What is derived from the token, in hexadecimal digits.
  static std::string derive(int bytes, const std::string& info) {
    Job kdf({"openssl", "kdf", "-keylen", std::to_string(bytes), "-kdfopt", "digest:SHA256", "-kdfopt", "key:" + kToken,
             "-kdfopt", "salt:ddprun", "-kdfopt", "info:control channel, " + info, "HKDF"},
            of_env());
    EXPECT_EQ(kdf.wait(), 0) << kdf.err();
    std::string out;
    for (const char c : kdf.out())
      if (c != ':' && c != '\n') out += c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    return out;
  }

  // What s_client prints that asks for the jobs: only who has the token is answered, because the host is no loopback.
  std::string jobs_by_s_client(const std::string& options) const {
    const auto request = "printf 'GET /v1/jobs HTTP/1.1\\r\\nHost: gpu17\\r\\n\\r\\n'";
    Job client({"sh", "-c",
                std::string(request) + " | openssl s_client -quiet -connect 127.0.0.1:" + std::to_string(daemon.port) +
                    " " + options},
               of_env());
    EXPECT_NE(client.wait(), -1);
    return client.out() + client.err();
  }

  const std::string key = derive(32, "TLS 1.3 pre-shared key"), name = "ddprun-" + derive(8, "name of the key");
  const std::string with_key = " -psk " + key + " -psk_identity " + name;
  Daemon daemon{with_token(kToken, "ddp-rendezvous")};
};

TEST_F(TokenTls, OpensslConnectsWithTheDerivedKey) {
  EXPECT_THAT(jobs_by_s_client("-tls1_3" + with_key), HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(jobs_by_s_client("-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256 -groups P-256" + with_key),
              HasSubstr("HTTP/1.1 200 OK"));
}

TEST_F(TokenTls, OpensslDoesNotConnectOtherwise) {
  const auto other_key = std::string(key.rbegin(), key.rend());
  const struct {
    const char* what;
    std::string options, says;
  } cases[] = {{"no key", "-tls1_3", "alert handshake failure"},
               {"TLS 1.2", "-tls1_2", "alert protocol version"},
               {"TLS 1.2 with the key", "-tls1_2 -cipher PSK" + with_key, "alert protocol version"},
               {"another key", "-tls1_3 -psk_identity " + name + " -psk " + other_key, "alert illegal parameter"},
               {"the key by another name", "-tls1_3 -psk_identity ddprun -psk " + key, "alert handshake failure"},
               {"a hash of another length", "-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384" + with_key,
                "alert handshake failure"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_THAT(jobs_by_s_client(c.options), AllOf(HasSubstr(c.says), Not(HasSubstr("HTTP/1.1"))));
  }
}

// --- a ClientHello by hand, because s_client always offers fresh keys too ---

std::string hmac(const std::string& secret, const std::string& text) {
  unsigned char out[SHA256_DIGEST_LENGTH];
  ::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), out, nullptr);
  return {reinterpret_cast<const char*>(out), sizeof out};
}

std::string sha256(const std::string& text) {
  unsigned char out[SHA256_DIGEST_LENGTH];
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out);
  return {reinterpret_cast<const char*>(out), sizeof out};
}

std::string from_hex(const std::string& digits) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    out += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return out;
}

// Preceded by its length, in so many bytes.
std::string counted(int bytes, const std::string& text) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

std::string extension(unsigned char type, const std::string& content) {
  return std::string{0, static_cast<char>(type)} + counted(2, content);
}

// RFC 8446, 7.1, of one block.
std::string expand_label(const std::string& secret, const std::string& label, const std::string& context) {
  return hmac(secret, std::string("\0\x20", 2) + counted(1, "tls13 " + label) + counted(1, context) + "\x01");
}

// A record with a ClientHello that proves the key, and allows this one mode: 0 is psk_ke, 1 is psk_dhe_ke.
std::string client_hello(const std::string& key, const std::string& name, char mode) {
  const std::string point = "\x09" + std::string(31, '\0');  // X25519's base point
  const auto extensions = extension(43, std::string("\x02\x03\x04", 3)) +
                          extension(10, std::string("\x00\x02\x00\x1d", 4)) +
                          extension(13, std::string("\x00\x02\x04\x03", 4)) + extension(45, std::string{1, mode}) +
                          extension(51, counted(2, std::string("\x00\x1d", 2) + counted(2, point)));
  const auto identities = counted(2, counted(2, name) + std::string(4, '\0'));
  const auto hello_with = [&](const std::string& binder) {
    const auto body = std::string("\x03\x03", 2) + std::string(32, 'r') + counted(1, "") +
                      counted(2, std::string("\x13\x01", 2)) + counted(1, std::string(1, '\0')) +
                      counted(2, extensions + extension(41, identities + counted(2, counted(1, binder))));
    return "\x01" + counted(3, body);
  };
  const auto without = hello_with(std::string(SHA256_DIGEST_LENGTH, '\0'));
  const auto early_secret = hmac(std::string(SHA256_DIGEST_LENGTH, '\0'), key);
  const auto binder_key = expand_label(early_secret, "ext binder", sha256(""));
  const auto truncated = without.substr(0, without.size() - SHA256_DIGEST_LENGTH - 3);
  const auto hello = hello_with(hmac(expand_label(binder_key, "finished", ""), sha256(truncated)));
  return std::string("\x16\x03\x01", 3) + counted(2, hello);
}

// The first bytes of the answer: of a record, and of its content.
std::string answer_to(const std::string& bytes, long port) {
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const timeval patience{kPatience.count(), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("no connection");
  std::string out(7, '\0');
  const auto count = ::recv(socket.get(), out.data(), out.size(), MSG_WAITALL);
  out.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return out;
}

TEST_F(TokenTls, KeyWithoutFreshKeysIsNotEnough) {
  const auto secret = from_hex(key);
  const auto with_fresh_keys = answer_to(client_hello(secret, name, 1), daemon.port);
  ASSERT_EQ(with_fresh_keys.size(), 7u);
  EXPECT_EQ(with_fresh_keys[0], 0x16) << "the handshake goes on";
  EXPECT_EQ(with_fresh_keys[5], 0x02) << "by a ServerHello";
  EXPECT_EQ(answer_to(client_hello(secret, name, 0), daemon.port), std::string("\x15\x03\x03\x00\x02\x02\x28", 7))
      << "the alert handshake_failure";
}

// A folder with something that is called libssl.so.3.
class TokenWithoutOpenssl : public ::testing::Test {
 protected:
  static void expect_that_it_is_an_error(const std::string& folder, const std::string& why) {
    for (const std::string program : {"ddprun", "ddp-rendezvous"}) {
      SCOPED_TRACE(program);
      auto options = with_token(kToken, program);
      options.environment.push_back("LD_LIBRARY_PATH=" + folder);
      Job job(program == "ddprun" ? node_at(29'400, "echo never") : std::vector<std::string>{"--port=0"}, options);
      EXPECT_EQ(job.wait(), 2);
      EXPECT_THAT(job.err(),
                  AllOf(HasSubstr("error: there is a token, but OpenSSL can't be used: " + why),
                        HasSubstr("\nwhere: the control channel, which is TLS then\n"),
                        HasSubstr("\ntry:   install OpenSSL 3 (`apt-get install libssl3`), or run without")));
      EXPECT_THAT(job.out(), Not(HasSubstr("never")));
    }
  }
};

TEST_F(TokenWithoutOpenssl, AnotherMajorVersionIsAClearError) {
  expect_that_it_is_an_error(DDP_TEST_OTHER_OPENSSL_DIR, "what is called libssl.so.3 is of OpenSSL 1\n");
}

TEST_F(TokenWithoutOpenssl, NoneIsAClearError) {
  char name[] = "/tmp/ddprun_no_openssl_XXXXXX";
  const std::string folder = ::mkdtemp(name);
  std::ofstream(folder + "/libssl.so.3") << "";  // as the one of the system can't be hidden from all users
  expect_that_it_is_an_error(folder, folder + "/libssl.so.3: ");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ddp::test::token
