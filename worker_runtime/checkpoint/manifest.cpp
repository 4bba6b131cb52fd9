#include "worker_runtime/checkpoint/manifest.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"
#include "worker_runtime/tensor/checksum.hpp"
#include "worker_runtime/tensor/shape.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace ddp::checkpoint {
namespace {

constexpr const char* kFormat = "ddprun checkpoint 1";
constexpr std::uint64_t kOffsetMax = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse_manifest(const std::string& reason) { throw CheckpointError(reason); }

std::uint64_t unsigned_at(const nlohmann::json& object, const char* key, std::uint64_t max) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) {
    refuse_manifest(std::string("the manifest has no number ") + key + " where one belongs");
  }
  const auto value = found->get<std::uint64_t>();
  if (value > max) refuse_manifest(std::string("the manifest's ") + key + " is " + std::to_string(value));
  return value;
}

const std::string& text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    refuse_manifest(std::string("the manifest has no text ") + key + " where one belongs");
  }
  return found->get_ref<const std::string&>();
}

const nlohmann::json& array_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) {
    refuse_manifest(std::string("the manifest has no list ") + key + " where one belongs");
  }
  return *found;
}

std::uint64_t checksum_of_text(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    refuse_manifest("a checksum of the manifest does not have 16 hexadecimal digits");
  }
  return value;
}

Part parse_part(const nlohmann::json& json) {
  const Part part{unsigned_at(json, "bytes", kOffsetMax), checksum_of_text(text_at(json, "data_xxh3_64")),
                  unsigned_at(json, "data_at", kOffsetMax)};
  if (part.data_at > part.bytes) refuse_manifest("the data of a part begin behind its end");
  return part;
}

Piece parse_piece(const nlohmann::json& json, const std::vector<Part>& parts, const std::string& name,
                  std::uint64_t element_count, std::size_t element_bytes) {
  const Piece piece{unsigned_at(json, "part", kPartsMax), unsigned_at(json, "first", kOffsetMax),
                    unsigned_at(json, "count", kOffsetMax), unsigned_at(json, "offset", kOffsetMax)};
  if (piece.part >= parts.size()) refuse_manifest("a piece of tensor " + name + " is in a part that is not there");
  if (piece.first > element_count || piece.count > element_count - piece.first) {
    refuse_manifest("a piece of tensor " + name + " has elements beyond the tensor");
  }
  const std::uint64_t part_bytes = parts[piece.part].bytes;
  if (piece.offset < parts[piece.part].data_at) refuse_manifest("a piece of tensor " + name + " is before the data");
  if (piece.offset > part_bytes || piece.count > (part_bytes - piece.offset) / element_bytes) {
    refuse_manifest("a piece of tensor " + name + " has bytes beyond its part");
  }
  return piece;
}

std::pair<TensorKey, ManifestTensor> parse_tensor(const nlohmann::json& json, const std::vector<Part>& parts) {
  TensorKey key{kAllRanks, text_at(json, "name")};
  if (json.contains("rank")) key.rank = static_cast<int>(unsigned_at(json, "rank", kPartsMax));
  ManifestTensor tensor;
  tensor.type = type_of(text_at(json, "dtype"), key.name);
  std::vector<std::uint64_t> shape;
  for (const nlohmann::json& extent : array_at(json, "shape")) {
    if (!extent.is_number_unsigned()) refuse_manifest("the shape of tensor " + key.name + " is not made of numbers");
    shape.push_back(extent.get<std::uint64_t>());
  }
  const SizeOfShape size = size_of_shape(shape, tensor.type, key.name);
  tensor.shape.assign(shape.begin(), shape.end());
  for (const nlohmann::json& piece : array_at(json, "pieces")) {
    tensor.pieces.push_back(parse_piece(piece, parts, key.name, size.count, size_of(tensor.type)));
  }
  return {std::move(key), std::move(tensor)};
}

void sort_pieces(ManifestTensor& tensor) {
  std::sort(tensor.pieces.begin(), tensor.pieces.end(),
            [](const Piece& a, const Piece& b) { return std::tie(a.first, a.part) < std::tie(b.first, b.part); });
}

std::string text_of(const TensorKey& key) {
  return key.rank == kAllRanks ? key.name : key.name + " of rank " + std::to_string(key.rank);
}

std::string text_of(DataType type, const std::vector<std::int64_t>& shape) {
  return std::string(name_of(type)) + " " + tensor::shape_text(shape);
}

// Where a manifest says its own checksum. It is computed with zeros in that place.
constexpr const char* kOwnChecksumKey = "\"manifest_xxh3_64\":\"";

[[noreturn]] void refuse_unsaved(const TensorKey& key, std::uint64_t first) {
  throw MismatchError("elements " + std::to_string(first) + " and on of tensor " + text_of(key) +
                      " are saved by no rank\nwhere: Checkpointer::save\ntry:   the same tensors on all ranks");
}

}  // namespace

std::string text_of_checksum(std::uint64_t checksum) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(checksum));
  return text.data();
}

std::string encode(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["manifest_xxh3_64"] = text_of_checksum(0);
  json["round"] = to_string(manifest.id.round);
  json["step"] = manifest.id.step;
  json["ranks"] = manifest.rank_count;
  json["parts"] = nlohmann::ordered_json::array();
  for (const Part& part : manifest.parts) {
    json["parts"].push_back({{"bytes", part.bytes},
                             {"data_at", part.data_at},
                             {"data_xxh3_64", text_of_checksum(part.data_checksum.value_or(0))}});
  }
  auto& tensors = json["tensors"] = nlohmann::ordered_json::array();
  for (const auto& [key, tensor] : manifest.tensors) {
    nlohmann::ordered_json entry{{"name", key.name}, {"dtype", dtype_of(tensor.type)}, {"shape", tensor.shape}};
    if (key.rank != kAllRanks) entry["rank"] = key.rank;
    auto& pieces = entry["pieces"] = nlohmann::ordered_json::array();
    for (const Piece& piece : tensor.pieces) {
      pieces.push_back(
          {{"part", piece.part}, {"first", piece.first}, {"count", piece.count}, {"offset", piece.offset}});
    }
    tensors.push_back(std::move(entry));
  }
  try {
    std::string text = json.dump();
    const std::string checksum = text_of_checksum(tensor::checksum_of(std::as_bytes(std::span(text))));
    text.replace(text.find(kOwnChecksumKey) + std::string(kOwnChecksumKey).size(), checksum.size(), checksum);
    return text;
  } catch (const nlohmann::json::type_error&) {
    refuse_manifest("the name of a tensor is not UTF-8");
  }
}

Manifest parse_manifest(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse_manifest("the manifest is not a JSON object");
  if (text_at(json, "format") != kFormat)
    refuse_manifest("the manifest is of another format: " + text_at(json, "format"));
  Manifest manifest;
  const auto round = parse_round_id(text_at(json, "round"));
  if (!round) refuse_manifest("the manifest's round is " + text_at(json, "round"));
  manifest.id = {*round, unsigned_at(json, "step", std::numeric_limits<std::uint64_t>::max())};
  for (const nlohmann::json& part : array_at(json, "parts")) manifest.parts.push_back(parse_part(part));
  if (manifest.parts.empty() || manifest.parts.size() > kPartsMax) {
    refuse_manifest("the manifest has " + std::to_string(manifest.parts.size()) + " parts");
  }
  manifest.rank_count = static_cast<int>(unsigned_at(json, "ranks", kPartsMax));
  for (const nlohmann::json& tensor : array_at(json, "tensors")) {
    auto [key, value] = parse_tensor(tensor, manifest.parts);
    sort_pieces(value);
    if (!manifest.tensors.emplace(key, std::move(value)).second) {
      refuse_manifest("tensor " + text_of(key) + " stands twice in the manifest");
    }
  }
  return manifest;
}

Manifest parse_checked_manifest(std::string text) {
  const std::size_t key = text.find(kOwnChecksumKey);
  if (key == std::string::npos) refuse_manifest("the manifest has no checksum");
  const std::size_t place = key + std::string(kOwnChecksumKey).size();
  const std::string zeros = text_of_checksum(0);
  const std::string said = text.substr(place, zeros.size());
  if (said.size() < zeros.size()) refuse_manifest("the manifest ends in its checksum");
  text.replace(place, zeros.size(), zeros);
  const std::string computed = text_of_checksum(tensor::checksum_of(std::as_bytes(std::span(text))));
  if (said != computed) refuse_manifest("the manifest's checksum is " + computed + " instead of " + said);
  return parse_manifest(text);
}

Manifest merge(std::span<const Manifest> of_ranks) {
  Manifest merged;
  merged.rank_count = static_cast<int>(of_ranks.size());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Manifest& own = of_ranks[rank];
    if (rank == 0) merged.id = own.id;
    if (!(own.id == merged.id)) {
      throw MismatchError("rank 0 saves a checkpoint of step " + std::to_string(merged.id.step) + ", rank " +
                          std::to_string(rank) + " of step " + std::to_string(own.id.step) +
                          "\nwhere: Checkpointer::save\ntry:   the same step on all ranks");
    }
    merged.parts.push_back(own.parts.front());
    for (const auto& [key, tensor] : own.tensors) {
      const auto [found, is_new] = merged.tensors.try_emplace(key, ManifestTensor{tensor.type, tensor.shape, {}});
      if (found->second.type != tensor.type || found->second.shape != tensor.shape) {
        throw MismatchError("tensor " + text_of(key) + " is " + text_of(tensor.type, tensor.shape) + " on rank " +
                            std::to_string(rank) + " and " + text_of(found->second.type, found->second.shape) +
                            " on a lower rank\nwhere: Checkpointer::save\ntry:   the same tensors on all ranks");
      }
      for (Piece piece : tensor.pieces) {
        piece.part = rank;
        found->second.pieces.push_back(piece);
      }
    }
  }
  for (auto& [key, tensor] : merged.tensors) {
    sort_pieces(tensor);
    std::uint64_t end = 0;
    for (const Piece& piece : tensor.pieces) {
      if (piece.first < end) {
        throw MismatchError("tensor " + text_of(key) +
                            " is saved twice\nwhere: Checkpointer::save\ntry:   another name for one of them");
      }
      if (piece.first > end) refuse_unsaved(key, end);
      end = piece.first + piece.count;
    }
    const std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
    if (end != size_of_shape(shape, tensor.type, key.name).count) refuse_unsaved(key, end);
  }
  return merged;
}

std::vector<Read> plan_reads(const Manifest& manifest, std::span<const WantedPiece> wanted) {
  std::vector<Read> reads;
  for (std::size_t index = 0; index < wanted.size(); ++index) {
    const WantedPiece& want = wanted[index];
    const auto found = manifest.tensors.find(want.key);
    if (found == manifest.tensors.end()) refuse_manifest("it has no tensor " + text_of(want.key));
    const ManifestTensor& tensor = found->second;
    if (tensor.type != want.type || tensor.shape != want.shape) {
      refuse_manifest("tensor " + text_of(want.key) + " is " + text_of(tensor.type, tensor.shape) + ", wanted is " +
                      text_of(want.type, want.shape));
    }
    const std::uint64_t element_bytes = size_of(want.type);
    std::uint64_t next = want.first;  // element that is not read yet
    const std::uint64_t end = want.first + want.count;
    for (const Piece& piece : tensor.pieces) {
      if (piece.first > next) break;  // a hole
      const std::uint64_t piece_end = piece.first + piece.count;
      if (next >= end || piece_end <= next) continue;
      const std::uint64_t count = std::min(end, piece_end) - next;
      reads.push_back({piece.part, piece.offset + (next - piece.first) * element_bytes, index,
                       (next - want.first) * element_bytes, count * element_bytes});
      next += count;
    }
    if (next < end) {
      refuse_manifest("elements " + std::to_string(next) + " and on of tensor " + text_of(want.key) + " are missing");
    }
  }
  std::stable_sort(reads.begin(), reads.end(),
                   [](const Read& a, const Read& b) { return std::tie(a.part, a.from) < std::tie(b.part, b.from); });
  return reads;
}

}  // namespace ddp::checkpoint
