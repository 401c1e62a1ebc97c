#include "checkpoint/quantize.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/atomic_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/quantize_plan.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/writer.h"
#include "tensor/quantize.h"

namespace triax::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBandElements = int64_t{1} << 24;  // of the input, held in memory at a time
constexpr int64_t kSmallFileBytesMax = int64_t{64} << 20;
constexpr int64_t kCopyBytes = int64_t{64} << 20;
constexpr const char* kSourceKey = "triax_source";

/// Names of the regular files in `directory`; none when it cannot be read.
std::vector<std::string> file_names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) {
      names.push_back(it->path().filename().string());
    }
  }
  return names;
}

/// What an output shard was made from: the input's config, tensors and files, and the options.
std::string source_id(const Checkpoint& checkpoint, const QuantizeOptions& options) {
  Hasher hash;
  hash.number(static_cast<int64_t>(checkpoint.fingerprint()));
  for (const SafetensorsFile& file : checkpoint.files()) {
    std::error_code error;
    const fs::path path(file.source());
    hash.text(path.filename().string()).number(file.data_bytes());
    hash.number(fs::last_write_time(path, error).time_since_epoch().count());
  }
  hash.number(options.experts_mxfp4).number(options.dense_int8).number(options.embedding_int8);
  hash.number(options.shard_bytes);
  return fmt::format("{:016x}", hash.finish());
}

/// Rows [begin, end) of a matrix, quantised by all threads.
class BandQuantizer {
 public:
  BandQuantizer(const QuantizeItem& item, ThreadPool& threads)
      : threads_(threads),
        input_(item.matrix),
        mxfp4_(item.treatment == Treatment::kMxfp4),
        rows_(static_cast<size_t>(threads.threads())) {
    band_rows_ = std::clamp<int64_t>(kBandElements / input_.cols, 1, input_.rows);
    values_.resize(static_cast<size_t>(band_rows_ * value_row_bytes()));
    scales_.resize(static_cast<size_t>(band_rows_ * scale_row_bytes()));
    for (std::vector<float>& row : rows_) {
      row.resize(static_cast<size_t>(input_.cols));
    }
  }

  int64_t rows() const { return input_.rows; }
  int64_t band_rows() const { return band_rows_; }
  int64_t value_row_bytes() const { return mxfp4_ ? input_.cols / 2 : input_.cols; }
  int64_t scale_row_bytes() const { return input_.cols / kScaleBlock * (mxfp4_ ? 1 : 2); }
  std::span<const std::byte> values(int64_t rows) const {
    return std::span(values_).first(static_cast<size_t>(rows * value_row_bytes()));
  }
  std::span<const std::byte> scales(int64_t rows) const {
    return std::span(scales_).first(static_cast<size_t>(rows * scale_row_bytes()));
  }

  /// The first row that holds NaN or infinity, or -1.
  int64_t run(int64_t begin, int64_t end) {
    std::atomic<int64_t> bad{input_.rows};
    threads_.run_ranges(end - begin, 16, [&](int64_t first, int64_t last, int worker) {
      for (int64_t r = first; r < last; ++r) {
        if (!quantize_row(begin + r, r, rows_[static_cast<size_t>(worker)])) {
          int64_t seen = bad.load();
          while (begin + r < seen && !bad.compare_exchange_weak(seen, begin + r)) {
          }
        }
      }
    });
    return bad.load() == input_.rows ? -1 : bad.load();
  }

 private:
  bool quantize_row(int64_t from, int64_t to, std::vector<float>& row) {
    dequantize_row(input_, from, row.data());
    std::byte* values = values_.data() + to * value_row_bytes();
    std::byte* scales = scales_.data() + to * scale_row_bytes();
    if (mxfp4_) {
      quantize_row_mxfp4(row.data(), input_.cols, reinterpret_cast<uint8_t*>(values),
                         reinterpret_cast<uint8_t*>(scales));
    } else {
      quantize_row_int8(row.data(), input_.cols, reinterpret_cast<int8_t*>(values),
                        reinterpret_cast<Bf16*>(scales));
    }
    return std::ranges::all_of(row, [](float x) { return std::isfinite(x); });
  }

  ThreadPool& threads_;
  MatrixView input_;
  bool mxfp4_;
  int64_t band_rows_ = 0;
  std::vector<std::byte> values_, scales_;
  std::vector<std::vector<float>> rows_;  // by worker
};

class CheckpointQuantizer {
 public:
  CheckpointQuantizer(const Checkpoint& input, const std::string& out_dir,
                      const QuantizeOptions& options, ThreadPool& threads,
                      FunctionRef<bool(const QuantizeProgress&)> progress)
      : input_(input),
        out_dir_(out_dir),
        options_(options),
        threads_(threads),
        report_progress_(progress) {}

  Result<QuantizeReport> run() {
    plan_ = plan_quantization(input_, options_);
    source_ = source_id(input_, options_);
    for (auto step :
         {&CheckpointQuantizer::check_output, &CheckpointQuantizer::write_shards,
          &CheckpointQuantizer::copy_small_files, &CheckpointQuantizer::write_configs}) {
      if (Status status = (this->*step)(); !status.ok()) {
        return status;
      }
    }
    return report_;
  }

 private:
  Status check_output();
  Status write_shards();
  Status write_shard(const QuantizeShard& shard);
  Status write_matrix(const QuantizeItem& item, SafetensorsWriter& writer);
  Status copy_tensor(const QuantizeItem& item, SafetensorsWriter& writer);
  Status copy_small_files();
  Status write_configs();
  bool is_complete(const QuantizeShard& shard) const;
  Status advance(std::string_view file, const QuantizeItem& item);
  std::string out_path(std::string_view file) const { return (fs::path(out_dir_) / file).string(); }

  const Checkpoint& input_;
  std::string out_dir_;
  QuantizeOptions options_;
  ThreadPool& threads_;
  FunctionRef<bool(const QuantizeProgress&)> report_progress_;
  std::vector<QuantizeShard> plan_;
  std::string source_;
  QuantizeProgress progress_;
  QuantizeReport report_;
};

/// The folder is ours to write: nothing in it belongs to another set of weights.
Status CheckpointQuantizer::check_output() {
  std::error_code error;
  fs::create_directories(out_dir_, error);
  if (!fs::is_directory(out_dir_, error)) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: cannot make this folder; name another", out_dir_));
  }
  if (fs::equivalent(out_dir_, input_.directory(), error)) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: output and input are the same folder; name another for the "
                    "output",
                    out_dir_));
  }
  std::set<std::string> ours;
  for (const QuantizeShard& shard : plan_) {
    ours.insert(shard.shard.file);
  }
  for (const std::string& name : file_names(out_dir_)) {
    if (name.starts_with("model") && name.ends_with(".safetensors") && !ours.contains(name)) {
      return Status::invalid_argument(
          fmt::format("checkpoint: {}: holds {}, which this run would not write; choose an empty "
                      "folder, or remove what is there",
                      out_dir_, name));
    }
  }
  return {};
}

bool CheckpointQuantizer::is_complete(const QuantizeShard& shard) const {
  Result<SafetensorsFile> file = SafetensorsFile::open(out_path(shard.shard.file));
  if (!file.ok() || file->entries().size() != shard.shard.tensors.size()) {
    return false;
  }
  const auto source = std::pair<std::string, std::string>(kSourceKey, source_);
  if (std::ranges::find(file->metadata(), source) == file->metadata().end()) {
    return false;
  }
  return std::ranges::all_of(shard.shard.tensors, [&](const TensorPlan& tensor) {
    const TensorEntry* entry = file->find(tensor.name);
    return entry != nullptr && entry->type == tensor.type &&
           std::ranges::equal(entry->shape(), tensor.shape);
  });
}

Status CheckpointQuantizer::write_shards() {
  std::vector<bool> complete;
  for (const QuantizeShard& shard : plan_) {
    complete.push_back(is_complete(shard));
    for (const QuantizeItem& item : shard.items) {
      progress_.bytes_total += item.entry->bytes;
    }
  }
  if (std::ranges::find(complete, false) != complete.end()) {
    // Until every shard is there, the folder must not pass for a checkpoint.
    std::error_code error;
    fs::remove(out_path(kIndexFile), error);
    fs::remove(out_path("config.json"), error);
  }
  report_.bytes_in = progress_.bytes_total;
  for (size_t i = 0; i < plan_.size(); ++i) {
    report_.bytes_out += plan_[i].shard.bytes;
    ++report_.shards;
    if (complete[i]) {
      ++report_.shards_reused;
    } else if (Status status = write_shard(plan_[i]); !status.ok()) {
      return status;
    }
    for (const QuantizeItem& item : plan_[i].items) {
      progress_.bytes_done += complete[i] ? item.entry->bytes : 0;
      ++(item.treatment == Treatment::kMxfp4  ? report_.matrices_mxfp4
         : item.treatment == Treatment::kInt8 ? report_.matrices_int8
                                              : report_.tensors_copied);
    }
  }
  return {};
}

Status CheckpointQuantizer::write_shard(const QuantizeShard& shard) {
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(
      out_path(shard.shard.file), shard.shard.tensors, {{"format", "pt"}, {kSourceKey, source_}});
  if (!writer.ok()) {
    return writer.status();
  }
  for (const QuantizeItem& item : shard.items) {
    Status status = item.treatment == Treatment::kCopy ? copy_tensor(item, *writer)
                                                       : write_matrix(item, *writer);
    if (status.ok()) {
      status = advance(shard.shard.file, item);
    }
    if (!status.ok()) {
      return status;
    }
  }
  return writer->finish();
}

Status CheckpointQuantizer::advance(std::string_view file, const QuantizeItem& item) {
  progress_.bytes_done += item.entry->bytes;
  progress_.file = file;
  progress_.tensor = item.entry->name;
  if (report_progress_(progress_)) {
    return {};
  }
  return Status::cancelled(
      fmt::format("checkpoint: {}: stopped at {} of {} bytes; run it again to "
                  "continue",
                  out_dir_, progress_.bytes_done, progress_.bytes_total));
}

Status CheckpointQuantizer::copy_tensor(const QuantizeItem& item, SafetensorsWriter& writer) {
  for (int64_t at = 0; at < item.entry->bytes; at += kCopyBytes) {
    const int64_t count = std::min(kCopyBytes, item.entry->bytes - at);
    if (Status status = writer.write(item.outputs[0].name, at,
                                     {item.entry->data + at, static_cast<size_t>(count)});
        !status.ok()) {
      return status;
    }
  }
  return {};
}

Status CheckpointQuantizer::write_matrix(const QuantizeItem& item, SafetensorsWriter& writer) {
  BandQuantizer band(item, threads_);
  for (int64_t begin = 0; begin < band.rows(); begin += band.band_rows()) {
    const int64_t rows = std::min(band.band_rows(), band.rows() - begin);
    if (const int64_t bad = band.run(begin, begin + rows); bad >= 0) {
      return Status::data_loss(fmt::format(
          "checkpoint: {}: row {} of tensor '{}' holds NaN or infinity, expected finite "
          "weights; it cannot be quantised",
          input_.directory(), bad, item.entry->name));
    }
    Status status =
        writer.write(item.outputs[0].name, begin * band.value_row_bytes(), band.values(rows));
    if (status.ok()) {
      status =
          writer.write(item.outputs[1].name, begin * band.scale_row_bytes(), band.scales(rows));
    }
    if (!status.ok()) {
      return status;
    }
  }
  return {};
}

Status CheckpointQuantizer::copy_small_files() {
  for (const std::string& name : file_names(input_.directory())) {
    const fs::path path = fs::path(input_.directory()) / name;
    std::error_code error;
    const auto bytes_in = static_cast<int64_t>(fs::file_size(path, error));
    const bool weights = name.ends_with(".safetensors") || name == kIndexFile;
    if (weights || name == "config.json" || name[0] == '.' || bytes_in > kSmallFileBytesMax) {
      continue;
    }
    Result<MappedFile> file = MappedFile::open(path.string());
    if (!file.ok()) {
      return file.status();
    }
    const std::span<const std::byte> bytes = file->bytes();
    if (Status status =
            write_file(out_path(name), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        !status.ok()) {
      return status;
    }
  }
  return {};
}

Status CheckpointQuantizer::write_configs() {
  Result<MappedFile> file =
      MappedFile::open((fs::path(input_.directory()) / "config.json").string());
  if (!file.ok()) {
    return file.status();
  }
  const std::span<const std::byte> bytes = file->bytes();
  Result<std::string> config =
      quantized_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options_);
  if (!config.ok()) {
    return config.status();
  }
  if (Status status = write_file(out_path("config.json"), *config); !status.ok()) {
    return status;
  }
  std::vector<Shard> shards;
  for (QuantizeShard& shard : plan_) {
    shards.push_back(std::move(shard.shard));
  }
  return write_index(out_dir_, shards);
}

}  // namespace

Result<QuantizeReport> quantize_checkpoint(const std::string& in_dir, const std::string& out_dir,
                                           const QuantizeOptions& options, ThreadPool& threads,
                                           FunctionRef<bool(const QuantizeProgress&)> progress) {
  if (options.shard_bytes < 1) {
    return Status::invalid_argument(
        fmt::format("checkpoint: shard_bytes is {}, expected at least 1", options.shard_bytes));
  }
  Result<Checkpoint> input = Checkpoint::open(in_dir);
  if (!input.ok()) {
    return input.status();
  }
  return CheckpointQuantizer(*input, out_dir, options, threads, progress).run();
}

}  // namespace triax::checkpoint
