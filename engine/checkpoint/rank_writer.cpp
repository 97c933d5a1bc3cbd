#include "engine/checkpoint/rank_writer.hpp"

#include <utility>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

std::string five_digits(int number) {
  auto text = std::to_string(number);
  if (text.size() < 5) text.insert(0, 5 - text.size(), '0');
  return text;
}

}  // namespace

std::string rank_file_name(int rank, int world_size, const std::string& id) {
  return "rank-" + five_digits(rank) + "-of-" + five_digits(world_size) + "-" + id + ".safetensors";
}

RankWriter::RankWriter(Storage& storage, const Path& file, const std::vector<PieceHeader>& pieces)
    : output_(storage.create(file)) {
  SafetensorsHeader header;
  for (const auto& piece : pieces)
    header.tensors.push_back(
        {.name = piece.name, .type = piece.type, .shape = {piece.end - piece.begin}});
  const auto text = make_header(header);
  output_->append(text.data(), text.size());
  written_.file = {.name = file.filename().string(),
                   .bytes = header.header_bytes + header.tensor_bytes,
                   .header_bytes = header.header_bytes,
                   .header = digest_of(text.data(), text.size())};
  for (std::size_t i = 0; i < pieces.size(); ++i)
    written_.tensors.push_back({.name = pieces[i].name,
                                .type = pieces[i].type,
                                .shape = pieces[i].shape,
                                .pieces = {{.file = 0,
                                            .begin = pieces[i].begin,
                                            .end = pieces[i].end,
                                            .offset_bytes = header.tensors[i].offset_bytes,
                                            .digest = {},
                                            .part = pieces[i].part}},
                                .cut = pieces[i].cut});
  next_ = written_.tensors.begin();
}

void RankWriter::write(const void* data, std::size_t bytes) {
  EQUIGRAD_CHECK(next_ != written_.tensors.end(), "checkpoint.write", "every piece was announced");
  auto& piece = next_->pieces.front();
  EQUIGRAD_CHECK(
      static_cast<std::int64_t>(bytes) == (piece.end - piece.begin) * element_bytes(next_->type),
      "checkpoint.write", "a piece is as large as it was announced");
  piece.digest = digest_of(data, bytes);
  output_->append(data, bytes);
  ++next_;
}

RankFile RankWriter::finish() {
  EQUIGRAD_CHECK(next_ == written_.tensors.end(), "checkpoint.write", "every piece has come");
  output_->sync();
  output_.reset();
  return std::move(written_);
}

}  // namespace equigrad::checkpoint
