#include "worker_runtime/checkpoint/part_image.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/tensor/checksum.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

namespace ddp::checkpoint {
namespace {

constexpr const char* kChecksumKey = "data_xxh3_64";
constexpr const char* kRanksKey = "ranks";
constexpr const char* kRankPrefix = "rank_";

// "rank_3/name"
std::string own_name(int rank, const std::string& name) { return kRankPrefix + std::to_string(rank) + "/" + name; }

TensorKey key_of(const std::string& name, int rank_count) {
  const std::string prefix = kRankPrefix;
  const std::size_t slash = name.find('/');
  int rank = 0;
  if (name.compare(0, prefix.size(), prefix) != 0 || slash == std::string::npos) return {kAllRanks, name};
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + slash, rank);
  const bool is_own = error == std::errc() && rank >= 0 && rank < rank_count && end == name.data() + slash &&
                      own_name(rank, name.substr(slash + 1)) == name;
  return is_own ? TensorKey{rank, name.substr(slash + 1)} : TensorKey{kAllRanks, name};
}

std::string name_in_part(const Entry& entry) {
  if (entry.key.rank != kAllRanks) return own_name(entry.key.rank, entry.key.name);
  if (key_of(entry.key.name, static_cast<int>(kPartsMax)).rank != kAllRanks) {
    throw CheckpointError("the name " + entry.key.name + " is reserved for a tensor of one rank");
  }
  const std::vector<std::uint64_t> shape(entry.shape.begin(), entry.shape.end());
  if (size_of_shape(shape, entry.values.type, entry.key.name).count == entry.values.count) return entry.key.name;
  return entry.key.name + "[" + std::to_string(entry.first) + ":" + std::to_string(entry.first + entry.values.count) +
         "]";
}

std::optional<std::uint64_t> number_in(const Metadata& metadata, const char* key, int base) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return {};
  const std::string& text = found->second;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace

std::vector<Entry> share_of(const std::vector<Entry>& entries, int rank, int rank_count) {
  std::uint64_t all = 0;
  for (const Entry& entry : entries) all += entry.values.bytes();
  const auto limit = [&](int of) {  // in two steps, so that it does not overflow
    const auto ranks = static_cast<std::uint64_t>(rank_count), r = static_cast<std::uint64_t>(of);
    return all / ranks * r + all % ranks * r / ranks;
  };
  const std::uint64_t begin = limit(rank), end = limit(rank + 1);
  std::vector<Entry> share;
  std::uint64_t at = 0;  // byte where the entry begins
  for (const Entry& entry : entries) {
    const std::uint64_t element_bytes = size_of(entry.values.type);
    const auto element_at = [&](std::uint64_t byte) {
      if (byte <= at) return std::uint64_t{0};
      return std::min<std::uint64_t>(entry.values.count, (byte - at + element_bytes - 1) / element_bytes);
    };
    const std::uint64_t first = element_at(begin), last = element_at(end);
    // An empty tensor has no bytes to share, and belongs into the checkpoint all the same.
    if (first < last || (entry.values.count == 0 && rank == 0)) {
      Entry piece = entry;
      piece.first = first;
      piece.values.data = static_cast<std::byte*>(entry.values.data) + first * element_bytes;
      piece.values.count = last - first;
      share.push_back(std::move(piece));
    }
    at += entry.values.bytes();
  }
  return share;
}

PartLayout::PartLayout(std::span<const Entry> entries, const CheckpointId& id, int rank, int rank_count) : id_(id) {
  std::vector<NamedTensor> tensors;
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    const std::string& name = names.emplace_back(name_in_part(entry));
    const bool is_whole = name == entry.key.name || entry.key.rank != kAllRanks;
    tensors.push_back(
        {name, is_whole ? entry.shape : std::vector{static_cast<std::int64_t>(entry.values.count)}, entry.values});
  }
  tensors = in_file_order(std::move(tensors));
  header_ = encode_header(tensors, {{"round", to_string(id.round)},
                                    {"step", std::to_string(id.step)},
                                    {"rank", std::to_string(rank)},
                                    {kRanksKey, std::to_string(rank_count)},
                                    {kChecksumKey, std::string(16, '0')}});
  bytes_ = kLengthBytes + header_.size();
  std::map<std::string, std::uint64_t> offset_of_name;  // encode_header() refuses a name that is there twice
  for (const NamedTensor& tensor : tensors) {
    offset_of_name[tensor.name] = bytes_;
    bytes_ += tensor.values.bytes();
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    offsets_.push_back(offset_of_name[names[i]]);
    places_.push_back({entry.key, entry.values.type, entry.shape, entry.first, entry.values.count});
  }
}

Part PartLayout::seal(std::byte* image) const {
  const std::uint64_t header_bytes = header_.size(), before_data = kLengthBytes + header_.size();
  std::memcpy(image, &header_bytes, kLengthBytes);
  std::memcpy(image + kLengthBytes, header_.data(), header_.size());
  const Part part{bytes_, tensor::checksum_of({image + before_data, bytes_ - before_data}), before_data};
  // The metadata is the first in the header, and this key the first in the metadata.
  const std::string key = std::string("\"") + kChecksumKey + "\":\"";
  const std::string digits = text_of_checksum(*part.data_checksum);
  std::memcpy(image + kLengthBytes + header_.find(key) + key.size(), digits.data(), digits.size());
  return part;
}

Manifest PartLayout::manifest(const Part& part) const {
  Manifest manifest{id_, {part}, {}};
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    ManifestTensor& tensor =
        manifest.tensors.try_emplace(place.key, ManifestTensor{place.type, place.shape, {}}).first->second;
    tensor.pieces.push_back({0, place.first, place.count, offsets_[i]});
  }
  return manifest;
}

Manifest manifest_of(const SafetensorsFile& file, std::uint64_t data_at, std::uint64_t file_bytes,
                     const CheckpointId& id) {
  Manifest manifest{id, {{file_bytes, number_in(file.metadata(), kChecksumKey, 16), data_at}}, {}};
  const auto ranks = number_in(file.metadata(), kRanksKey, 10);
  const int rank_count = ranks && *ranks <= kPartsMax ? static_cast<int>(*ranks) : 0;
  manifest.rank_count = rank_count;
  for (const auto& [name, tensor] : file.tensors()) {
    manifest.tensors[key_of(name, rank_count)] = {tensor.type, tensor.shape, {{0, 0, tensor.count, tensor.offset}}};
  }
  return manifest;
}

}  // namespace ddp::checkpoint
