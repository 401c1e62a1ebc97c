// Reads the folder of an SSD tier: what is in it, what of it is torn. Changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/blob_file.h"

namespace triax::store {

/// <folder>/FORMAT, <folder>/LOCK, <folder>/blobs/<key>, <folder>/tmp/<number>
inline constexpr const char* kFormatText = "triax-store-1\n";

enum class ScanDepth {
  kHeaders,   // headers, sizes, and records whole
  kPayloads,  // every byte
};

struct ScannedFile {
  BlobHeader header;
  int64_t file_bytes = 0;
  int64_t modified_ns = 0;
  std::optional<Boundary> boundary;
};

struct TornFile {
  std::string name;  // in blobs/
  std::string why;
};

struct FolderScan {
  std::vector<ScannedFile> files;    // sound ones, oldest first
  std::vector<TornFile> torn;        // named like ours, but not whole
  std::vector<std::string> foreign;  // not named like ours
};

/// Errors     kNotFound: no such folder; kInvalidArgument: no store of this version;
///            kUnavailable: it cannot be read
Result<FolderScan> scan_folder(const std::string& folder, ScanDepth depth);

/// Whether FORMAT in the folder is that of this version.
Status check_format(const std::string& folder);

}  // namespace triax::store
