#include "rendezvous/security/token.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "rendezvous/io/unique_fd.hpp"

namespace ddp::security {
namespace {

constexpr std::size_t kTokenBytesMax = 512;
constexpr const char* kFileOfUser = "/.config/ddprun/token";
constexpr mode_t kOthers = 077;

std::string how_to_make(const std::string& path) { return "`umask 077; openssl rand -hex 32 > " + path + "`"; }

// With room for a byte too many and the line's end.
std::string contents_of(const io::UniqueFd& file, const std::string& path) {
  std::string text(kTokenBytesMax + 2, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count < 0)
    throw TokenError("the token can't be read: " + std::string(std::strerror(errno)), path, "`cat " + path + "`");
  text.resize(static_cast<std::size_t>(count));
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::optional<Token> read_file(const std::string& path, bool must_exist) {
  const io::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && !must_exist && (errno == ENOENT || errno == ENOTDIR)) return {};
  if (!file)
    throw TokenError("the file with the token can't be opened: " + std::string(std::strerror(errno)), path,
                     how_to_make(path));
  struct stat info {};
  ::fstat(file.get(), &info);
  if (!S_ISREG(info.st_mode)) throw TokenError("what should hold the token is no file", path, how_to_make(path));
  if ((info.st_mode & kOthers) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    throw TokenError(std::string("the file with the token has mode ") + mode + ", so others can read or change it",
                     path, "`chmod 600 " + path + "`, and make a new token if others may have read this one");
  }
  try {
    return Token(contents_of(file, path));
  } catch (const InvalidArgument& error) {
    throw TokenError(error.what(), path, how_to_make(path));
  }
}

}  // namespace

Token::Token(std::string text) : text_(std::move(text)) {
  if (text_.empty()) throw InvalidArgument("the token is empty");
  if (text_.size() > kTokenBytesMax)
    throw InvalidArgument("the token is longer than " + std::to_string(kTokenBytesMax) + " characters");
  if (!std::all_of(text_.begin(), text_.end(), [](char c) { return c > ' ' && c <= '~'; }))
    throw InvalidArgument("the token has a space, or a character that does not print");
}

bool Token::is(std::string_view text) const {
  unsigned char difference = text.size() == text_.size() ? 0 : 1;
  for (std::size_t i = 0; i < text.size(); ++i)
    difference = static_cast<unsigned char>(difference | (text[i] ^ text_[i % text_.size()]));
  return difference == 0;
}

std::optional<Token> find_token(const std::optional<std::string>& file,
                                const std::function<std::optional<std::string>(const std::string&)>& environment) {
  if (file) return read_file(*file, true);
  if (const auto text = environment("DDPRUN_TOKEN")) {
    try {
      return Token(*text);
    } catch (const InvalidArgument& error) {
      throw TokenError(error.what(), "environment variable DDPRUN_TOKEN",
                       "`export DDPRUN_TOKEN=$(openssl rand -hex 32)`, the same on all nodes, or unset it");
    }
  }
  const auto home = environment("HOME");
  return home && !home->empty() ? read_file(*home + kFileOfUser, false) : std::nullopt;
}

std::optional<Token> find_scrape_token(const std::optional<std::string>& file, const std::optional<Token>& token) {
  if (!file) return {};
  auto scrape = read_file(*file, true);
  if (token && token->is(scrape->text()))
    throw TokenError("the token for scrapers is the one that lets nodes join", *file, how_to_make(*file));
  return scrape;
}

}  // namespace ddp::security
