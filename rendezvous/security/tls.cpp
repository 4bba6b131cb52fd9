#include "rendezvous/security/tls.hpp"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <string>
#include <vector>

#include "base/library.hpp"

namespace ddp::security {

using boost::system::error_code;

namespace {

constexpr std::string_view kSalt = "ddprun", kLabelOfKey = "control channel, TLS 1.3 pre-shared key";
// A key is known by its name, because a server with two tokens must choose the key before it can check one.
constexpr std::string_view kLabelOfName = "control channel, name of the key", kNamePrefix = "ddprun-";
constexpr std::size_t kNameBytes = 8;
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";  // those of the key's hash
constexpr std::array<unsigned char, 2> kCipherOfKey{0x13, 0x01};                         // the first of them
constexpr std::size_t kKeyBytes = 32;
constexpr int kMajorVersionShift = 28;  // in OpenSSL_version_num(), since 1.1.0

// clang-format off
#define DDP_OPENSSL_FUNCTIONS(X)                                                                                       \
  X(BIO_clear_flags) X(BIO_get_data) X(BIO_meth_new) X(BIO_meth_set_ctrl) X(BIO_meth_set_read) X(BIO_meth_set_write)   \
  X(BIO_new) X(BIO_set_data) X(BIO_set_flags) X(BIO_set_init) X(ERR_clear_error) X(ERR_get_error) X(EVP_sha256)        \
  X(HMAC) X(OPENSSL_cleanse) X(SSL_CIPHER_find) X(SSL_CTX_ctrl) X(SSL_CTX_free) X(SSL_CTX_get_ex_data)                 \
  X(SSL_CTX_new) X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_ex_data) X(SSL_CTX_set_num_tickets)                         \
  X(SSL_CTX_set_options) X(SSL_CTX_set_psk_find_session_callback) X(SSL_CTX_set_psk_use_session_callback)              \
  X(SSL_SESSION_free) X(SSL_SESSION_new) X(SSL_SESSION_set1_master_key) X(SSL_SESSION_set_cipher)                      \
  X(SSL_SESSION_set_protocol_version) X(SSL_SESSION_up_ref) X(SSL_do_handshake) X(SSL_free) X(SSL_get_SSL_CTX)         \
  X(SSL_get_error) X(SSL_new) X(SSL_read_ex) X(SSL_session_reused) X(SSL_set_accept_state) X(SSL_set_bio)              \
  X(SSL_set_connect_state) X(SSL_set_verify) X(SSL_shutdown) X(SSL_write_ex) X(TLS_method)
// clang-format on

// The functions of OpenSSL that are used here.
struct OpenSsl {
#define DDP_DECLARE(name) decltype(&::name) name = nullptr;
  DDP_OPENSSL_FUNCTIONS(DDP_DECLARE)
#undef DDP_DECLARE
  BIO_METHOD* socket_method = nullptr;

  OpenSsl();

 private:
  base::Library library_;
};

[[noreturn]] void throw_unusable(const std::string& why) {
  throw TokenError("there is a token, but OpenSSL can't be used: " + why, "the control channel, which is TLS then",
                   "install OpenSSL " + std::to_string(OPENSSL_SHLIB_VERSION) + " (`apt-get install libssl" +
                       std::to_string(OPENSSL_SHLIB_VERSION) + "`), or run without a token");
}

// It stays loaded: it registers functions that are called at the program's end.
const OpenSsl& open_ssl() {
  static const auto* const library = new OpenSsl;
  return *library;
}

class OpenSslSession : public TlsSession {
 public:
  OpenSslSession(SSL_CTX* context, int socket, Tls::Side side)
      : ssl_(open_ssl().SSL_new(context)), socket_(socket), is_client_(side == Tls::Side::client) {
    const auto& library = open_ssl();
    auto* const bio = ssl_ == nullptr ? nullptr : library.BIO_new(library.socket_method);
    if (bio == nullptr) return;  // out of memory: the handshake fails
    library.BIO_set_data(bio, this);
    library.BIO_set_init(bio, 1);
    library.SSL_set_bio(ssl_, bio, bio);
    // Who answers with a certificate, in place of the key, has not shown that it has the token.
    if (is_client_) library.SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);
    is_client_ ? library.SSL_set_connect_state(ssl_) : library.SSL_set_accept_state(ssl_);
    is_ready_ = true;
  }
  ~OpenSslSession() override { open_ssl().SSL_free(ssl_); }
  OpenSslSession(const OpenSslSession&) = delete;

  Result shake_hands() override {
    if (!is_ready_) return {Want::nothing, 0, boost::asio::error::no_memory};
    const auto result = call([&](std::size_t&) { return open_ssl().SSL_do_handshake(ssl_); });
    if (result.want != Want::nothing || result.error) return result;
    if (open_ssl().SSL_session_reused(ssl_) == 0) return {Want::nothing, 0, failed(TlsFailure::stranger)};  // no key
    is_open_ = true;
    return result;
  }

  Result read_some(void* data, std::size_t size) override {
    return call([&](std::size_t& bytes) { return open_ssl().SSL_read_ex(ssl_, data, size, &bytes); });
  }

  Result write_some(const void* data, std::size_t size) override {
    return call([&](std::size_t& bytes) { return open_ssl().SSL_write_ex(ssl_, data, size, &bytes); });
  }

  void say_goodbye() override {
    if (is_open_) call([&](std::size_t&) { return open_ssl().SSL_shutdown(ssl_) >= 0 ? 1 : -1; });
  }

  std::optional<TlsFailure> failure() const override { return failure_; }

  // What OpenSSL reads and writes by.
  static int receive(BIO* bio, char* data, int size) {
    auto& self = of(bio);
    const ssize_t count = ::recv(self.socket_, data, static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (count == 0) self.is_at_end_ = true;
    return self.transferred(bio, count, BIO_FLAGS_READ);
  }
  static int send(BIO* bio, const char* data, int size) {
    auto& self = of(bio);
    const ssize_t count = ::send(self.socket_, data, static_cast<std::size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
    return self.transferred(bio, count, BIO_FLAGS_WRITE);
  }
  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return of(bio).is_at_end_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

 private:
  static OpenSslSession& of(BIO* bio) { return *static_cast<OpenSslSession*>(open_ssl().BIO_get_data(bio)); }

  int transferred(BIO* bio, ssize_t count, int direction) {
    open_ssl().BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
      open_ssl().BIO_set_flags(bio, direction | BIO_FLAGS_SHOULD_RETRY);
    else if (count < 0)
      socket_error_ = errno;
    return static_cast<int>(count);
  }

  template <class Call>
  Result call(Call what) {
    const auto& library = open_ssl();
    library.ERR_clear_error();
    Result result;
    const int answer = what(result.bytes);
    if (answer > 0) return result;
    result.bytes = 0;
    const int error = library.SSL_get_error(ssl_, answer);
    if (error == SSL_ERROR_WANT_READ)
      result.want = Want::read;
    else if (error == SSL_ERROR_WANT_WRITE)
      result.want = Want::write;
    else
      result.error = error_of(error);
    return result;
  }

  error_code error_of(int ssl_error) {
    if (socket_error_ != 0) return {socket_error_, boost::system::system_category()};
    if (is_at_end_ || ssl_error == SSL_ERROR_ZERO_RETURN) return boost::asio::error::eof;
    if (is_open_) return failed(TlsFailure::broken);
    const int reason = ERR_GET_REASON(open_ssl().ERR_get_error());
    if (!is_client_)
      return failed(reason == SSL_R_BINDER_DOES_NOT_VERIFY ? TlsFailure::other_token : TlsFailure::stranger);
    if (reason == SSL_AD_REASON_OFFSET + SSL_AD_ACCESS_DENIED) return failed(TlsFailure::no_token_there);
    // By this OpenSSL answers a key that is not the one of that name.
    if (reason == SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER) return failed(TlsFailure::other_token);
    return failed(TlsFailure::stranger);
  }

  error_code failed(TlsFailure how) {
    failure_ = how;
    return make_error_code(boost::system::errc::protocol_error);
  }

  SSL* ssl_;
  int socket_;
  int socket_error_ = 0;
  std::optional<TlsFailure> failure_;
  bool is_client_, is_ready_ = false, is_open_ = false, is_at_end_ = false;
};

OpenSsl::OpenSsl() : library_("libssl.so." + std::to_string(OPENSSL_SHLIB_VERSION)) {
  if (!library_) throw_unusable(library_.error());
  decltype(&::OpenSSL_version_num) version = nullptr;
  library_.find("OpenSSL_version_num", version);
  const auto major = version == nullptr ? 0 : version() >> kMajorVersionShift;
  if (major != OPENSSL_VERSION_MAJOR)
    throw_unusable("what is called libssl.so." + std::to_string(OPENSSL_SHLIB_VERSION) + " is " +
                   (major == 0 ? "no OpenSSL" : "of OpenSSL " + std::to_string(major)));
#define DDP_FIND(name) \
  if (!library_.find(#name, name)) throw_unusable("it has no " #name);
  DDP_OPENSSL_FUNCTIONS(DDP_FIND)
#undef DDP_FIND
  socket_method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket that does not block");
  if (socket_method == nullptr) throw_unusable("out of memory");
  BIO_meth_set_read(socket_method, OpenSslSession::receive);
  BIO_meth_set_write(socket_method, OpenSslSession::send);
  BIO_meth_set_ctrl(socket_method, OpenSslSession::control);
}

struct Key {
  std::array<unsigned char, kKeyBytes> bytes{};
  ~Key() { open_ssl().OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

void authenticate(const Key& key, std::string_view text, Key& out) {
  const auto& library = open_ssl();
  library.HMAC(library.EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()),
               reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.bytes.data(), nullptr);
}

// RFC 5869 with SHA-256. The key is as long as the hash, so one block is all; the salt is filled up with zeros.
void derive(const Token& token, std::string_view label, Key& out) {
  Key salt, extracted;
  kSalt.copy(reinterpret_cast<char*>(salt.bytes.data()), kSalt.size());
  authenticate(salt, token.text(), extracted);
  authenticate(extracted, std::string(label) + '\x01', out);
}

std::string name_of_key(const Token& token) {
  Key name;
  derive(token, kLabelOfName, name);
  std::string out(kNamePrefix);
  for (std::size_t i = 0; i < kNameBytes; ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    out += {kDigits[name.bytes[i] >> 4], kDigits[name.bytes[i] & 0xf]};
  }
  return out;
}

// A token in the form in which OpenSSL wants it.
struct NamedKey {
  std::string name;
  SSL_SESSION* session = nullptr;
};

}  // namespace

struct Tls::Impl {
  explicit Impl(const Tokens& tokens) : context(library.SSL_CTX_new(library.TLS_method())) {
    bool ok = context != nullptr;
    if (ok) {
      for (const int command : {SSL_CTRL_SET_MIN_PROTO_VERSION, SSL_CTRL_SET_MAX_PROTO_VERSION})
        ok = ok && library.SSL_CTX_ctrl(context, command, TLS1_3_VERSION, nullptr) == 1;
      library.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
      library.SSL_CTX_ctrl(
          context, SSL_CTRL_MODE,
          SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, nullptr);
      library.SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
      library.SSL_CTX_set_ex_data(context, 0, this);
      library.SSL_CTX_set_psk_use_session_callback(context, use_key);
      library.SSL_CTX_set_psk_find_session_callback(context, find_key);
      ok = ok && library.SSL_CTX_set_num_tickets(context, 0) == 1 &&
           library.SSL_CTX_set_ciphersuites(context, kCiphers) == 1;
    }
    for (const auto& token : tokens.all()) ok = ok && add_key(token);
    if (ok) return;
    free();
    throw_unusable("it refuses TLS 1.3 with a pre-shared key");
  }
  ~Impl() { free(); }

  // Only to look up the cipher by.
  bool add_key(const Token& token) {
    SSL* const any = library.SSL_new(context);
    const auto* const cipher = any == nullptr ? nullptr : library.SSL_CIPHER_find(any, kCipherOfKey.data());
    library.SSL_free(any);
    auto* const session = library.SSL_SESSION_new();
    keys.push_back({name_of_key(token), session});
    Key key;
    derive(token, kLabelOfKey, key);
    return cipher != nullptr && session != nullptr &&
           library.SSL_SESSION_set1_master_key(session, key.bytes.data(), key.bytes.size()) == 1 &&
           library.SSL_SESSION_set_cipher(session, cipher) == 1 &&
           library.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  }

  void free() {
    for (const auto& key : keys) library.SSL_SESSION_free(key.session);
    library.SSL_CTX_free(context);
  }

  SSL_SESSION* one_more(const NamedKey& key) const {
    library.SSL_SESSION_up_ref(key.session);
    return key.session;
  }

  static Impl& of(SSL* ssl) {
    const auto& library = open_ssl();
    return *static_cast<Impl*>(library.SSL_CTX_get_ex_data(library.SSL_get_SSL_CTX(ssl), 0));
  }

  // A client's key.
  static int use_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* identity_bytes,
                     SSL_SESSION** session) {
    const auto& self = of(ssl);
    const auto& key = self.keys.front();
    *identity = reinterpret_cast<const unsigned char*>(key.name.data());
    *identity_bytes = key.name.size();
    *session = self.one_more(key);
    return 1;
  }

  // A server's key of that name. A client with another token gets one too: its proof then fails, by which both sides
  // know the reason.
  static int find_key(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes, SSL_SESSION** session) {
    const std::string_view name(reinterpret_cast<const char*>(identity), identity_bytes);
    const auto& self = of(ssl);
    const auto found =
        std::find_if(self.keys.begin(), self.keys.end(), [&](const auto& key) { return key.name == name; });
    const bool is_of_others = found == self.keys.end() && name.substr(0, kNamePrefix.size()) != kNamePrefix;
    *session = is_of_others ? nullptr : self.one_more(found == self.keys.end() ? self.keys.front() : *found);
    return 1;
  }

  const OpenSsl& library = open_ssl();
  SSL_CTX* context;
  std::vector<NamedKey> keys;  // the first is a client's
};

Tls::Tls(const Tokens& tokens) : impl_(std::make_unique<Impl>(tokens)) {}
Tls::~Tls() = default;

std::unique_ptr<TlsSession> Tls::begin(int socket, Side side) const {
  return std::make_unique<OpenSslSession>(impl_->context, socket, side);
}

void refuse_tls(int socket) {
  // A record with one alert (RFC 8446, 5.1 and 6). What was read before would be a reset, which overtakes the alert.
  constexpr std::array<unsigned char, 7> kAlert{SSL3_RT_ALERT, 3, 3, 0, 2, SSL3_AL_FATAL, SSL_AD_ACCESS_DENIED};
  std::array<char, 4096> hello;
  (void)::recv(socket, hello.data(), hello.size(), MSG_DONTWAIT);
  (void)::send(socket, kAlert.data(), kAlert.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
}

}  // namespace ddp::security
